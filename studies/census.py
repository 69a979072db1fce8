"""The Adult census as the studies of inference games take it."""

from __future__ import annotations

from dataclasses import replace

from gradleak.data import Encoding, Population
from gradleak.datasets import adult_population


def census(*, encoding: Encoding, standardized: bool = False, keep_sensitive: bool = False) -> Population:
    """The rows of the census with gender as the sensitive variable.

    Standardized inputs have mean 0 and variance 1 over all rows, private ones among them, as many papers prepare tables:
    then no input is 0, whereas ranges that are stated, as here otherwise, tell nothing of the rows.

    Args:
        encoding: of the categories.
        standardized: whether every input is moved and scaled; one that is the same in all rows becomes 0.
        keep_sensitive: whether the inputs hold the sensitive variable.
    """
    population = adult_population(keep_sensitive=keep_sensitive, encoding=encoding)
    if not standardized:
        return population
    inputs = population.inputs.double()
    spread = inputs.std(dim=0)
    scaled = (inputs - inputs.mean(dim=0)) / spread.where(spread > 0, 1.0)
    return replace(
        population, inputs=scaled.to(population.inputs), name=f"{population.name}, standardized", domain=None
    )


__all__ = ["census"]

"""Stages of a search: stretches with one optimizer each."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral

from gradleak.attacks.inversion.evaluation import PLAIN_GRADIENTS_PER_EVALUATION
from gradleak.attacks.inversion.optimizers import Optimizer
from gradleak.attacks.inversion.populations import HandOn, PopulationOptimizer
from gradleak.attacks.inversion.variables import Part
from gradleak.results import InputError, check_count, member

MAX_ITERATIONS = 10**8
"""More than any search can be meant to take."""


@dataclass(frozen=True, kw_only=True)
class SearchStage:
    """One stretch of a search with one optimizer.

    Attributes:
        optimizer: how it steps, down the gradient or by populations of latents (`CMAES`).
        iterations: iterations of that optimizer, each of `optimizer.evaluations` gradients or of one population.
        restart_after: a start whose matching loss has not improved for so many evaluations goes back to its best
            iterate, with half the step and a fresh optimizer state; None for never. L-BFGS without a line search
            needs it where a step too long has led it away. Not for populations, which take no steps.
        part: what it moves of the unknowns behind a generator; the rest is held. Populations move latents.
    """

    optimizer: Optimizer | PopulationOptimizer
    iterations: int
    restart_after: int | None = None
    part: Part = Part.ALL

    def __post_init__(self) -> None:
        """Check the counts and the part."""
        object.__setattr__(self, "part", member("SearchStage.part", Part, self.part))
        if isinstance(self.optimizer, PopulationOptimizer):
            if self.part is Part.ALL:
                object.__setattr__(self, "part", Part.LATENTS)
            if self.part is Part.WEIGHTS or self.restart_after is not None:
                raise InputError(
                    "SearchStage: expected part='latents' and no restart_after for populations, got "
                    f"part={self.part.value!r} and restart_after={self.restart_after}"
                )
        if self.restart_after is not None:
            check_count("SearchStage.restart_after", self.restart_after)
        check_iterations("SearchStage.iterations", self.iterations)

    @property
    def evaluations(self) -> int:
        """Gradients of the objective a start takes in this stage, without the last value; none for populations."""
        return self.iterations * self.optimizer.evaluations if isinstance(self.optimizer, Optimizer) else 0

    @property
    def planned(self) -> int:
        """Entries of the history if the stage does not end early."""
        if isinstance(self.optimizer, Optimizer):
            return self.evaluations + 1
        return self.iterations + (self.optimizer.hand_on is HandOn.SAMPLE)

    @property
    def passes(self) -> float:
        """The cost of a start in releases: 3 for a gradient of the matching loss, 1 for a value of a candidate."""
        if isinstance(self.optimizer, Optimizer):
            return PLAIN_GRADIENTS_PER_EVALUATION * self.planned
        return self.iterations * self.optimizer.population + float(self.optimizer.hand_on is HandOn.SAMPLE)


def check_iterations(name: str, value: object) -> None:
    """Refuse what is no whole number of iterations that anybody can mean."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or not 1 <= value <= MAX_ITERATIONS:  # type: ignore[operator]
        raise InputError(f"{name}: expected 1 to {MAX_ITERATIONS:,}, got {value!r}")


__all__ = ["MAX_ITERATIONS", "SearchStage", "check_iterations"]

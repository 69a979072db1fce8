"""Stages of a search: stretches with one optimizer each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from gradleak.attacks.inversion.evaluation import PLAIN_GRADIENTS_PER_EVALUATION
from gradleak.attacks.inversion.optimizers import Optimizer
from gradleak.attacks.inversion.populations import HandOn, PopulationOptimizer
from gradleak.attacks.inversion.variables import Part
from gradleak.results import Count, InputError, Settings, Whole

Iterations = Annotated[int, Whole(1, 10**8)]
"""No more than any search can be meant to take."""


@dataclass(frozen=True, kw_only=True)
class SearchStage(Settings):
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
    iterations: Iterations
    restart_after: Count | None = None
    part: Part = Part.ALL

    def __post_init__(self) -> None:
        """Check what depends on more than one field."""
        super().__post_init__()
        if isinstance(self.optimizer, PopulationOptimizer):
            if self.part is Part.ALL:
                object.__setattr__(self, "part", Part.LATENTS)
            if self.part is Part.WEIGHTS or self.restart_after is not None:
                raise InputError(
                    "SearchStage: expected part='latents' and no restart_after for populations, got "
                    f"part={self.part.value!r} and restart_after={self.restart_after}"
                )

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

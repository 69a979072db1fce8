"""Schedules of the learning rate over a run."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from gradleak.results import (
    BelowOne,
    InputError,
    Positive,
    Probability,
    Settings,
    Share,
)


class Schedule(Settings, ABC):
    """A factor of the learning rate, by how much of the run is done."""

    @abstractmethod
    def __call__(self, evaluation: int, evaluations: int) -> float:
        """The factor of the step after evaluation number `evaluation` (from 0) of `evaluations`."""


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """1, always."""

    def __call__(self, evaluation: int, evaluations: int) -> float:
        """One."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class StepDecay(Schedule):
    """factor^k once k of the milestones are reached.

    **Source**: Geiping et al. 2020, published code: 0.1 at 3/8, 5/8 and 7/8 of the run, the default.

    Attributes:
        milestones: fractions of the run, ascending, in (0, 1).
        factor: positive.

    Raises:
        InputError: for milestones out of (0, 1) or order, or a factor that is not positive.

    Examples:
        >>> [StepDecay()(done, 8) for done in (0, 3, 7)]
        [1.0, 0.1, 0.0010000000000000002]
    """

    milestones: Sequence[Share] = (3 / 8, 5 / 8, 7 / 8)
    factor: Positive = 0.1

    def __post_init__(self) -> None:
        """Check what depends on more than one field."""
        super().__post_init__()
        if list(self.milestones) != sorted(self.milestones):
            raise InputError(
                f"StepDecay.milestones: expected ascending fractions between 0 and 1, got {self.milestones}"
            )

    def __call__(self, evaluation: int, evaluations: int) -> float:
        """The factor to the power of the milestones passed."""
        return float(self.factor ** sum(evaluation >= int(fraction * evaluations) for fraction in self.milestones))


@dataclass(frozen=True, kw_only=True)
class CosineDecay(Schedule):
    """A linear warm-up, then half a cosine down to `floor`.

    With t the share of the run done and w the warm-up: t/w for t < w, else
    floor + (1 − floor) (1 + cos(π (t − w)/(1 − w)))/2. The first step is never 0.

    **Source**: Yin et al. 2021 (GradInversion), section 4.1: 50 of 20,000 iterations of warm-up, cosine decay.

    Attributes:
        warm_up: fraction of the run, in [0, 1).
        floor: the factor at the end, in [0, 1].

    Raises:
        InputError: for numbers out of range.

    Examples:
        >>> [round(CosineDecay()(done, 4), 3) for done in range(5)]
        [1.0, 0.854, 0.5, 0.146, 0.0]
    """

    warm_up: BelowOne = 0.0
    floor: Probability = 0.0

    def __call__(self, evaluation: int, evaluations: int) -> float:
        """The factor."""
        warm = self.warm_up * evaluations
        if evaluation < warm:
            return (evaluation + 1) / (warm + 1)
        done = min(1.0, (evaluation - warm) / max(evaluations - warm, 1))
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * done)) / 2

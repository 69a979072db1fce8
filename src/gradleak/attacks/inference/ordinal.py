"""Classes in an order, by one question less than there are classes: is it more than this?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import numpy as np

from gradleak.attacks.inference.classifier import Classifier, FittedClassifier, Floats, Labels, Rows, normalized
from gradleak.attacks.inference.estimator import RandomForest
from gradleak.core import derive_seed
from gradleak.results import FRANK_HALL_2001, LI_2024, Citation, InputError


@dataclass(frozen=True, kw_only=True, eq=False)
class OrdinalPosterior:
    """Posteriors over classes in an order, and how often the binary models contradicted each other.

    Attributes:
        log_posterior: (n, m), finite, normalized.
        share_clipped: of the n·m differences, how many were below 0, in [0, 1]; None for no row.
        rows_clipped: of the n rows, how many have such a difference, in [0, 1]; None for no row.
    """

    log_posterior: Floats
    share_clipped: float | None
    rows_clipped: float | None


@final
class FittedOrdinal(FittedClassifier):
    """m − 1 binary models after their fit."""

    def __init__(self, *, models: list[FittedClassifier], weight: int, width: int) -> None:
        """The models of a > 0, a > 1, …, a > m − 2."""
        notes = dict.fromkeys(note for model in models for note in model.notes)
        super().__init__(classes=len(models) + 1, width=width, notes=tuple(notes))
        self._models, self._weight = models, weight

    def posterior(self, features: Rows) -> OrdinalPosterior:
        """Log-posteriors as `log_posterior` gives them, and the shares that were clipped.

        Raises:
            InputError: for features of another width, or not finite.
        """
        differences = self._differences(features)
        below = differences < 0
        none = differences.shape[0] == 0
        return OrdinalPosterior(
            log_posterior=normalized(self._smoothed(differences)),
            share_clipped=None if none else float(below.mean()),
            rows_clipped=None if none else float(below.any(axis=1).mean()),
        )

    def told(self, features: Rows) -> tuple[Floats, dict[str, Any]]:
        """Log-posteriors, and the shares that were clipped."""
        found = self.posterior(features)
        return found.log_posterior, {"share_clipped": found.share_clipped, "rows_clipped": found.rows_clipped}

    def _differences(self, features: Rows) -> Floats:
        above = np.stack([model.shares(features)[:, 1] for model in self._models], axis=1)
        ends = np.ones((above.shape[0], 1)), np.zeros((above.shape[0], 1))
        result: Floats = -np.diff(np.hstack([ends[0], above, ends[1]]), axis=1)
        return result

    def _smoothed(self, differences: Floats) -> Floats:
        result: Floats = np.log((self._weight * _clipped(differences) + 1.0) / (self._weight + self.classes))
        return result

    def _shares(self, features: Rows) -> Floats:
        return _clipped(self._differences(features))

    def _log_posterior(self, features: Rows) -> Floats:
        return self._smoothed(self._differences(features))


@dataclass(frozen=True, kw_only=True)
class Ordinal(Classifier):
    """p(a = i | g) = P(a > i − 1 | g) − P(a > i | g), from m − 1 binary models, each fitted by itself on all rows.

    Models that are fitted apart need not agree: where P(a > i) exceeds P(a > i − 1) the difference is below 0; it is set
    to 0 and the rest is divided by its sum. The differences of a row add up to 1, so that something is always left.
    How often it happened is in `FittedOrdinal.posterior`. Then p becomes (w p + 1)/(w + m), w the `weight` of the base
    (the trees of a forest, else the rows of the fit), once and at the end: the differences are of votes, not of smoothed
    ones, which would favor the two classes at the ends.

    All m − 1 fits share one seed: bootstrap samples and features drawn alike contradict each other less, and where no
    shadow update lies between two questions their models are the same.

    With labels balanced over the m classes the binary ones are not, and shall not be: P(a > i) is then the probability
    under the uniform prior over m classes.

    **Cost**: m − 1 fits of the base.

    **Source**: Frank and Hall 2001; Li et al. 2024, section 4.1, whose classes count from 1. Clipping, renormalizing and
    smoothing are ours.

    Attributes:
        base: how a binary model is fitted.

    Raises:
        InputError: for a base that is no classifier, or ordinal itself.
    """

    citations: ClassVar[tuple[Citation, ...]] = (LI_2024, FRANK_HALL_2001)

    base: Classifier = field(default_factory=RandomForest)

    def __post_init__(self) -> None:
        """Check what depends on more than one field."""
        super().__post_init__()
        if isinstance(self.base, Ordinal):
            raise InputError("Ordinal.base: expected a classifier such as RandomForest(), got Ordinal")

    def weight(self, rows: int) -> int:
        """Weight of the base."""
        return self.base.weight(rows)

    def _fit(self, features: Rows, labels: Labels, classes: int, seed: int) -> FittedOrdinal:
        seed = derive_seed(seed, "ordinal")
        above = [(labels > place).astype(np.int64) for place in range(classes - 1)]
        models = [self.base._fit(features, answers, 2, seed) for answers in above]
        return FittedOrdinal(models=models, weight=self.weight(labels.size), width=features.shape[1])


def _clipped(differences: Floats) -> Floats:
    kept = differences.clip(min=0.0)
    result: Floats = kept / kept.sum(axis=1, keepdims=True)
    return result

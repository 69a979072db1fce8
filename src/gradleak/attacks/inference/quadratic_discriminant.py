"""One Gaussian a class, each with its own covariance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gradleak.attacks.inference.classifier import Floats, Labels, Rows
from gradleak.attacks.inference.estimator import Estimator
from gradleak.attacks.inference.scatter import Spread, principal
from gradleak.results import FRIEDMAN_1989, Citation, Share


@dataclass(frozen=True, kw_only=True)
class QuadraticDiscriminant(Estimator):
    """p(a | g) ∝ P(a) N(f; μ_a, Σ_a), Σ_a = (1 − r) S_a + r·I on features of variance 1, S_a divided by n_a.

    Exact for Gaussian classes, up to the error of the fit and r. P(a) is the share of a in the fit. The r keeps
    covariances of fewer rows than features invertible; a class with one shadow update has r·I.

    **Cost**: n·f·min(n, f).

    **Source**: Li et al. 2024, appendix B.1; regularized as in Friedman 1989 (his γ, with the unit matrix as the target)
    and in scikit-learn's `reg_param`, whose decomposition leaves out the directions that a class does not span; ours
    keeps them.

    Attributes:
        regularization: r, in (0, 1).

    Raises:
        InputError: for a regularization out of range.
    """

    standardized: ClassVar[bool] = True
    citations: ClassVar[tuple[Citation, ...]] = (FRIEDMAN_1989,)

    regularization: Share = 0.1

    def _train(self, rows: Rows, labels: Labels, seed: int) -> Any:
        fitted = []
        for place in range(labels.max() + 1):
            chosen = rows[labels == place]
            mean = chosen.mean(axis=0)
            directions, eigenvalues = principal(chosen - mean)
            variances = eigenvalues / chosen.shape[0]
            values = (1 - self.regularization) * variances + self.regularization
            spread = Spread(directions=directions, values=values, rest=self.regularization)
            fitted.append((mean, spread, np.log(chosen.shape[0] / rows.shape[0]) - spread.log_determinant() / 2))
        return fitted

    def _logits(self, model: Any, rows: Rows) -> Floats:
        return np.stack([offset - spread.squared_lengths(rows - mean) / 2 for mean, spread, offset in model], axis=1)

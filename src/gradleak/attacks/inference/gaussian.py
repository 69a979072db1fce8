"""Gaussian classifiers, fitted from means and scatter: naive Bayes, linear and quadratic discriminants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy

from gradleak.attacks.inference.classifier import Floats, Labels, Rows
from gradleak.attacks.inference.estimator import Estimator
from gradleak.results import FRIEDMAN_1989, LEDOIT_WOLF_2004, Citation, NonNegative, Probability, Share

# Eigenvalues below this share of the largest are round-off.
RESOLUTION = 1e-12


@dataclass(frozen=True, kw_only=True, eq=False)
class Spread:
    """A covariance V diag(values) Vᵀ + rest·(I − V Vᵀ), positive definite.

    Attributes:
        directions: V, (f, r), orthonormal columns.
        values: (r,), positive.
        rest: the variance in every direction that V leaves out, positive.
    """

    directions: Floats
    values: Floats
    rest: float

    def solve(self, rows: Floats) -> Floats:
        """Rows (n, f) times the inverse."""
        inside = rows @ self.directions
        result: Floats = rows / self.rest + (inside * (1 / self.values - 1 / self.rest)) @ self.directions.T
        return result

    def squared_lengths(self, rows: Floats) -> Floats:
        """Squared Mahalanobis lengths of rows (n, f), (n,)."""
        inside = rows @ self.directions
        result: Floats = (inside**2 / self.values).sum(axis=1)
        if self.values.size < rows.shape[1]:
            outside = rows - inside @ self.directions.T
            result = result + (outside**2).sum(axis=1) / self.rest
        return result

    def log_determinant(self) -> float:
        """The logarithm of the determinant."""
        left = self.directions.shape[0] - self.values.size
        return float(np.log(self.values).sum() + left * np.log(self.rest))


def principal(centered: Floats) -> tuple[Floats, Floats]:
    """Directions (f, r) and eigenvalues (r,) of XᵀX for centered rows X (n, f); those of 0 are left out.

    **Cost**: n·f·min(n, f), and the eigenvalues of a matrix of size min(n, f).
    """
    wide = centered.shape[0] < centered.shape[1]
    gram = centered @ centered.T if wide else centered.T @ centered
    values, vectors = scipy.linalg.eigh(gram, driver="evd")
    kept = values > RESOLUTION * max(float(values[-1]), 0.0)
    values, vectors = values[kept], vectors[:, kept]
    return (centered.T @ vectors / np.sqrt(values) if wide else vectors), values


def ledoit_wolf(centered: Floats, eigenvalues: Floats) -> float:
    """The shrinkage intensity s of Ledoit and Wolf towards (tr S/f)·I, for centered rows (n, f) and eigenvalues of XᵀX.

    With S = XᵀX/n: s = min(1, (mean of ‖x xᵀ‖² − ‖S‖²)/n over ‖S − (tr S/f)·I‖²), norms of Frobenius.
    """
    rows, features = centered.shape
    mean = float(eigenvalues.sum()) / rows / features
    square = float((eigenvalues**2).sum()) / rows**2
    away = square - features * mean**2
    spread = (float(((centered**2).sum(axis=1) ** 2).mean()) - square) / rows
    return 1.0 if away <= 0 else float(np.clip(spread / away, 0.0, 1.0))


@dataclass(frozen=True, kw_only=True)
class GaussianNaiveBayes(Estimator):
    """p(a | g) ∝ P(a) Π_j N(f_j; μ_{aj}, v_{aj}), features independent given a.

    Exact for features that are. Entries of a gradient are not, and agreement among hundreds of them is counted as so many
    witnesses: probabilities are far too sure, which several rounds make worse, while rankings stay useful.

    **Cost**: n·f.

    **Source**: Li et al. 2024, appendix B.1, by scikit-learn's `GaussianNB`, on features scaled to variance 1 (which
    changes nothing but the unit of `smoothing`).

    Attributes:
        smoothing: added to all variances, as a share of the largest variance of a feature.

    Raises:
        InputError: for a smoothing that is not a finite number of at least 0.
    """

    standardized: ClassVar[bool] = True

    smoothing: NonNegative = 1e-9

    def _train(self, rows: Rows, labels: Labels, seed: int) -> Any:
        from sklearn.naive_bayes import GaussianNB

        return GaussianNB(var_smoothing=self.smoothing).fit(rows, labels)

    def _logits(self, model: Any, rows: Rows) -> Floats:
        found: Floats = model.predict_joint_log_proba(rows)
        return found


# Classes whose shadow updates are all equal have no covariance; features have variance 1.
FLOOR = 1e-9


@dataclass(frozen=True, kw_only=True)
class LinearDiscriminant(Estimator):
    """p(a | g) ∝ P(a) N(f; μ_a, Σ), Σ = (1 − s) S + s·(tr S/f)·I, S the covariance within classes, divided by n.

    Exact for Gaussian classes that share a covariance, up to the error of the fit. P(a) is the share of a in the fit.

    **Cost**: n·f·min(n, f); more features than shadow updates are no difficulty.

    **Source**: Li et al. 2024, appendix B.1 (no shrinkage is mentioned); s by Ledoit and Wolf 2004 from the rows less
    their class means. Without shrinkage (`shrinkage=0`) about as many features as shadow updates make the worst of
    adversaries. Ours, because scikit-learn's needs f × f matrices for shrinkage.

    Attributes:
        shrinkage: s in [0, 1], or None for that of Ledoit and Wolf.

    Raises:
        InputError: for a shrinkage out of range.
    """

    standardized: ClassVar[bool] = True
    citations: ClassVar[tuple[Citation, ...]] = (LEDOIT_WOLF_2004,)

    shrinkage: Probability | None = None

    def _train(self, rows: Rows, labels: Labels, seed: int) -> Any:
        means = np.stack([rows[labels == place].mean(axis=0) for place in range(labels.max() + 1)])
        centered = rows - means[labels]
        directions, eigenvalues = principal(centered)
        shrinkage = ledoit_wolf(centered, eigenvalues) if self.shrinkage is None else self.shrinkage
        count, features = rows.shape
        variances = eigenvalues / count
        target = shrinkage * float(variances.sum()) / features + FLOOR
        spread = Spread(directions=directions, values=(1 - shrinkage) * variances + target, rest=target)
        slopes = spread.solve(means)
        prior = np.bincount(labels) / count
        return slopes, np.log(prior) - (means * slopes).sum(axis=1) / 2

    def _logits(self, model: Any, rows: Rows) -> Floats:
        slopes, offsets = model
        result: Floats = rows @ slopes.T + offsets
        return result


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

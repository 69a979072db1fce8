"""Covariances of fewer rows than features, by the directions that the rows span."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg

from gradleak.attacks.inference.classifier import Floats

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

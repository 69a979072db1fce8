"""One Gaussian a class, all with the same covariance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gradleak.attacks.inference.classifier import Floats, Labels, Rows
from gradleak.attacks.inference.estimator import Estimator
from gradleak.attacks.inference.scatter import Spread, ledoit_wolf, principal
from gradleak.results import LEDOIT_WOLF_2004, Citation, Probability

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

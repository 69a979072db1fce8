"""Every feature a Gaussian of its own, given the class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from gradleak.attacks.inference.classifier import Floats, Labels, Rows
from gradleak.attacks.inference.estimator import Estimator
from gradleak.results import NonNegative


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

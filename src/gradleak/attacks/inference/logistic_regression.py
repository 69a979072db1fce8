"""Log-odds linear in the features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from gradleak.attacks.inference.classifier import Floats, Labels, Rows
from gradleak.attacks.inference.estimator import Estimator, from_decision
from gradleak.results import Count, Positive


@dataclass(frozen=True, kw_only=True)
class LogisticRegression(Estimator):
    """p(a | g) = softmax(W f + b), W and b by penalized maximum likelihood: Σ log-loss + ‖W‖²/(2C), f of variance 1.

    **Cost**: n·f·m an iteration.

    **Source**: scikit-learn's, with L-BFGS; not in the paper.

    Attributes:
        inverse_penalty: C; larger trusts the shadow updates more.
        iterations: at most; a fit that stops there says so in its notes.

    Raises:
        InputError: for a number out of range.
    """

    standardized: ClassVar[bool] = True

    inverse_penalty: Positive = 1.0
    iterations: Count = 1000

    def _train(self, rows: Rows, labels: Labels, seed: int) -> Any:
        from sklearn.linear_model import LogisticRegression as Fit

        return Fit(C=self.inverse_penalty, max_iter=self.iterations).fit(rows, labels)

    def _logits(self, model: Any, rows: Rows) -> Floats:
        return from_decision(model.decision_function(rows))

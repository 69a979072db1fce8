"""Small trees, each fitted to what the ones before it got wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from gradleak.attacks.inference.classifier import Floats, Labels, Rows
from gradleak.attacks.inference.estimator import Estimator, from_decision
from gradleak.results import FRIEDMAN_2001, Citation, Count, Positive


@dataclass(frozen=True, kw_only=True)
class GradientBoosting(Estimator):
    """p(a | g) = softmax of sums of trees, grown one after another down the gradient of the log-loss.

    Features are binned into 255 values first. With fewer than 2·`leaf_rows` shadow updates no tree splits, and the answer
    is the shares of the labels.

    **Cost**: trees · n · f additions (m times that for m > 2 classes).

    **Source**: Friedman 2001, by scikit-learn's `HistGradientBoostingClassifier`, without early stopping; not in the
    paper.

    Attributes:
        trees: how many rounds of boosting.
        learning_rate: by which a tree counts.
        leaf_rows: shadow updates that a leaf holds at least.

    Raises:
        InputError: for a number out of range.
    """

    citations: ClassVar[tuple[Citation, ...]] = (FRIEDMAN_2001,)

    trees: Count = 100
    learning_rate: Positive = 0.1
    leaf_rows: Count = 20

    def _train(self, rows: Rows, labels: Labels, seed: int) -> Any:
        from sklearn.ensemble import HistGradientBoostingClassifier

        return HistGradientBoostingClassifier(
            max_iter=self.trees,
            learning_rate=self.learning_rate,
            min_samples_leaf=self.leaf_rows,
            early_stopping=False,
            random_state=seed,
        ).fit(rows, labels)

    def _logits(self, model: Any, rows: Rows) -> Floats:
        return from_decision(model.decision_function(rows))

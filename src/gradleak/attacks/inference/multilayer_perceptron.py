"""A network with one hidden layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gradleak.attacks.inference.classifier import Floats, Labels, Rows
from gradleak.attacks.inference.estimator import Estimator, from_decision
from gradleak.results import Count, NonNegative, Positive


@dataclass(frozen=True, kw_only=True)
class MultilayerPerceptron(Estimator):
    """p(a | g) = softmax of a fully connected network with one hidden layer of ReLUs, f of variance 1.

    **Cost**: epochs · n · f · hidden · 6.

    **Source**: Li et al. 2024, appendix B.1 (100 units; the rest as scikit-learn's `MLPClassifier` has it: Adam at 0.001,
    batches of 200, weight decay 1e-4, 200 epochs).

    Attributes:
        hidden: units of the hidden layer.
        epochs: at most; a fit that stops there says so in its notes.
        learning_rate: of Adam.
        weight_decay: factor of half the squared norm of the weights.

    Raises:
        InputError: for a number out of range.
    """

    standardized: ClassVar[bool] = True

    hidden: Count = 100
    epochs: Count = 200
    learning_rate: Positive = 1e-3
    weight_decay: NonNegative = 1e-4

    def _train(self, rows: Rows, labels: Labels, seed: int) -> Any:
        from sklearn.neural_network import MLPClassifier

        return MLPClassifier(
            hidden_layer_sizes=(self.hidden,),
            max_iter=self.epochs,
            learning_rate_init=self.learning_rate,
            alpha=self.weight_decay,
            random_state=seed,
        ).fit(rows, labels)

    def _logits(self, model: Any, rows: Rows) -> Floats:
        # Its own probabilities round to 0 and 1; the last layer has the logarithms.
        hidden = np.maximum(rows @ model.coefs_[0] + model.intercepts_[0], 0.0)
        found = hidden @ model.coefs_[1] + model.intercepts_[1]
        return from_decision(found[:, 0] if found.shape[1] == 1 else found)

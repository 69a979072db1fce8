"""Classifiers of scikit-learn on features: logistic regression, random forest, gradient boosting, multilayer perceptron."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, final

import numpy as np
from threadpoolctl import ThreadpoolController

from gradleak.attacks.inference.classifier import Classifier, FittedClassifier, Floats, Labels, Rows
from gradleak.core import derive_seed
from gradleak.core.process import ONE_CALL
from gradleak.results import BREIMAN_2001, FRIEDMAN_2001, LI_2024, Citation, Count, NonNegative, Positive


class Estimator(Classifier):
    """A classifier whose work is done by one estimator on the features that vary, and the classes that occur.

    Constant features say nothing and are left out. A class without a shadow update has no share, and a log-posterior of
    1/(w + m), w the `weight`. With one class, or no feature that varies, the answer is the shares of the labels.

    Attributes:
        standardized: whether features are moved and scaled to mean 0 and variance 1 over the shadow updates.
        smoothed: whether every probability p becomes (w p + 1)/(w + m), because the model gives zeros.
    """

    standardized: ClassVar[bool] = False
    smoothed: ClassVar[bool] = False

    def weight(self, rows: int) -> int:
        """The shadow updates of the fit."""
        return rows

    @final
    def _fit(self, features: Rows, labels: Labels, classes: int, seed: int) -> FittedClassifier:
        present, places = np.unique(labels, return_inverse=True)
        varying = (features != features[0]).any(axis=0)
        shift = scale = np.zeros(0)
        if self.standardized:
            shift, scale = features.mean(axis=0, dtype=np.float64), features.std(axis=0, dtype=np.float64)
            varying &= scale > 0
            shift, scale = shift[varying], scale[varying]
        standard = _Standard(kept=np.flatnonzero(varying), shift=shift, scale=scale, width=features.shape[1])
        notes: list[str] = []
        if not varying.any():
            notes.append("no feature differs between shadow updates: the answer is the shares of the labels")
        model: Any = None
        if present.size > 1 and varying.any():
            with _watched() as said:
                model = self._train(standard(features), places, derive_seed(seed, "fit") % 2**32)
            notes += said
        return _FittedEstimator(
            estimator=self,
            model=model,
            present=present,
            prior=np.bincount(places) / labels.size,
            standard=standard,
            weight=self.weight(labels.size),
            classes=classes,
            notes=tuple(notes),
        )

    @abstractmethod
    def _train(self, rows: Rows, labels: Labels, seed: int) -> Any:
        """The fitted model, for at least two classes 0, 1, … that all occur, and features that all vary."""

    @abstractmethod
    def _logits(self, model: Any, rows: Rows) -> Floats:
        """Logarithms of the probabilities up to a constant a row, one column a class that occurred; −∞ for zero."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Standard:
    """The features that vary, moved and scaled where `shift` is not empty."""

    kept: Labels
    shift: Floats
    scale: Floats
    width: int

    def __call__(self, rows: Rows) -> Rows:
        """A copy only where something is left out or moved."""
        chosen = rows if self.kept.size == self.width else rows[:, self.kept]
        return (chosen - self.shift) / self.scale if self.shift.size else chosen


class _FittedEstimator(FittedClassifier):
    def __init__(
        self,
        *,
        estimator: Estimator,
        model: Any,
        present: Labels,
        prior: Floats,
        standard: _Standard,
        weight: int,
        classes: int,
        notes: tuple[str, ...],
    ) -> None:
        super().__init__(classes=classes, width=standard.width, notes=notes)
        self._estimator, self._model, self._weight = estimator, model, weight
        self._present, self._prior, self._standard = present, prior, standard

    def _seen(self, features: Rows) -> Floats:
        """Log-probabilities of the classes that occurred, normalized; −∞ for zero."""
        if self._model is None:
            return np.tile(np.log(self._prior), (features.shape[0], 1))
        if features.shape[0] == 0:
            return np.zeros((0, self._present.size))
        with _watched():
            logits = self._estimator._logits(self._model, self._standard(features))
        moved = logits - logits.max(axis=1, keepdims=True)
        result: Floats = moved - np.log(np.exp(moved).sum(axis=1, keepdims=True))
        return result

    def _shares(self, features: Rows) -> Floats:
        shares = np.zeros((features.shape[0], self.classes))
        shares[:, self._present] = np.exp(self._seen(features))
        return shares

    def _log_posterior(self, features: Rows) -> Floats:
        total = self._weight + self.classes
        if self._estimator.smoothed:
            return np.log((self._weight * self._shares(features) + 1.0) / total)
        logs = np.full((features.shape[0], self.classes), -np.log(total))
        logs[:, self._present] = self._seen(features) + np.log((self._weight + self._present.size) / total)
        return logs


def from_decision(values: Floats) -> Floats:
    """One column a class from scikit-learn's decision values: (n, m) as they are, (n,) the log-odds of the second of two."""
    return np.stack([np.zeros_like(values), values], axis=1) if values.ndim == 1 else values


@cache
def thread_pools() -> ThreadpoolController:
    """The thread pools of the libraries that fits use; finding them takes a thousand times as long as limiting them."""
    # A pool is found once its library is loaded.
    import sklearn.decomposition
    import sklearn.ensemble  # noqa: F401

    return ThreadpoolController()


@contextmanager
def _watched() -> Iterator[list[str]]:
    """One thread, and what the estimator warns of as sentences; a game does not end because a fit has not converged."""
    said: list[str] = []
    quiet = np.errstate(under="ignore")
    with ONE_CALL, thread_pools().limit(limits=1), warnings.catch_warnings(record=True) as caught, quiet:
        warnings.simplefilter("always")
        yield said
    for warning in caught:
        if issubclass(warning.category, UserWarning | RuntimeWarning):
            text = f"{warning.category.__name__}: {str(warning.message).splitlines()[0].strip()}"
            if text not in said:
                said.append(text)
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


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


@dataclass(frozen=True, kw_only=True)
class RandomForest(Estimator):
    """p(a | g) = (votes for a + 1)/(trees + m), from trees grown on bootstrap samples of the shadow updates.

    A tree splits its one vote by the shares of labels in the leaf that the update falls into. In trees grown to the end
    leaves hold one class, and that is the count of whole votes; a leaf that holds several, because their updates are
    equal or `leaf_rows` and `depth` ask for it, would give its whole vote to the lower-numbered class of a tie, and would
    throw away how sure it is. `shares` are votes/trees without the one more, which is there because a class without a
    vote in one round would have probability 0 whatever other rounds say.

    **Cost**: for n rows and f features about trees · √f · n log² n comparisons; f itself counts little.

    **Source**: Li et al. 2024, section 5.1.3 (50 trees; scikit-learn's other defaults, which they seem to use: √f
    features a split, Gini impurity, grown to the end); forests from Breiman 2001. The smoothing is ours.

    Attributes:
        trees: how many.
        depth: the largest depth of a tree; None for none.
        leaf_rows: shadow updates that a leaf holds at least.

    Raises:
        InputError: for a number that is not a whole number of at least 1.
    """

    smoothed: ClassVar[bool] = True
    citations: ClassVar[tuple[Citation, ...]] = (LI_2024, BREIMAN_2001)

    trees: Count = 50
    depth: Count | None = None
    leaf_rows: Count = 1

    def weight(self, rows: int) -> int:
        """The trees."""
        return self.trees

    def _train(self, rows: Rows, labels: Labels, seed: int) -> Any:
        from sklearn.ensemble import RandomForestClassifier

        return RandomForestClassifier(
            n_estimators=self.trees,
            max_depth=self.depth,
            min_samples_leaf=self.leaf_rows,
            n_jobs=1,
            random_state=seed,
        ).fit(rows, labels)

    def _logits(self, model: Any, rows: Rows) -> Floats:
        with np.errstate(divide="ignore"):
            logits: Floats = np.log(model.predict_proba(rows))
        return logits


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

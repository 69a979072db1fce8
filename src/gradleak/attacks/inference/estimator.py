"""Adversary models around one estimator: constant features, missing classes, warnings and threads seen to."""

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
from gradleak.core.turns import ONE_CALL


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

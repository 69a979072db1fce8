"""Base of adversary models: labeled shadow features in, log-posteriors out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from gradleak.results import Citation, InputError, Settings, check_count, check_seed

Floats = NDArray[np.float64]
Rows = NDArray[np.floating]
Labels = NDArray[np.int64]


class FittedClassifier(ABC):
    """An adversary model after its fit.

    Attributes:
        classes: m, the number of values of the sensitive variable.
        width: f, features of an update.
        notes: what the reader of a result should know: classes without a shadow update, an optimizer that had not
            converged.
    """

    def __init__(self, *, classes: int, width: int, notes: tuple[str, ...] = ()) -> None:
        """Sizes and notes."""
        self.classes = classes
        self.width = width
        self.notes = notes

    @final
    def shares(self, features: Rows) -> Floats:
        """Probabilities (n, m) as the model gives them: zeros stay zeros; rows add up to 1.

        Raises:
            InputError: for features of another width, or not finite.
        """
        return self._shares(checked_features(features, self.width))

    @final
    def log_posterior(self, features: Rows) -> Floats:
        """The logarithm of p(a | g) for every row and class, (n, m), finite; exp of a row adds up to 1.

        Under the prior of the fit, which is uniform for a balanced one; `combine_rounds` adds the true prior.

        Args:
            features: (n, f), as at the fit.

        Raises:
            InputError: for features of another width, or not finite.
        """
        return normalized(self._log_posterior(checked_features(features, self.width)))

    def told(self, features: Rows) -> tuple[Floats, dict[str, Any]]:
        """Log-posteriors as `log_posterior` gives them, and what a report says of how they were made.

        Args:
            features: (n, f), as at the fit.

        Raises:
            InputError: for features of another width, or not finite.
        """
        return self.log_posterior(features), {}

    @abstractmethod
    def _shares(self, features: Rows) -> Floats:
        """Probabilities, checked features given."""

    @abstractmethod
    def _log_posterior(self, features: Rows) -> Floats:
        """Finite logarithms of probabilities up to a constant a row, checked features given."""


class Classifier(Settings, ABC):
    """An adversary model: how p(a | g) is learned from shadow updates. Subclasses are frozen keyword-only dataclasses.

    Attributes:
        citations: where the model comes from.
    """

    citations: ClassVar[tuple[Citation, ...]] = ()

    @final
    def fit(self, features: Rows, labels: NDArray[np.integer], classes: int, seed: int) -> FittedClassifier:
        """The model of one round. The same seed gives the same model; one thread is used.

        Args:
            features: (n, f), at least one row and one column, finite.
            labels: (n,), from 0 to classes − 1; balanced, if the prior is to be added afterwards.
            classes: m, at least 2; a class without a row is one that the model never tells apart.
            seed: of whatever the model draws.

        Raises:
            InputError: for sizes that do not fit, labels out of range, or features that are not finite.
        """
        check_count("classes", classes, least=2)
        check_seed("seed", seed)
        rows = checked_features(features, None)
        given = checked_labels(labels, rows)
        if given.min() < 0 or given.max() >= classes:
            raise InputError(f"labels: expected 0 to {classes - 1}, got {given.min()} to {given.max()}")
        fitted = self._fit(rows, given, int(classes), int(seed))
        missing = sorted(set(range(classes)) - set(given.tolist()))
        if missing:
            fitted.notes = (f"no shadow update of class {', '.join(map(str, missing))}", *fitted.notes)
        return fitted

    @abstractmethod
    def _fit(self, features: Rows, labels: Labels, classes: int, seed: int) -> FittedClassifier:
        """The fitted model, checked arguments given."""

    @abstractmethod
    def weight(self, rows: int) -> int:
        """Number w of observations that a posterior of a model fitted on so many rows rests on.

        A class with probability 0 is given 1/(w + m) instead, as if each class had been seen once more.
        """


def normalized(logs: Floats) -> Floats:
    """Logarithms of probabilities, from what is right up to a constant a row; the largest is taken out first."""
    moved = logs - logs.max(axis=1, keepdims=True)
    result: Floats = moved - np.log(np.exp(moved).sum(axis=1, keepdims=True))
    return result


def checked_features(features: Rows, width: int | None) -> Rows:
    """Features (n, f) in float64, or in float32 as they came, for their size; `width` is f, or None for any.

    Raises:
        InputError: for another shape or type, or rows that are not finite, with their number.
    """
    rows = np.asarray(features)
    if rows.ndim != 2 or not np.issubdtype(rows.dtype, np.floating) or (width is not None and rows.shape[1] != width):
        raise InputError(
            f"features: expected (n, {'f' if width is None else width}) floating point numbers, got {rows.shape} {rows.dtype}"
        )
    # Trees compare in float32: what overflows there is refused as infinity is.
    limit = float(np.finfo(np.float32).max)
    bad = ~(np.abs(rows) <= limit).all(axis=1)
    if bad.any():
        raise InputError(
            f"features: expected finite numbers, got {int(bad.sum())} of {rows.shape[0]} rows with NaN, infinity or more "
            f"than {limit:.1e}; has the training diverged?"
        )
    return rows if rows.dtype == np.float32 else rows.astype(np.float64)


def checked_labels(labels: NDArray[np.integer], rows: Rows) -> Labels:
    """One whole number for each of at least one row (n, f) with at least one feature.

    Raises:
        InputError: for another shape or type, or no row.
    """
    given = np.asarray(labels)
    if rows.shape[0] == 0 or rows.shape[1] == 0:
        raise InputError(f"features: expected at least one row and one feature, got {rows.shape}")
    if given.shape != rows.shape[:1] or not np.issubdtype(given.dtype, np.integer):
        raise InputError(f"labels: expected ({rows.shape[0]},) whole numbers, got {given.shape} {given.dtype}")
    return given.astype(np.int64)

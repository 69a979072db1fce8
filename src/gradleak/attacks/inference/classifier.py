"""Classifiers on labeled features: fits and posteriors, balanced labels for shadow updates, several rounds by Bayes' rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradleak.results import Citation, InputError, Settings, check_count, check_seed


def balanced_labels(count: int, classes: int, generator: torch.Generator) -> Tensor:
    """Labels of shadow batches, (count,) int64 from 0 to m − 1: each class ⌊count/m⌋ or ⌈count/m⌉ times, in random order.

    Which classes have one more is drawn. Exact balance makes the prior of a fit uniform, as `combine_rounds` takes it to
    be; labels drawn one by one are balanced only on average.

    Args:
        count: how many, at least 1.
        classes: m, at least 2.
        generator: the only source of randomness.

    Raises:
        InputError: for a number out of range.

    **Source**: Li et al. 2024, sections 4.1 and 5.1.4 (balanced training of the adversary; they draw labels).

    Examples:
        >>> labels = balanced_labels(7, 3, torch.Generator().manual_seed(0))
        >>> sorted(labels.bincount().tolist())
        [2, 2, 3]
    """
    check_count("count", count)
    check_count("classes", classes, least=2)
    device = generator.device
    whole = torch.arange(classes, device=device).repeat(count // classes)
    rest = torch.randperm(classes, generator=generator, device=device)[: count % classes]
    labels = torch.cat([whole, rest])
    return labels[torch.randperm(count, generator=generator, device=device)]


def with_side(features: NDArray[np.floating], side: NDArray[np.floating] | None) -> NDArray[np.floating]:
    """Features with what is known besides the update as more columns, (n, f + s): the adversary learns p(a | g, φ(x)).

    Args:
        features: (n, f).
        side: φ(x) of every batch, (n, s), or None for nothing; never the sensitive variable itself.

    Raises:
        InputError: for another number of rows.

    **Source**: Li et al. 2024, section 4.1. A model fitted on both, where they draw shadow rows that share φ(x).
    """
    if side is None:
        return features
    if features.ndim != 2 or side.ndim != 2 or features.shape[0] != side.shape[0]:
        raise InputError(f"with_side: expected (n, f) and (n, s), got {features.shape} and {side.shape}")
    return np.hstack([features, side])


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


def combine_rounds(
    log_posteriors: NDArray[np.floating],
    log_prior: NDArray[np.floating],
    *,
    rounds: Sequence[int] | None = None,
) -> Floats:
    """The log-posterior after several rounds, (n, m), normalized: Σ_{i ∈ R} log p_bal(a | g_i) + log P(a) + const.

    Exact if the updates of the rounds are independent given a, and each p_bal is the posterior under a uniform prior.
    Rounds of one batch are not independent: the ranking is used all the same, and the probabilities are too sure.

    Args:
        log_posteriors: (r, n, m), one fit on balanced labels a round (`Classifier.log_posterior`).
        log_prior: (m,), finite, of positive numbers that need not add up to 1; added once. Zeros for a uniform one.
        rounds: which of the r rounds the adversary saw, each at most once; None for all. For none, the prior is left.

    Raises:
        InputError: for other shapes, numbers that are not finite, or rounds out of range or twice.

    **Cost**: r·n·m additions.

    **Source**: Li et al. 2024, equation (5). There p is the posterior under the prior itself, and (|R| − 1) log P(a) is
    taken off; with p_bal ∝ p/P, which is what a balanced fit models (section 4.1), the prior is to be added once.

    Examples:
        >>> balanced = np.log(np.array([[[0.8, 0.2]], [[0.5, 0.5]]]))
        >>> np.exp(combine_rounds(balanced, np.log(np.array([0.2, 0.8])))).round(6).tolist()
        [[0.5, 0.5]]
    """
    logs, prior = np.asarray(log_posteriors, dtype=np.float64), np.asarray(log_prior, dtype=np.float64)
    if logs.ndim != 3 or prior.shape != logs.shape[2:]:
        raise InputError(
            f"combine_rounds: expected log-posteriors (r, n, m) and a log-prior (m,), got {logs.shape} and {prior.shape}"
        )
    if not np.isfinite(logs).all() or not np.isfinite(prior).all():
        raise InputError("combine_rounds: expected finite logarithms; leave out a class that has probability 0")
    seen = range(logs.shape[0]) if rounds is None else list(rounds)
    if len(set(seen)) != len(seen) or any(not 0 <= place < logs.shape[0] for place in seen):
        raise InputError(f"rounds: expected places from 0 to {logs.shape[0] - 1}, each once, got {list(seen)}")
    return normalized(logs[list(seen)].sum(axis=0) + prior)

"""Variance that the finite private rows of a game add to a score: trials that share a row err together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from gradleak.results import InputError
from gradleak.scoring.roc import Floats, Truth

# From such a share of its rows in every batch on, what one row does cannot be told from what the others do.
MOST_HELD = 0.8
# Of fewer errors (or fewer trials of a kind) no variance is estimated; it takes its bound.
LEAST_ERRORS = 10


@dataclass(frozen=True, kw_only=True, eq=False)
class _Stratum:
    """Trials whose batches are drawn from the same rows.

    Attributes:
        trials: their places.
        counts: how often which row stands in which of these trials, (t, rows).
        groups: which of them share a value, places among these trials: influences are centered by value.
        overlap: π, the mean share of its rows that a batch has in common with another one; k/n for k of n rows.
        size: k.
        of_users: whether the rows are users, of whom every trial takes other rows.
        answers: of users, which of them is the right answer of which trial, (t, users); else None.
    """

    trials: NDArray[np.int64]
    counts: Any
    groups: Sequence[NDArray[np.int64]]
    overlap: float
    size: int
    of_users: bool
    answers: Any = None

    @property
    def by_answers(self) -> bool:
        """True if trials hold nearly all users, so that they differ by whose rows were released alone."""
        return self.of_users and self.overlap >= MOST_HELD

    def variance(self, influence: Floats, *, bound: bool, factor: float) -> float:
        """Variance of the mean over all batches of these rows, over the draw of the rows."""
        count = len(self.trials)
        centered = influence[self.trials].copy()
        for group in self.groups:
            centered[group] -= centered[group].mean()
        # Batches of the same rows differ by less than those of fresh ones, by what the rows add.
        apart = float(np.square(centered).sum()) / max(count - len(self.groups), 1)
        whole = apart / (1.0 - min(self.overlap, MOST_HELD))
        most = self.overlap * whole
        if bound or (self.overlap >= MOST_HELD and not self.by_answers) or count < 2:
            return factor * most
        sums, own = np.zeros(self.counts.shape[1]), np.zeros(self.counts.shape[1])
        for group in self.groups:
            counts = (self.answers if self.by_answers else self.counts)[group]
            held = np.asarray((counts > 0).sum(axis=0), dtype=np.float64).ravel() / len(group)
            # Centering takes the share `held` of every row's effect away.
            free = 1.0 - np.minimum(held, MOST_HELD)
            sums += counts.T @ centered[group] / free
            own += counts.power(2).T @ np.square(centered[group]) / free
        # Pairs of different trials at the same row.
        found = float((np.square(sums) - own).sum())
        # What trials leave to chance: it would be taken for nothing half of the time where it hides the rows' part.
        error = math.sqrt(2.0 * float(np.square(own).sum()))
        first = max(found + error, 0.0) / (count * (count - 1))
        if self.of_users:
            # Trials that share users share no batch: most of what one user leaves of the variance is of the trial.
            return factor * min(first, whole)
        ratio = self.overlap * (self.size - 1) / max(self.size - self.overlap, 1e-12)
        return factor * min(first + ratio * max(most - first, 0.0), most)


@dataclass(frozen=True, kw_only=True, eq=False)
class Clusters:
    """Rows that the trials share.

    Each trial is a batch of k of n private rows. A mean over trials is an incomplete U-statistic over the rows. By
    Hoeffding's decomposition, the mean over all batches has the variance Σ_c C(k, c)²/C(n, c) δ_c over the draw of the rows.
    The first term is (k²/n) ζ₁ with ζ₁ = Var E[influence | a row is in the batch]; it is estimated without bias by the
    products of influences of different trials that hold the same row, and takes a standard error more. The others are at
    most k(k − 1)/(n(n − 1)) times what the first leaves of the variance of one batch, since C(k, c)/C(n, c) falls with c;
    they take this bound. All of it is at most k/n times the variance of a batch, as if only n/k batches were independent.
    It takes this where a batch holds four of five rows or more.

    Rows that occur with one value only (attribute and property inference) are a sample of their own for every value.
    Otherwise (shares, users) all rows are one sample. Where "rows" are users, of whom every trial takes other rows, the
    variance of a batch is mostly of the trial, and the bound on the other terms is useless; the estimate of the first one
    stands for all of them, in which each of the others is counted once for every user that it is about, which is too much
    and not too little. Where a trial holds four of five users or more, it is that of the one whose rows were released,
    alone. Users of different kinds, few of whom are easily told, are another matter: a sample that has none
    of the few knows nothing of them. In simulations with one such user in five and m = 5, intervals of 95 % held the AUROC
    in 80 % of the games with 8 private users, 89 % with 12, 91 % with 20 and 95 % with 30 (the success rate in 92, 93, 97
    and 98 %); among users of one kind in 97 % with 8. For shares in batches that hold a large part of the rows with the
    property (128 of 140 at most) the success rate was held in 100 % and the AUROC in 91 %, in smaller ones in 96 %.

    **Assumptions**: rows are independent draws of each value, batches are drawn uniformly among them, and what reads
    them does not depend on them: the fitted adversary and the trained model are given.

    **Cost**: O(T k).

    **Source**: Hoeffding 1948, theorem 5.2 and inequality (5.10) for the bounds; the estimate is ours.

    Attributes:
        strata: trials with batches of the same rows.
        trials: T.
        rows: how many rows occurred.
    """

    strata: Sequence[_Stratum]
    trials: int
    rows: int

    @property
    def of_users(self) -> bool:
        """True if the rows are users."""
        return any(stratum.of_users for stratum in self.strata)

    @classmethod
    def of(cls, rows: ArrayLike, truth: Truth, *, of_users: bool = False) -> Self:
        """From the rows of every trial, (T, k) whole numbers, and its value, (T,).

        Args:
            rows: of every trial.
            truth: its value.
            of_users: whether the rows are users, of whom every trial takes other rows.

        Raises:
            InputError: for sizes that do not fit.
        """
        given = np.asarray(rows)
        if given.ndim != 2 or given.shape[0] != len(truth) or not given.shape[1]:
            raise InputError(f"rows: expected ({len(truth)}, k) places of rows, a line a trial, got {given.shape}")
        if not np.issubdtype(given.dtype, np.integer):
            raise InputError(f"rows: expected whole numbers, got {given.dtype}")
        if of_users and len(truth) and int(np.max(truth)) >= given.shape[1]:
            raise InputError(
                f"rows: expected every candidate of a trial, got {given.shape[1]} for a truth of {np.max(truth)}"
            )
        names, places = np.unique(given, return_inverse=True)
        places = places.reshape(given.shape)
        count, size = given.shape
        trial = np.repeat(np.arange(count), size)
        counts = scipy.sparse.csr_matrix(
            (np.ones(count * size), (trial, places.ravel())), shape=(count, len(names)), dtype=np.float64
        )
        groups = [np.flatnonzero(truth == value) for value in np.unique(truth)]
        holders = sum((np.asarray(counts[group].sum(axis=0)).ravel() > 0).astype(int) for group in groups)
        if (np.asarray(holders) > 1).any():
            strata = [_stratum(counts, np.arange(count), groups, size, of_users)]
        else:
            strata = [_stratum(counts, group, [np.arange(len(group))], size, of_users) for group in groups]
        if of_users:
            right = scipy.sparse.csr_matrix(
                (np.ones(count), (np.arange(count), places[np.arange(count), truth])), shape=(count, len(names))
            )
            strata = [replace(stratum, answers=right[stratum.trials]) for stratum in strata]
        return cls(strata=strata, trials=count, rows=len(names))

    def variance(self, influence: Floats, *, bound: bool = False, confidence: float = 0.95) -> float:
        """Variance that the draw of the rows adds to that of a mean of influences (T,).

        Args:
            influence: of every trial on the score, whose mean over trials is the score or its error.
            bound: whether to take the bound, for too few errors to estimate anything from.
            confidence: of the interval that it is for: Student's quantile stands for the normal one, for few rows; of users
                with as many degrees of freedom as there are users outside of a trial.
        """
        factor = 1.0
        clusters = min(stratum.size / max(stratum.overlap, 1e-12) for stratum in self.strata)
        if clusters < 1e6:
            half = (1.0 - confidence) / 2.0
            # A user is judged by trials with and without: with few that a trial leaves out there is little to go by.
            taken = max(stratum.size if stratum.of_users and not stratum.by_answers else 1 for stratum in self.strata)
            student = float(scipy.stats.t.isf(half, max(clusters - taken, 1.0)))
            factor = (student / float(scipy.stats.norm.isf(half))) ** 2
        return float(
            sum(
                (len(stratum.trials) / self.trials) ** 2 * stratum.variance(influence, bound=bound, factor=factor)
                for stratum in self.strata
            )
        )

    def independent(self, chosen: NDArray[np.bool_], *, told: bool = False) -> float:
        """As how many independent trials the chosen ones count in the worst case, by the bound.

        Args:
            chosen: which trials.
            told: whether nearly all of them came out alike (all right, or all wrong). Of users they then count as many as
                there are different right answers among them, whoever the other candidates were: n users who are all told
                are n pieces of evidence, where the bound on any function of all candidates would leave n/m.
        """
        asked = int(chosen.sum())
        spread = 0.0
        for stratum in self.strata:
            held = chosen[stratum.trials]
            part, overlap = int(held.sum()), stratum.overlap
            if told and part and stratum.answers is not None:
                often = np.asarray(stratum.answers[held].sum(axis=0)).ravel()
                overlap = float(np.square(often).sum() - part) / max(part * (part - 1), 1)
            if part:
                spread += (part / asked) ** 2 * (1.0 / part + overlap)
        return 1.0 / spread


def _stratum(
    counts: Any, trials: NDArray[np.int64], groups: Sequence[NDArray[np.int64]], size: int, of_users: bool
) -> _Stratum:
    chosen, count = counts[trials], len(trials)
    overlap = 0.0
    if count > 1:
        often = np.asarray(chosen.sum(axis=0)).ravel()
        shared = float(np.square(often).sum() - chosen.power(2).sum())
        # Of a batch that holds rows twice as much may be shared twice.
        overlap = min(shared / (count * (count - 1) * size), 1.0)
    return _Stratum(trials=trials, counts=chosen, groups=groups, overlap=overlap, size=size, of_users=of_users)

"""Values by layer, averaged over rows that belong together: the profile, the setting it is taken in, and its intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradleak.core import Batch, Exposure, Knowledge, Objective, Release, ThreatModel, derive_generator, derive_seed
from gradleak.results import InputError, Leakier, Score, check_count, check_seed, check_share
from gradleak.risk.layer_exposure import VisibleLayers
from gradleak.training.releases.layer_gradients import layer_gradients

Floats = NDArray[np.float64]
Interval = tuple[float, float]

# Clusters below which the bootstrap does not know the tail of the largest of many pairs.
_FEW = 20
# Of the size of the contributions, what differences of equal ones have by round-off.
_ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True, eq=False)
class PairedRows:
    """The contributions of the same rows to the scores of several layers, and intervals of their differences.

    Layers are scored on the same rows (or examples), so that what makes a row hard is hard for all of them and drops out
    of a difference. For layers k and l with mean contributions m_k and m_l the interval is

        m_k − m_l ± w · c · s_kl,

    where s_kl is the standard error of the mean difference over clusters, w the `widening` of the measure's own intervals,
    and c the same for all pairs: of so many pairs the leakiest layer against any other is picked *after* looking.

    **The correction for picking**: c is the 1 − α quantile, over bootstrap draws of whole clusters, of the largest
    |m*_kl − m_kl| / s_kl of all pairs (a single-step maximum-t procedure). With probability 1 − α all intervals hold their
    difference together, whichever layers are looked at, so that equally leaky layers are told apart in at most a share α
    of all data. It is sharper than Bonferroni where layers go together. For few clusters c is moved to Student's quantile
    with the same tail, and is never below Student's for one pair. Draws of fewer than 20 clusters know too little of the
    largest of many pairs (of 8 equal layers on 3 clusters they told some apart in 32 % of all data, on 8 in 14 %), so that
    c is then at least Student's quantile for the α of one pair over the number of pairs (Bonferroni).

    **Assumptions**: clusters are independent draws of one population; what was fitted to judge a row is given. Of a
    skewed population fewer than 20 clusters say little.

    Attributes:
        values: contributions (n,) by name of the layer, whose mean over rows is the score.
        clusters: (n,) what belongs together and is drawn together.
        widening: w.
        confidence: 1 − α.
        resamples: of the bootstrap.
        seed: of the bootstrap.

    Raises:
        InputError: for sizes that do not fit, or numbers that are not finite.

    **Cost**: `resamples` · L (n + L) operations for L layers.

    **Source**: Westfall and Young 1993, chapter 2 (the resampled maximum); Romano and Wolf 2005, algorithm 4.1 (its first
    step). Student's quantile for few clusters, and the widening, are ours.
    """

    values: Mapping[str, Floats]
    clusters: NDArray[np.int64]
    widening: float = 1.0
    confidence: float = 0.95
    resamples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        """Check sizes and numbers."""
        check_share("PairedRows.confidence", self.confidence)
        check_count("PairedRows.resamples", self.resamples, least=100)
        check_seed("PairedRows.seed", self.seed)
        if not self.widening >= 1.0:
            raise InputError(f"PairedRows.widening: expected at least 1, got {self.widening}")
        for name, rows in self.values.items():
            if rows.shape != self.clusters.shape or rows.ndim != 1 or not len(rows):
                raise InputError(f"PairedRows: expected {self.clusters.shape} numbers of {name!r}, got {rows.shape}")
            if not np.isfinite(rows).all():
                raise InputError(f"PairedRows: expected finite numbers of {name!r}")

    @property
    def pairs(self) -> int:
        """The number of pairs that the intervals hold for together."""
        return len(self.values) * (len(self.values) - 1) // 2

    @cached_property
    def independent(self) -> int:
        """The number of clusters."""
        return len(np.unique(self.clusters))

    def difference(self, one: str, other: str) -> tuple[float, Interval | None]:
        """m_one − m_other, and the interval that holds for all pairs together; None for a single cluster."""
        first, second = self._place(one), self._place(other)
        sums, counts = self._by_cluster
        mean = float((sums[:, first] - sums[:, second]).sum() / counts.sum())
        if self.independent < 2:
            return mean, None
        if abs(mean) <= _ROUNDING * float((np.abs(sums[:, first]) + np.abs(sums[:, second])).sum() / counts.sum()):
            mean = 0.0
        reach = self.widening * self.critical * float(_errors(sums, counts, first)[second])
        return mean, (mean - reach, mean + reach)

    @cached_property
    def critical(self) -> float:
        """The number of standard errors c that no pair exceeds with probability 1 − α; at least two clusters."""
        sums, counts = self._by_cluster
        clusters = len(counts)
        random, shares = np.random.default_rng(self.seed), np.full(clusters, 1.0 / clusters)
        apart = np.empty((self.resamples, sums.shape[1]))
        for place in range(self.resamples):
            drawn = random.multinomial(clusters, shares).astype(np.float64)
            apart[place] = (drawn @ sums) / (drawn @ counts)
        apart -= sums.sum(axis=0) / counts.sum()
        largest = np.zeros(self.resamples)
        for place in range(sums.shape[1] - 1):
            errors = _errors(sums, counts, place)[place + 1 :]
            known = errors > 0.0
            if known.any():
                ratios = np.abs(apart[:, place, None] - apart[:, place + 1 :][:, known]) / errors[known]
                largest = np.maximum(largest, ratios.max(axis=1))
        alpha = 1.0 - self.confidence
        # A bootstrap of n clusters has a spread that is too small by √((n − 1)/n).
        found = float(np.quantile(largest, self.confidence)) * math.sqrt(clusters / (clusters - 1.0))
        found = max(found, float(scipy.stats.norm.isf(alpha / 2.0)))
        tail = max(float(scipy.stats.norm.sf(found)), 1e-12)
        if clusters < _FEW:
            tail = min(tail, alpha / 2.0 / max(1, self.pairs))
        return float(scipy.stats.t.isf(tail, clusters - 1))

    @cached_property
    def _by_cluster(self) -> tuple[Floats, Floats]:
        """Sums of contributions (clusters, layers) and numbers of rows (clusters,)."""
        _, places = np.unique(self.clusters, return_inverse=True)
        sums = [np.bincount(places, weights=rows) for rows in self.values.values()]
        return np.stack(sums, axis=1), np.bincount(places).astype(np.float64)

    def _place(self, name: str) -> int:
        if name not in self.values:
            raise InputError(f"PairedRows: expected one of {', '.join(self.values)}, got {name!r}")
        return list(self.values).index(name)


def _errors(sums: Floats, counts: Floats, place: int) -> Floats:
    """The standard error of the mean difference of one layer and each of all (layers,), over clusters of any size."""
    apart = sums[:, place, None] - sums
    rest = apart - counts[:, None] * (apart.sum(axis=0) / counts.sum())
    clusters = len(counts)
    found: Floats = np.sqrt(np.square(rest).sum(axis=0) * clusters / (clusters - 1.0)) / counts.sum()
    # Constant differences leave round-off behind.
    found[found < _ROUNDING * np.abs(apart).max(initial=0.0)] = 0.0
    return found


@dataclass(frozen=True, kw_only=True)
class LayerProfile:
    """The scores of one measure for every layer, set of layers or named group of tensors.

    Scores without a value keep their outcome, and stand last in the ranking: "could not be told" is not "safe".

    Attributes:
        measure: name of the measure.
        scores: by group, in the order of the model.
        groups: the tensors of every group.
        rows: what each row or example contributes to the scores, where the measure has all of them from the same ones; it
            stays here and enters no record.

    Raises:
        InputError: without a group, or for scores, groups and rows of different names.
    """

    measure: str
    scores: Mapping[str, Score]
    groups: Mapping[str, tuple[str, ...]]
    rows: PairedRows | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check that every group has its score."""
        if not self.scores or list(self.scores) != list(self.groups):
            raise InputError(
                f"LayerProfile: expected one score a group, got {list(self.scores)} for groups {list(self.groups)}"
            )
        known = [name for name, score in self.scores.items() if score.value is not None]
        if self.rows is not None and list(self.rows.values) != known:
            raise InputError(
                f"LayerProfile: expected rows of every group with a value, {known}, got {list(self.rows.values)}"
            )

    @classmethod
    def joined(cls, parts: Sequence[LayerProfile]) -> LayerProfile:
        """The profile of groups that one measure took apart, on the same rows.

        Args:
            parts: of different groups, in the order of the model; at least one.
        """
        if len(parts) == 1:
            return parts[0]
        valued = [part for part in parts if part.leakiest is not None]
        rows = [part.rows for part in valued if part.rows is not None]
        return cls(
            measure=parts[0].measure,
            scores={name: score for part in parts for name, score in part.scores.items()},
            groups={name: members for part in parts for name, members in part.groups.items()},
            rows=replace(rows[0], values={name: own for one in rows for name, own in one.values.items()})
            if rows and len(rows) == len(valued)
            else None,
        )

    @property
    def ranked(self) -> list[str]:
        """The groups, the leakiest first; those without a value last, in the order of the model."""
        sign = -1.0 if self._leakier is not Leakier.LOWER else 1.0
        known = {name: score.value for name, score in self.scores.items() if score.value is not None}
        return [
            *sorted(known, key=lambda name: sign * known[name]),
            *(name for name in self.scores if name not in known),
        ]

    @property
    def leakiest(self) -> str | None:
        """The group that leaks most; None where no group has a value."""
        first = self.ranked[0]
        return None if self.scores[first].value is None else first

    def rivals(self) -> list[str]:
        """The groups that cannot be told from the leakiest, so that any of them may be the leakiest one.

        By `difference` where rows are known, else by whether the intervals meet, which finds more rivals than there are;
        groups with a value but no interval are then among them. Without a value anywhere there is none.
        """
        first = self.leakiest
        if first is None:
            return []
        names = [name for name in self.ranked if self.scores[name].value is not None]
        return [name for name in names[1:] if not self._told_apart(first, name)]

    def difference(self, one: str, other: str) -> Score:
        """Difference of the score of one group from that of another, with a paired interval where rows are known.

        Both groups were scored on the same rows, so that the interval is that of the mean difference over rows: narrower
        than two separate ones suggest, since what makes a row easy is easy in both. It is widened as the measure's own
        intervals are, and holds for *all* pairs of groups together (see `PairedRows`): the pair may be picked after looking.

        Args:
            one: a group.
            other: another one.

        Returns:
            A score named after the measure with `_difference`, of the evidence of the two. Its interval leaves 0 out where
            the two are told apart, and the note says which leaks more. Without rows the value has no interval. Where a
            group has no value, it is that group's outcome.

        Raises:
            InputError: for a name that is no group, or twice the same.
        """
        for name in (one, other):
            if name not in self.scores:
                raise InputError(f"difference: expected one of {', '.join(self.scores)}, got {name!r}")
        if one == other:
            raise InputError(f"difference: expected two groups, got {one!r} twice")
        first, second = self.scores[one], self.scores[other]
        if first.value is None or second.value is None:
            lost, name = (first, one) if first.value is None else (second, other)
            return self._difference(
                first, None, outcome=lost.outcome, note=f"{name} has no value: {lost.note}", n=lost.n
            )
        if self.rows is None:
            note = "no interval: the measure does not say what single rows contribute"
            return self._difference(first, first.value - second.value, note=note, n=min(first.n, second.n))
        value, interval = self.rows.difference(one, other)
        if interval is None:
            note = "no interval: all rows belong together"
        elif interval[0] <= 0.0 <= interval[1]:
            note = f"{one} and {other} are not told apart"
        else:
            more, less = (one, other) if (value > 0.0) is not (first.leakier is Leakier.LOWER) else (other, one)
            note = f"{more} leaks more than {less}"
        details = {
            "confidence": self.rows.confidence,
            "pairs": self.rows.pairs,
            "rows": len(self.rows.clusters),
            "standard_errors": None if interval is None else self.rows.widening * self.rows.critical,
        }
        return self._difference(first, value, interval=interval, note=note, n=self.rows.independent, details=details)

    @property
    def _leakier(self) -> Leakier:
        return next(iter(self.scores.values())).leakier

    def _told_apart(self, one: str, other: str) -> bool:
        if self.rows is None:
            return not _meet(self.scores[one], self.scores[other])
        interval = self.difference(one, other).interval
        return interval is not None and not interval[0] <= 0.0 <= interval[1]

    def _difference(self, like: Score, value: float | None, **rest: Any) -> Score:
        return Score(
            name=f"{self.measure}_difference",
            value=value,
            unit=like.unit,
            leakier=Leakier.NEITHER,
            evidence=like.evidence,
            **rest,
        )


def _meet(first: Score, second: Score) -> bool:
    if first.interval is None or second.interval is None:
        return True
    return first.interval[0] <= second.interval[1] and second.interval[0] <= first.interval[1]


Groups = Mapping[str, tuple[str, ...]]
"""The tensors of every group, in the order of the model."""


@dataclass(frozen=True, kw_only=True, eq=False)
class DrawnRows:
    """The rows of a seed.

    Attributes:
        batch: rows that gradients are taken of.
        target: what is told, one entry a gradient; zeros where nothing is asked for.
        batches: places of the rows of each gradient, None for every row by itself.
        clusters: what belongs together, or None.
        releases: batches of closed-form measures and inversions.
    """

    batch: Batch
    target: Tensor
    batches: Tensor | None
    clusters: Tensor | None
    releases: Sequence[Batch]


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerSite:
    """View of one release for a measure of layers.

    Attributes:
        label: of the profile; it tells the random numbers of one measure from those of another.
        objective: the client's loss at the parameters that an update is shared for.
        release: protocol and defenses.
        rows: that are released.
        threat: what the adversary of an inversion knows.
        seed: of all random numbers besides those of a measure itself.
        shuffled: whether each gradient is told what belongs to another one, so that nothing is to be found.
        max_bytes: memory budget.
    """

    label: str
    objective: Objective
    release: Release
    rows: DrawnRows = field(repr=False)
    threat: ThreatModel
    seed: int
    shuffled: bool = False
    max_bytes: int = 2**30

    @property
    def exposures(self) -> list[Exposure]:
        """The releases of closed-form measures and inversions."""
        return [Exposure(self.objective, batch, self.release) for batch in self.rows.releases]

    @property
    def target(self) -> Tensor:
        """Target that is told, one entry a gradient; that of another one where the site is shuffled."""
        target = self.rows.target
        if not self.shuffled:
            return target
        return target[torch.randperm(len(target), generator=derive_generator(self.seed, "shuffled", self.label))]

    @property
    def draws(self) -> torch.Generator:
        """A fresh generator for the measure itself."""
        return derive_generator(self.seed, "measure", self.label)

    def gradients(self, groups: Groups) -> Mapping[str, Tensor]:
        """The released gradients of the rows, one matrix (n, P_l) a group.

        Args:
            groups: names of tensors.

        Raises:
            GradleakError: where the release and the rows do not fit together.
        """
        found = layer_gradients(
            self.objective,
            self.rows.batch,
            release=self.release,
            generator=derive_generator(self.seed, "gradients"),
            batches=self.rows.batches,
            groups=groups,
            max_bytes=self.max_bytes,
        )
        return found.matrices

    def derived_seed(self, purpose: str) -> int:
        """A seed for one purpose, the same for all measures.

        Args:
            purpose: its name.
        """
        return derive_seed(self.seed, purpose)

    def seen(self, sets: VisibleLayers) -> LayerSite:
        """The same release, of which only these tensors are seen.

        Args:
            sets: what is visible.

        Raises:
            GradleakError: where hiding and the release do not go together.
        """
        return replace(
            self, objective=sets.objective(self.objective), release=sets.release(self.objective, self.release)
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerScale:
    """Amount to measure, for an estimate of the cost.

    Attributes:
        rows: that gradients are taken of.
        releases: of closed-form measures and inversions.
        unknowns: numbers of the inputs of a release.
        groups: of tensors.
        sets: of visible tensors, measured besides.
        null: whether gradients are read a second time with shuffled attributes.
        entries: numbers of an update.
        known: makes what the adversary of an undefended release knows.
    """

    rows: int
    releases: int
    unknowns: int
    groups: int
    sets: int
    null: bool
    entries: int
    known: Callable[[], Knowledge]

    @property
    def few(self) -> bool:
        """True if the gradients of all rows are quickly taken again, beside what is measured on them."""
        return self.rows * self.entries <= 2**22

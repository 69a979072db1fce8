"""One number a layer: where a release leaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gradleak.results import InputError, Leakier, Score
from gradleak.risk.paired_rows import PairedRows


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

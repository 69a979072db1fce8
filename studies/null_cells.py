"""Single null controls and planted leaks: what a verdict says where the truth is known, and how many say the wrong thing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gradleak.results import VerdictKind
from gradleak.scoring.roc import rate_interval
from studies.study import Finding, Table

LIMIT = 0.05
"""Largest share of false *leaks*; that of the issue, and the error of every bound and interval behind a verdict."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A verdict on a release of which it is known whether it leaks.

    Attributes:
        group: what was released, for a row of the table.
        planted: whether there is something to find.
        verdict: that was given.
        reason: of the verdict.
        control: whether the planted leak of the same audit was found; None where the audit plants none.
        noted: numbers for a closer look, by name.
    """

    group: str
    planted: bool
    verdict: VerdictKind
    reason: str
    control: bool | None = None
    noted: dict[str, float | None] = field(default_factory=dict)

    @property
    def leaks(self) -> bool:
        """True for the verdict *leaks*."""
        return self.verdict is VerdictKind.LEAKS

    @property
    def counts(self) -> bool:
        """True unless the audit's own planted leak was missed, after which nothing can be a false verdict."""
        return self.control is not False


@dataclass(frozen=True, kw_only=True)
class Count:
    """Number of times that something happened.

    Attributes:
        name: what.
        hits: how often.
        trials: of how many.
    """

    name: str
    hits: int
    trials: int

    @property
    def rate(self) -> float:
        """Share of the trials; 0 of none."""
        return self.hits / self.trials if self.trials else 0.0

    @property
    def text(self) -> str:
        """Count and interval of 95 % by Clopper and Pearson, as they are printed."""
        low, high = rate_interval(self.hits, self.trials)
        return f"{self.hits} of {self.trials} ({100 * low:.1f} to {100 * high:.1f} %)"

    def finding(self) -> Finding:
        """Its line in a study."""
        return Finding(
            quantity=self.name,
            ours=self.rate if self.trials else None,
            interval=rate_interval(self.hits, self.trials),
            n=self.trials,
            note=f"{self.hits} of {self.trials}",
        )


def false_leaks(name: str, judged: Iterable[Judged]) -> Count:
    """Number of nulls that were called *leaks*, of those whose audit found its own planted leak.

    Args:
        name: of the nulls.
        judged: nulls and others.
    """
    nulls = [one for one in judged if not one.planted and one.counts]
    return Count(name=f"{name}: false leaks", hits=sum(one.leaks for one in nulls), trials=len(nulls))


def missed(name: str, judged: Iterable[Judged]) -> Count:
    """Number of planted leaks that were not called *leaks*, whatever the controls said.

    Args:
        name: of the leaks.
        judged: planted ones and others.
    """
    planted = [one for one in judged if one.planted]
    return Count(name=f"{name}: missed", hits=sum(not one.leaks for one in planted), trials=len(planted))


def table(title: str, judged: Sequence[Judged]) -> Table:
    """The verdicts by what was released.

    Args:
        title: of the table.
        judged: in any order.
    """
    columns = ("released", "audits", "planted leak of the audit found", "leaks", "bounded", "inconclusive, by reason")
    return Table(title=title, columns=columns, rows=list(_rows(judged)))


def _rows(judged: Sequence[Judged]) -> Iterator[list[str]]:
    for planted in (False, True):
        for group in dict.fromkeys(one.group for one in judged if one.planted is planted):
            mine = [one for one in judged if one.group == group and one.planted is planted]
            reasons = Counter(one.reason for one in mine if one.verdict is VerdictKind.INCONCLUSIVE)
            controls = [one.control for one in mine if one.control is not None]
            yield [
                f"planted: {group}" if planted else group,
                str(len(mine)),
                str(sum(controls)) if controls else "-",
                Count(name=group, hits=sum(one.leaks for one in mine), trials=len(mine)).text,
                str(sum(one.verdict is VerdictKind.BOUNDED for one in mine)),
                ", ".join(f"{reason} {count}" for reason, count in reasons.most_common()) or "-",
            ]


__all__ = ["LIMIT", "Count", "Judged", "false_leaks", "missed", "table"]

"""Rules by which a value here agrees with a claim of a paper, or not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from studies.study import Finding

Others = Callable[[str], Finding | None]


class Rule(ABC):
    """Condition on one value of a record."""

    @abstractmethod
    def text(self) -> str:
        """The condition as a reader sees it."""

    @abstractmethod
    def holds(self, found: Finding, others: Others) -> bool | None:
        """True or False; None where a value that it needs is missing.

        Args:
            found: the value.
            others: another one of the same record, by its quantity; None where there is none.
        """


@dataclass(frozen=True)
class Near(Rule):
    """The value lies within `by` of the paper's."""

    value: float
    by: float

    def text(self) -> str:
        """Within so much of a value."""
        return f"within {self.by:g} of {self.value:g}"

    def holds(self, found: Finding, others: Others) -> bool | None:
        """True within `by` of the value, both ends included up to round-off."""
        return None if found.ours is None else abs(found.ours - self.value) <= self.by + 1e-9


@dataclass(frozen=True)
class Size(Rule):
    """The absolute value lies within `by` of the paper's, whose sign depends on an order that it does not state."""

    value: float
    by: float

    def text(self) -> str:
        """Within so much of an absolute value."""
        return f"without its sign within {self.by:g} of {abs(self.value):g}"

    def holds(self, found: Finding, others: Others) -> bool | None:
        """True within `by` of the value, both without their signs."""
        return None if found.ours is None else abs(abs(found.ours) - abs(self.value)) <= self.by + 1e-9


@dataclass(frozen=True)
class Factor(Rule):
    """The value lies within a factor `by` of the paper's; both are positive."""

    value: float
    by: float

    def text(self) -> str:
        """Within a factor of a value."""
        return f"within a factor of {self.by:g} of {self.value:g}"

    def holds(self, found: Finding, others: Others) -> bool | None:
        """True between value/by and value·by."""
        return None if found.ours is None else self.value / self.by <= found.ours <= self.value * self.by


@dataclass(frozen=True)
class Between(Rule):
    """The value lies in a range."""

    low: float
    high: float

    def text(self) -> str:
        """From a number to another."""
        return f"from {self.low:g} to {self.high:g}"

    def holds(self, found: Finding, others: Others) -> bool | None:
        """True from the low end to the high one."""
        return None if found.ours is None else self.low <= found.ours <= self.high


@dataclass(frozen=True)
class Above(Rule):
    """The value is at least a number; if `surely`, its whole interval is."""

    value: float
    surely: bool = False

    def text(self) -> str:
        """At least a number."""
        return f"{'with its interval ' if self.surely else ''}at least {self.value:g}"

    def holds(self, found: Finding, others: Others) -> bool | None:
        """True from the number on; with `surely` by the low end of the interval, and None where there is none."""
        if found.ours is None or (self.surely and found.interval is None):
            return None
        return (found.interval[0] if self.surely and found.interval is not None else found.ours) >= self.value


@dataclass(frozen=True)
class Below(Rule):
    """The value is at most a number; if `surely`, its whole interval is."""

    value: float
    surely: bool = False

    def text(self) -> str:
        """At most a number."""
        return f"{'with its interval ' if self.surely else ''}at most {self.value:g}"

    def holds(self, found: Finding, others: Others) -> bool | None:
        """True up to the number; with `surely` by the high end of the interval, and None where there is none."""
        if found.ours is None or (self.surely and found.interval is None):
            return None
        return (found.interval[1] if self.surely and found.interval is not None else found.ours) <= self.value


@dataclass(frozen=True)
class Exceeds(Rule):
    """The value is at least `times` another one of the same record."""

    other: str
    times: float = 1.0
    called: str = ""

    def text(self) -> str:
        """At least so many times another value."""
        times = "" if self.times == 1.0 else f"{self.times:g} times "
        return f"at least {times}that of {self.called or self.other}"

    def holds(self, found: Finding, others: Others) -> bool | None:
        """True where the value is not below the other, times the factor."""
        other = others(self.other)
        if found.ours is None or other is None or other.ours is None:
            return None
        return found.ours >= self.times * other.ours


@dataclass(frozen=True)
class Covers(Rule):
    """The interval of the value holds the paper's."""

    value: float

    def text(self) -> str:
        """An interval that holds a number."""
        return f"an interval that holds {self.value:g}"

    def holds(self, found: Finding, others: Others) -> bool | None:
        """True where the interval holds the number; None without an interval."""
        return None if found.interval is None else found.interval[0] <= self.value <= found.interval[1]


__all__ = ["Above", "Below", "Between", "Covers", "Exceeds", "Factor", "Near", "Rule", "Size"]

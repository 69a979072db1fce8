"""Shares of a plan's tasks, for machines that do not know of each other: `--shard 3/16`."""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gradleak.audits.base import Task
from gradleak.results import InputError

MOST = 100_000


@dataclass(frozen=True)
class Shard:
    """One of several shares of a plan's tasks, of about equal cost; which task is in which follows from the plan alone.

    Attributes:
        number: of this share, from 1.
        of: how many shares there are.
    """

    number: int
    of: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of <= MOST:
            raise InputError(f"shard: expected a share such as 3/16, from 1/16 to 16/16, got {self}")

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @classmethod
    def parse(cls, text: str) -> Shard:
        """The share that a text such as `3/16` names.

        Raises:
            InputError: for another text.
        """
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", str(text).strip(), flags=re.ASCII)
        if found is None:
            raise InputError(f"shard: expected a share such as 3/16, got {str(text)[:40]!r}")
        return cls(int(found[1]), int(found[2]))

    def share(self, work: Sequence[Task[Any]]) -> list[Task[Any]]:
        """The tasks of this share, in the order of the plan.

        The most expensive task goes first, each to the share that has the least to do so far.

        Args:
            work: all tasks of the plan.
        """
        shares = [(0.0, number) for number in range(1, self.of + 1)]
        own = set()
        # Sorting keeps the order of the plan among equals.
        for place in sorted(range(len(work)), key=lambda place: -work[place].cost):
            cost, number = shares[0]
            heapq.heapreplace(shares, (cost + max(work[place].cost, 1.0), number))
            if number == self.number:
                own.add(place)
        return [work[place] for place in sorted(own)]

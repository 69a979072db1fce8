"""The lines of a record sorted by what they are; lines that cannot be read are counted, never fatal."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from gradleak.reporting.numerals import as_number
from gradleak.results import GradleakError, Outcome, Record, Score, Verdict

Line = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A record, sorted.

    Attributes:
        record: where all comes from.
        items: the item lines by kind, in file order.
        scores: the scores by item.
        score_lines: (line, score) in file order.
        verdicts: the verdicts in file order.
        unreadable: the number of score and verdict lines that do not have the expected form.
    """

    record: Record
    items: Mapping[str, Sequence[Line]]
    scores: Mapping[str, Sequence[Score]]
    score_lines: Sequence[tuple[Line, Score]]
    verdicts: Sequence[Verdict]
    unreadable: int

    def of_kind(self, kind: str) -> Sequence[Line]:
        """The item lines of a kind.

        Args:
            kind: for instance "attack".
        """
        return self.items.get(kind, ())

    def beside(self, kind: str, release: Line) -> list[Line]:
        """The item lines of a kind that belong to a release.

        Args:
            kind: for instance "attack".
            release: an item line with scenario and example.
        """
        place = (release.get("scenario"), release.get("example"))
        return [line for line in self.of_kind(kind) if (line.get("scenario"), line.get("example")) == place]

    def score(self, item: Line | None, name: str, unit: str | None = None) -> Score | None:
        """The first score of an item with this name and unit, or None.

        Args:
            item: an item line.
            name: name of the score.
            unit: its unit, None for any.
        """
        if item is None:
            return None
        for score in self.scores.get(str(item.get("item")), ()):
            if score.name == name and unit in (None, score.unit):
                return score
        return None

    def value(self, item: Line | None, name: str, unit: str | None = None) -> float | None:
        """The value of that score, or None.

        Args:
            item: an item line.
            name: name of the score.
            unit: its unit, None for any.
        """
        score = self.score(item, name, unit)
        return None if score is None else score.value

    @cached_property
    def batches(self) -> frozenset[str]:
        """The places of releases that have more than one example behind them."""
        return frozenset(
            str(line.get("example")) for line in self.of_kind("release") if (as_number(line.get("batch_size")) or 1) > 1
        )

    @cached_property
    def range_notes(self) -> tuple[str, ...]:
        """What the releases say of declared ranges of which their images use little, once each."""
        notes = (str(line.get("range_note") or "") for line in self.of_kind("release"))
        return tuple(dict.fromkeys(note for note in notes if note))

    def place(self, example: Any) -> str:
        """Whose release it is, in print: "example 3", "batch 3" where several examples are behind it, or a dash.

        Args:
            example: its index, or None.
        """
        if example is None:
            return "–"  # noqa: RUF001 - an en dash in an empty cell
        return f"{'batch' if str(example) in self.batches else 'example'} {example}"

    def title(self, line: Line) -> str:
        """The name of an item in print, in which a batch is called one.

        Args:
            line: an item or score line.
        """
        name, example = str(line.get("item")), line.get("example")
        parts = name.split("/")
        return "/".join(self.place(example) if part == f"example {example}" else part for part in parts)

    def printed(self, text: str) -> str:
        """A text of the record in which the releases of batches are called so, as in the tables.

        Args:
            text: for instance the explanation of a verdict, which names "scenario/example 1".
        """
        return re.sub(r"(?<=/)example (\d+)\b", lambda found: self.place(found[1]), text)

    def blind(self, line: Line) -> Score | None:
        """What the blind adversary reaches, on the example of a batch of which the item's error is.

        The error of an item is that of the example it comes closest to, and blindly another one may be closest.

        Args:
            line: an attack or a release line.
        """
        blind = next((self.score(b, "pixel_rmse") for b in self.beside("baseline", line)), None)
        error = self.score(line, "pixel_rmse")
        if blind is None or error is None:
            return blind
        own = [as_number(value) for value in sequence(error.details.get("per_example"))]
        beside = [as_number(value) for value in sequence(blind.details.get("per_example"))]
        known = [place for place, value in enumerate(own) if value is not None]
        if not known or len(own) != len(beside):
            return blind
        nearest = beside[min(known, key=lambda place: own[place] or 0.0)]
        return blind if nearest is None else replace(blind, value=nearest)

    def verdict_on(self, item: str) -> Verdict | None:
        """The last verdict on an item, or None.

        Args:
            item: a release, a scenario or "run".
        """
        found = [verdict for verdict in self.verdicts if verdict.item == item]
        return found[-1] if found else None


def load(record: Record | str | os.PathLike[str]) -> Record:
    """The record itself, or the one in that file or folder.

    Args:
        record: a record or a path.

    Raises:
        InputError: there is no record at the path.
    """
    return record if isinstance(record, Record) else Record.load(record)


def read(record: Record) -> Reading:
    """The lines of a record sorted by kind.

    Args:
        record: a record, whole or not.
    """
    items: dict[str, list[Line]] = {}
    scores: dict[str, list[Score]] = {}
    score_lines: list[tuple[Line, Score]] = []
    verdicts: list[Verdict] = []
    unreadable = 0
    for line in record.lines:
        try:
            if line.get("type") == "item":
                if line.get("kind") == "layers" and line.get("layer") is not None:
                    Score.from_dict(mapping(line.get("score")))
                items.setdefault(str(line.get("kind")), []).append(line)
            elif line.get("type") == "score":
                score = Score.from_dict(line)
                scores.setdefault(str(line.get("item")), []).append(score)
                score_lines.append((line, score))
            elif line.get("type") == "verdict":
                verdicts.append(Verdict.from_dict(line))
        except (GradleakError, KeyError, TypeError, ValueError, IndexError):
            unreadable += 1
    return Reading(
        record=record,
        items=items,
        scores=scores,
        score_lines=score_lines,
        verdicts=verdicts,
        unreadable=unreadable,
    )


def mapping(value: Any) -> Mapping[str, Any]:
    """`value` if it is a mapping, else an empty one.

    Args:
        value: whatever stands in a record.
    """
    return value if isinstance(value, Mapping) else {}


def sequence(value: Any) -> Sequence[Any]:
    """`value` if it is a list, else an empty one.

    Args:
        value: whatever stands in a record.
    """
    return value if isinstance(value, list | tuple) else ()


def missing_groups(record: Record) -> list[str]:
    """The groups that the run line announces and that are not whole.

    Args:
        record: a record, whole or not.
    """
    rows: dict[str, list[Line]] = {}
    for line in record.lines:
        rows.setdefault(str(line.get("group")), []).append(line)
    whole = {name for name, lines in rows.items() if len({r.get("line") for r in lines}) == lines[0].get("of")}
    return [str(name) for name in sequence(record.run.get("groups")) if str(name) not in whole]


def outcome_of(line: Line) -> Outcome | None:
    """The outcome of an item line, or None if it has none.

    Args:
        line: an item line.
    """
    try:
        return Outcome.from_label(str(line.get("outcome")))
    except KeyError:
        return None


def sum_of(lines: Sequence[Line], key: str) -> float | None:
    """The sum of the numbers under a key, or None if there are none.

    Args:
        lines: item lines.
        key: name of a field.
    """
    numbers = [number for number in (as_number(line.get(key)) for line in lines) if number is not None]
    return sum(numbers) if numbers else None

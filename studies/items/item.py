"""A numbered item of a paper: what it says, and what shows here whether it holds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gradleak.results import Citation, InputError
from studies.items.kept import Kept
from studies.items.rules import Rule
from studies.study import Finding

_PRINTED = re.compile(r"(?P<value>[+−-]?[\d.,e]+(?:[−-]\d+)?)(?: \((?P<low>[^ ]+) to (?P<high>[^ ]+)\))?")


class State(StrEnum):
    """State of an item."""

    AGREES = "agrees"
    DIFFERS = "differs"
    IN_PART = "in part"
    TESTED = "checked by tests"
    SHOWN = "shown, nothing to judge"
    NOT_RUN = "not run"
    NOTHING = "nothing to compute"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One value of a study, and when it agrees with the paper.

    Attributes:
        quantity: of the finding in the study's record, letter by letter.
        shown: its name on the page, or "" for the quantity.
        paper: the paper's value or words, or "" to take what the finding says.
        rule: when it agrees; None to show the value and judge nothing.
        printed: the value as the study's page has it, "0.45 (0.24 to 0.60)", for a study without a record; a line of the
            page has to contain this text,
        where: and this one, which tells the line from others.
    """

    quantity: str
    shown: str = ""
    paper: str = ""
    rule: Rule | None = None
    printed: str = ""
    where: str = ""

    def earlier(self) -> Finding | None:
        """The printed value as a finding.

        Raises:
            InputError: for a text that is no value.
        """
        if not self.printed:
            return None
        parts = _PRINTED.fullmatch(self.printed)
        if parts is None:
            raise InputError(f"printed: expected a value such as '0.45 (0.24 to 0.60)', got {self.printed!r}")
        interval = None if parts["low"] is None else (_number(parts["low"]), _number(parts["high"]))
        return Finding(quantity=self.quantity, ours=_number(parts["value"]), interval=interval, n=0)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A study with its settings, and what is read off its record.

    Attributes:
        study: name.
        variant: what tells its record from others of the same study, or "".
        settings: those that differ from the study's defaults; a file is named without its folder.
        readings: what counts for the item.
        page: page of the documentation that says more, from docs/explanation, or "".
        cost: what a run takes, in words, where no record says it.
        whole: False for a study that is run in parts, whose record may lack readings.
    """

    study: str
    variant: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    readings: Sequence[Reading]
    page: str = ""
    cost: str = ""
    whole: bool = True

    @property
    def record(self) -> str:
        """Name of the record."""
        return f"{self.study}-{self.variant}" if self.variant else self.study


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A formula or procedure that tests check.

    Attributes:
        name: dotted path of the public object.
        test: "tests/file.py::test_name", which compares with something that is not our code where that exists.
    """

    name: str
    test: str


@dataclass(frozen=True, kw_only=True)
class Item:
    """A table, figure, equation or section of a paper.

    Attributes:
        number: as the paper counts it.
        says: what it claims or shows, in one line.
        runs: studies that compute it again.
        code: objects that are it, with their tests.
        lacking: what of it was not run here, and why; with it the state is at best *in part*.
        command: what would run it, where `lacking` says that something has not been.
        note: what a reader needs to know, such as what differs in the setting.
    """

    number: str
    says: str
    runs: Sequence[Run] = ()
    code: Sequence[Checked] = ()
    lacking: str = ""
    command: str = ""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A paper with its items, in the paper's order."""

    citation: Citation
    items: Sequence[Item]


@dataclass(frozen=True, kw_only=True)
class Line:
    """A reading with what was found.

    Attributes:
        reading: what is read.
        found: its finding, or None where nobody ran the study.
        agrees: the rule's answer, or None.
        current: False for a value that is printed in the documentation and has no record.
    """

    reading: Reading
    found: Finding | None
    agrees: bool | None
    current: bool


@dataclass(frozen=True, kw_only=True)
class Judged:
    """An item with its state and the lines it rests on, in the order of its runs."""

    item: Item
    state: State
    lines: Sequence[tuple[Run, Sequence[Line]]]


def judge(item: Item, records: Mapping[str, Kept]) -> Judged:
    """The state of an item by the records there are.

    Args:
        item: the item.
        records: kept records by name.

    Raises:
        InputError: for a quantity that a record does not have.
    """
    lines = [(run, [_line(reading, run, records) for reading in run.readings]) for run in item.runs]
    flat = [line for _, some in lines for line in some]
    return Judged(item=item, state=_state(item, flat), lines=lines)


def _line(reading: Reading, run: Run, records: Mapping[str, Kept]) -> Line:
    record = records.get(run.record)
    if record is None:
        known = {one.quantity: one.earlier() for one in run.readings}
    else:
        known = {finding.quantity: finding for finding in record.findings}
        if reading.quantity not in known and run.whole:
            raise InputError(f"{run.record}: expected a record with the finding {reading.quantity!r}, which it lacks")
    found = known.get(reading.quantity)
    agrees = None if found is None or reading.rule is None else reading.rule.holds(found, known.get)
    return Line(reading=reading, found=found, agrees=agrees, current=record is not None)


def _state(item: Item, lines: Sequence[Line]) -> State:
    answers = [line.agrees for line in lines if line.reading.rule is not None and line.agrees is not None]
    unanswered = any(line.reading.rule is not None and line.agrees is None for line in lines)
    part = bool(item.lacking) or unanswered
    if answers:
        if not any(answers):
            return State.DIFFERS
        return State.AGREES if all(answers) and not part else State.IN_PART
    if any(line.found is not None for line in lines):
        return State.IN_PART if part else State.SHOWN
    if item.code:
        return State.IN_PART if part or lines else State.TESTED
    return State.NOT_RUN if part or lines else State.NOTHING


def _number(text: str) -> float:
    try:
        return float(text.replace("−", "-").replace(",", ""))
    except ValueError as error:
        raise InputError(f"printed: expected a number, got {text!r}") from error


__all__ = ["Checked", "Item", "Judged", "Line", "Paper", "Reading", "Run", "State", "judge"]

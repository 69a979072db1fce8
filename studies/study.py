"""Base of every study: a paper's table or figure computed again, with the paper's value beside ours."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from gradleak.core import describe
from gradleak.results import Citation, InputError

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of a study.

    Attributes:
        quantity: what was measured, with its setting.
        ours: the value here, or None with the reason in `note`.
        paper: the paper's value as it is printed there, or "".
        interval: (low, high) of a 95 % interval, or None.
        n: independent items behind it.
        note: what a reader needs to know.
    """

    quantity: str
    ours: float | None
    paper: str = ""
    interval: tuple[float, float] | None = None
    n: int = 1
    note: str = ""

    def row(self) -> str:
        """A Markdown table row."""
        ours = "-" if self.ours is None else f"{self.ours:.5g}"
        interval = "-" if self.interval is None else f"{self.interval[0]:.5g} to {self.interval[1]:.5g}"
        return f"| {self.quantity} | {ours} | {interval} | {self.paper or '-'} | {self.n} | {self.note} |"


@dataclass(frozen=True, kw_only=True)
class Table:
    """Numbers that belong side by side.

    Attributes:
        title: what it shows.
        columns: their heads.
        rows: cells as they are printed, as many a row as columns.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> list[str]:
        """The lines of a Markdown table under its title."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        return [f"## {self.title}", "", *(f"| {' | '.join(cells)} |" for cells in lines), ""]


def chosen(names: Sequence[str], axes: Sequence[str], asker: str) -> list[str]:
    """Cells of a study that changes one thing of a base at a time.

    Args:
        names: of all cells, "axis: value", the base first, which is always chosen.
        axes: which others, each whole or up to its colon; empty for all.
        asker: setting that says so, for the message.

    Raises:
        InputError: for an axis that there is not.
    """
    for axis in axes:
        if axis not in names and axis not in {name.partition(":")[0] for name in names}:
            raise InputError(f"{asker}: expected any of {', '.join(names)}, got {axis!r}")
    wanted = {names[0], *(axes or names)}
    return [name for name in names if {name, name.partition(":")[0]} & wanted]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """A run of a study: by which version, when, and what it took.

    Attributes:
        version: of gradleak.
        date: day of the run's end (UTC), as YYYY-MM-DD.
        core_seconds: CPU time of the process and of its children that have ended; what cells of an earlier run took
            is not in it.
        seconds: by the clock.
    """

    version: str
    date: str
    core_seconds: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """The findings of a study with its settings and what they say.

    Attributes:
        study: name of the study.
        settings: the study's own fields, JSON-ready.
        findings: line by line.
        conclusion: what holds and what does not, in words computed from the findings.
        details: raw numbers for a closer look.
        tables: numbers side by side, printed before the findings.
        figures: SVG by name, written beside the page and shown in it.
        cost: of the run, or None where nobody measured it.
    """

    study: str
    settings: dict[str, Any]
    findings: Sequence[Finding]
    conclusion: Sequence[str]
    details: dict[str, Any] = field(default_factory=dict)
    tables: Sequence[Table] = ()
    figures: Mapping[str, str] = field(default_factory=dict)
    cost: Cost | None = None

    def markdown(self) -> str:
        """The study as a Markdown page."""
        head = ["| quantity | ours | 95 % interval | paper | n | note |", "| --- | --- | --- | --- | --- | --- |"]
        lines = [f"# {self.study}", "", *(f"- {line}" for line in self.conclusion), ""]
        lines += [line for name in self.figures for line in (f"![{name}]({name}.svg)", "")]
        lines += [line for table in self.tables for line in table.markdown()]
        return "\n".join([*lines, *head, *(finding.row() for finding in self.findings), ""])

    def write(self, out: Path) -> Path:
        """Write `<study>.md`, `<study>.json` and the figures into `out`; returns the Markdown file."""
        out.mkdir(parents=True, exist_ok=True)
        for name, svg in self.figures.items():
            (out / f"{name}.svg").write_text(svg, encoding="utf-8")
        page = out / f"{self.study}.md"
        page.write_text(self.markdown(), encoding="utf-8")
        document = describe(self) | {"details": self.details, "figures": list(self.figures)}
        (out / f"{self.study}.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
        return page


class Study(ABC):
    """A study: its fields are the settings, `run` computes it.

    Attributes:
        name: snake case.
        source: table or figure that it reproduces.
        citations: the paper.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    citations: ClassVar[tuple[Citation, ...]]

    @abstractmethod
    def run(self, *, say: Say) -> StudyResult:
        """Compute the study.

        Args:
            say: called with a line of progress now and then.
        """

"""The record of a run: JSON lines, written as results arrive, resumable after a kill.

A file holds one `run` line (plan, seed, versions, host facts) and then the lines of *groups*, the units of resuming. Each
carries `group`, `line` (its place) and `of` (how many there are), which say whether a group is whole, and a `checksum`.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
import webbrowser
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from gradleak.results.citation import Citation
from gradleak.results.errors import GradleakError, InputError, one_line
from gradleak.results.files import expect_file, write_file
from gradleak.results.finding import Finding
from gradleak.results.kinds import finding_class, load_notebook, load_report
from gradleak.results.record_lines import (
    PLACE,
    SCHEMA,
    announced,
    by_group,
    in_plan_order,
    is_whole,
    read_lines,
    sealed,
    text_of,
)
from gradleak.results.score import Score
from gradleak.results.verdict import RUN, Thresholds, Verdict, VerdictKind
from gradleak.results.versions import version_of

# Times, facts on the host, and what the key of a run's private data makes of it.
VOLATILE = frozenset({"seconds", "started", "host", "traceback", "checksum", "keyed_checksum", "behavior"})


@dataclass(frozen=True, kw_only=True)
class Record:
    """A run that was read back: its header and its lines.

    Attributes:
        run: the header line (plan, seed, versions, host, groups).
        lines: all further lines, in file order.
        path: where it was read from, or None.
        damage: what the file holds beside them and was left out, since it is not what was written: a phrase for each of the
            first twenty lines.
        damaged: number of all lines that were left out.
    """

    run: Mapping[str, Any]
    lines: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    path: Path | None = None
    damage: Sequence[str] = ()
    damaged: int = 0

    def __repr__(self) -> str:
        """One line: name, verdict on the run, how much there is. `lines` and `canonical` have everything."""
        kinds, missing = Counter(row.get("type") for row in self.lines), self.missing
        given = [one.get("verdict") for one in self.lines if one.get("type") == "verdict" and one.get("item") == RUN]
        verdict = next((kind.value for kind in VerdictKind if given[-1:] == [kind]), "no verdict on the run")
        told = [repr(str(self.run.get("name", "")))[:100], verdict]
        told += [f"{kinds['finding']:,} findings", f"{kinds['verdict']:,} verdicts"]
        told += [f"{len(missing):,} of {len(announced(self.run)):,} groups missing"] if missing else []
        told += [f"{self.damaged:,} damaged lines left out"] if self.damaged else []
        told += [one_line(str(self.path))] if self.path else []
        return f"Record({', '.join(told)})"

    def _repr_html_(self) -> str:
        """The verdicts, as a notebook shows them."""
        return load_notebook()(self)

    def open(self) -> Path:
        """The HTML report, written anew beside the record (of one in memory, into a temporary folder), and shown.

        It is shown by the browser of this machine where there is one; where there is none, the file is there all the same.
        """
        folder = Path(tempfile.mkdtemp(prefix="gradleak-")) if self.path is None else self.path.parent
        page = load_report()(self, folder / "report.html").resolve()
        webbrowser.open(page.as_uri())
        return page

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Record:
        """The record in a JSONL file; lines that are cut off or damaged are left out, and counted in `damaged`.

        Args:
            path: the file, or the folder of a run that holds `record.jsonl`.

        Raises:
            InputError: if there is no such file, it has no run line or one that was changed, or its schema is not that of this
                version.
        """
        file = record_file(path)
        found = read_lines(file)
        if found.run is None:
            raise InputError(f"{file}: expected a gradleak record whose first line is a run line; got none")
        if found.edited:
            raise InputError(
                f"{file}: expected the header that was written, got one that its checksum does not fit: it was damaged or "
                "edited. Run the same command again, which keeps what is whole"
            )
        return cls(run=found.run, lines=tuple(found.rows), path=file, damage=tuple(found.damage), damaged=found.damaged)

    @classmethod
    def of(
        cls,
        findings: Sequence[Finding],
        verdicts: Sequence[Verdict] = (),
        *,
        name: str = "findings",
        thresholds: Thresholds | None = None,
        citations: Sequence[Citation] = (),
    ) -> Record:
        """The record, in memory, of findings that were made in Python; of a plan `run_plan` writes it.

        Args:
            findings: each item once.
            verdicts: on them.
            name: of the record.
            thresholds: by which the verdicts were given.
            citations: of the methods behind them.

        Raises:
            InputError: without a finding, or for an item twice.
        """
        items = [finding.item for finding in findings]
        if not items or len(set(items)) < len(items):
            raise InputError(f"Record.of: expected at least one finding, and each item once, got {items}")
        groups: dict[str, Sequence[Finding | Verdict]] = {finding.item: [finding] for finding in findings}
        groups |= {"verdicts": verdicts} if verdicts else {}
        run = {
            "gradleak": version_of("gradleak"),
            "name": name,
            "thresholds": None if thresholds is None else thresholds.to_dict(),
            "groups": list(groups),
            "versions": {part: version_of(part) for part in ("torch", "numpy", "scipy")}
            | {"python": platform.python_version()},
            "citations": [{"key": one.key, "text": one.text(), "bibtex": one.bibtex()} for one in citations],
        }
        rows = [
            row_of(group, place, len(found), one) for group, found in groups.items() for place, one in enumerate(found)
        ]
        return cls(run=sealed({"type": "run", "schema": SCHEMA, **run}), lines=tuple(rows))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """The file that this record was written to, atomically: `path`, or `record.jsonl` in that folder.

        Args:
            path: the file, or a folder that exists.
        """
        target = Path(path) / "record.jsonl" if Path(path).is_dir() else Path(path)
        return write_file(target, b"".join(text_of(row) for row in (self.run, *self.lines)))

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Findings in file order; lines that are no finding of their kind are left out (`unreadable`)."""
        return tuple(found for found in self._parsed if isinstance(found, Finding))

    @property
    def scores(self) -> list[tuple[str, Score]]:
        """Pairs of item name and score."""
        return [(finding.item, score) for finding in self.findings for score in finding.scores]

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """The verdicts, in file order."""
        return [found for found in self._parsed if isinstance(found, Verdict)]

    @property
    def unreadable(self) -> int:
        """The number of lines that hold no proper finding or verdict."""
        return sum(found is None for found in self._parsed)

    @cached_property
    def _parsed(self) -> tuple[Finding | Verdict | None, ...]:
        return tuple(parse(line) for line in self.lines)

    @property
    def missing(self) -> list[str]:
        """The groups that the run line announces and that are not whole."""
        whole = {name for name, rows in by_group(self.lines).items() if is_whole(rows)}
        return [name for name in announced(self.run) if name not in whole]

    @property
    def complete(self) -> bool:
        """True if every group that the run line announces is whole."""
        return not self.missing

    def canonical(self) -> list[str]:
        """The record without times, host facts and checksums, one JSON text a line, in the order of the plan.

        Two runs of one plan and seed give equal canonical records.
        """
        rows = in_plan_order(self.run, self.lines)
        return [json.dumps(_without_volatile(row), sort_keys=True) for row in (self.run, *rows)]


def row_of(group: str, place: int, count: int, found: Finding | Verdict) -> dict[str, Any]:
    """The line of a finding or verdict, with its place and checksum."""
    name = "verdict" if isinstance(found, Verdict) else "finding"
    content = found.to_dict()
    taken = set(PLACE) & set(content)
    if taken:
        raise InputError(
            f"group {group}: expected a finding without the keys of the record itself, got {sorted(taken)}"
        )
    return sealed({"type": name, "group": group, "line": place, "of": count, **content})


def finding_of(row: Mapping[str, Any]) -> Finding:
    """The finding in a line."""
    kind = row.get("kind")
    if not isinstance(kind, str):
        raise InputError(f"finding: expected a kind, got {str(kind)[:100]!r}")
    return finding_class(kind).from_dict({key: value for key, value in row.items() if key not in PLACE})


def parse(row: Mapping[str, Any]) -> Finding | Verdict | None:
    """The finding or verdict in a line, None where it holds neither."""
    try:
        return Verdict.from_dict(row) if row["type"] == "verdict" else finding_of(row)
    except GradleakError:
        return None


def record_file(path: str | os.PathLike[str]) -> Path:
    """`path` itself, or `record.jsonl` inside it if it is a folder.

    Raises:
        InputError: if there is no such file.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "record.jsonl"
    return expect_file(file, "a record", remedy="give the folder of a run or run `gradleak audit`")


def _without_volatile(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_volatile(item) for key, item in value.items() if key not in VOLATILE}
    if isinstance(value, list):
        return [_without_volatile(item) for item in value]
    return value

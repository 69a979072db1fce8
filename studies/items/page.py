"""The page "What holds": every numbered item of the papers with what the kept records say of it."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from gradleak.core import describe
from studies.items.item import Checked, Judged, Line, Paper, Run, State, judge
from studies.items.kept import NEUTRAL, Kept
from studies.study import Finding, Study

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "what-holds.md"
_HEAD = """# What holds

Every table, figure, equation and definition of the five papers behind gradleak, and what became of it here. The page is
written by `python -m studies.items` from the records in `studies/records` and from `studies/items`, where each item states
which value of which study decides it; `gradleak study --list` prints the same states. Do not edit it by hand.

- **agrees**: every rule of the item holds for the values of its records. **differs**: none does. **in part**: some do, or a
  piece of the item was not run; the last column says which.
- **checked by tests**: a formula or procedure, compared in tests with reference values or with a computation that is not ours.
- **shown, nothing to judge**: the paper prints no number and makes no claim that a rule could test; ours is given.
- **not run**: with the reason, and the command that would run it where there is one.
- *Earlier version*: a value of the documentation whose study was not run again in this version; there is no record of it.

A rule says how near is near enough, and was set by us, most of them with earlier results known. Intervals are of 95 %.
Settings are smaller than the papers' nearly everywhere (few images, one machine without an accelerator), so that *agrees*
means: under these settings.
"""


def page(papers: Sequence[Paper], records: Mapping[str, Kept], known: Mapping[str, type[Study]]) -> str:
    """The Markdown of the page.

    Args:
        papers: with their items.
        records: kept ones by name.
        known: studies by name, whose defaults tell what a command has to set.
    """
    judged = [(paper, [judge(item, records) for item in paper.items]) for paper in papers]
    lines = [_HEAD, *_counts(judged)]
    for paper, items in judged:
        lines += ["", f"## {paper.citation.authors} ({paper.citation.year})", "", f"*{paper.citation.title}*.", ""]
        lines += [
            "| item | says | state | paper, and ours | by | not run, notes |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        lines += [_row(item, records) for item in items]
    lines += ["", "## Runs", "", *_runs(judged, records, known), ""]
    return "\n".join(lines)


def listing(papers: Sequence[Paper], records: Mapping[str, Kept]) -> Iterator[str]:
    """Lines for a terminal: item, state, and the studies or tests behind it, under the name of the paper.

    Args:
        papers: with their items.
        records: kept ones by name.
    """
    for paper in papers:
        yield f"{paper.citation.authors} ({paper.citation.year})"
        for item in paper.items:
            found = judge(item, records)
            behind = dict.fromkeys([run.record for run, _ in found.lines] or [one.name for one in item.code])
            yield f"  {item.number:<34} {found.state.value:<24} {', '.join(behind) or '-'}"


def command(run: Run, records: Mapping[str, Kept], known: Mapping[str, type[Study]]) -> str:
    """The command of a run: by its record's settings where there is one, else by those that the item states.

    Args:
        run: the run.
        records: kept ones by name.
        known: studies by name.
    """
    record = records.get(run.record)
    given = run.settings if record is None else changed(record, known)
    sets = [f"--set {shlex.quote(f'{name}={_toml(value)}')}" for name, value in given.items()]
    return " ".join([f"gradleak study {run.study} --out runs/studies", *sets])


def changed(record: Kept, known: Mapping[str, type[Study]]) -> dict[str, Any]:
    """Settings of a record that are not the study's defaults; the seed is derived and no setting.

    Args:
        record: a kept one.
        known: studies by name.
    """
    defaults = settings_of(known[record.study])
    return {
        name: value
        for name, value in record.settings.items()
        if name not in NEUTRAL and name != "seed" and value != defaults.get(name)
    }


def settings_of(study: type[Study]) -> dict[str, Any]:
    """The settings of a study as a record describes them, with their defaults; None for one that has to be given.

    Args:
        study: its class, a dataclass.
    """
    given = {field.name: field.default for field in dataclasses.fields(cast(Any, study))}
    return {name: None if value is dataclasses.MISSING else describe(value) for name, value in given.items()}


def _counts(judged: Sequence[tuple[Paper, Sequence[Judged]]]) -> list[str]:
    names = [f"{paper.citation.authors.split(',')[0]} {paper.citation.year}" for paper, _ in judged]
    lines = ["| state | " + " | ".join([*names, "all"]) + " |", "| --- |" + " --- |" * (len(names) + 1)]
    counts = [Counter(one.state for one in items) for _, items in judged]
    for state in State:
        row = [count[state] for count in counts]
        lines.append(f"| {state.value} | " + " | ".join(map(str, [*row, sum(row)])) + " |")
    totals = [len(items) for _, items in judged]
    return [*lines, "| items | " + " | ".join(map(str, [*totals, sum(totals)])) + " |"]


def _row(judged: Judged, records: Mapping[str, Kept]) -> str:
    item = judged.item
    several = len(judged.lines) > 1
    values = [_value(line, run.record if several else "") for run, lines in judged.lines for line in lines]
    by = [_link(run) for run, _ in judged.lines] + [_checked(one) for one in item.code]
    notes = [item.note]
    if item.lacking:
        notes.append(f"Not run: {item.lacking}" + (f" Would run it: `{item.command}`" if item.command else ""))
    costs = [run.cost for run, _ in judged.lines if run.cost and run.record not in records]
    notes += [f"Costs {cost}." for cost in dict.fromkeys(costs)]
    cells = [
        item.number,
        item.says,
        f"**{judged.state.value}**",
        "<br>".join(values) or "-",
        "<br>".join(dict.fromkeys(by)) or "-",
        " ".join(note for note in notes if note) or "-",
    ]
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _value(line: Line, record: str) -> str:
    reading, found = line.reading, line.found
    name = (f"{record}, " if record else "") + (reading.shown or reading.quantity)
    paper = reading.paper or ("" if found is None else found.paper)
    text = f"{name}: " + (f"paper {paper}, " if paper else "")
    text += "not run" if found is None else f"ours {shown(found)}" + ("" if line.current else ", *earlier version*")
    if reading.rule is not None and found is not None:
        verdict = {True: "yes", False: "**no**", None: "cannot say"}[line.agrees]
        text += f" ({reading.rule.text()}: {verdict})"
    return text


def shown(found: Finding) -> str:
    """A value with its interval, as the page has it.

    Args:
        found: the finding.
    """
    if found.ours is None:
        return f"none ({found.note})" if found.note else "none"
    interval = "" if found.interval is None else f" ({_digits(found.interval[0])} to {_digits(found.interval[1])})"
    return f"{_digits(found.ours)}{interval}"


def _digits(value: float) -> str:
    return f"{float(f'{value:.3g}'):,.0f}" if 100 <= abs(value) < 1e6 else f"{value:.3g}"


def _link(run: Run) -> str:
    return f"[{run.record}](#runs)" + (f", [more]({run.page})" if run.page else "")


def _checked(one: Checked) -> str:
    return f"`{one.name.removeprefix('gradleak.')}`, by `{one.test.removeprefix('tests/')}`"


def _runs(
    judged: Sequence[tuple[Paper, Sequence[Judged]]], records: Mapping[str, Kept], known: Mapping[str, type[Study]]
) -> list[str]:
    every = [run for _, items in judged for one in items for run, _ in one.lines]
    # Where several items read one record, only one of them needs to state the cost.
    runs = {run.record: run for run in sorted(every, key=lambda run: bool(run.cost))}
    lines = [
        "Commands run in the root of a checkout; files such as `cifar10.npz` are the reader's own. Core-minutes are CPU time",
        "of the run.",
        "",
        "| record | command | version | day | core-minutes |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in sorted(runs):
        record = records.get(name)
        # A study that keeps cells and does not say whether it found some may have.
        partial = record is not None and record.resumed is not False and "cells" in settings_of(known[record.study])
        cost = None if record is None else record.cost
        facts = (
            ["no record", "-", runs[name].cost or "-"] if record is None
            else ["-", "-", "-"] if cost is None
            else [cost.version, cost.date, f"{'at least ' if partial else ''}{cost.core_seconds / 60:.1f}"]
        )  # fmt: skip
        text = command(runs[name], records, known).replace("|", r"\|")
        lines.append(f"| {name} | `{text}` | {' | '.join(facts)} |")
    return lines


def _toml(value: Any) -> str:
    """A value as `--set` reads it; tables inside of lists are inline ones."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {_toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


__all__ = ["PAGE", "changed", "command", "listing", "page", "settings_of", "shown"]

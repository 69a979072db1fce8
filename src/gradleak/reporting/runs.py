"""Runs in a folder: the state of each, how far it is, and the page that lists them."""

from __future__ import annotations

import os
from calendar import timegm
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from html import escape
from pathlib import Path
from time import strptime
from typing import Any
from urllib.parse import urlencode

from gradleak.reporting.blocks import Chip, Tag
from gradleak.reporting.html import framed, inline
from gradleak.reporting.numerals import MISSING, as_number, count, duration
from gradleak.results import RUN, GradleakError, Record, Verdict
from gradleak.results.record_lines import CUT, announced
from gradleak.results.record_writer import is_being_written

RECORD = "record.jsonl"
SCRIPTS = ("report.js", "runs.js")
# Below the folder that is looked at; deeper ones are not, nor more runs, nor what a link leads to.
DEEPEST = 4
MOST_RUNS = 500


class State(StrEnum):
    """State of a run."""

    RUNNING = "running"
    FINISHED = "finished"
    UNFINISHED = "unfinished"
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run as a list shows it.

    Attributes:
        name: path of its folder below the folder that is looked at; "." for that folder itself.
        title: name of its plan.
        state: what it is doing, or what is wrong with it.
        verdict: on the run, None where there is none or the record is not what was written.
        fault: what is wrong with the record, "" for nothing.
        started: when, as the header says.
        done: groups that are whole.
        of: groups that the header announces.
        seconds: of work so far.
        gradients: plain gradients that attacks have taken, or None.
        left: seconds that the run may take from the last line on, or None where nobody can tell.
        changed: when its file was last written to, in seconds since 1970.
    """

    name: str
    title: str
    state: State
    verdict: Verdict | None = None
    fault: str = ""
    started: str = ""
    done: int = 0
    of: int = 0
    seconds: float = 0.0
    gradients: float | None = None
    left: float | None = None
    changed: float = 0.0

    @classmethod
    def read(cls, name: str, file: Path) -> Run:
        """The run behind a record file, whatever the file holds.

        Args:
            name: of the run.
            file: its record.
        """
        # Asked first: a run that ends meanwhile is shown as running once more.
        running, changed = is_being_written(file), file.stat().st_mtime
        try:
            record = Record.load(file)
        except (GradleakError, OSError) as error:
            return cls(name=name, title=name, state=State.UNREADABLE, fault=str(error), changed=changed)
        damaged = record.damaged + record.unreadable
        spent = [finding.cost for finding in record.findings if finding.cost is not None]
        every, missing = announced(record.run), record.missing
        state = State.FINISHED if record.complete else State.RUNNING if running else State.UNFINISHED
        # A last line that is being written, or was when the run was killed, is no damage.
        if damaged > (1 if record.damage and record.damage[-1].endswith(CUT) else 0):
            state = State.DAMAGED
        verdicts = [one for one in record.verdicts if one.item == RUN]
        lines = "line is" if damaged == 1 else "lines are"
        return cls(
            name=name,
            title=str(record.run.get("name") or "audit"),
            state=state,
            verdict=verdicts[-1] if verdicts and state is State.FINISHED else None,
            fault=f"{damaged} {lines} not what was written" if state is State.DAMAGED else "",
            started=str(record.run.get("started") or ""),
            done=len(every) - len(missing),
            of=len(every),
            seconds=sum(finding.seconds for finding in record.findings),
            gradients=sum(spent) if spent else None,
            left=_left(record, changed),
            changed=changed,
        )

    def told(self, now: float) -> str:
        """The state in words.

        Args:
            now: the time, in seconds since 1970.
        """
        so_far = f"{self.done} of {self.of} parts"
        if self.state is State.RUNNING:
            left = None if self.left is None else max(self.left - (now - self.changed), 1.0)
            return f"{so_far}, {'time left not known yet' if left is None else f'about {_rough(left)} left'}"
        if self.state is State.UNFINISHED:
            return f"stopped after {so_far}; the same command goes on"
        return self.fault or "finished"


def find_runs(folder: Path) -> Mapping[str, Path]:
    """The record files in a folder and below it, by the names of the runs; nothing that a link leads to.

    Args:
        folder: of runs, or of one run.
    """
    found: dict[str, Path] = {}
    for at in _folders(folder, DEEPEST):
        file = at / RECORD
        if len(found) < MOST_RUNS and file.is_file() and not file.is_symlink():
            found[at.relative_to(folder).as_posix()] = file
    return found


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    yield folder
    try:
        inside = sorted(os.scandir(folder), key=lambda entry: entry.name) if depth else []
    except OSError:
        return
    for entry in inside:
        shown = entry.name.isprintable() and not entry.name.startswith(".")
        if shown and entry.is_dir(follow_symlinks=False):
            yield from _folders(Path(entry.path), depth - 1)


def _left(record: Record, changed: float) -> float | None:
    """Seconds of work that is missing, at the pace of what is there and with as many workers as seem to be at it."""
    every, missing = announced(record.run), set(record.missing)
    estimate = record.run.get("estimate")
    stated = estimate.get("of_groups") if isinstance(estimate, Mapping) else None
    costs = [as_number(cost) or 0.0 for cost in stated] if isinstance(stated, list) else []
    costs = [*costs, *[0.0] * len(every)][: len(every)]
    # What costs no gradient takes a little time all the same.
    least = max(0.01 * sum(costs) / max(len(every), 1), 1e-9)
    weights = {name: cost + least for name, cost in zip(every, costs, strict=True)}
    work = sum(finding.seconds for finding in record.findings)
    done = sum(weight for name, weight in weights.items() if name not in missing)
    if not missing or not work or not done:
        return None
    try:
        elapsed = changed - timegm(strptime(str(record.run.get("started")), "%Y-%m-%dT%H:%M:%SZ"))
    except ValueError:
        elapsed = work
    host = record.run.get("host")
    cores = as_number(host.get("cores")) if isinstance(host, Mapping) else None
    workers = min(max(work / max(elapsed, 1.0), 1.0), cores or 1.0)
    return work / done * sum(weights[name] for name in missing) / workers


def _rough(seconds: float) -> str:
    """A time as people guess it."""
    if seconds < 60:
        return f"{max(round(seconds / 5) * 5, 5)} s"
    return f"{round(seconds / 60)} min" if seconds < 3600 else duration(60 * round(seconds / 60))


def as_json(runs: Sequence[Run], now: float) -> dict[str, Any]:
    """The answer to the page while runs go on: by run its state, and how far it is.

    Args:
        runs: as the page lists them.
        now: the time, in seconds since 1970.
    """
    told = [
        {"name": run.name, "state": run.state.value, "done": run.done, "of": run.of, "told": run.told(now)}
        for run in runs
    ]
    return {"runs": told}


def render_runs(runs: Sequence[Run], folder: Path, now: float) -> str:
    """The page that lists runs; it reads without scripts, which keep it up to date.

    Args:
        runs: in any order; those that go on and the newest come first.
        folder: that they lie in.
        now: the time, in seconds since 1970.
    """
    ordered = sorted(runs, key=lambda run: (run.state is State.RUNNING, run.started, run.changed), reverse=True)
    heads = ("Run and plan", "Verdict", "State", "Started (UTC)", "Cost", "Compare")
    table = [
        '<form action="diff" method="get">',
        '<div class="scroll" tabindex="0" role="group" aria-label="Runs"><table>',
        "<thead><tr>",
        *(f'<th scope="col">{head}</th>' for head in heads),
        "</tr></thead>\n<tbody>",
        *(_row(run, now) for run in ordered),
        "</tbody></table></div>",
        '<p><button type="submit">Compare the two</button></p>\n</form>',
    ]
    nothing = [
        "<p>There is no record here yet, neither in this folder nor up to four folders below it.",
        f"<code>gradleak audit PLAN.toml --out {escape(str(folder / 'NAME'))}</code> writes one.</p>",
    ]
    body = [
        '<header>\n<p class="eyebrow">gradleak view</p>\n<h1>Runs</h1>',
        f'<p class="lede"><code>{escape(str(folder))}</code></p>\n</header>\n<main>\n<section id="runs" class="first">',
        *(table if runs else nothing),
        '<p class="fine live" role="status"></p>',
        "<noscript><p>Load this page again to see how far runs are.</p></noscript>",
        "</section>\n</main>",
        "<footer><p>Served to this machine alone by <code>gradleak view</code>, which writes nothing. Reports are made of the "
        "records when they are opened.</p></footer>",
    ]
    return framed("Runs of gradleak", body, scripts=SCRIPTS, connects=True)


def render_message(title: str, text: str) -> str:
    """A page that says why there is nothing else to see.

    Args:
        title: in a word or two.
        text: what it is, and what to do.
    """
    body = [
        f'<header>\n<p class="eyebrow">gradleak view</p>\n<h1>{escape(title)}</h1>\n</header>\n<main>',
        f'<section class="first"><p>{escape(text)}</p>\n<p><a href="./">All runs</a></p></section>\n</main>',
    ]
    return framed(title, body, scripts=(), connects=True)


def _row(run: Run, now: float) -> str:
    name = escape(run.name)
    title = escape(run.title if run.name == "." else run.name)
    link = (
        title
        if run.state is State.UNREADABLE
        else f'<a href="report?{escape(urlencode({"run": run.name}))}">{title}</a>'
    )
    verdict = inline(Chip(run.verdict.verdict)) if run.verdict else MISSING
    if run.fault:
        verdict = inline(Tag(run.state.value, tone="bad"))
    state = f'<span class="told">{escape(run.told(now))}</span>'
    if run.state is State.RUNNING:
        state = f'<progress value="{run.done}" max="{run.of}" aria-label="Parts of {name} that are done"></progress> {state}'
    spent = f"<small>{count(run.gradients)} plain gradients</small>" if run.gradients is not None else ""
    choices = "".join(
        f'<label><input type="radio" name="{key}" value="{name}" aria-label="{key}: {name}" required> {key}</label> '
        for key in ("before", "after")
    )
    plan = f"<small>{escape(run.title)}</small>" if run.title not in (run.name, "") and run.name != "." else ""
    cells = (
        f"<td>{verdict}</td>",
        f"<td>{state}</td>",
        f'<td class="short">{escape(run.started.replace("T", " ").removesuffix("Z"))}</td>',
        f'<td class="short"><data value="{run.seconds}">{duration(run.seconds)}</data>{spent}</td>',
        f'<td class="short">{choices if run.state is not State.UNREADABLE else ""}</td>',
    )
    head = f'<th scope="row" class="long">{link}{plan}</th>'
    return f'<tr data-run="{name}" data-state="{run.state.value}">{head}{"".join(cells)}</tr>'

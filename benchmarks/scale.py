"""A plan of many examples: time of run, resumed run, verdicts and pages as their number grows, and size of the pages.

Audits run on 100 and 400 images of 8x8. Verdicts and pages are of records of 1,000, 3,000 and 10,000 releases, which are the
findings of the small run under other numbers. "times linear" is the time over what the growth of the number makes of the
smallest one: 1 where time grows linearly, 10 where that of ten times as many examples grows with their square.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import process_time
from typing import Any, TypeVar

import torch
from torch import nn

import gradleak as gl
from benchmarks.measure import Row
from gradleak.attacks import Blind
from gradleak.auditing import judge
from gradleak.auditing.run import preflight, tasks
from gradleak.audits.base import Audit, Scenario, Site
from gradleak.audits.reconstruction import ReconstructionAudit
from gradleak.audits.released import ReleaseAudit
from gradleak.audits.risk import RiskAudit
from gradleak.models import mlp
from gradleak.reporting.document import summarize
from gradleak.reporting.html import render_html
from gradleak.reporting.markdown import render_markdown
from gradleak.reporting.page import assemble
from gradleak.results import Finding, Record, Subject, Thresholds

# Loads what every run needs, and is not counted.
_WARM = 5
_RUNS = (100, 400)
_RECORDS = (1_000, 3_000, 10_000)
R = TypeVar("R")


def run() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        spent: dict[str, list[float]] = {}
        for count in (_WARM, *_RUNS):
            plan, out = _plan(count), Path(folder) / str(count)
            for name, call in {
                "preflight and tasks": lambda plan=plan: (preflight(plan), tasks(plan)),
                "run": lambda plan=plan, out=out: gl.run_plan(plan, out, jobs=1),
                "run again, nothing to do": lambda plan=plan, out=out: gl.run_plan(plan, out, jobs=1),
            }.items():
                spent.setdefault(name, []).append(_seconds(call)[0])
        yield from _growth(spent, _RUNS, "examples")
        yield from _of_records(Record.load(Path(folder) / str(_RUNS[0])), Path(folder))


def _of_records(small: Record, folder: Path) -> Iterator[Row]:
    spent: dict[str, list[float]] = {}
    for count in (_WARM, *_RECORDS):
        findings = _grown(small, count)

        def call(name: str, work: Callable[[], R]) -> R:
            seconds, made = _seconds(work)
            spent.setdefault(name, []).append(seconds)
            return made

        def judged(findings: Sequence[Finding] = findings) -> Record:
            return Record.of(findings, judge(_audits(), findings, Thresholds()), thresholds=Thresholds())

        file = call("verdicts and lines", judged).save(folder / f"{count}.jsonl")
        record = call("reading, with all findings", lambda file=file: _read(file))
        report = call("page, assembled", lambda record=record: assemble(record))
        sizes = {
            "HTML": len(call("page as HTML", lambda report=report: render_html(report)).encode()),
            "Markdown": len(call("page as Markdown", lambda report=report: render_markdown(report)).encode()),
            "record": file.stat().st_size,
        }
        call("JSON document", lambda report=report: summarize(report))
        for name, size in sizes.items() if count != _WARM else ():
            yield Row(
                name=f"{count:,} releases, {name}", ratio=size / 1e6, aim=5.0 if name == "HTML" else None, unit="MB"
            )
    yield from _growth(spent, _RECORDS, "releases")


def _growth(spent: dict[str, list[float]], counts: Sequence[int], what: str) -> Iterator[Row]:
    for name, (_, *seconds) in spent.items():
        yield Row(name=f"{name}, {counts[-1]:,} {what}", ratio=seconds[-1], unit="seconds")
        for count, found in zip(counts[1:], seconds[1:], strict=True):
            linear = seconds[0] * count / counts[0]
            yield Row(
                name=f"{name}, {count:,} by {counts[0]:,} {what}", ratio=found / linear, aim=1.5, unit="times linear"
            )


def _seconds(work: Callable[[], R]) -> tuple[float, R]:
    """Processor time of one call, and what it gives."""
    start = process_time()
    made = work()
    return process_time() - start, made


def _read(file: Path) -> Record:
    record = Record.load(file)
    assert record.unreadable == 0
    return record


def _grown(small: Record, count: int) -> list[Finding]:
    """The findings of a record under the numbers of so many examples, and its controls."""
    about: dict[str, list[Finding]] = {}
    found = [one for one in small.findings if one.subject is None]
    for one in small.findings:
        if one.subject is not None:
            about.setdefault(one.subject.name, []).append(one)
    names = list(about)
    for place in range(count):
        subject, source = Subject(noun="example", name=str(place)), names[place % len(names)]
        old, new = f"example {source}", f"example {place}"
        found += [one.but(item=one.item.replace(old, new), subject=subject) for one in about[source]]
    return sorted(found, key=lambda one: one.audit)


def _audits() -> list[Audit[Any]]:
    attacks = {"blind": Blind()}
    return [ReleaseAudit(), RiskAudit(measures=[gl.risk.GradientNorm()]), ReconstructionAudit(attacks=attacks)]


def _plan(count: int) -> gl.Plan:
    """So many random images of 8x8 through a small network, one an update, with one closed form and a blind attack."""
    generator = torch.Generator().manual_seed(0)
    network = mlp(features=64, hidden=(16,), classes=10, activation="tanh", generator=generator)
    rows = torch.rand((count, 1, 8, 8), generator=generator)
    every = gl.Batch(rows, torch.arange(count) % 10, gl.Domain.image(channels=1, height=8, width=8))
    places = tuple(range(count))
    scenario = Scenario(
        name="undefended", release=gl.Release(gl.FedSGD(), []), examples=places, attacks={"blind": places}
    )
    site = Site(
        name="many",
        seed=1,
        objective=gl.Objective.from_module(nn.Sequential(nn.Flatten(), network)),
        batches=[every.example(place) for place in places],
        scenarios=[scenario],
    )
    return gl.Plan(site=site, audits=_audits())

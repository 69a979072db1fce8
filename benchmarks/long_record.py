"""A record of 100,000 findings: written group by group, resumed, read and reported; times against the growth of the number."""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import gradleak as gl
from benchmarks.measure import Row
from benchmarks.scale import _WARM, _audits, _grown, _growth, _plan, _seconds
from gradleak.auditing import judge
from gradleak.reporting.document import summarize
from gradleak.reporting.html import render_html
from gradleak.reporting.markdown import render_markdown
from gradleak.reporting.page import assemble
from gradleak.results import Finding, Record, RecordWriter, Thresholds

_COUNTS = (10_000, 100_000)


def run() -> Iterator[Row]:
    yield from measured(_COUNTS)


def measured(counts: Sequence[int]) -> Iterator[Row]:
    """Seconds of processor time of every step for so many findings, size of the file, and peak memory of the process.

    Args:
        counts: of findings, ascending.
    """
    with tempfile.TemporaryDirectory() as folder:
        small = gl.run_plan(_plan(100), Path(folder) / "small", jobs=1)
        each = len(small.findings) // 100
        spent: dict[str, list[float]] = {}
        for count in (_WARM * each, *counts):
            found = _grown(small, count // each)
            file = Path(folder) / f"{count}.jsonl"
            header = {**small.run, "groups": [*(one.item for one in found), "verdict"]}

            def call(name: str, seconds: float) -> None:
                spent.setdefault(name, []).append(seconds)

            call("written", _seconds(lambda file=file, found=found, header=header: _written(file, found, header))[0])
            call("half of it resumed", _seconds(lambda file=file, header=header: _resumed(file, header))[0])
            seconds, record = _seconds(lambda file=file: Record.load(file))
            call("read", seconds)
            assert record.complete
            seconds, report = _seconds(lambda record=record: assemble(record))
            call("page, assembled", seconds)
            for name, work in {"HTML": render_html, "Markdown": render_markdown, "JSON": summarize}.items():
                call(f"page as {name}", _seconds(lambda work=work, report=report: work(report))[0])
            if count in counts:
                yield Row(name=f"{len(found):,} findings, file", ratio=file.stat().st_size / 1e6, unit="MB")
        yield from _growth(spent, counts, "findings")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        yield Row(name="peak memory of the process", ratio=peak, unit="MB")


def _written(file: Path, found: Sequence[Finding], header: dict[str, object]) -> None:
    with RecordWriter(file, header) as writer:
        for one in found:
            writer.write_group(one.item, [one])
        writer.write_group("verdict", judge(_audits(), found, Thresholds()))
        writer.finish()


def _resumed(file: Path, header: dict[str, object]) -> None:
    """Go on with a record whose second half is gone, and write that anew."""
    found = Record.load(file)
    half = len(found.lines) // 2
    Record(run=found.run, lines=found.lines[:half]).save(file)
    with RecordWriter(file, header) as writer:
        missing = set(writer.missing(header["groups"]))  # type: ignore[arg-type]
        assert len(missing) == len(found.lines[half:]) - len(found.verdicts) + 1
        for one in found.findings:
            if one.item in missing:
                writer.write_group(one.item, [one])
        writer.write_group("verdict", found.verdicts)
        writer.finish()

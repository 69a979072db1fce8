"""The report as short Markdown, in the order of the page."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gradleak.reporting import inference_view, layers_words, privacy_view, words
from gradleak.reporting.adversaries import adversaries, notes
from gradleak.reporting.inference_markdown import inference_section
from gradleak.reporting.inference_view import inferences
from gradleak.reporting.layers_markdown import layer_lines, layers_section
from gradleak.reporting.layers_view import layer_maps
from gradleak.reporting.markdown_parts import escape, number, reasons, table
from gradleak.reporting.numerals import MISSING, count, decimal, percent
from gradleak.reporting.privacy_markdown import privacy_lines, privacy_section
from gradleak.reporting.privacy_view import privacies
from gradleak.reporting.reading import load
from gradleak.reporting.report import Attempt, Report, build
from gradleak.reporting.utility_markdown import utility_section
from gradleak.results import Record

ROWS_SHOWN = 40


def write_markdown(record: Record | str | os.PathLike[str], path: str | os.PathLike[str]) -> Path:
    """A Markdown report on a record, without pictures and plots.

    Text of the record is escaped: it is not trusted. The same record gives the same bytes.

    Args:
        record: the record, or its file or folder.
        path: where the file is written; its folder must exist.

    Returns:
        The path.

    Raises:
        InputError: there is no record.
    """
    target = Path(path)
    target.write_text(render_markdown(build(load(record))), encoding="utf-8")
    return target


def render_markdown(report: Report) -> str:
    """The report as Markdown text.

    Args:
        report: what to show.
    """
    parts = [
        _head(report),
        _scenarios(report),
        inference_section(inferences(report.reading)),
        privacy_section(privacies(report.reading)),
        layers_section(layer_maps(report.reading)),
        _adversaries(report),
        utility_section(report),
        _setting(report),
        _noise(report),
        _bounds(report),
        _chances(report),
        _spectra(report),
        _measures(report),
        _attempts(report),
        _controls(report),
        _problems(report),
        _reading(report),
        _made(report),
    ]
    return "\n".join(line for part in parts for line in part) + "\n"


def _place(report: Report, example: Any) -> str:
    assert report.reading is not None
    return report.reading.place(example)


def _head(report: Report) -> Iterable[str]:
    yield f"# {escape(report.title)}: what the shared updates give away"
    yield ""
    if not report.complete:
        yield "> **Unfinished run.** What follows is what stands in the record so far."
        yield ""
    verdict = report.verdict
    if verdict is None:
        yield "**No verdict.** The record holds no verdict on the whole run."
    else:
        title, why = words.VERDICT_TITLES[verdict.verdict], escape(words.reason(verdict.reason))
        explained = report.reading.printed(verdict.explanation) if report.reading else verdict.explanation
        yield f"**{title}**: {why}. {escape(explained)}"
        yield ""
        yield f"**What to do next.** {words.next_step(verdict)}"
    yield ""
    if report.worst:
        worst = report.worst
        where = f"{worst.label}, {_place(report, worst.example)}, {worst.scenario}"
        yield f"- Smallest {report.error} reached: {number(worst.pixel_rmse)} ({escape(where)})"
        yield f"- Its PSNR: {number(worst.psnr)}"
        yield f"- Blind baseline beside it: {number(worst.baseline)}"
        yield f"- Exact hits: {report.hits} of {report.attacked} attacked examples \\[attack\\]"
        yield ""
    for note in report.range_notes:
        yield f"> **Mind the range.** {escape(words.sentence(note))}."
        yield ""
    yield from privacy_lines(privacies(report.reading))
    yield from layer_lines(layer_maps(report.reading))


def _scenarios(report: Report) -> Iterable[str]:
    if not report.scenarios:
        return
    yield "## By scenario"
    yield ""
    header = ("Scenario", "Verdict", "Leaking, of attacked", "RMSE reached", "Blind baseline", "RMSE predicted", "Why")
    yield from table(
        header,
        [
            (
                escape(view.name),
                words.VERDICT_TITLES[view.verdict.verdict] if view.verdict else "No verdict",
                f"{view.leaking} of {view.attacked}",
                number(view.worst.pixel_rmse) if view.worst else MISSING,
                number(view.worst.baseline) if view.worst else MISSING,
                number(view.predicted),
                escape(words.reason(view.verdict.reason)) if view.verdict else "",
            )
            for view in report.scenarios
        ],
    )
    names = {
        "pixel_rmse": report.error,
        "baseline_ratio": "share of the blind baseline",
        "reconstruction_probability": "chance to rebuild an example (bounded)",
        "epsilon": "lower bound on epsilon (leaks above it)",
    }
    shown = {name: value for name, value in report.thresholds.items() if name != "epsilon" or privacies(report.reading)}
    limits = ", ".join(f"{escape(names.get(name, name))} {decimal(value)}" for name, value in shown.items())
    luck = ""
    if report.luck is not None:
        luck = (
            f" One example has to be nearer than luck brings blind guesses, below {decimal(report.luck)}, or several at once "
            "below limits of their own."
        )
    yield f"Thresholds of the plan: {limits or 'not stated'}.{luck}"
    yield ""


def _adversaries(report: Report) -> Iterable[str]:
    views = adversaries(report)
    if not views:
        return
    yield "## Static and adaptive, side by side"
    yield ""
    yield words.ADVERSARIES
    yield ""
    rows = [
        (
            escape(view.scenario),
            escape(_place(report, view.example)),
            escape(view.attack),
            *(number(quantity) for quantity in (view.static, view.adaptive, view.baseline)),
        )
        for view in views[:ROWS_SHOWN]
    ]
    yield from table(("Scenario", "Example", "Attack", "RMSE, static", "RMSE, adaptive", "Blind baseline"), rows)
    yield from (f"- {escape(scenario)}: {escape(note)}" for scenario, note in notes(views))
    yield ""


def _setting(report: Report) -> Iterable[str]:
    yield "## What the adversary was assumed to know"
    yield ""
    for setting in report.settings:
        for text in setting.disclosed:
            yield f"> **DISCLOSED TRUTH.** {escape(text)}"
            yield ""
        for fact in setting.facts:
            yield f"- {escape(fact.label)}: {escape(fact.text)}"
        yield ""
        rows = []
        for release in setting.releases:
            defenses = "; ".join(f"{d.name} ({d.constants}) {d.guarantee}".strip() for d in release.defenses) or "none"
            gate = "; ".join([release.gate, *release.causes])
            routes = "; ".join(release.routes) or "not stated"
            whole = release.guarantee or "none"
            rows.append(tuple(map(escape, (release.scenario, release.protocol, defenses, whole, gate, routes))))
        yield from table(("Scenario", "Protocol", "Defenses", "Guarantee", "Consistency gate", "Derivatives by"), rows)
        noted = [(release.scenario, note) for release in setting.releases for note in release.notes]
        yield from (f"- {escape(scenario)}: {escape(note)}" for scenario, note in noted)
        if noted:
            yield ""
    if not report.settings:
        if inferences(report.reading):
            yield inference_view.NO_RELEASE
        elif privacies(report.reading):
            yield privacy_view.NO_RELEASE
        else:
            yield layers_words.NO_RELEASE if layer_maps(report.reading) else "The record holds no release yet."
        yield ""


def _noise(report: Report) -> Iterable[str]:
    study = report.noise
    if not study.levels:
        return
    yield "## Predicted against reached error"
    yield ""
    yield (
        f"{words.sentence(report.error)}, medians. The report relies on exact I²F at ε = 0 for the noise drawn; it is no "
        "guarantee."
    )
    if study.difference is not None:
        yield (
            f"Below {study.limit} ({study.compared} releases) the perfect attacker, a validation that starts at the "
            f"truth, differs from it by {percent(study.difference)} (median)."
        )
    yield ""
    header = ("Noise std", "Lower bound", "Predicted (I²F)", "Perfect attacker", "Real attack", "Blind baseline")
    names = ("lower_bound", "predicted", "perfect_attacker", "attack", "baseline")
    rows = [(level.label, *(level.medians[name].text for name in names)) for level in study.levels]
    yield from table(header, rows)


def _bounds(report: Report) -> Iterable[str]:
    if not report.bounds:
        return
    yield "## What no attacker does better than, on average"
    yield ""
    yield "Van Trees bounds over a stated Gaussian prior, for one release: an average, not a worst case."
    yield ""
    header = ("Scenario", "Bound", "Prior alone", "Noise std", "Prior", "Note")
    yield from table(
        header,
        [
            (
                escape(view.scenario),
                number(view.value),
                escape(view.prior_error.text),
                escape(view.noise),
                escape(view.prior),
                escape(view.note),
            )
            for view in report.bounds
        ],
    )


def _chances(report: Report) -> Iterable[str]:
    if not report.chances:
        return
    yield f"## {words.CHANCES_TITLE}"
    yield ""
    yield words.CHANCES
    yield ""
    header = ("Scenario", "Chance", "Of each example", "Blind guess", "Within", "Privacy", "Releases", "Prior", "Note")
    yield from table(
        header,
        [
            (
                escape(view.scenario),
                number(view.value),
                escape(view.each.text),
                escape(view.blind.text),
                escape(decimal(view.within)),
                escape(view.privacy),
                escape(decimal(view.rounds)),
                escape(view.prior),
                escape(view.note),
            )
            for view in report.chances
        ],
    )


def _spectra(report: Report) -> Iterable[str]:
    if not report.spectra:
        return
    yield "## Spectrum of AᵀA"
    yield ""
    yield from table(
        ("Example", "d", "Rank", "Largest eigenvalue", "Smallest above zero"),
        [
            (escape(s.label), count(s.size), count(s.rank), s.largest.text, s.smallest.text)
            for s in report.spectra[:ROWS_SHOWN]
        ],
    )


def _measures(report: Report) -> Iterable[str]:
    rows = [row for row in report.score_rows if row.closed_form]
    if not rows:
        return
    yield "## Closed-form measures"
    yield ""
    yield from table(
        ("Item", "Score", "Value", "Unit", "Interval", "Outcome"),
        [
            (
                escape(row.item),
                escape(row.name),
                number(row.quantity),
                escape(row.unit),
                escape(row.interval),
                escape(row.quantity.outcome.label.replace("_", " ") if row.quantity.outcome else MISSING),
            )
            for row in rows[:ROWS_SHOWN]
        ],
    )
    yield from reasons((row.name, row.quantity) for row in rows[:ROWS_SHOWN])
    if len(rows) > ROWS_SHOWN:
        yield f"{len(rows) - ROWS_SHOWN} more scores stand in the record."
        yield ""


def _attempts(report: Report) -> Iterable[str]:
    others = inferences(report.reading) or privacies(report.reading) or layer_maps(report.reading)
    if others and not report.attempts and not report.scenarios:
        return
    yield "## Attacks, worst first"
    yield ""
    if not report.attempts:
        yield "No reconstruction was tried." if others else "No attack stands in the record."
        yield ""
        return
    header = (
        "Example",
        "Scenario",
        "Attack",
        "PSNR",
        "RMSE",
        "Blind baseline",
        "SSIM",
        "Labels",
        "Outcome",
        "Plain gradients",
    )
    yield from table(
        header,
        [
            (
                escape(_place(report, a.example)),
                escape(a.scenario),
                escape(a.label),
                *(number(q) for q in (a.psnr, a.pixel_rmse, a.baseline, a.ssim)),
                _labels(a),
                escape(a.outcome.label.replace("_", " ") if a.outcome else MISSING)
                + (f" (note {a.note_number})" if a.note_number else ""),
                count(a.plain_gradients),
            )
            for a in report.attempts[:ROWS_SHOWN]
        ],
    )
    # Why nothing was claimed at all stands among the notes.
    scored = [attempt for attempt in report.attempts[:ROWS_SHOWN] if attempt.pixel_rmse.value is not None]
    yield from reasons(pair for a in scored for pair in (("SSIM", a.ssim), ("Labels", a.labels)))
    if report.notes:
        yield from (f"{place}. {escape(note)}" for place, note in enumerate(report.notes, 1))
        yield ""
    if len(report.attempts) > ROWS_SHOWN:
        yield f"{len(report.attempts) - ROWS_SHOWN} more attacks stand in the record."
        yield ""
    yield from _wrong_pairings(report)
    if report.information:
        yield "What each attack went by besides the update:"
        yield ""
        for view in report.information:
            yield f"- {escape(', '.join(view.attacks))}: {escape('; '.join(view.facts))}"
        yield ""


def _labels(attempt: Attempt) -> str:
    """The share of labels found; in a batch as counts first, since its order cannot be recovered."""
    if attempt.label_counts.value is None:
        return number(attempt.labels)
    return f"{number(attempt.label_counts)} as counts, {number(attempt.labels)} by example"


def _wrong_pairings(report: Report) -> Iterable[str]:
    batches = [attempt for attempt in report.attempts if attempt.wrong_pairing.value is not None]
    if not batches:
        return
    yield words.WRONG_PAIRING
    yield ""
    rows = [
        (
            escape(_place(report, a.example)),
            escape(a.scenario),
            escape(a.label),
            number(a.pixel_rmse),
            number(a.wrong_pairing),
        )
        for a in batches[:ROWS_SHOWN]
    ]
    yield from table(("Batch", "Scenario", "Attack", "RMSE, smallest", "RMSE against wrong examples"), rows)


def _controls(report: Report) -> Iterable[str]:
    yield "## Controls"
    yield ""
    if not report.controls:
        yield "No control stands in the record: its verdicts cannot be relied on."
    for control in report.controls:
        state = {True: "passed", False: "**FAILED**", None: "not run"}[control.passed]
        reached = control.words or f"{control.measure or report.error} {number(control.pixel_rmse)}"
        yield f"- {escape(control.title)}: {state}, {escape(reached) if control.words else reached}. {escape(control.demand)}"
        if not control.passed:
            yield f"  {escape(control.meaning)}"
        if control.passed is None and control.note:
            yield f"  {escape(words.sentence(control.note))}"
    yield ""


def _problems(report: Report) -> Iterable[str]:
    if not report.problems:
        return
    yield "## Failed and refused"
    yield ""
    for problem in report.problems:
        yield f"- {escape(problem.item)}: {escape(problem.status)}. {escape(problem.note)}"
    yield ""


def _reading(report: Report) -> Iterable[str]:
    yield "## How to read this"
    yield ""
    for kind, meaning in words.VERDICT_MEANINGS.items():
        yield f"- **{words.VERDICT_TITLES[kind]}**: {meaning}"
    yield ""
    for name, meaning in words.EVIDENCE.items():
        yield f"- \\[{name.replace('_', ' ')}\\]: {meaning}"
    yield ""
    if any(attempt.support for attempt in report.attempts):
        yield "Pictures out of a generator, and what the update itself says of them:"
        yield ""
        yield from (f"- {name}: {meaning}" for name, meaning in words.SUPPORT_MEANINGS.items())
        yield ""


def _made(report: Report) -> Iterable[str]:
    yield "## How it was made"
    yield ""
    for label, text in report.provenance.facts:
        yield f"- {escape(label)}: {escape(text)}"
    yield f"- Run it again: {escape(report.provenance.command)}"
    yield ""
    if report.references:
        yield "## Bibliography"
        yield ""
        for place, reference in enumerate(report.references, 1):
            yield f"{place}. {escape(reference.text)}"

"""A report, assembled from a record: the verdict first, then the pages of the kinds of audits, then how to read it all."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from gradleak.reporting import words
from gradleak.reporting.beyond import MOST_SCORES, STAND_IN_RECORD, Rows
from gradleak.reporting.blocks import (
    Badge,
    Block,
    Chip,
    Fold,
    Level,
    Note,
    Section,
    Small,
    Style,
    Table,
    Tag,
    Text,
    Tiles,
    Words,
    as_is,
    labels,
    numbers,
)
from gradleak.reporting.context import Context
from gradleak.reporting.numerals import MISSING, as_number, between, count, decimal, duration, quantity
from gradleak.results import (
    Control,
    Evidence,
    Finding,
    Outcome,
    Record,
    Score,
    Status,
    Verdict,
    VerdictKind,
    kinds,
)

LEDE = "What the shared updates give away about the private examples behind them."
# So many lines of a long table are shown where the rest is not folded away.
ROWS = 40
_MISSING_NAMED = 6
# Facts of a finding that every kind has, or that stand in columns of their own.
_COMMON = frozenset(Finding.model_fields)


@dataclass(frozen=True, kw_only=True)
class Report:
    """Report in the order in which a renderer shows it.

    Attributes:
        record: what it tells of.
        title: name of the run.
        notes: what a reader must know before all else: parts that are missing or could not be read.
        verdict: on the whole run, or None.
        reason: of the verdict, in words.
        explanation: of the verdict.
        remedy: what to do next.
        front: what else stands on the first screen.
        sections: the rest.
        evidence: loud notes and the strongest evidence to look at, directly below the verdict.
        opened: whether the sections stand open.
    """

    record: Record
    title: str
    notes: Sequence[Note]
    verdict: Verdict | None
    reason: str
    explanation: str
    remedy: str
    front: Sequence[Block]
    sections: Sequence[Section]
    evidence: Sequence[Block] = ()
    opened: bool = False


def assemble(record: Record | str | os.PathLike[str]) -> Report:
    """The report on a record.

    Raises:
        InputError: there is no record.
    """
    found = record if isinstance(record, Record) else Record.load(record)
    context = Context(record=found)
    pages = list(_pages(context))
    verdict = context.verdict_on("run")
    if verdict is not None:
        reason, explanation = as_is(words.reason(verdict.reason)), context.printed(verdict.explanation)
        predicted = any(score.name == "inversion_influence" and score.value is not None for _, score in found.scores)
        bounded, left = (context.judged(kind) for kind in (VerdictKind.BOUNDED, VerdictKind.INCONCLUSIVE))
        remedy = words.next_step(verdict, bounded=[*map(as_is, bounded)], left=bool(left), predicted=predicted)
        if context.data_kind == "tokens":
            from gradleak.reporting.sentences import further_attacks

            remedy += further_attacks(context)
    else:
        reason, explanation = "the record holds no verdict on the whole run", ""
        remedy = "See the failed and refused items below."
        if not found.complete:
            remedy = "Resume the run: verdicts are given once all parts are there."
    generic = (_controls(context), _problems(context), _scores(context), _reading(pages), _made(context))
    return Report(
        record=found,
        title=str(found.run.get("name") or "audit"),
        notes=list(_notes(found)),
        verdict=verdict,
        reason=f"{words.sentence(reason)}.",
        explanation=as_is(explanation),
        remedy=remedy,
        evidence=[*_loud(pages), *(block for page in pages for block in page.evidence)],
        front=list(_front(pages, context)),
        sections=[*pages, *(section for section in generic if section is not None)],
    )


def _pages(context: Context) -> Iterable[Section]:
    """The sections of the kinds of audits, in the order of the registry; kinds that are not known come last."""
    by_kind: dict[str, list[Finding]] = {}
    for finding in context.record.findings:
        by_kind.setdefault(finding.kind, []).append(finding)
    for name, kind in kinds().items():
        found = by_kind.pop(name, [])
        page = kind.load_page()(found, context) if found else None
        if page is not None:
            yield page
    for name, found in by_kind.items():
        yield plain_page(name, found, context)


def plain_page(kind: str, findings: Sequence[Finding], context: Context) -> Section:
    """The page of a kind that is not known here: its findings, with all that stands in them."""
    shown = [finding for finding in findings if finding.control is None]
    rows = Rows(
        shown,
        lambda one: [
            as_is(context.title(one)),
            as_is(one.status.value),
            words.outcome(one.outcome),
            as_is(words.constants(_own(one), skip=())),
            as_is(one.note),
        ],
    )
    columns = [*labels("Item", "Status", "Outcome", "Found"), *labels("Note", why=True)]
    text = f"This version knows no audit of the kind `{_code(kind)}`; its findings stand here as they are."
    table = Table(columns=columns, rows=rows, shown=ROWS, folded="more findings", single=True)
    blocks = [Text(parts=[text]), table, *_score_table(shown, context)]
    return Section(anchor=f"kind-{kind}", title=words.sentence(as_is(kind.replace("_", " "))), blocks=blocks)


def _own(finding: Finding) -> dict[str, Any]:
    """The facts of a finding that not every kind has."""
    return {key: value for key, value in finding.to_dict().items() if key not in _COMMON and value not in (None, "")}


def _notes(record: Record) -> Iterable[Note]:
    if not record.complete:
        missing = record.missing
        named = ", ".join(map(as_is, missing[:_MISSING_NAMED])) + (" …" if len(missing) > _MISSING_NAMED else "")
        said = f"{len(missing)} of the announced parts {'is' if len(missing) == 1 else 'are'} missing ({named}). "
        text = "This report covers the record so far. Run the same command again to resume."
        yield Note(title="Unfinished run.", text=said + text, level=Level.WARN)
    left = [one for one in record.findings if one.status is Status.LEFT_OUT]
    if left:
        spent = sum(one.outcome is Outcome.BUDGET_SPENT for one in left)
        title = f"{len(left)} task{'' if len(left) == 1 else 's'} left out."
        text = (
            f"The time budget left no time for {spent} of them; the others were not worth it, for the reasons beside them. "
            "Run the same command with a larger budget, or none, to go on from here."
        )
        yield Note(title=title, text=text, level=Level.WARN)
    if record.unreadable:
        yield _left_out(record.unreadable, "could not be read", ".")
    if record.damaged:
        more = " …" if record.damaged > len(record.damage) else ""
        yield _left_out(
            record.damaged,
            "is damaged" if record.damaged == 1 else "are damaged",
            f" ({'; '.join(map(as_is, record.damage))}{more}).",
        )


def _left_out(lines: int, what: str, why: str) -> Note:
    title = f"{lines} line{'' if lines == 1 else 's'} of the record {what}"
    return Note(title=title, text=f"and {'is' if lines == 1 else 'are'} left out{why}", level=Level.WARN)


def _loud(pages: Sequence[Section]) -> Iterable[Block]:
    return [block for page in pages for block in page.front if isinstance(block, Note)]


def _front(pages: Sequence[Section], context: Context) -> Iterable[Block]:
    """The first screen below the evidence: what may be shipped, the scenarios, and the numbers behind them."""
    blocks = [block for page in pages for block in page.front if not isinstance(block, Note)]
    if context.record.verdicts:
        # Where there is none the page enters one file less.
        from gradleak.reporting.shipping import by_scenario, shipping

        yield Text(parts=[_checked(context)], style=Style.FINE)
        yield from shipping(pages, context)
        yield from by_scenario(context)
    if blocks:
        tiles_first = sorted(blocks, key=lambda block: not isinstance(block, Tiles))
        yield Fold(title="The numbers behind it", blocks=tiles_first, printed=True)


def _checked(context: Context) -> Words:
    """Results of the controls of the run, in a sentence."""
    results = [one.control.passed for one in context.record.findings if one.control is not None]
    if not results:
        return "**No control was run**: whether the attacks work, and never saw the truth, is not checked."
    if all(results):
        every = f"All {len(results)} controls" if len(results) > 1 else "The only control"
        planted = [one.control.planted for one in context.record.findings if one.control is not None]
        found = ["what was planted was found"] * any(planted) + ["nothing was found where there is nothing"] * (
            not all(planted)
        )
        end = "" if any(planted) else "; nothing was planted to be found"
        return f"**{every} passed**: {' and '.join(found)}{end}."
    failed, missing = results.count(False), results.count(None)
    told = [f"{failed} failed"] * bool(failed) + [f"{missing} could not be run"] * bool(missing)
    which = [one for one in context.record.findings if one.control is not None and one.control.passed is not True]
    names = ", ".join(dict.fromkeys(context.title(one) for one in which[:3])) + (" …" if len(which) > 3 else "")
    if any(one.reason in _UNBORNE for one in context.record.verdicts):
        end = "Verdicts that rest on them are inconclusive: see the controls before any number."
    else:
        end = (
            "No verdict is taken away for it: of several planted leaks one that is found is enough, and a control that could not "
            "be run concerns its own attack alone. What these attacks did not find means nothing."
        )
    return f"**Controls: {' and '.join(told)}, of {len(results)}** ({as_is(names)}). {end}"


def _controls(context: Context) -> Section:
    groups: dict[tuple[str, str, str], list[tuple[Finding, Control]]] = {}
    for finding in context.record.findings:
        if (control := finding.control) is not None:
            groups.setdefault((control.title, control.expects, control.meaning), []).append((finding, control))
    if not groups:
        text = (
            "No control stands in the record. Without them a failed attack may be a broken attack, and a successful one may "
            "have seen the truth."
        )
        return Section(anchor="controls", title="Controls", blocks=[Note(text=text, level=Level.WARN)])
    parts = [_control(place, *said, found, context) for place, (said, found) in enumerate(groups.items(), 1)]
    return Section(anchor="controls", title="Controls", blocks=[Text(parts=[words.CONTROL_TEXT])], sections=parts)


def _control(
    place: int, title: str, expects: str, meaning: str, found: Sequence[tuple[Finding, Control]], context: Context
) -> Section:
    rows: list[list[Words]] = []
    for finding, control in found:
        score = _reached(finding, control)
        where = " / ".join(part for part in (finding.audit, finding.scenario, control.of) if part)
        rows.append(
            [
                as_is(where),
                _PASSED[control.passed],
                MISSING if score is None else [words.score_name(score.name, context.entry), quantity(score)],
                decimal(control.baseline),
                as_is(words.sentence(finding.note)),
            ]
        )
    columns = [*labels("Control of", "Result"), *numbers("Reached", "Blind guess"), *labels("Note", why=True)]
    blocks: list[Block] = [Text(parts=[as_is(expects)] if expects else []), Table(columns=columns, rows=rows)]
    results = [control.passed for _, control in found]
    if meaning and all(results):
        blocks.append(Text(parts=[f"If it had failed: {as_is(meaning)}"], style=Style.FINE))
    elif meaning and False in results:
        blocks.append(Note(title="What that means.", text=as_is(meaning), level=Level.LOUD))
    if None in results:
        blocks.append(Note(title="Not run.", text=words.CONTROL_NOT_RUN, level=Level.WARN))
    return Section(anchor=f"control-{place}", title=as_is(title or "Control"), blocks=blocks, label=None)


def _reached(finding: Finding, control: Control) -> Score | None:
    """The number of a control; of several bounds from below of one name the largest, which says the most."""
    first = finding.score(control.measure) if control.measure else None
    if first is None or first.evidence is not Evidence.LOWER_BOUND:
        return first
    bounds = (one for one in finding.scores if (one.name, one.evidence) == (first.name, first.evidence))
    return max(bounds, key=lambda one: -math.inf if one.value is None else one.value)


# Reasons of verdicts that a control took away.
_UNBORNE = ("control_failed", "control_not_run")
_PASSED = {True: Tag("passed", tone="good"), False: Tag("failed", tone="bad"), None: Tag("not run", tone="bad")}


def _problems(context: Context) -> Section | None:
    # A measure that is refused says so in every part of it.
    found = dict.fromkeys(
        (context.title(one), one.status, one.outcome, one.note)
        for one in context.record.findings
        if one.status is not Status.DONE
    )
    rows = Rows(list(found), lambda one: _problem(*one))
    text = Text(parts=["These items gave no result. That is no evidence of safety."])
    table = Table(columns=labels("Item", "Status", "Outcome", "Reason"), rows=rows)
    return Section(anchor="problems", title="Failed and refused", label=None, blocks=(text, table)) if rows else None


def _problem(title: str, status: Status, outcome: Outcome | None, note: str) -> list[Words]:
    why: Words = [as_is(note) or "no reason was kept", *((Small(outcome.remedy),) if outcome else ())]
    return [as_is(title), status.value, words.outcome(outcome), why]


def _scores(context: Context) -> Section | None:
    blocks = _score_table(context.record.findings, context)
    count = sum(len(finding.scores) for finding in context.record.findings)
    title = f"All {count} scores of the record, each with its kind of evidence"
    fold = Fold(title=title, blocks=blocks)
    return (
        Section(anchor="scores", title="Every number of the record", blocks=[fold], label="Scores") if blocks else None
    )


def _score_table(findings: Sequence[Finding], context: Context) -> list[Block]:
    if sum(len(finding.scores) for finding in findings) > MOST_SCORES:
        findings = context.worst_first(findings)
    scores = [
        (finding, score, by_counts)
        for finding in findings
        for score in finding.scores
        for by_counts in ((False, True) if _by_counts(score) is not None else (False,))
    ]
    rows = Rows(scores, lambda one: _score_row(*one, context))
    columns = [
        *labels("Item", "Score"),
        *numbers("Value"),
        *labels("Unit", "Interval"),
        *numbers("n"),
        *labels("Outcome"),
    ]
    table = Table(
        columns=columns,
        rows=rows,
        shown=ROWS,
        folded="more scores",
        dense=True,
        single=True,
        most=MOST_SCORES,
        rest=STAND_IN_RECORD,
    )
    return [table] if len(rows) else []


def _score_row(finding: Finding, score: Score, by_counts: bool, context: Context) -> list[Words]:
    """The row of a score, or one for labels that were found as counts of a batch, in whatever order."""
    # Rows of its own may be of another kind than the data of the plan.
    kind = getattr(finding, "data_kind", None) or context.data_kind
    item, unit = as_is(context.title(finding)), as_is(words.unit(score.unit, kind))
    if by_counts:
        counts = quantity(replace(score, value=_by_counts(score)))
        return [item, words.LABELS_BY_COUNTS, counts, unit, "", str(score.n), words.outcome(score.outcome)]
    said = [words.outcome(score.outcome), *((Small(as_is(score.note)),) if score.note else ())]
    name = as_is(words.score_title(score, context.entry))
    return [item, name, replace(quantity(score), note=""), unit, between(score), str(score.n), said]


def _by_counts(score: Score) -> float | None:
    """The share of labels found as counts, where it is another number than that by example."""
    counted = as_number(score.details.get("by_counts"))
    return None if counted == score.value else counted


def _reading(pages: Sequence[Section]) -> Section:
    verdicts: list[Words] = [[Chip(kind), meaning] for kind, meaning in words.VERDICT_MEANINGS.items()]
    evidence: list[Words] = [[Badge(kind), f"{words.sentence(words.EVIDENCE[kind])}."] for kind in Evidence]
    blocks = [
        Text(parts=verdicts, style=Style.TERMS),
        Text(parts=["There is no verdict “safe”. An attack that fails says only that this attack failed."]),
        Text(parts=["Kinds of evidence"], style=Style.HEADING),
        Text(parts=evidence, style=Style.TERMS),
        Text(parts=["Kinds of evidence are never averaged together."], style=Style.FINE),
        *(block for page in pages for block in page.reading),
    ]
    return Section(anchor="reading", title="How to read this", label="How to read", blocks=blocks)


def _made(context: Context) -> Section:
    run = context.record.run
    command = str(
        run.get("command") or words.mapping(run.get("host")).get("command") or "gradleak audit PLAN.toml --out FOLDER"
    )
    facts = [[label, as_is(text)] for label, text in _facts(context) if text]
    blocks: list[Block] = [Text(parts=[*facts, ["Run it again", f"`{_command(command)}`"]], style=Style.FACTS)]
    plan = run.get("plan")
    if plan:
        text = json.dumps(words.abridged(plan), indent=2, ensure_ascii=False, default=str)
        blocks.append(Fold(title="The resolved plan", blocks=[Text(parts=[text], style=Style.CODE)]))
    listed = [words.mapping(one) for one in words.sequence(run.get("citations"))]
    cited = {str(one.get("key", "")): one for one in reversed(listed) if one.get("text")}
    references = sorted(cited.values(), key=lambda one: str(one["text"]))
    bibtex = "\n".join(str(one.get("bibtex", "")) for one in references)
    cites = (
        Text(parts=[as_is(one["text"]) for one in references], style=Style.NUMBERED),
        Fold(title="BibTeX", blocks=[Text(parts=[bibtex], style=Style.CODE)]),
    )
    bibliography = Section(anchor="bibliography", title="Bibliography", label=None, blocks=cites)
    sections = [bibliography] if references else []
    return Section(anchor="made", title="How it was made", blocks=blocks, sections=sections)


def _facts(context: Context) -> list[tuple[str, str]]:
    run, findings = context.record.run, context.record.findings
    spent = [finding.cost for finding in findings if finding.cost is not None]
    planned = as_number(words.mapping(run.get("estimate")).get("plain_gradients"))
    seconds = sum(finding.seconds for finding in findings)
    limits = [
        f"{name.replace('_', ' ')} {decimal(value)}" + (f" ({words.LIMITS[name]})" if name in words.LIMITS else "")
        for name, value in context.thresholds.items()
    ]
    return [
        ("gradleak", _text(run.get("gradleak"))),
        ("Seed", _text(run.get("seed"))),
        ("Plan digest", _text(run.get("plan_digest"))),
        ("Git commit", _text(run.get("git") or run.get("commit"))),
        ("Versions", words.constants(run.get("versions"), joint=" ")),
        ("Device", _text(run.get("device"))),
        ("Threads", _text(run.get("threads"))),
        ("Host", words.constants(run.get("host"), skip=("command",))),
        ("Started", _text(run.get("started"))),
        ("Thresholds of the plan", ", ".join(limits)),
        ("Cost", f"{count(sum(spent))} plain gradients" if spent else ""),
        ("Estimated before", f"{count(planned)} plain gradients" if planned is not None else ""),
        ("Work time", duration(seconds) if findings else ""),
        ("Record schema", _text(run.get("schema"))),
    ]


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _command(text: str) -> str:
    """The command without the folder that its program lies in."""
    program, space, rest = text.partition(" ")
    return _code(f"{PurePath(program).name}{space}{rest}")


def _code(text: str) -> str:
    """A text between backticks, which can hold none."""
    return text.replace("`", "'")

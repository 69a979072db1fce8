"""Blocks as one JSON document for machines: verdicts, numbers and the sections of the page."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gradleak.reporting.blocks import (
    Badge,
    Block,
    Chip,
    Figure,
    Fold,
    Gallery,
    Hint,
    Inline,
    Mark,
    Note,
    Section,
    Small,
    Steps,
    Style,
    Table,
    Tag,
    Text,
    Tiles,
    Token,
    Words,
    pieces,
    plain,
)
from gradleak.reporting.context import Context
from gradleak.reporting.numerals import Quantity
from gradleak.reporting.page import Report, assemble
from gradleak.results import Finding, Leakier, Record, Score, Status, Subject, Verdict
from gradleak.results.files import write_file
from gradleak.results.score import jsonable

DOCUMENT_SCHEMA = 2
# Findings on these tell which of the private examples are exposed.
_SINGLE = ("example", "batch")


def write_json(
    record: Record | str | os.PathLike[str], path: str | os.PathLike[str], *, per_record: bool = False
) -> Path:
    """One JSON document on a record: verdict, reason, thresholds, the numbers of each scenario, and the page as data.

    Infinities are written as the strings "inf" and "-inf"; a number that could not be computed is null beside its
    outcome. The same record gives the same bytes.

    Args:
        record: the record, or its file or folder.
        path: where the document is written; its folder must exist.
        per_record: whether results on single examples are written too; off by default, since they say which of the
            private examples are exposed.

    Returns:
        The path.

    Raises:
        InputError: there is no record.
        WriteError: the file cannot be written.
    """
    document = summarize(assemble(record), per_record=per_record)
    return write_file(Path(path), json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def summarize(report: Report, *, per_record: bool = False) -> dict[str, Any]:
    """The document as a JSON-ready dictionary."""
    record, context = report.record, Context(record=report.record)
    findings = [one for one in record.findings if per_record or not _is_single(one.subject)]
    document = {
        "schema": DOCUMENT_SCHEMA,
        "name": report.title,
        "complete": record.complete,
        "missing": record.missing,
        "unreadable_lines": record.unreadable,
        "damaged_lines": {"count": record.damaged, "first": list(record.damage)},
        "verdict": _verdict(report.verdict) | {"what_to_do_next": report.remedy},
        "thresholds": dict(context.thresholds),
        "data": context.data_kind,
        "scenarios": _scenarios(context),
        "controls": [_control(finding) for finding in record.findings if finding.control is not None],
        "problems": [
            {
                "item": finding.item,
                "status": finding.status,
                "outcome": finding.outcome.label if finding.outcome else None,
                "note": finding.note,
            }
            for finding in record.findings
            if finding.status is not Status.DONE
        ],
        "findings": [finding.to_dict() for finding in findings if finding.control is None],
        "verdicts": [one.to_dict() for one in record.verdicts if per_record or not _is_single(one.subject)],
        "notes": list(_blocks(report.notes, per_record=per_record)),
        "evidence": list(_blocks(report.evidence, per_record=per_record)),
        "front": list(_blocks(report.front, per_record=per_record)),
        "sections": [_section(section, per_record=per_record) for section in report.sections],
    }
    made: dict[str, Any] = jsonable(document)
    return made


def _is_single(subject: Subject | None) -> bool:
    return subject is not None and subject.noun in _SINGLE


def _verdict(verdict: Verdict | None) -> dict[str, Any]:
    if verdict is None:
        return {"verdict": None, "reason": None, "explanation": "the record holds no verdict"}
    return {"verdict": verdict.verdict.value, "reason": verdict.reason, "explanation": verdict.explanation}


def _scenarios(context: Context) -> list[dict[str, Any]]:
    """The verdict on each scenario, and the leakiest value of each score of its findings; kinds of evidence stay apart."""
    by_scenario: dict[str | None, dict[tuple[Any, ...], list[Score]]] = {}
    for finding in context.record.findings:
        groups = by_scenario.setdefault(finding.scenario, {})
        for score in finding.scores if finding.control is None else ():
            about = tuple(sorted(score.about.items()))
            groups.setdefault((finding.audit, score.name, score.unit, score.evidence, about), []).append(score)
    return [_scenario(name, by_scenario.get(name, {}), context) for name in context.scenarios]


def _scenario(name: str, groups: Mapping[tuple[Any, ...], list[Score]], context: Context) -> dict[str, Any]:
    return {
        "name": name,
        **{
            key if key == "verdict" else f"verdict_{key}": value
            for key, value in _verdict(context.verdict_on(name)).items()
        },
        "scores": [
            {
                "audit": audit,
                "score": score,
                "about": dict(about),
                "unit": unit,
                "evidence": evidence,
                "leakiest": _leakiest(found),
                "smallest": min(_values(found), default=None),
                "largest": max(_values(found), default=None),
                "count": len(found),
                "without_value": sum(one.value is None for one in found),
            }
            for (audit, score, unit, evidence, about), found in groups.items()
        ],
    }


def _leakiest(scores: list[Score]) -> float | None:
    """The value that gives away most, None where neither larger nor smaller ones do."""
    if scores[0].leakier is Leakier.LOWER:
        return min(_values(scores), default=None)
    return max(_values(scores), default=None) if scores[0].leakier is Leakier.HIGHER else None


def _values(scores: list[Score]) -> list[float]:
    return [score.value for score in scores if score.value is not None]


def _control(finding: Finding) -> dict[str, Any]:
    control = finding.control
    assert control is not None
    number = {control.measure: finding.value(control.measure)} if control.measure else {}
    return {"name": control.title, "audit": finding.audit, "item": finding.item, "passed": control.passed, **number}


def _section(section: Section, *, per_record: bool) -> dict[str, Any]:
    return {
        "anchor": section.anchor,
        "title": plain(section.title),
        "blocks": list(_blocks(section.blocks, per_record=per_record)),
        "sections": [_section(part, per_record=per_record) for part in section.sections],
    }


def _blocks(blocks: Iterable[Block], *, per_record: bool) -> Iterable[dict[str, Any]]:
    for block in blocks:
        single = isinstance(block, Gallery | Steps) or (isinstance(block, Table) and block.single)
        if per_record or not single:
            yield _block(block, per_record=per_record)


def _block(block: Block, *, per_record: bool) -> dict[str, Any]:
    if isinstance(block, Text):
        code = block.style is Style.CODE
        parts = [part if code and isinstance(part, str) else _words(part) for part in block.parts]
        return {"block": "text", "style": block.style.value, "parts": parts}
    if isinstance(block, Table):
        columns = [{"label": plain(column.label), "evidence": column.evidence} for column in block.columns]
        rows = [[_words(cell) for cell in row] for row in block.rows]
        return {"block": "table", "caption": _words(block.caption), "columns": columns, "rows": rows}
    if isinstance(block, Tiles):
        tiles = [
            {
                "label": plain(tile.label),
                "value": _words(tile.value),
                "sub": _words(tile.sub),
                "evidence": tile.evidence,
            }
            for tile in block.tiles
        ]
        return {"block": "tiles", "tiles": tiles}
    if isinstance(block, Figure):
        return {"block": "figure", "alt": block.alt, "caption": _words(block.caption)}
    if isinstance(block, Note):
        title, text = plain(block.title), _words(block.text)
        return {"block": "note", "level": block.level.value, "title": title, "text": text}
    if isinstance(block, Fold):
        inner = list(_blocks(block.blocks, per_record=per_record))
        return {"block": "fold", "title": plain(block.title), "blocks": inner}
    if isinstance(block, Steps):
        steps = [
            {
                "title": plain(step.title),
                "verdict": step.verdict.value if step.verdict else None,
                "blocks": list(_blocks(step.blocks, per_record=per_record)),
            }
            for step in block.steps
        ]
        return {"block": "steps", "label": plain(block.label), "steps": steps}
    exhibits = [
        {
            "title": _words(exhibit.title),
            "pictures": [
                {"alt": picture.alt, "caption": [_words(line) for line in picture.caption]}
                for picture in exhibit.pictures
            ],
        }
        for exhibit in block.exhibits
    ]
    further = {"further": block.further} if block.further else {}
    return {"block": "gallery", "exhibits": exhibits, **further}


def _words(found: Words) -> Any:
    """A cell or a run of text: one piece as it is, several as a list."""
    shown = [_inline(piece) for piece in pieces(found)]
    return shown[0] if len(shown) == 1 else shown or ""


def _inline(piece: Inline) -> Any:
    if isinstance(piece, str):
        return plain(piece)
    if isinstance(piece, Quantity):
        outcome = piece.outcome.label if piece.outcome else None
        return {"value": piece.value, "text": piece.text, "evidence": piece.evidence or None, "outcome": outcome}
    if isinstance(piece, Badge):
        return {"evidence": piece.evidence.value}
    if isinstance(piece, Chip):
        return {"verdict": piece.verdict.value if piece.verdict else None}
    if isinstance(piece, Token):
        return {"token": piece.text, "state": piece.state}
    if isinstance(piece, Tag | Hint):
        return piece.text
    if isinstance(piece, Mark):
        return {"mark": piece.text}
    if isinstance(piece, Small):
        return _words(piece.words)
    raise AssertionError

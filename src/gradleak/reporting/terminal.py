"""Blocks as a few plain lines: what a run prints when it ends."""

from __future__ import annotations

from collections.abc import Iterable

from gradleak.reporting import words
from gradleak.reporting.blocks import (
    Badge,
    Block,
    Chip,
    Fold,
    Inline,
    Mark,
    Note,
    Section,
    Small,
    Table,
    Text,
    Tiles,
    Token,
    Words,
    plain,
    run,
)
from gradleak.reporting.context import Context
from gradleak.reporting.numerals import Quantity
from gradleak.reporting.page import Report
from gradleak.results import Record, VerdictKind
from gradleak.results.errors import one_line

_BEFORE = 'Before you ship what is bounded: its utility and the limits of its bound stand under "What may I ship?" in the report.'


def render_terminal(report: Report) -> str:
    """The verdicts, and the numbers of the first screen, as plain text."""
    lines = [*_blocks(report.notes), *verdict_lines(report.record), *_blocks(report.evidence), *_blocks(report.front)]
    lines.append(f"What to do next. {_plain(report.remedy)}")
    if Context(record=report.record).judged(VerdictKind.BOUNDED):
        lines.append(_BEFORE)
    return "\n".join(lines)


def render_text(report: Report) -> str:
    """A whole report as plain text, a line a row of its tables; drawings and pictures are left out."""
    said = (report.title, report.reason, report.explanation)
    lines = [*_blocks(report.notes), *map(_plain, said), *_whole(report.front)]
    for section in report.sections:
        lines += _section(section)
    return "\n".join([*lines, "", f"What to do next. {_plain(report.remedy)}"])


def verdict_lines(record: Record) -> list[str]:
    """The verdicts on the scenarios and on the run, a line each."""
    context = Context(record=record)
    return [
        one_line(f"{one.item}: {one.verdict.value} ({one.reason}) {context.printed(one.explanation)}")
        for one in record.verdicts
        if one.audit is None
    ]


def _blocks(blocks: Iterable[Block]) -> Iterable[str]:
    for block in blocks:
        if isinstance(block, Note):
            yield f"{_plain(block.title)} {_words(block.text)}".strip()
        elif isinstance(block, Tiles):
            for tile in block.tiles:
                evidence = f" [{tile.evidence.value.replace('_', ' ')}]" if tile.evidence else ""
                sub = f" ({_words(tile.sub)})" if tile.sub else ""
                yield f"  {_plain(tile.label)}: {_words(tile.value)}{evidence}{sub}"
        elif isinstance(block, Fold):
            yield from _blocks(block.blocks)


def _section(section: Section) -> Iterable[str]:
    yield from ("", _plain(section.title))
    yield from (f"  {line}" for line in _whole(section.blocks))
    for part in section.sections:
        yield from _section(part)


def _whole(blocks: Iterable[Block]) -> Iterable[str]:
    """The lines of blocks, those of texts and tables among them."""
    for block in blocks:
        if isinstance(block, Text):
            yield from map(_words, block.parts)
        elif isinstance(block, Table):
            labels = [_plain(column.label).lower() for column in block.columns[1:]]
            for head, *cells in block.rows:
                said = [f"{label} {text}" for label, cell in zip(labels, cells, strict=True) if (text := _words(cell))]
                yield f"{_words(head)}: {'; '.join(said)}"
        elif isinstance(block, Fold):
            yield from _whole(block.blocks)
        else:
            yield from _blocks([block])


def _words(found: Words) -> str:
    return run(found, _inline)


def _inline(piece: Inline) -> str:
    if isinstance(piece, str):
        return _plain(piece)
    if isinstance(piece, Quantity):
        return one_line(piece.text)
    if isinstance(piece, Badge):
        return f"[{piece.evidence.value.replace('_', ' ')}]"
    if isinstance(piece, Chip):
        return words.VERDICT_TITLES[piece.verdict] if piece.verdict else "No verdict"
    if isinstance(piece, Token):
        return {"wrong": f"/{piece.text}/"}.get(piece.state, piece.text)
    if isinstance(piece, Small):
        return f"({_words(piece.words)})"
    if isinstance(piece, Mark):
        return "●" if piece.filled else "○"
    return _plain(piece.text)


def _plain(text: str) -> str:
    return one_line(plain(text))

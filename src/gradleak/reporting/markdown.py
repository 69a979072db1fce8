"""Blocks as short Markdown, in the order of the page; without pictures, drawings, and details that are not printed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gradleak.reporting import words
from gradleak.reporting.beyond import MORE, beyond
from gradleak.reporting.blocks import (
    MOST,
    Badge,
    Block,
    Chip,
    Fold,
    Inline,
    Level,
    Mark,
    Note,
    Section,
    Small,
    Steps,
    Style,
    Table,
    Text,
    Tiles,
    Token,
    Words,
    pieces,
    run,
    spans,
    told_by,
)
from gradleak.reporting.numerals import Quantity
from gradleak.reporting.page import ROWS, Report, assemble
from gradleak.results import Record
from gradleak.results.files import write_file

_TOKENS = {"right": "**", "wrong": "~~", "open": ""}
_DRESSES = {"": "", "strong": "**", "em": "*", "code": "`"}


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
        WriteError: the file cannot be written.
    """
    return write_file(Path(path), render_markdown(assemble(record)))


def render_markdown(report: Report) -> str:
    """The report as Markdown text."""
    lines = [f"# {escape(report.title)}: what the shared updates give away", ""]
    for note in report.notes:
        lines += _note(note)
    title = words.VERDICT_TITLES[report.verdict.verdict] if report.verdict else "No verdict"
    lines += [f"**{title}.** {_text(report.reason)} {_text(report.explanation)}".rstrip(), ""]
    lines += _blocks(report.evidence, 2)
    lines += [f"**What to do next.** {_text(report.remedy)}", "", *_blocks(report.front, 2)]
    terms = words.terms_of("\n".join(lines))
    for section in report.sections:
        lines += _section(section, 2)
    if terms:
        lines += ["## Terms of the first part", ""]
        lines += [f"- **{escape(term)}**: {escape(meaning)}" for term, meaning in terms.items()]
    return "\n".join(lines).rstrip() + "\n"


def escape(value: Any) -> str:
    """Untrusted text as one line of Markdown that shows it as it is."""
    text = re.sub(r"\s+", " ", str(value))
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#!~])", r"\\\1", text)


def _section(section: Section, level: int) -> list[str]:
    """A section; one of which nothing can be shown is left out."""
    inner = _blocks(section.blocks, level + 1)
    for part in section.sections:
        inner += _section(part, level + 1)
    aside = f" ({_text(section.aside)})" if section.aside else ""
    return [f"{'#' * level} {_text(section.title)}{aside}", "", *inner] if inner else []


def _blocks(blocks: Iterable[Block], level: int) -> list[str]:
    lines: list[str] = []
    for block in blocks:
        if isinstance(block, Text):
            lines += _paragraphs(block, level)
        elif isinstance(block, Table):
            lines += _table(block)
        elif isinstance(block, Tiles):
            lines += _tiles(block)
        elif isinstance(block, Note):
            lines += _note(block)
        elif isinstance(block, Fold) and block.printed:
            inner = _blocks(block.blocks, level)
            lines += [f"**{_text(block.title)}**", "", *inner] if inner else []
        elif isinstance(block, Steps):
            for step in block.steps:
                inner = _blocks(step.blocks, level)
                lines += [f"**{_text(step.title)}**", "", *inner] if inner else []
    return lines


def _paragraphs(block: Text, level: int) -> list[str]:
    if not block.parts:
        return []
    if block.style is Style.CODE:
        return [line for part in block.parts for line in _fence(run(part, str))]
    if block.style in (Style.TERMS, Style.FACTS):
        return [*(_term(part) for part in block.parts), ""]
    left = len(block.parts) - MOST
    shown = [_words(part) for part in block.parts[:MOST]] + ([f"{left:,} {MORE}"] if left > 0 else [])
    if block.style is Style.LIST:
        return [*(f"- {part}" for part in shown), ""]
    if block.style is Style.NUMBERED:
        return [*(f"{place}. {part}" for place, part in enumerate(shown, 1)), ""]
    if block.style is Style.HEADING:
        return [line for part in shown for line in (f"{'#' * level} {part}", "")]
    return [line for part in shown for line in (_start(part), "")]


def _start(line: str) -> str:
    """A line whose beginning makes no list, quotation or rule of it."""
    return re.sub(r"^(\s*)([-+=]|\d+(?=[.)]))", r"\1\\\2", line) if re.match(r"\s*([-+=]|\d+[.)])\s", line) else line


def _term(part: Words) -> str:
    found = [piece for piece in pieces(part) if not isinstance(piece, Mark)]
    return f"- {_words(found[:1])}: {_words(found[1:])}"


def _fence(text: str) -> Iterable[str]:
    """Lines of code, fenced by more backticks than stand in them."""
    longest = max((len(ticks) for ticks in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence, *text.splitlines(), fence, ""]


def _table(table: Table) -> list[str]:
    if not table.rows:
        return []
    rest = beyond(table)
    # Short, but for a table that is cut anyway.
    most = table.most if rest or table.shown is None else max(ROWS, table.shown)
    rows = table.rows[:most]
    told = [told_by(column.evidence, table.caption) for column in table.columns]
    heads = [
        f"{_text(column.label)} {_evidence(column.evidence.value)}" if column.evidence else _text(column.label)
        for column in table.columns
    ]
    lines = [f"{_words(table.caption)}:", ""] if table.caption else []
    lines += ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    lines += ["| " + " | ".join(_words(cell, told[place]) for place, cell in enumerate(row)) + " |" for row in rows]
    lines.append("")
    lines += _reasons(table, rows)
    if rest:
        lines += _paragraphs(rest, 2)
    elif len(rows) < len(table.rows):
        lines += [f"{len(table.rows) - len(rows)} {_text(table.folded)} stand in the record.", ""]
    return lines


def _reasons(table: Table, rows: Sequence[Sequence[Words]]) -> list[str]:
    """The lines below a table that say why cells have no number, each reason once."""
    found = [
        f"- {_text(column.label)}, {escape(piece.text)}: {escape(piece.note)}"
        for row in rows
        for column, cell in zip(table.columns, row, strict=True)
        for piece in pieces(cell)
        if isinstance(piece, Quantity) and piece.value is None and piece.note
    ]
    return [*dict.fromkeys(found), ""] if found else []


def _tiles(tiles: Tiles) -> list[str]:
    lines = []
    for tile in tiles.tiles:
        told = told_by(tile.evidence)
        evidence = f" {_evidence(tile.evidence.value)}" if tile.evidence else ""
        sub = f" ({_words(tile.sub, told)})" if tile.sub else ""
        lines.append(f"- {_text(tile.label)}: {_words(tile.value, told)}{evidence}{sub}")
    return [*lines, ""] if lines else []


def _note(note: Note) -> list[str]:
    title = note.title.upper() if note.level is Level.LOUD else note.title
    return [f"> {f'**{_text(title)}** ' if title else ''}{_words(note.text)}", ""]


def _words(found: Words, told: frozenset[str] = frozenset()) -> str:
    """A run of text; a number has its evidence behind it, unless a badge or the heading tells it."""
    badged = any(isinstance(piece, Badge) for piece in pieces(found))

    def show(piece: Inline) -> str:
        if isinstance(piece, str):
            return _text(piece)
        if isinstance(piece, Quantity):
            bare = badged or piece.value is None or not piece.evidence or piece.evidence in told
            return escape(piece.text) if bare else f"{escape(piece.text)} {_evidence(piece.evidence)}"
        if isinstance(piece, Badge):
            return _evidence(piece.evidence.value)
        if isinstance(piece, Chip):
            return words.VERDICT_TITLES[piece.verdict] if piece.verdict else "No verdict"
        if isinstance(piece, Token):
            return f"{_TOKENS[piece.state]}{escape(piece.text)}{_TOKENS[piece.state]}"
        if isinstance(piece, Small):
            return f"({_words(piece.words, told)})"
        if isinstance(piece, Mark):
            return "●" if piece.filled else "○"
        return _text(piece.text)

    return run(found, show)


def _evidence(kind: str) -> str:
    return f"\\[{escape(kind.replace('_', ' '))}\\]"


def _text(text: str) -> str:
    shown = ""
    for span in spans(text):
        mark = _DRESSES[span.dress]
        # Code cannot hold the marks that end it, nor the bar that ends a cell; escapes mean nothing within it.
        plain = span.dress == "code" and not re.search(r"[`|\\<&\s]", span.text.replace(" ", ""))
        shown += (
            f"`{span.text}`"
            if plain
            else f"{'' if mark == '`' else mark}{escape(span.text)}{'' if mark == '`' else mark}"
        )
    return shown

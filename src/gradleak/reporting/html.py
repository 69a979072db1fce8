"""Blocks as one HTML page that carries everything inside itself."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import TypeVar

from gradleak.reporting import words
from gradleak.reporting.beyond import BESIDE, MORE, beyond
from gradleak.reporting.blocks import (
    MOST,
    Badge,
    Block,
    Chip,
    Column,
    Exhibit,
    Figure,
    Gallery,
    Hint,
    Inline,
    Level,
    Mark,
    Note,
    Picture,
    Section,
    Small,
    Steps,
    Style,
    Table,
    Tag,
    Text,
    Tile,
    Tiles,
    Token,
    Words,
    as_is,
    labels,
    pieces,
    run,
    spans,
    told_by,
)
from gradleak.reporting.numerals import Quantity
from gradleak.reporting.page import LEDE, Report, assemble
from gradleak.results import RUN, Evidence, Record
from gradleak.results.files import write_file

# Tables and galleries with more fold the rest away, if it is worth folding.
LEAST_FOLDED = 4
# Scripts of a report.
REPORT = ("report.js",)
# Longer names that head a row may break.
_LONG = 32
# A right word is bold and underlined, a wrong one struck through, and what was not claimed is a box.
_TOKENS = {
    "right": '<strong class="right">{}</strong>',
    "wrong": "<s>{}</s>",
    "open": '<span class="open" title="nothing is claimed here">{}</span>',
}
_FOOTER = (
    "Made by gradleak from a record; nothing on this page was computed after the run. It loads nothing from the network. Its "
    "one script sorts and filters tables and enlarges figures."
)
_One = TypeVar("_One")


def write_html(record: Record | str | os.PathLike[str], path: str | os.PathLike[str]) -> Path:
    """A self-contained HTML page on a record: no network, light and dark, printable, whole where no script may run.

    Pictures are taken from beside the record and embedded. All text of the record is escaped: it is not trusted.
    The same record gives the same bytes.

    Args:
        record: the record, or its file or folder.
        path: where the page is written; its folder must exist.

    Returns:
        The path.

    Raises:
        InputError: there is no record.
        WriteError: the file cannot be written.
    """
    return write_file(Path(path), render_html(assemble(record)))


def render_html(report: Report) -> str:
    """The page as text."""
    links = [("verdict", "Verdict"), *_links(report.sections)]
    lines = [
        f'<header>\n<p class="eyebrow">gradleak audit</p>\n<h1>{escape(report.title)}</h1>\n<p class="lede">{LEDE}</p>',
        '<nav aria-label="Sections">',
        *(f'<a href="#{_anchor(anchor)}">{_text(label)}</a>' for anchor, label in links),
        "</nav>\n</header>\n<main>",
        *(_note(note) for note in report.notes),
        _first_screen(report),
        *(_section(section, 2, opened=report.opened) for section in report.sections),
        f"</main>\n<footer><p>{_FOOTER}</p></footer>",
    ]
    return framed(f"{report.title}: what the shared updates give away", lines)


def render_notebook(record: Record) -> str:
    """The verdicts on a run and its scenarios as a notebook shows them, without pictures: it keeps what it shows."""
    judged = sorted((one for one in record.verdicts if one.audit is None), key=lambda one: one.item != RUN)
    rows: list[list[Words]] = [
        [as_is(one.item), Chip(one.verdict), as_is(words.reason(one.reason)), as_is(one.explanation)] for one in judged
    ]
    told = f"<p><code>{escape(repr(record))}</code></p>"
    table = Table(columns=labels("Item", "Verdict", "Reason", "Explanation"), rows=rows)
    return f"{told}\n{_table(table, folded=True)}" if rows else told


def framed(title: str, body: Iterable[str], *, scripts: Iterable[str] = REPORT, connects: bool = False) -> str:
    """A whole page that carries style and scripts inside itself.

    Args:
        title: of the window.
        body: lines of HTML; empty ones are left out.
        scripts: files of this package.
        connects: whether its scripts may ask the server that it came from.
    """
    chosen = tuple(scripts)
    lines = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy(chosen, connects=connects)}">',
        '<meta name="generator" content="gradleak">',
        f"<title>{escape(title)}</title>\n<style>\n{_file('report.css')}</style>\n</head>\n<body>",
        *body,
        *(f"<script>{_file(name)}</script>" for name in chosen),
        "</body>\n</html>\n",
    ]
    return "\n".join(line for line in lines if line)


def policy(scripts: Iterable[str] = REPORT, *, connects: bool = False) -> str:
    """The Content-Security-Policy of a page with these scripts.

    Args:
        scripts: files of this package.
        connects: whether they may ask the server that the page came from.
    """
    prints = (base64.b64encode(sha256(_file(name).encode()).digest()).decode() for name in scripts)
    allowed = {
        "default-src": "'none'",
        "img-src": "data:",
        "style-src": "'unsafe-inline'",
        "script-src": " ".join(f"'sha256-{print_}'" for print_ in prints),
        "connect-src": "'self'" if connects else "",
        "base-uri": "'none'",
        "form-action": "'self'" if connects else "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in allowed.items() if value)


@cache
def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _links(sections: Iterable[Section]) -> Iterable[tuple[str, str]]:
    for section in sections:
        if section.label is not None:
            yield section.anchor, section.label or section.title
        yield from _links(one for one in section.sections if one.label)


def _anchor(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "section"


def _first_screen(report: Report) -> str:
    """The verdict, the strongest evidence, what to do, and what may be shipped; every term with its meaning."""
    after = f'<p class="next"><strong>What to do next.</strong> {_text(report.remedy)}</p>'
    shown, used = words.explained(
        "\n".join([_verdict(report), *_blocks(report.evidence, 2), after, *_blocks(report.front, 2)])
    )
    meanings = _paragraphs(Text(parts=[[term, meaning] for term, meaning in used.items()], style=Style.TERMS), 3)
    glossary = _fold("The terms of this screen", meanings, printed=True) if used else ""
    return f'<section id="verdict" class="first">\n{shown}\n{glossary}\n</section>'


def _verdict(report: Report) -> str:
    kind = report.verdict.verdict if report.verdict else None
    word = words.VERDICT_TITLES[kind] if kind else "No verdict"
    explanation = f"<p>{_text(report.explanation)}</p>" if report.explanation else ""
    return (
        f'<div class="verdict verdict-{kind.value if kind else "none"}">\n<p class="verdict-word">{word}</p>\n<div>'
        f'<p class="verdict-reason">{_text(report.reason)}</p>{explanation}</div>\n</div>'
    )


def _section(section: Section, level: int, *, opened: bool = False) -> str:
    """A section, folded away below its heading; parts of one have smaller headings and no rule above them."""
    aside = f" <small>{_text(section.aside)}</small>" if section.aside else ""
    heading = f"<h{level}>{_text(section.title)}{aside}</h{level}>"
    inner = [*_blocks(section.blocks, level + 1), *(_section(part, level + 1) for part in section.sections)]
    place = f'id="{_anchor(section.anchor)}"'
    if level > 2:
        return "\n".join(line for line in (f"<div {place}>", heading, *inner, "</div>") if line)
    # A link to what lies inside a fold opens it.
    state = " open" if opened else ""
    head = f'<section>\n<details class="part print-open"{state}><summary>{heading}</summary>\n<div {place}>'
    return "\n".join(line for line in (head, *inner, "</div></details>\n</section>") if line)


def _blocks(blocks: Iterable[Block], level: int, *, folded: bool = False) -> Iterable[str]:
    """Blocks, with headings of a level; what lies in a fold is not folded again."""
    for block in blocks:
        if isinstance(block, Text):
            yield _paragraphs(block, level)
        elif isinstance(block, Table):
            yield _table(block, folded=folded)
        elif isinstance(block, Tiles):
            yield _tiles(block.tiles)
        elif isinstance(block, Figure):
            yield _figure(block)
        elif isinstance(block, Note):
            yield _note(block)
        elif isinstance(block, Gallery):
            yield _gallery(block, level, folded=folded)
        elif isinstance(block, Steps):
            yield _steps(block, level)
        else:
            inner = "\n".join(_blocks(block.blocks, level, folded=True))
            yield _fold(block.title, inner, printed=block.printed)


def _paragraphs(block: Text, level: int) -> str:
    if not block.parts:
        return ""
    if block.style is Style.CODE:
        return "\n".join(f'<pre tabindex="0">{escape(_plain(part))}</pre>' for part in block.parts)
    marked = any(isinstance(piece, Mark) for part in block.parts for piece in pieces(part))
    if block.style is Style.FACTS and marked:
        return "\n".join(['<ul class="card">', *(_fact(part) for part in block.parts), "</ul>"])
    if block.style in (Style.TERMS, Style.FACTS):
        name = "glossary" if block.style is Style.TERMS else "facts"
        rows = (_term(pieces(part)) for part in block.parts)
        listed = (f"<div><dt>{term}</dt><dd>{text}</dd></div>" for term, text in rows)
        return "\n".join([f'<dl class="{name}">', *listed, "</dl>"])
    left = len(block.parts) - MOST
    shown = [_words(part) for part in block.parts[:MOST]] + ([f"{left:,} {MORE}"] if left > 0 else [])
    if block.style in (Style.LIST, Style.NUMBERED):
        head, tail = ("<ul>", "</ul>") if block.style is Style.LIST else ('<ol class="notes">', "</ol>")
        return "\n".join([head, *(f"<li>{part}</li>" for part in shown), tail])
    if block.style is Style.HEADING:
        return "\n".join(f"<h{level}>{part}</h{level}>" for part in shown)
    return "\n".join(f'<p class="fine">{part}</p>' if block.style is Style.FINE else f"<p>{part}</p>" for part in shown)


def _term(found: Sequence[Inline]) -> tuple[str, str]:
    return _words(found[:1]), _words(found[1:])


def _fact(part: Words) -> str:
    """A fact of a card, behind its mark."""
    found = pieces(part)
    mark = found[0] if found and isinstance(found[0], Mark) else None
    label, text = _term(found[1:] if mark else found)
    state = "known" if mark is None or mark.filled else "unknown"
    loud = " truth" if mark is not None and mark.loud else ""
    shown = "" if mark is None else inline(mark)
    return f'<li class="{state}{loud}">{shown}<span><strong>{label}</strong><br>{text}</span></li>'


def _first(every: Sequence[_One], most: int | None, show: Callable[[Sequence[_One], bool], str], folded: str) -> str:
    """The first ones, and the others in a fold if it is worth folding; `show` is told whether they are the first."""
    if most is None or len(every) < most + LEAST_FOLDED:
        return show(every, True)
    return (
        f"{show(every[:most], True)}\n{_fold(f'{len(every) - most} {folded}', show(every[most:], False), printed=True)}"
    )


def _table(table: Table, *, folded: bool) -> str:
    rest = beyond(table)
    shown = _first(
        table.rows[: table.most],
        None if folded else table.shown,
        lambda rows, first: _rows(table, rows, caption=first),
        table.folded,
    )
    return f"{shown}\n{_paragraphs(rest, 2)}" if rest else shown


def _rows(table: Table, rows: Sequence[Sequence[Words]], *, caption: bool) -> str:
    about = f"<caption>{_words(table.caption)}</caption>" if caption and table.caption else ""
    head = "".join(_head(column) for column in table.columns)
    attributes = ' class="dense"' if table.dense else ""
    attributes += "" if caption else " data-goes-on"
    lines = [
        f'<div class="scroll" tabindex="0" role="group" aria-label="Table"><table{attributes}>',
        about,
        f"<thead><tr>{head}</tr></thead>\n<tbody>",
        *(f"<tr>{''.join(_cell(table, place, cell) for place, cell in enumerate(row))}</tr>" for row in rows),
        "</tbody></table></div>",
    ]
    return "\n".join(line for line in lines if line)


def _head(column: Column) -> str:
    label = _text(column.label)
    if column.hint:
        label = f'<abbr title="{escape(column.hint)}">{label}</abbr>'
    badge = f" {_badge(column.evidence.value)}" if column.evidence else ""
    return f'<th scope="col"{_classes(column)}>{label}{badge}</th>'


def _classes(column: Column, *further: str) -> str:
    found = [name for name, given in (("n", column.numeric), ("why", column.why)) if given]
    found += [name for name in further if name]
    return f' class="{" ".join(found)}"' if found else ""


def _cell(table: Table, place: int, cell: Words) -> str:
    column = table.columns[place]
    told = told_by(column.evidence, table.caption)
    name = isinstance(cell, str) and re.fullmatch(r"\w+_\w+", cell)
    shown = _breakable(name[0]) if name else _words(cell, told)
    if place == 0 or column.heading:
        long = "long" if len(_plain(cell)) > _LONG else ""
        return f'<th scope="row"{_classes(column, long)}>{shown}</th>'
    return f"<td{_classes(column)}>{shown}</td>"


def _tiles(tiles: Sequence[Tile]) -> str:
    if not tiles:
        return ""
    across = len(tiles) if len(tiles) < 5 else 3 if len(tiles) % 3 == 0 else 4
    lines = [f'<dl class="tiles tiles-{across}">']
    for tile in tiles:
        badge = f" {_badge(tile.evidence.value)}" if tile.evidence else ""
        told = told_by(tile.evidence)
        name = ' class="name"' if all(isinstance(piece, str) for piece in pieces(tile.value)) else ""
        sub = f'<dd class="sub">{_words(tile.sub, told)}</dd>' if tile.sub else ""
        value = _words(tile.value, told)
        lines.append(f"<div><dt>{_text(tile.label)}{badge}</dt><dd{name}>{value}</dd>{sub}</div>")
    return "\n".join([*lines, "</dl>"])


def _figure(figure: Figure) -> str:
    """A drawing; the SVG is made by this package, which escapes the names in it."""
    svg = figure.draw()
    caption = f"<figcaption>{_words(figure.caption)}</figcaption>" if figure.caption else ""
    return f'<figure class="plot">{svg}{caption}</figure>' if svg else ""


def _note(note: Note) -> str:
    title = f"<strong>{_text(note.title)}</strong> " if note.title else ""
    level = "" if note.level is Level.PLAIN else f" callout-{note.level.value}"
    return f'<aside class="callout{level}" role="note"><p>{title}{_words(note.text)}</p></aside>'


def _gallery(gallery: Gallery, level: int, *, folded: bool) -> str:
    most = None if folded else gallery.shown
    shown = _first(gallery.exhibits, most, lambda exhibits, _: _exhibits(exhibits, level), "more")
    return f'{shown}\n<p class="fine">{gallery.further:,} {BESIDE}</p>' if gallery.further else shown


def _steps(steps: Steps, level: int) -> str:
    """Views of which the chosen one shows; radio buttons and the style sheet do that, without a script."""
    lines = [f'<fieldset class="steps"><legend>{_text(steps.label)}</legend>']
    for place, step in enumerate(steps.steps):
        chip = inline(Chip(step.verdict)) if step.verdict else ""
        checked = "" if place else " checked"
        lines += [
            f'<input type="radio" name="step" id="step-{place}"{checked}><label for="step-{place}">{_text(step.title)}</label>',
            f'<div class="step"><p class="step-title">{_text(step.title)} {chip}</p>',
            *_blocks(step.blocks, level + 1, folded=True),
            "</div>",
        ]
    return "\n".join([*lines, "</fieldset>"])


def _exhibits(exhibits: Sequence[Exhibit], level: int) -> str:
    lines = ['<div class="exhibits">']
    for exhibit in exhibits:
        pictures = "\n".join(_picture(picture) for picture in exhibit.pictures)
        title = f"<h{level}>{_words(exhibit.title)}</h{level}>" if exhibit.title else ""
        lines.append(f'<article class="exhibit">{title}<div class="pictures">{pictures}</div></article>')
    return "\n".join([*lines, "</div>"])


def _picture(picture: Picture) -> str:
    shown = '<div class="no-picture">no picture</div>'
    if picture.source is not None:
        shown = f'<img src="{escape(picture.source)}" alt="{escape(picture.alt)}">'
    caption = "<br>".join(_breakable(line) if isinstance(line, str) else _words(line) for line in picture.caption)
    name = ' class="wide"' if picture.wide else ""
    return f"<figure{name}>{shown}<figcaption>{caption}</figcaption></figure>"


def _fold(title: str, inner: str, *, printed: bool) -> str:
    name = ' class="print-open"' if printed else ""
    return f"<details{name}><summary>{_text(title)}</summary>\n{inner}\n</details>"


def _words(found: Words, told: frozenset[str] = frozenset()) -> str:
    """A run of text; a number has its evidence beside it, unless a badge or the heading tells it."""
    badged = any(isinstance(piece, Badge) for piece in pieces(found))

    def show(piece: Inline) -> str:
        if isinstance(piece, Quantity) and piece.value is not None and not badged and piece.evidence not in told:
            return f"{inline(piece)} {_badge(piece.evidence)}" if piece.evidence else inline(piece)
        if isinstance(piece, Small):
            return f"<small>{_words(piece.words, told)}</small>"
        return inline(piece)

    return run(found, show)


def inline(piece: Inline) -> str:
    """A piece of a run of text."""
    if isinstance(piece, str):
        return _text(piece)
    if isinstance(piece, Quantity):
        return _number(piece)
    if isinstance(piece, Badge):
        return _badge(piece.evidence.value)
    if isinstance(piece, Chip):
        kind = piece.verdict
        title = words.VERDICT_TITLES[kind] if kind else "No verdict"
        return f'<span class="chip chip-{kind.value if kind else "none"}">{title}</span>'
    if isinstance(piece, Tag):
        name = {"good": "chip chip-pass", "bad": "chip chip-fail"}.get(piece.tone, f"badge badge-{_anchor(piece.tone)}")
        return f'<span class="{name}"{_title(piece.meaning)}>{_text(piece.text)}</span>'
    if isinstance(piece, Token):
        return _TOKENS[piece.state].format(escape(piece.text))
    if isinstance(piece, Hint):
        return f"<span{_title(piece.meaning)}>{_text(piece.text)}</span>"
    if isinstance(piece, Mark):
        return f'<span class="mark" role="img" aria-label="{escape(piece.text)}">{"●" if piece.filled else "○"}</span>'
    return f"<small>{_words(piece.words)}</small>"


def _title(meaning: str) -> str:
    return f' title="{escape(meaning)}"' if meaning else ""


def _number(quantity: Quantity) -> str:
    if quantity.value is not None:
        return f'<data value="{escape(quantity.raw)}">{escape(quantity.text)}</data>'
    meaning = (quantity.note or quantity.outcome.explanation) if quantity.outcome else ""
    return f'<span class="absent"{_title(meaning)}>{escape(quantity.text)}</span>'


def _badge(kind: str) -> str:
    known = kind in {one.value for one in Evidence}
    meaning = words.EVIDENCE[kind] if known else ""
    return f'<span class="badge badge-{kind if known else "other"}"{_title(meaning)}>{escape(kind.replace("_", " "))}</span>'


def _text(text: str) -> str:
    return "".join(
        f"<{span.dress}>{escape(span.text)}</{span.dress}>" if span.dress else escape(span.text) for span in spans(text)
    )


def _breakable(name: str) -> str:
    """A name that may break after an underscore where there is little room."""
    return _text(name).replace("_", "_<wbr>")


def _plain(found: Words) -> str:
    """A run of text as it would be printed, numbers included and marks left as they are."""
    return run(found, lambda piece: piece if isinstance(piece, str) else getattr(piece, "text", ""))

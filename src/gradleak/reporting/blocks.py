"""The seven blocks that pages are made of; renderers know them, and no kind of audit.

Texts may hold `**strong**`, `*stressed*` and `` `code` ``; every renderer escapes all else, since the texts of a record
are not trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gradleak.reporting.numerals import Quantity
from gradleak.results import Evidence, VerdictKind


class Style(StrEnum):
    """How a text stands on the page."""

    PLAIN = "plain"
    FINE = "fine"
    HEADING = "heading"
    LIST = "list"
    NUMBERED = "numbered"
    CODE = "code"


class Level(StrEnum):
    """How loud a note is."""

    PLAIN = "plain"
    WARN = "warn"
    LOUD = "loud"


@dataclass(frozen=True)
class Badge:
    """The kind of evidence of the numbers beside it."""

    evidence: Evidence


@dataclass(frozen=True)
class Tag:
    """A word in a frame, with its meaning as a tooltip: "formal", "heuristic", "validation", "passed".

    Attributes:
        text: the word.
        meaning: in a sentence, "" for none.
        tone: "good", "bad", "neutral", or a verdict.
    """

    text: str
    meaning: str = ""
    tone: str = "neutral"


@dataclass(frozen=True)
class Chip:
    """A verdict as a word in its color; None where there is none."""

    verdict: VerdictKind | None


Inline = str | Quantity | Badge | Tag | Chip
# A cell or a run of text: one piece, or several in a row.
Words = Inline | Sequence[Inline]


@dataclass(frozen=True, kw_only=True)
class Text:
    """Paragraphs, or the entries of a list.

    Attributes:
        parts: one a paragraph or entry.
        style: how they stand.
    """

    parts: Sequence[Words]
    style: Style = Style.PLAIN


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table.

    Attributes:
        label: its heading.
        evidence: of its numbers, where all are of one kind.
        numeric: whether its cells are numbers, aligned at the right.
        hint: an explanation, as a tooltip; "" for none.
        heading: whether its cells head their rows; the first column does.
        why: whether its cells are sentences, in fine print.
    """

    label: str
    evidence: Evidence | None = None
    numeric: bool = False
    hint: str = ""
    heading: bool = False
    why: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows under headings; what goes beyond `shown` rows is folded.

    Attributes:
        columns: their headings.
        rows: cells by row, as many as there are columns.
        caption: what it shows, "" for none.
        shown: so many rows are shown at once; None for all.
        folded: what the folded rows are called: "more attacks".
        dense: in small print.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Words]]
    caption: Words = ""
    shown: int | None = None
    folded: str = "more"
    dense: bool = False


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One number that a reader is to see first.

    Attributes:
        label: what it is.
        value: the number.
        sub: where it comes from, or how to read it.
        evidence: of the number, or None.
    """

    label: str
    value: Words
    sub: Words = ""
    evidence: Evidence | None = None


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """Numbers side by side."""

    tiles: Sequence[Tile]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A drawing.

    Attributes:
        draw: makes the SVG, with untrusted names escaped; called where it is shown.
        alt: what it shows, for those who do not see it.
        caption: under it, "" for none.
    """

    draw: Callable[[], str]
    alt: str
    caption: Words = ""


@dataclass(frozen=True, kw_only=True)
class Note:
    """Something set apart from the text.

    Attributes:
        title: in bold, "" for none.
        text: what there is to say.
        level: how loud.
    """

    text: Words
    title: str = ""
    level: Level = Level.PLAIN


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture of an example.

    Attributes:
        source: a data address, or None where there is no file.
        alt: what it shows.
        caption: lines under it.
    """

    source: str | None
    alt: str
    caption: Sequence[Words] = ()


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """Pictures that belong together: an original and what was made of its update.

    Attributes:
        title: whose they are.
        pictures: side by side.
        note: under them, "" for none.
    """

    title: Words
    pictures: Sequence[Picture]
    note: Words = ""


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """Exhibits, the first ones shown and the rest folded.

    Attributes:
        exhibits: in their order.
        shown: so many are shown at once; None for all.
    """

    exhibits: Sequence[Exhibit]
    shown: int | None = None


@dataclass(frozen=True, kw_only=True)
class Fold:
    """Details that a reader may open.

    Attributes:
        title: what they are.
        blocks: the details.
        printed: whether they stand open on paper.
    """

    title: str
    blocks: Sequence[Block]
    printed: bool = False


Block = Text | Table | Tiles | Figure | Note | Gallery | Fold


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a report.

    Attributes:
        anchor: its address on the page, unique.
        title: its heading.
        blocks: what it shows.
        aside: a word or two beside the heading: "worst first".
        label: what it is called in the table of contents; "" for the title, None for not listed.
        front: what of it stands on the first screen, below the verdict: tiles, loud notes.
        sections: further parts below it, with headings of their own.
    """

    anchor: str
    title: str
    blocks: Sequence[Block] = ()
    aside: str = ""
    label: str | None = ""
    front: Sequence[Block] = ()
    sections: Sequence[Section] = ()


__all__ = [
    "Badge",
    "Block",
    "Chip",
    "Column",
    "Exhibit",
    "Figure",
    "Fold",
    "Gallery",
    "Inline",
    "Level",
    "Note",
    "Picture",
    "Section",
    "Style",
    "Table",
    "Tag",
    "Text",
    "Tile",
    "Tiles",
    "Words",
]

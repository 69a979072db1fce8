"""The eight blocks that pages are made of; renderers know them, and no kind of audit.

Texts may hold `**strong**`, `*stressed*` and `` `code` ``; every renderer escapes all else, since the texts of a record
are not trusted. A name or note out of a record goes through `as_is`, so that an asterisk in it stays one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from gradleak.reporting.numerals import Quantity
from gradleak.results import Evidence, VerdictKind

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# So many rows, pictures and entries of a list a page shows in full; of single examples these are the worst.
MOST = 200


class Style(StrEnum):
    """Style of a text on the page.

    In TERMS and FACTS each part is a sequence: a term and what it means, a label and what holds of it (behind a `Mark`,
    where there is one); TERMS are rows, FACTS stand side by side.
    """

    PLAIN = "plain"
    FINE = "fine"
    HEADING = "heading"
    LIST = "list"
    NUMBERED = "numbered"
    CODE = "code"
    TERMS = "terms"
    FACTS = "facts"


class Level(StrEnum):
    """Loudness of a note."""

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


@dataclass(frozen=True)
class Hint:
    """Words with an explanation in a sentence or two as a tooltip, without a frame: an outcome."""

    text: str
    meaning: str


@dataclass(frozen=True)
class Small:
    """Small print below a number or name: its interval, its unit, how many stand behind it."""

    words: Words


@dataclass(frozen=True)
class Mark:
    """A filled or empty circle before a fact.

    Attributes:
        text: what it stands for: "known".
        filled: whether it is filled.
        loud: whether the fact stands out.
    """

    text: str
    filled: bool
    loud: bool = False


@dataclass(frozen=True)
class Token:
    """A piece of text as it was claimed: "right", "wrong" or "open" (nothing is claimed), told by more than a color."""

    text: str
    state: str


Inline = str | Quantity | Badge | Tag | Chip | Hint | Small | Mark | Token
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
    """Rows under headings; what goes beyond `shown` rows is folded, and beyond `most` rows summarized in a line.

    Attributes:
        columns: their headings.
        rows: cells by row, as many as there are columns.
        caption: what it shows, "" for none.
        shown: so many rows are shown at once; None for all.
        folded: what the folded rows are called: "more attacks".
        dense: in small print.
        most: so many rows stand on a page; None for all. The JSON document has all of them.
        rest: what is said of the rows beyond, "" for the ranges of their numbers.
        single: whether its rows tell of single examples; the JSON document leaves them out unless it is asked for them.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Words]]
    caption: Words = ""
    shown: int | None = None
    folded: str = "more"
    dense: bool = False
    most: int | None = MOST
    rest: str = ""
    single: bool = False


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
        wide: whether it shows several examples in a row.
    """

    source: str | None
    alt: str
    caption: Sequence[Words] = ()
    wide: bool = False


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """Pictures that belong together: an original and what was made of its update.

    Attributes:
        title: whose they are.
        pictures: side by side.
    """

    title: Words
    pictures: Sequence[Picture]


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """Exhibits, the first ones shown and the rest folded.

    Attributes:
        exhibits: in their order.
        shown: so many are shown at once; None for all.
        further: so many more there are, which the page leaves out.
    """

    exhibits: Sequence[Exhibit]
    shown: int | None = None
    further: int = 0


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


@dataclass(frozen=True, kw_only=True)
class Step:
    """One of several views of the same thing.

    Attributes:
        title: how it differs from the others: a scenario.
        verdict: on it, or None.
        blocks: what it shows; of single examples alone.
    """

    title: str
    verdict: VerdictKind | None
    blocks: Sequence[Block]


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Views of the same thing, of which a reader sees one at a time, the first one first; on paper they all stand.

    Attributes:
        label: what a reader steps through.
        steps: in their order.
    """

    label: str
    steps: Sequence[Step]


Block = Text | Table | Tiles | Figure | Note | Gallery | Fold | Steps


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a report.

    Attributes:
        anchor: its address on the page, unique.
        title: its heading.
        blocks: what it shows.
        aside: a word or two beside the heading: "worst first".
        label: what it is called in the table of contents; "" for the title, None for not listed.
        evidence: the strongest of what it shows, directly below the verdict.
        front: what else of it stands on the first screen: loud notes, numbers.
        reading: what of it stands under "How to read this": what its numbers mean, when a verdict on it says "leaks".
        caveats: what has to stand beside a scenario where it says what may be shipped, by scenario.
        sections: further parts below it, with headings of their own.
    """

    anchor: str
    title: str
    blocks: Sequence[Block] = ()
    aside: str = ""
    label: str | None = ""
    evidence: Sequence[Block] = ()
    front: Sequence[Block] = ()
    reading: Sequence[Block] = ()
    caveats: Mapping[str, Sequence[str]] = field(default_factory=dict)
    sections: Sequence[Section] = ()


@dataclass(frozen=True)
class Span:
    """A stretch of text in one dress: "strong", "em", "code", or "" for none."""

    text: str
    dress: str = ""


# Marks open at the beginning of a word and close at the end of one: in "layer.*.weight" and "*.bias" there are none.
# A backslash takes the meaning from a mark that follows it.
_BEFORE, _AFTER = r"(?<![\w*\\.])", r"(?<!\s)"
_MARKED = re.compile(
    r"\\(?P<literal>[\\*`])"
    rf"|{_BEFORE}\*\*(?=[^\s*.])(?P<strong>(?:\\.|[^*\\]|\*(?!\*))+?){_AFTER}\*\*(?![\w*])"
    rf"|{_BEFORE}\*(?=[^\s*.])(?P<em>(?:\\.|[^*\\])+?){_AFTER}\*(?![\w*])"
    r"|`(?P<code>[^`]+)`"
)


def spans(text: str) -> list[Span]:
    """The stretches of a text by its marks.

    Args:
        text: with `**strong**`, `*stressed*` and `` `code` ``.
    """
    found: list[Span] = []
    end = 0
    for match in _MARKED.finditer(text):
        dress = str(match.lastgroup)
        inner = match[dress] if dress in ("literal", "code") else re.sub(r"\\([\\*`])", r"\1", match[dress])
        found += [Span(text[end : match.start()]), Span(inner, "" if dress == "literal" else dress)]
        end = match.end()
    return [span for span in (*found, Span(text[end:])) if span.text]


def plain(text: str) -> str:
    """A text without its marks.

    Args:
        text: with `**strong**`, `*stressed*` and `` `code` ``.
    """
    return "".join(span.text for span in spans(text))


def as_is(text: object) -> str:
    """A text of a record as a text of a page that shows it as it is.

    Args:
        text: for instance a name of the plan.
    """
    return re.sub(r"([\\*`])", r"\\\1", str(text))


def pieces(words: Words) -> Sequence[Inline]:
    """The pieces of a cell or a run of text.

    Args:
        words: one piece, or several.
    """
    return [piece for piece in ((words,) if isinstance(words, Inline) else words) if piece != ""]


def labels(*names: str, why: bool = False, evidence: Evidence | None = None) -> list[Column]:
    """Columns of words.

    Args:
        names: their headings.
        why: whether their cells are sentences, in fine print.
        evidence: of the numbers in them, where all are of one kind.
    """
    return [Column(label=name, why=why, evidence=evidence) for name in names]


def numbers(*names: str, evidence: Evidence | None = None, hint: str = "") -> list[Column]:
    """Columns of numbers.

    Args:
        names: their headings.
        evidence: of their numbers, where all are of one kind.
        hint: an explanation, as a tooltip; "" for none.
    """
    return [Column(label=name, numeric=True, evidence=evidence, hint=hint) for name in names]


def plot(
    paint: Callable[[Sequence[Axes]], None],
    *,
    prefix: str,
    title: str,
    alt: str,
    caption: Words = "",
    size: tuple[float, float] = (7.4, 4.0),
    panels: int = 1,
    shared: bool = False,
) -> Figure:
    """A figure with axes, drawn where it is shown.

    Args:
        paint: draws on the axes of all panels.
        prefix: of all ids in it, one of its own on a page.
        title: its name.
        alt: what it shows, for those who do not see it.
        caption: under it, "" for none.
        size: width and height in inches.
        panels: how many there are, two in a row.
        shared: whether they share their vertical axis.
    """

    def draw() -> str:
        from gradleak.reporting.drawing import drawn

        return drawn(paint, prefix=prefix, title=title, description=alt, size=size, panels=panels, shared=shared)

    return Figure(draw=draw, alt=alt, caption=caption)


def told_by(evidence: Evidence | None, caption: Words = "") -> frozenset[str]:
    """The kinds of evidence that a heading tells, so that the numbers below it need not.

    Args:
        evidence: of a column or tile, or None.
        caption: above the table.
    """
    badges = {piece.evidence.value for piece in pieces(caption) if isinstance(piece, Badge)}
    return frozenset(badges | ({evidence.value} if evidence else set()))


def run(words: Words, show: Callable[[Inline], str]) -> str:
    """The pieces in a row, with a space between two of them where one belongs.

    Args:
        words: a cell, or a run of text.
        show: a piece as text of a medium.
    """
    text, open_ = "", True
    for piece in pieces(words):
        shown = show(piece)
        if not shown:
            continue
        closes = isinstance(piece, str) and piece[0] in " ,.;:)!?”]%\N{NO-BREAK SPACE}"
        text += shown if open_ or closes else f" {shown}"
        open_ = isinstance(piece, str) and piece[-1] in " (“[\N{NO-BREAK SPACE}"
    return text

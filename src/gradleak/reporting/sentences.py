"""Claimed sentences above the true ones, token by token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradleak.reporting import words
from gradleak.reporting.blocks import Block, Fold, Section, Small, Style, Text, Words, as_is
from gradleak.reporting.context import Context
from gradleak.reporting.numerals import MISSING, Quantity
from gradleak.results import Evidence

# Shown at most: batches, and tokens of a sentence.
MOST_TEXTS, MOST_TOKENS = 20, 256
LEGEND = (
    "Words in bold stand at their true place, words between strokes (/ /) do not, □ marks a place of which nothing was claimed; "
    "[tokens] in small print are no words and count nowhere."
)

NO_TEXTS = "Texts are off: the plan did not ask for them (`pictures = true`), or their files are not beside the record."
OF_SENTENCES: Sequence[Words] = [
    "Attacks on a release say “leaks” where one that never saw the truth has a sentence exactly, or at least half of its words "
    "in place, and more than guessers reach in one of a hundred draws. That the bag of words leaks is said by itself: words "
    "without order have a ROUGE-1 of 1 and rebuild no sentence.",
    "**Token error** is the share of the words of a sentence that are not claimed at their place: 0 is the sentence itself. "
    "Special tokens and padding count nowhere. **ROUGE** and **Google BLEU** are taken on token ids, whatever the language. The "
    "**blind baseline** is the most frequent word of the sentence everywhere, *chosen with the truth by the scorer*.",
]


def sentence_blocks(beside: Sequence[tuple[str, str | None, str | None]], context: Context) -> list[Block]:
    """The claims of attacks, each above the private sentence that it was paired with; empty where no file is on hand.

    Args:
        beside: title, path of the claim and path of the original beside the record, the worst first.
        context: of the page.
    """
    blocks: list[Block] = []
    for title, claim, original in beside[:MOST_TEXTS]:
        said, true = context.texts(claim), context.texts(original)
        lines, originals = words.sequence(said.get("lines")), words.sequence(true.get("lines"))
        if not lines:
            continue
        parts: list[Words] = []
        if said.get("bag") is True:
            parts.append(["Bag of words, without order:", *_tokens(lines[0])])
            parts += [["True:", *_tokens(line)] for line in originals]
        else:
            for place, line in enumerate(lines):
                parts.append(["Claimed:", *_tokens(line)])
                parts += [["True:", *_tokens(originals[place])]] if place < len(originals) else []
        heading: list[Block] = [Text(parts=[title], style=Style.HEADING)] if title else []
        blocks += [*heading, Text(parts=parts, style=Style.LIST)]
    if not blocks:
        return []
    further = len(beside) - MOST_TEXTS
    shown: list[Block] = [Text(parts=[LEGEND], style=Style.FINE), *blocks[:2]]
    shown += [Fold(title="More sentences", blocks=blocks[2:], printed=True)] if blocks[2:] else []
    return [*shown, *([Text(parts=[f"{further} more are in the files."], style=Style.FINE)] if further > 0 else [])]


def _tokens(line: Any) -> list[Any]:
    """The tokens of a line in print, words that go on joined to what they belong to."""
    found: list[Any] = []
    for pair in words.sequence(line)[:MOST_TOKENS]:
        token, state = (*words.sequence(pair), "", "")[:2]
        found.append(_SHOWN.get(str(state), _plain)(as_is(str(token).strip() or "␣")))
    return found


def _plain(token: str) -> str:
    return token


def _bold(token: str) -> str:
    return f"**{token}**"


def _struck(token: str) -> str:
    return f"/{token}/"


_SHOWN: Mapping[str, Any] = {
    "right": _bold,
    "wrong": _struck,
    "open": lambda _: "□",
    "special": Small,
}


def sentence_section(beside: Sequence[tuple[str, str | None, str | None]], context: Context) -> Section:
    """The section of claimed sentences above the true ones.

    Args:
        beside: as in `sentence_blocks`.
        context: of the page.
    """
    blocks = sentence_blocks(beside, context) or [Text(parts=[NO_TEXTS])]
    return Section(anchor="sentences", title="Claimed above true", label="Sentences", blocks=blocks)


Told = tuple[tuple[str, Words, str, Evidence], ...]


def told_of_sentences(told: Told, order: Words, found: Sequence[Quantity]) -> Told:
    """The tiles of an audit of sentences.

    Args:
        told: those of any audit: smallest error, PSNR, blind baseline, exact hits.
        order: ROUGE-L of the strongest attempt.
        found: shares of the words found by each attack.
    """
    words_found = max(found, key=lambda one: one.value or 0.0, default=MISSING)
    return (
        told[0],
        ("Its ROUGE-L", order, "F, on token ids", Evidence.ATTACK),
        told[2],
        (
            "Exact sentences",
            told[3][1],
            "attacked sentences with every word in place, over all scenarios",
            Evidence.ATTACK,
        ),
        ("Words found, in any order", words_found, "the bag of words is a claim of its own", Evidence.ATTACK),
    )

"""Claimed sentences above the true ones, token by token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradleak.reporting import words
from gradleak.reporting.blocks import (
    Badge,
    Block,
    Fold,
    Section,
    Small,
    Style,
    Table,
    Text,
    Token,
    Words,
    as_is,
    labels,
    numbers,
)
from gradleak.reporting.context import Context
from gradleak.reporting.numerals import MISSING, Quantity, as_number, or_dash, percent, quantity
from gradleak.results import Evidence, Score, Subject

# Shown at most: batches, and tokens of a sentence.
MOST_TEXTS, MOST_TOKENS = 20, 256
LEGEND = (
    "Bold words stand at their true place, words that are struck through do not, and a box is a place of which nothing was "
    "claimed; tokens in small print ([ends] of sentences, unknown words) count nowhere."
)
OTHER = " Where `<other>` stands the vocabulary has no word: that there is one was told, and which one was not."

NO_TEXTS = "Texts are off: the plan did not ask for them (`pictures = true`), or their files are not beside the record."
OF_SENTENCES: Sequence[Words] = [
    "Attacks on a release say “leaks” where one that never saw the truth has a sentence exactly, or at least half of its words "
    "in place, and more than guessers reach in one of a hundred draws. That the bag of words leaks is said by itself: words "
    "without order have a ROUGE-1 of 1 and rebuild no sentence.",
    "**Token error** is the share of the words of a sentence that are not claimed at their place: 0 is the sentence itself. "
    "Special tokens and padding count nowhere. **ROUGE** and **Google BLEU** are taken on token ids, whatever the language. The "
    "**blind guess** is the most frequent word of the sentence everywhere, *chosen with the truth by the scorer*.",
]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim on a release: where it stands in the record, and what a guesser without the update gets there.

    Attributes:
        title: "" for none.
        path: of the claim beside the record, or None.
        original: of what was attacked, or None.
        guessed: the best guesses by score, with and without the bag of words, as `best_guesses` has them.
    """

    title: str
    path: str | None
    original: str | None
    guessed: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})


def best_guesses(
    context: Context, scenario: str | None, subject: Subject | None
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The means of the best guessers at a release, by score: without the update, and with the bag of its words.

    Args:
        context: of the page.
        scenario: whose release.
        subject: of what.
    """
    scores = (one.score("chance_token_error") for one in context.grounds.about(scenario, subject))
    details = next((score.details for score in scores if score is not None), {})
    return words.mapping(details.get("guessers")), words.mapping(details.get("bag_guessers"))


def sentence_blocks(beside: Sequence[Claim], context: Context) -> list[Block]:
    """The claims of attacks, each above the private sentence that it was paired with; empty where no file is on hand.

    Args:
        beside: the claims, the worst first.
        context: of the page.
    """
    blocks: list[Block] = []
    for claim in beside[:MOST_TEXTS]:
        said, true = context.texts(claim.path), context.texts(claim.original)
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
        guessed = _guess_line(claim.guessed)
        parts += [guessed] if guessed else []
        heading: list[Block] = [Text(parts=[claim.title], style=Style.HEADING)] if claim.title else []
        blocks += [*heading, Text(parts=parts, style=Style.LIST)]
    if not blocks:
        return []
    further = len(beside) - MOST_TEXTS
    shown = blocks[:2]
    shown += [Fold(title="More sentences", blocks=blocks[2:], printed=True)] if blocks[2:] else []
    return [*shown, *([Text(parts=[f"{further} more are in the files."], style=Style.FINE)] if further > 0 else [])]


def legend_of(blocks: Sequence[Block]) -> Text:
    """The meaning of the marks in claims, and of `<other>` where that stands in one.

    Args:
        blocks: as `sentence_blocks` makes them.
    """
    return Text(parts=[LEGEND + OTHER if "<other>" in str(blocks) else LEGEND], style=Style.FINE)


def _tokens(line: Any) -> list[Any]:
    """The tokens of a line in print, words that go on joined to what they belong to."""
    found: list[Any] = []
    for pair in words.sequence(line)[:MOST_TOKENS]:
        token, state = (str(one) for one in (*words.sequence(pair), "", "")[:2])
        text = token.strip() or "␣"
        if state in ("right", "wrong", "open"):
            found.append(Token("□" if state == "open" else text, state))
        else:
            found.append(Small(as_is(text)) if state == "special" else as_is(text))
    return found


def _guess_line(guessed: tuple[Mapping[str, Any], Mapping[str, Any]]) -> Words:
    """A sentence on the scores of guessers without the update; "" where it was not computed."""
    plain, told = guessed
    if not plain:
        return ""
    place, order, whole = (_guess(plain, name) for name in ("in_place", "rouge_l", "google_bleu"))
    text = (
        f"Without the update guessers get, on average over draws, {place[0]} of the words in place ({place[1]}), ROUGE-L "
        f"{order[0]} ({order[1]}) and "
        f"Google BLEU {whole[0]} ({whole[1]})"
    )
    if told:
        text += (
            f"; told the bag of words, {_guess(told, 'in_place')[0]} in place and ROUGE-L {_guess(told, 'rouge_l')[0]}"
        )
    return f"{text}."


def _guess(levels: Mapping[str, Any], name: str) -> tuple[str, str]:
    found = words.mapping(levels.get(name))
    return percent(as_number(found.get("value"))), as_is(found.get("which", ""))


_COLUMNS = ("rouge_1", "rouge_2", "rouge_l")


def score_section(rows: Sequence[tuple[Sequence[str], Callable[[str], Score | None], Claim, Words]]) -> Section:
    """All scores of claimed sentences by attack and release, and the guessers' beside them.

    Args:
        rows: place, scenario and attack in print, the scores of the attack by name, its claim, and how it ended.
    """
    body: list[Sequence[Words]] = []
    for at, (place, score, claim, ended) in enumerate(rows[:MOST_TEXTS]):
        exact, error, precision = (
            or_dash(quantity(score(name))) for name in ("exact_hits", "token_error", "bag_precision")
        )
        sentence = [exact, error, _words_found(score("bag_recall")), precision]
        overlaps = [_overlap(score(name)) for name in _COLUMNS]
        last = [or_dash(quantity(score(name))) for name in ("google_bleu", "feature_mse")]
        body.append([[place[0], Small(place[1])], place[2], *sentence, *overlaps, *last, ended])
        following = rows[at + 1][0][:2] if at + 1 < len(rows[:MOST_TEXTS]) else None
        if place[:2] != following:
            who = ("guessers without the update", "guessers told the bag of words")
            body += [_guess_row(place, name, levels) for name, levels in zip(who, claim.guessed, strict=True) if levels]
    columns = [
        *labels("Example", "Attack"),
        *numbers("Exact", "Token error", "Words found", "Named words that are there"),
        *numbers("ROUGE-1", "ROUGE-2", "ROUGE-L", hint="F; recall (R) and precision (P) below, where they differ"),
        *numbers("Google BLEU", "Feature MSE"),
        *labels("Outcome"),
    ]
    caption = ("Scores of attacks", Badge(Evidence.ATTACK), "and of guessers, whose rows say so")
    note = (
        "Of a batch the sentence that came out best. Guessers have means over 100 draws, each score that of the guesser who is "
        "best at it; they guess as many words as there are, so that recall, precision and F are the same. Of words found each "
        "counts as often as it stands there: who names a word once that stands there twice has found half of it. Feature MSE "
        "compares what goes into the model's last linear layer."
    )
    return Section(
        anchor="sentence-scores",
        title="Scores of sentences",
        label="Scores of sentences",
        blocks=[Text(parts=[note], style=Style.FINE), Table(columns=columns, rows=body, caption=caption)],
    )


def _words_found(score: Score | None) -> Words:
    """The share of the words, each as often as it stands there, above the number of different ones."""
    different = different_words(score)
    return [or_dash(quantity(score)), *([Small(different)] if different else [])]


def different_words(score: Score | None) -> str:
    """The different words that an attack named, of those that there are, in words; "" where none were claimed.

    Args:
        score: the recall of its bag.
    """
    if score is None or score.value is None or not (every := as_number(score.details.get("different"))):
        return ""
    return f"{as_number(score.details.get('different_named')) or 0:.0f} of {every:.0f} different words"


def _overlap(score: Score | None) -> Words:
    """F with recall and precision of the same sentence."""
    shown = or_dash(quantity(score))
    if score is None or score.value is None:
        return shown
    values = words.sequence(score.details.get("per_example"))
    at = values.index(score.value) if score.value in values else 0
    parts = [words.sequence(score.details.get(name)) for name in ("recall", "precision")]
    recall, precision = (percent(as_number(part[at])) if at < len(part) else MISSING for part in parts)
    return shown if recall == precision else [shown, Small(f"R {recall}, P {precision}")]


def _guess_row(place: Sequence[str], name: str, levels: Mapping[str, Any]) -> list[Words]:
    shown = {one: percent(as_number(words.mapping(levels.get(one)).get("value"))) for one in levels}
    in_place = as_number(words.mapping(levels.get("in_place")).get("value"))
    error = MISSING if in_place is None else Quantity(value=1.0 - in_place, text=percent(1.0 - in_place))
    rouge = [shown.get(one, MISSING) for one in _COLUMNS]
    return [
        [place[0], Small(place[1])],
        f"*{name}*",
        MISSING,
        error,
        MISSING,
        MISSING,
        *rouge,
        shown.get("google_bleu", MISSING),
        MISSING,
        MISSING,
    ]


def sentence_section(beside: Sequence[Claim], context: Context) -> Section:
    """The section of claimed sentences above the true ones.

    Args:
        beside: as in `sentence_blocks`.
        context: of the page.
    """
    blocks = sentence_blocks(beside, context)
    shown = [legend_of(blocks), *blocks] if blocks else [Text(parts=[NO_TEXTS])]
    return Section(anchor="sentences", title="Claimed above true", label="Sentences", blocks=shown)


Told = tuple[tuple[str, Words, str, Evidence], ...]


def told_of_sentences(told: Told, order: Words, found: Sequence[Score], whole: Mapping[str, tuple[int, int]]) -> Told:
    """The tiles of an audit of sentences.

    Args:
        told: those of any audit: smallest error, PSNR, blind guess, exact hits.
        order: ROUGE-L of the strongest attempt.
        found: recalls of the bags of all attacks.
        whole: by scenario the sentences that came out whole, and those that were attacked.
    """
    most = max(found, key=lambda one: one.value or 0.0, default=None)
    named = different_words(most)
    worst = max(whole, key=lambda name: whole[name][0] / max(whole[name][1], 1), default="")
    hits, attacked = whole.get(worst, (0, 0))
    some = sum(hit > 0 for hit, _ in whole.values())
    scenarios = f"{len(whole)} scenario{'' if len(whole) == 1 else 's'}"
    where = (
        f"in {worst}; {some} of {scenarios} {'has' if some == 1 else 'have'} such" if hits else f"in any of {scenarios}"
    )
    return (
        told[0],
        ("Its ROUGE-L", order, "F, on token ids", Evidence.ATTACK),
        told[2],
        (
            "Exact sentences",
            f"{hits} of {attacked}" if attacked else MISSING,
            f"attacked sentences with every word in place, {where}",
            Evidence.ATTACK,
        ),
        (
            "Words found, in any order",
            MISSING if most is None else quantity(most),
            f"{named and named + '; '}the share counts each as often as it stands there; the bag of words is a claim of its own",
            Evidence.ATTACK,
        ),
    )


# From the cheapest on; those behind search where nothing is read off.
_LADDER: Mapping[str, str] = {
    "TokenRows": "words and places from the tables",
    "SpanSearch": "sentences from the spans of the first layers",
    "TAG": "gradient matching over embeddings",
    "LAMP": "the same with a language model",
    "GaussNewton": "second-order steps on the whole update",
}
_TRY_MORE = (
    "no_attack_ran",
    "no_attack_finished",
    "no_attack_reached_threshold",
    "no_better_than_blind",
    "no_better_than_chance",
    "no_signal",
    "words_leak",
)


def further_attacks(context: Context) -> str:
    """A sentence on the attacks on sentences that a plan has not tried, where it left something open; "" else.

    Args:
        context: of the page.
    """
    if not any(one.reason in _TRY_MORE for one in context.record.verdicts):
        return ""
    tried = {
        str(words.mapping(attack).get("use"))
        for audits in words.mapping(context.plan.get("audits")).values()
        for audit in words.mapping(audits).values()
        for attack in words.mapping(words.mapping(audit).get("attacks")).values()
    }
    left = [f"`{name}` ({what})" for name, what in _LADDER.items() if name not in tried]
    return f" Not tried on these sentences: {', '.join(left)}; add them to the attacks of the plan." if left else ""

"""What the adversary was assumed to know, and what left the client: the knowledge cards in words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gradleak.reporting import words
from gradleak.reporting.blocks import (
    Block,
    Column,
    Fold,
    Level,
    Mark,
    Note,
    Small,
    Style,
    Table,
    Tag,
    Text,
    Words,
    as_is,
)
from gradleak.reporting.context import Context
from gradleak.reporting.numerals import MISSING, decimal
from gradleak.reporting.pages.release.texts import GATES, KNOWLEDGE_LABELS, knowledge, precision
from gradleak.results import Attempt
from gradleak.results.findings.release import Gate, ReleaseFinding

# Shown with the release of each scenario, so that scenarios which differ in it alone share one card.
_BY_SCENARIO = ("defenses",)
_FORMAL = (
    "A formal release comes with a proof of what it bounds, under its assumptions; a heuristic one is only hoped to help. "
    "What counts is all of them together, in their order."
)


def settings(releases: Sequence[ReleaseFinding], context: Context) -> list[Block]:
    """The distinct knowledge cards of a record, each with the releases that it holds for.

    Args:
        releases: those that were made, in the order of the record.
        context: the rest of the record.
    """
    groups: dict[str, list[ReleaseFinding]] = {}
    for release in releases:
        card = {key: value for key, value in release.knowledge.items() if key not in _BY_SCENARIO}
        groups.setdefault(json.dumps(card, sort_keys=True, default=str), []).append(release)
    return [block for group in groups.values() for block in _setting(group, context)]


def _setting(releases: Sequence[ReleaseFinding], context: Context) -> Iterator[Block]:
    card = releases[0].knowledge
    for text in _disclosed(releases, context):
        told = f"{text} Read every attack of this setting with that in mind."
        yield Note(title="Disclosed truth.", text=told, level=Level.LOUD)
    facts = list(_facts(card))
    if facts:
        yield Text(parts=facts, style=Style.FACTS)
    by_scenario: dict[str, list[ReleaseFinding]] = {}
    for release in releases:
        by_scenario.setdefault(str(release.scenario), []).append(release)
    yield Text(parts=["What left the client"], style=Style.HEADING)
    labels = ("Scenario", "Protocol", "Defenses", "Guarantee", "Adversary knows them", "Consistency gate")
    rows = [_row(name, mine) for name, mine in by_scenario.items()]
    yield Table(columns=[Column(label=label) for label in labels], rows=rows)
    yield Text(parts=[_FORMAL], style=Style.FINE)
    for name, mine in by_scenario.items():
        if any(release.gate.status == "inconsistent" for release in mine):
            causes = list(dict.fromkeys(as_is(cause) for release in mine for cause in release.gate.causes))
            title = f"{as_is(name)}: the update is not what the stated model, protocol and defenses produce."
            yield Note(title=title, text="Likely causes:" if causes else "", level=Level.WARN)
            if causes:
                yield Text(parts=causes, style=Style.LIST)
    notes = [
        f"**{as_is(name)}:** {as_is(note)}"
        for name, mine in by_scenario.items()
        for note in dict.fromkeys(note for release in mine for note in _notes(release))
    ]
    if notes:
        yield Text(parts=notes, style=Style.FINE)
    yield from _parameters(words.mapping(card.get("objective")))


def _disclosed(releases: Sequence[ReleaseFinding], context: Context) -> Iterator[str]:
    """The truths about the private data that the adversary was given."""
    card = releases[0].knowledge
    beside = (one for release in releases for one in context.grounds.about(release.scenario, release.subject))
    if card.get("targets") is not None:
        yield "The true labels of the private examples were given to the adversary."
    elif any(isinstance(one, Attempt) and one.labels == "disclosed" for one in beside):
        yield "At least one attack was given the true labels of the private examples."
    if _guessed(card):
        yield "The range of the data was guessed from their values, and given to the adversary."
    if card.get("statistics") is not None:
        yield "The BatchNorm statistics of the private batch were given to the adversary."
    if card.get("masks") is not None:
        yield "The client's own draw of dropout masks and other random layers was given to the adversary."


def _guessed(card: Mapping[str, Any]) -> bool:
    return bool(words.mapping(card.get("domain")).get("guessed"))


def _facts(card: Mapping[str, Any]) -> Iterator[Words]:
    """The lines of the card; truths about the private data stand out."""
    assumed = set(map(str, words.sequence(card.get("assumed"))))
    for key, value in card.items():
        if key in (*_BY_SCENARIO, "assumed"):
            continue
        known = value is not None and key not in assumed
        truth = key in ("targets", "statistics", "masks") or (key == "domain" and _guessed(card))
        text = ("assumed, not known: " if key in assumed else "") + knowledge(key, value)
        label = KNOWLEDGE_LABELS.get(key, key.replace("_", " "))
        mark = Mark("known" if known else "not known", filled=known, loud=truth and known)
        yield [mark, as_is(label), as_is(text)]


def _row(scenario: str, releases: Sequence[ReleaseFinding]) -> list[Words]:
    first = releases[0]
    protocol = words.mapping(first.release.get("protocol"))
    described = first.defenses or tuple(map(words.mapping, words.sequence(first.release.get("defenses"))))
    defenses: list[Any] = []
    for place, entry in enumerate(described):
        constants = words.constants(entry)
        # The guarantee of a defense alone may mean nothing beside others: that of all together counts where it is known.
        alone = "" if first.guarantee else str(entry.get("guarantee", ""))
        defenses += [";"] if place else []
        defenses += [as_is(entry.get("use", "defense")), *([Small(as_is(constants))] if constants else [])]
        defenses += [_guarantee(alone)] if alone else []
    together: Words = "none" if not described else "not stated" if first.guarantee is None else "none"
    if first.guarantee:
        together = _guarantee(first.guarantee)
    adaptive = first.knowledge.get("defenses") is not None
    knows = MISSING if not described or not first.knowledge else "yes" if adaptive else "no"
    gate = _gate([release.gate for release in releases])
    inconsistent = any(release.gate.status == "inconsistent" for release in releases)
    return [
        as_is(scenario),
        as_is(words.plain(protocol)) if protocol else "not stated",
        defenses or "none",
        together,
        knows,
        Tag(gate, tone="bad") if inconsistent else gate,
    ]


def _guarantee(text: str) -> Tag:
    return Tag(as_is(text), tone="bounded" if text.startswith("formal") else "inconclusive")


def _notes(release: ReleaseFinding) -> Iterator[str]:
    """What a reader must know of a release besides its map."""
    if release.note:
        yield release.note
    if release.domain_guessed:
        yield "shape and range of the data were not declared; they were guessed from the private data itself."
    if release.given:
        yield "the update is one that was really sent, not one that the auditor computed."
    if release.zero_tensors:
        yield f"tensors of the update that are zero throughout: {words.plain(release.zero_tensors)}."
    lost = precision(release.precision)
    if lost:
        yield lost
    for entry in release.alignment:
        yield f"{entry}."


def _gate(gates: Sequence[Gate]) -> str:
    statuses = [gate.status for gate in gates if gate.status]
    if not statuses:
        return "not run"
    parts = []
    for status in dict.fromkeys(statuses):
        tally = statuses.count(status)
        name = GATES.get(status, as_is(status.replace("_", " ")))
        parts.append(name if tally == len(statuses) else f"{name} ({tally} of {len(statuses)})")
    text = ", ".join(parts)
    scores = [gate.chi_square_z for gate in gates if gate.chi_square_z is not None]
    cosines = [gate.cosine for gate in gates if gate.cosine is not None]
    if scores:
        return f"{text}; noise energy within {decimal(max(map(abs, scores)), 2)} standard deviations of what is stated"
    return f"{text}; cosine at least {min(cosines):.4f}" if cosines else text


def _parameters(objective: Mapping[str, Any]) -> Iterator[Block]:
    shared, tied = words.mapping(objective.get("shared")), words.mapping(objective.get("tied"))
    renamed, frozen = words.mapping(objective.get("renamed")), words.sequence(objective.get("frozen"))
    buffers = words.sequence(objective.get("buffers"))
    lists: dict[str, list[Words]] = {
        "Shared: the update covers these": [
            [_code(name), Small(" × ".join(words.plain(size) for size in words.sequence(shape)) or "scalar")]  # noqa: RUF001
            for name, shape in shared.items()
        ],
        "Frozen: used, but not shared": [_code(name) for name in frozen],
        "Tied: counted once": [f"{_code(name)} is {_code(listed)}" for name, listed in tied.items()],
        "Renamed: a wrapper prefix was dropped": [
            f"{_code(before)} → {_code(name)}" for name, before in renamed.items()
        ],
        "Buffers": [_code(name) for name in buffers],
    }
    if any(lists.values()):
        counts = f"{len(shared)} shared, {len(frozen)} frozen, {len(tied)} tied, {len(renamed)} renamed"
        blocks: list[Block] = []
        for title, parts in lists.items():
            blocks += [Text(parts=[title], style=Style.HEADING), Text(parts=parts, style=Style.LIST)] if parts else []
        yield Fold(title=f"Parameters: {counts}", blocks=blocks)


def _code(name: Any) -> str:
    """A name of the model in the dress of code, where it holds no mark itself."""
    text = str(name)
    return as_is(text) if not text or "`" in text or "\\" in text else f"`{text}`"


__all__ = ["settings"]

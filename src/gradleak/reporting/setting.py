"""What the adversary was assumed to know, and what left the client: the knowledge card in words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradleak.reporting import words
from gradleak.reporting.numerals import as_number, decimal
from gradleak.reporting.reading import Line, Reading, mapping, sequence

# Shown with the release of each scenario, so that scenarios which differ in it alone share one card.
_BY_SCENARIO = ("defenses",)


@dataclass(frozen=True, kw_only=True)
class KnownFact:
    """One line of the knowledge card.

    Attributes:
        label: what it is about.
        known: whether the adversary knows it.
        text: what it knows, in words.
        truth: whether this is a truth about the private data.
    """

    label: str
    known: bool
    text: str
    truth: bool = False


@dataclass(frozen=True, kw_only=True)
class DefenseView:
    """A defense of a release.

    Attributes:
        name: its class.
        constants: its arguments in words.
        guarantee: "formal", "heuristic" or ""; that of the class, shown where the release as a whole states none.
    """

    name: str
    constants: str
    guarantee: str


@dataclass(frozen=True, kw_only=True)
class ReleaseView:
    """What left the client in one scenario.

    Attributes:
        scenario: its name.
        protocol: the protocol in words.
        defenses: in order.
        guarantee: of the release as a whole, for instance "formal, hides an example"; "" for none.
        adaptive: whether the adversary knows them.
        gate: result of the consistency gate in words.
        inconsistent: whether the gate failed for at least one release.
        causes: likely causes then.
        routes: derivative routes.
        notes: what else a reader needs to know.
    """

    scenario: str
    protocol: str
    defenses: Sequence[DefenseView]
    guarantee: str
    adaptive: bool | None
    gate: str
    inconsistent: bool
    causes: Sequence[str]
    routes: Sequence[str]
    notes: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One knowledge card and the scenarios it holds for.

    Attributes:
        facts: the lines of the card.
        shared: (name, shape) of the shared tensors.
        frozen: parameters that are used but not shared.
        tied: (name, name under which it is listed).
        renamed: (listed name, name in the model).
        buffers: names of the buffers.
        disclosed: truths given to the adversary, in words.
        releases: the releases by scenario.
    """

    facts: Sequence[KnownFact]
    shared: Sequence[tuple[str, str]]
    frozen: Sequence[str]
    tied: Sequence[tuple[str, str]]
    renamed: Sequence[tuple[str, str]]
    buffers: Sequence[str]
    disclosed: Sequence[str]
    releases: Sequence[ReleaseView]

    @property
    def route(self) -> str | None:
        """The derivative route if all releases share it, "" if none states one, None if they differ."""
        routes = {"; ".join(release.routes) for release in self.releases}
        return routes.pop() if len(routes) == 1 else None


def settings(reading: Reading) -> list[Setting]:
    """The distinct knowledge cards of a record, in file order.

    Args:
        reading: the sorted lines.
    """
    groups: dict[str, tuple[Mapping[str, Any], list[Line]]] = {}
    for release in reading.of_kind("release"):
        card = mapping(release.get("knowledge"))
        key = json.dumps({k: v for k, v in card.items() if k not in _BY_SCENARIO}, sort_keys=True, default=str)
        groups.setdefault(key, (card, []))[1].append(release)
    return [_setting(reading, card, releases) for card, releases in groups.values()]


def _setting(reading: Reading, card: Mapping[str, Any], releases: list[Line]) -> Setting:
    objective = mapping(card.get("objective"))
    by_scenario: dict[str, list[Line]] = {}
    for release in releases:
        by_scenario.setdefault(str(release.get("scenario")), []).append(release)
    disclosed = []
    if card.get("targets") is not None:
        disclosed.append("The true labels of the private examples were given to the adversary.")
    elif any(line.get("labels") == "disclosed" for r in releases for line in reading.beside("attack", r)):
        disclosed.append("At least one attack was given the true labels of the private examples.")
    guessed = bool(mapping(card.get("domain")).get("guessed"))
    if guessed:
        disclosed.append("The range of the data was guessed from their values, and given to the adversary.")
    if card.get("statistics") is not None:
        disclosed.append("The BatchNorm statistics of the private batch were given to the adversary.")
    if card.get("masks") is not None:
        disclosed.append("The client's own draw of dropout masks and other random layers was given to the adversary.")
    assumed = set(map(str, sequence(card.get("assumed"))))
    facts = [
        KnownFact(
            label=words.KNOWLEDGE_LABELS.get(key, key.replace("_", " ")),
            known=value is not None and key not in assumed,
            text=("assumed, not known: " if key in assumed else "") + words.knowledge(key, value),
            truth=key in ("targets", "statistics", "masks") or (key == "domain" and guessed),
        )
        for key, value in card.items()
        if key not in (*_BY_SCENARIO, "assumed")
    ]
    return Setting(
        facts=facts,
        shared=[
            (str(name), " × ".join(words.plain(size) for size in sequence(shape)) or "scalar")  # noqa: RUF001
            for name, shape in mapping(objective.get("shared")).items()
        ],
        frozen=[str(name) for name in sequence(objective.get("frozen"))],
        tied=[(str(a), str(b)) for a, b in mapping(objective.get("tied")).items()],
        renamed=[(str(a), str(b)) for a, b in mapping(objective.get("renamed")).items()],
        buffers=[str(name) for name in sequence(objective.get("buffers"))],
        disclosed=disclosed,
        releases=[_release(reading, name, lines) for name, lines in by_scenario.items()],
    )


def _release(reading: Reading, scenario: str, lines: list[Line]) -> ReleaseView:
    first = lines[0]
    card = mapping(first.get("knowledge"))
    protocol = mapping(mapping(first.get("release")).get("protocol"))
    described = [mapping(entry) for entry in sequence(first.get("defenses"))]
    if not described:
        described = [mapping(entry) for entry in sequence(mapping(first.get("release")).get("defenses"))]
    together = str(first.get("guarantee") or "")
    gates = [mapping(line.get("gate")) for line in lines]
    stated = [entry for line in lines for entry in (line, *reading.beside("risk", line))]
    inconsistent = any(gate.get("status") == "inconsistent" for gate in gates)
    return ReleaseView(
        scenario=scenario,
        protocol=words.plain(protocol) if protocol else "not stated",
        defenses=[
            DefenseView(
                name=str(entry.get("use", "defense")),
                constants=words.constants(entry),
                # Of a defense alone; beside others it may mean nothing.
                guarantee="" if together else str(entry.get("guarantee", "")),
            )
            for entry in described
        ],
        guarantee="not stated" if described and "guarantee" not in first else together,
        adaptive=(card.get("defenses") is not None) if described and card else None,
        gate=_gate(gates),
        inconsistent=inconsistent,
        causes=list(dict.fromkeys(str(cause) for gate in gates for cause in sequence(gate.get("causes")))),
        routes=list(dict.fromkeys(str(line["route"]) for line in stated if line.get("route"))),
        notes=list(dict.fromkeys(note for line in lines for note in (*_notes(line), *_unchecked(reading, line)))),
    )


def _notes(line: Line) -> list[str]:
    """What a reader must know of a release besides its map."""
    notes = [str(line["note"])] if line.get("note") else []
    if line.get("domain_guessed"):
        notes.append("shape and range of the data were not declared; they were guessed from the private data itself.")
    if line.get("given"):
        notes.append("the update is one that was really sent, not one that the auditor computed.")
    zero = sequence(line.get("zero_tensors"))
    if zero:
        notes.append(f"tensors of the update that are zero throughout: {words.plain(zero)}.")
    lost = words.precision(mapping(line.get("precision")))
    if lost:
        notes.append(lost)
    notes += [f"{entry}." for entry in map(str, sequence(line.get("alignment")))]
    return notes


def _unchecked(reading: Reading, release: Line) -> list[str]:
    """Where the derivative behind the closed-form scores was not confirmed; a wrong one is among the refused items."""
    return [
        f"its derivative could not be checked by differences of values: {line.get('note') or 'no reason was kept'}."
        for line in reading.beside("derivative", release)
        if line.get("check") == "not checked"
    ]


def _gate(gates: Sequence[Mapping[str, Any]]) -> str:
    statuses = [str(gate.get("status")) for gate in gates if gate.get("status")]
    if not statuses:
        return "not run"
    parts = []
    for status in dict.fromkeys(statuses):
        tally = statuses.count(status)
        name = words.GATES.get(status, status.replace("_", " "))
        parts.append(name if tally == len(statuses) else f"{name} ({tally} of {len(statuses)})")
    text = ", ".join(parts)
    scores = [z for z in (as_number(gate.get("chi_square_z")) for gate in gates) if z is not None]
    cosines = [c for c in (as_number(gate.get("cosine")) for gate in gates) if c is not None]
    if scores:
        return f"{text}; noise energy within {decimal(max(map(abs, scores)), 2)} standard deviations of what is stated"
    return f"{text}; cosine at least {min(cosines):.4f}" if cosines else text

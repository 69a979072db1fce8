"""What each attack went by besides the update: labels, priors, statistics, the update rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradleak.reporting.reading import Reading, mapping, sequence
from gradleak.reporting.words import attack_name


@dataclass(frozen=True, kw_only=True)
class InformationView:
    """The same list of facts for one or more attacks.

    Attributes:
        attacks: names of the attacks, in the order of the record.
        facts: in words, as the attacks wrote them.
    """

    attacks: Sequence[str]
    facts: Sequence[str]


def information(reading: Reading) -> list[InformationView]:
    """The lists of the record's attacks, each once, in the order of the record; attacks that wrote none are left out."""
    users: dict[tuple[str, ...], list[str]] = {}
    for line in reading.of_kind("attack"):
        facts = tuple(str(fact) for fact in sequence(mapping(line.get("details")).get("information")))
        names = users.setdefault(facts, [])
        name = attack_name(str(line.get("attack")), str(line.get("adversary") or ""))
        if name not in names:
            names.append(name)
    return [InformationView(attacks=names, facts=facts) for facts, names in users.items() if facts]

"""The matrix attack by defense of one plan, asked before anything is computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gradleak.attacks import Attack
from gradleak.audits.base import Adversary, Refusal, Scenario, Site


def runs(site: Site, attacks: Mapping[str, Attack]) -> Iterator[tuple[Scenario, str, int, bool]]:
    """Every run of the attacks: scenario, attack, batch, and whether the adversary is not told of the defenses.

    Args:
        site: whose scenarios say what is attacked.
        attacks: by name.
    """
    for scenario in site.scenarios:
        for name, examples in scenario.attacks.items():
            for index in examples if name in attacks else ():
                for withheld in site.withheld(scenario, attacks[name]):
                    yield scenario, name, index, withheld


def refusals(site: Site, attacks: Mapping[str, Attack]) -> list[Refusal]:
    """The runs that will be refused, by scenario, adversary and reason, in the order of the plan; nothing is computed.

    Args:
        site: whose attacks are asked with what they will know.
        attacks: by name.
    """
    found: dict[tuple[str, Adversary | None, str], list[str]] = {}
    for scenario, name, index, withheld in runs(site, attacks):
        knowledge = site.knowledge(scenario, index, withheld=withheld)
        reason = attacks[name].refusal(knowledge)
        if reason is None:
            continue
        adversary = None
        if scenario.release.defenses:
            adversary = Adversary.STATIC if knowledge.defenses is None else Adversary.ADAPTIVE
        names = found.setdefault((scenario.name, adversary, reason), [])
        if name not in names:
            names.append(name)
    return [
        Refusal(
            what=f"{scenario}: {', '.join(names)}" + ("" if adversary is None else f", {adversary.value}"),
            reason=reason,
        )
        for (scenario, adversary, reason), names in found.items()
    ]


def first_to_run(site: Site, attacks: Mapping[str, Attack], names: Sequence[str]) -> str:
    """The first of these attacks that is not refused everywhere in the plan, or the first of all where each one is.

    Args:
        site: whose scenarios they attack.
        attacks: by name.
        names: of at least one of them.
    """
    every = list(runs(site, attacks))
    for name in names:
        for scenario, attack, index, withheld in every:
            if attack == name:
                knowledge = site.knowledge(scenario, index, withheld=withheld)
                if attacks[name].refusal(knowledge) is None:
                    return name
    return names[0]

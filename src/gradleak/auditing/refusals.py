"""The matrix attack by defense of one plan, asked before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradleak.auditing.adversary import Adversary
from gradleak.auditing.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Attacks of a plan that will not run.

    Attributes:
        scenario: where.
        attacks: names of attacks that are refused for one reason.
        adversary: which adversary is refused; None where there is one only.
        reason: as the attack gives it.
    """

    scenario: str
    attacks: Sequence[str]
    adversary: Adversary | None
    reason: str

    def __str__(self) -> str:
        """One line for a terminal."""
        who = "" if self.adversary is None else f", {self.adversary.value}"
        return f"will be refused: {self.scenario}: {', '.join(self.attacks)}{who}: {self.reason}"

    def to_dict(self) -> dict[str, object]:
        """A JSON-ready dictionary."""
        adversary = None if self.adversary is None else self.adversary.value
        return {
            "scenario": self.scenario,
            "attacks": list(self.attacks),
            "adversary": adversary,
            "reason": self.reason,
        }


def refusals(plan: Plan) -> list[Refusal]:
    """What of a plan will be refused, by scenario, adversary and reason, in the order of the plan; nothing is computed.

    Args:
        plan: whose attacks are asked with what they will know.
    """
    found: dict[tuple[str, Adversary | None, str], list[str]] = {}
    for scenario in plan.scenarios:
        for name, examples in scenario.attacks.items():
            for withheld in plan.withheld(scenario, name):
                for index in examples:
                    knowledge = plan.knowledge(scenario, index, withheld=withheld)
                    reason = plan.attacks[name].refusal(knowledge)
                    if reason is None:
                        continue
                    adversary = None
                    if scenario.release.defenses:
                        adversary = Adversary.STATIC if knowledge.defenses is None else Adversary.ADAPTIVE
                    names = found.setdefault((scenario.name, adversary, reason), [])
                    if name not in names:
                        names.append(name)
    return [
        Refusal(scenario=scenario, attacks=names, adversary=adversary, reason=reason)
        for (scenario, adversary, reason), names in found.items()
    ]


def first_to_run(plan: Plan, names: Sequence[str]) -> str:
    """The first of these attacks that is not refused everywhere in the plan, or the first of all where each one is.

    Args:
        plan: whose scenarios they attack.
        names: of at least one of its attacks.
    """
    for name in names:
        for scenario in plan.scenarios:
            for index in scenario.attacks.get(name, ()):
                for withheld in plan.withheld(scenario, name):
                    if plan.attacks[name].refusal(plan.knowledge(scenario, index, withheld=withheld)) is None:
                        return name
    return names[0]


__all__ = ["Refusal", "first_to_run", "refusals"]

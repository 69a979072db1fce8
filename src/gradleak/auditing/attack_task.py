"""One attack of an audit on one update, the check of its claim, and their lines in the record.

The wall runs through this file: `run_attack` gets updates and knowledge, never a batch; scoring comes after it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from gradleak.attacks import Attack, Checkpoint
from gradleak.auditing.adversary import Adversary
from gradleak.auditing.assumption import protocol_sensitivity
from gradleak.auditing.invention import CHECK, CheckedClaim, check_estimate, claim_support, refined_name
from gradleak.auditing.items import Line, domain_of, item_line, released, score_lines
from gradleak.auditing.pictures import file_name, save_picture
from gradleak.auditing.plan import Plan, Scenario
from gradleak.core import HALF, Knowledge, Reconstruction, Update, derive_generator, describe
from gradleak.results import KnowledgeError, Outcome, UnsupportedError
from gradleak.scoring import score_images


def attack_generator(seed: int, scenario: str, index: int, attack: str) -> torch.Generator:
    """The generator that an audit gives to an attack, so that the attack can be repeated from a saved update.

    The adaptive and the static adversary start alike: what differs between them is what they know.
    """
    return derive_generator(seed, "attack", scenario, f"example {index}", attack)


@dataclass(frozen=True)
class AttackTask:
    """One attack on one update, then its scores.

    A run from which the defenses are withheld though the threat model discloses them has a name of its own.
    """

    scenario: str
    attack: str
    index: int
    withheld: bool = False

    @property
    def item(self) -> str:
        """Its name in the record."""
        name = f"{self.scenario}/example {self.index}/{self.attack}"
        return f"{name}/{Adversary.STATIC.value}" if self.withheld else name

    def __call__(self, plan: Plan, out: Path) -> list[Line]:
        """The line of the attack with its scores; then those of its claim refined without the generator, if it had one."""
        scenario = next(scenario for scenario in plan.scenarios if scenario.name == self.scenario)
        update = released(plan, scenario, self.index)
        knowledge = plan.knowledge(scenario, self.index, withheld=self.withheld)
        generator = attack_generator(plan.seed, self.scenario, self.index, self.attack)
        line = item_line(self.item, "attack", self.scenario, self.index)
        line |= {"attack": self.attack, "attack_config": describe(plan.attacks[self.attack])}
        if scenario.release.defenses and plan.attacks[self.attack].reads_update:
            line["adversary"] = (Adversary.STATIC if knowledge.defenses is None else Adversary.ADAPTIVE).value
        state = state_of(plan, out, self.item)
        found, facts = run_attack(plan.attacks[self.attack], update, knowledge, generator, state)
        line |= facts
        if found is None:
            return [line]
        checked = claim_support(plan.attacks[self.attack], found, update, knowledge)
        if checked is not None:
            line["note"] = "; ".join(text for text in (line["note"], checked.sentence) if text)
            line["details"] |= {"support": checked.facts} if checked.facts else {}
            if checked.refined is None:
                # With a refined claim the cost stands in the line of that.
                line["check"] = {"plain_gradients": checked.plain_gradients, "seconds": checked.seconds}
        lines = self._scored(plan, out, found, line)
        if checked is None or checked.refined is None:
            return lines
        return [*lines, *self._scored(plan, out, checked.refined, self._refined(checked, line))]

    def _refined(self, checked: CheckedClaim, line: Line) -> Line:
        """The line of the claim refined without the generator, an attacker's claim like the one it began with."""
        assert checked.refined is not None
        facts = _claim_facts(checked.refined, checked.refined.details, [checked.refined.note], checked.seconds)
        refined = item_line(f"{self.item}/refined", "attack", self.scenario, self.index)
        refined |= {"attack": refined_name(self.attack), "refines": self.attack, "attack_config": describe(CHECK)}
        return refined | {key: line[key] for key in ("adversary",) if key in line} | facts

    def _scored(self, plan: Plan, out: Path, found: Reconstruction, line: Line) -> list[Line]:
        """A line of a claim with its picture, and its scores. Here the truth comes in."""
        batch = plan.batches[self.index]
        if plan.pictures:
            line["picture"] = save_picture(out, str(line["item"]), found.inputs, domain_of(batch))
        return [line, *score_lines(score_images(found, batch, beside=plan.batches), line)]


def run_attack(
    attack: Attack,
    update: Update,
    knowledge: Knowledge,
    generator: torch.Generator,
    checkpoint: Checkpoint | None,
) -> tuple[Reconstruction | None, Line]:
    """The adversary's side: the reconstruction, or None with the reason for a refusal. No truth comes in here."""
    started = time.perf_counter()
    knowledge, width = wide(knowledge)
    try:
        found = attack(update, knowledge, generator=generator, checkpoint=checkpoint)
    except (KnowledgeError, UnsupportedError) as refusal:
        label = Outcome.UNSUPPORTED.label
        return None, {
            "status": "refused",
            "outcome": label,
            "note": str(refusal),
            "seconds": time.perf_counter() - started,
        }
    sensitivity, rows = protocol_sensitivity(found, update, knowledge)
    details = {**found.details, "assumed_protocol": rows} if rows else dict(found.details)
    return found, _claim_facts(found, details, [found.note, sensitivity, width], time.perf_counter() - started)


def _claim_facts(found: Reconstruction, details: Mapping[str, Any], notes: Sequence[str], seconds: float) -> Line:
    """What a claim's line says of it."""
    return {
        "outcome": found.outcome.label,
        "loss": found.loss,
        "iterations": found.iterations,
        "plain_gradients": found.plain_gradients,
        "labels": found.details.get("labels"),
        "history": _thinned(found.history),
        "note": "; ".join(text for text in notes if text),
        "details": dict(details),
        "seconds": seconds,
    }


def state_of(plan: Plan, out: Path, name: str) -> Checkpoint | None:
    """Where an attack leaves its state, which outlives it: `run_plan` removes it when the lines are in the record."""
    if plan.checkpoint_seconds is None:
        return None
    return Checkpoint(path=state_path(out, name), seconds=plan.checkpoint_seconds, keep=True)


def state_path(out: Path, name: str) -> Path:
    """The file of a state.

    Args:
        out: folder of the record.
        name: of the state; of an attack that of its item.
    """
    return out / "checkpoints" / f"{file_name(name)}.safetensors"


def wide(knowledge: Knowledge) -> tuple[Knowledge, str]:
    """What an attack is told, with a float32 objective where the client computes in half precision, and a note on it.

    The update stays as it came: its format tells an attack how far it was rounded.
    """
    objective = knowledge.objective
    if objective is None or objective.dtype not in HALF:
        return knowledge, ""
    return replace(
        knowledge, objective=objective.to(torch.float32)
    ), f"computed in float32: {describe(objective.dtype)} is too short for second derivatives"


def attack_estimate(plan: Plan, name: str, scenario: Scenario, index: int, *, withheld: bool) -> float:
    """The expected cost in plain gradients of one attack and of the check of its claim; 0 where it is refused."""
    attack, knowledge = plan.attacks[name], plan.knowledge(scenario, index, withheld=withheld)
    if attack.refusal(knowledge):
        return 0.0
    return attack.estimate(knowledge) + check_estimate(attack, knowledge)


def _thinned(history: Sequence[float], most: int = 200) -> list[float]:
    """At most `most` values, evenly spaced, the last one included."""
    if len(history) <= most:
        return list(history)
    step = (len(history) - 1) / (most - 1)
    return [history[round(place * step)] for place in range(most)]

"""One attack of an audit on one update, the check of its claim, and their findings.

The wall runs through this file: `run_attack` gets updates and knowledge, never a batch; scoring comes after it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from gradleak.attacks import Attack, Checkpoint
from gradleak.audits.base import Adversary, Site, attack_generator, internal_example, save_picture, state_of
from gradleak.audits.reconstruction.assumption import protocol_sensitivity
from gradleak.audits.reconstruction.invention import CHECK, CheckedClaim, check_estimate, claim_support, refined_name
from gradleak.core import HALF, Knowledge, Reconstruction, Update, describe
from gradleak.results import GradleakError, KnowledgeError, Outcome, Status, UnsupportedError
from gradleak.results.findings.reconstruction import ReconstructionFinding
from gradleak.results.score import jsonable
from gradleak.scoring import score_images


@dataclass(frozen=True, kw_only=True)
class AttackTask:
    """One attack on one update, then its scores.

    A run from which the defenses are withheld though the threat model discloses them has a name of its own.

    Attributes:
        audit: the name of its audit.
        name: of the attack in the plan.
        attack: the attack.
        scenario: whose release.
        index: of the batch.
        withheld: whether the adversary is not told of the defenses.
    """

    audit: str
    name: str
    attack: Attack
    scenario: str
    index: int
    withheld: bool = False

    @property
    def item(self) -> str:
        """Its name in the record."""
        name = f"{self.scenario}/{internal_example(self.index)}/{self.name}"
        return f"{name}/{Adversary.STATIC.value}" if self.withheld else name

    def blank(self, site: Site) -> ReconstructionFinding:
        """The finding without any result."""
        scenario = site.scenario(self.scenario)
        adversary = ""
        if scenario.release.defenses and self.attack.reads_update:
            told = site.knowledge(scenario, self.index, withheld=self.withheld).defenses is not None
            adversary = (Adversary.ADAPTIVE if told else Adversary.STATIC).value
        return ReconstructionFinding(
            item=self.item,
            audit=self.audit,
            scenario=self.scenario,
            subject=site.subject(self.index),
            attack=self.name,
            adversary=adversary,
            settings=jsonable(describe(self.attack)),
        )

    def cost(self, site: Site) -> float:
        """The expected cost in plain gradients of the attack and of the check of its claim; 0 where it is refused."""
        try:
            knowledge = site.knowledge(site.scenario(self.scenario), self.index, withheld=self.withheld)
            return estimate(self.attack, knowledge)
        except GradleakError:  # refused when it runs, which the record says
            return 0.0

    def __call__(self, site: Site, out: Path) -> list[ReconstructionFinding]:
        """The attack's finding with its scores; then that of its claim refined without the generator, if it had one."""
        scenario = site.scenario(self.scenario)
        update = site.released(scenario, self.index)
        knowledge = site.knowledge(scenario, self.index, withheld=self.withheld)
        generator = attack_generator(site.seed, self.scenario, self.index, self.name)
        state = state_of(site, out, self.item)
        found, made = run_attack(self.attack, update, knowledge, generator, (self.blank(site), state))
        if found is None:
            return [made]
        checked = claim_support(self.attack, found, update, knowledge)
        if checked is not None:
            refined = checked.refined is not None
            made = made.but(
                note="; ".join(text for text in (made.note, checked.sentence) if text),
                support=str(checked.facts.get("support", "")),
                details={**made.details, **({"support": jsonable(checked.facts)} if checked.facts else {})},
                # With a refined claim the cost stands in the finding of that.
                check_plain_gradients=None if refined else checked.plain_gradients,
                seconds=made.seconds + (0.0 if refined else checked.seconds),
            )
        findings = [self._scored(site, out, found, made)]
        if checked is not None and checked.refined is not None:
            findings.append(self._scored(site, out, checked.refined, self._refined(checked, checked.refined, made)))
        return findings

    def _refined(
        self, checked: CheckedClaim, claim: Reconstruction, made: ReconstructionFinding
    ) -> ReconstructionFinding:
        """The finding of the claim refined without the generator, an attacker's claim like the one it began with."""
        blank = ReconstructionFinding(
            item=f"{self.item}/refined",
            audit=self.audit,
            scenario=self.scenario,
            subject=made.subject,
            attack=refined_name(self.name),
            adversary=made.adversary,
            refines=self.name,
            settings=jsonable(describe(CHECK)),
        )
        return _claimed(blank, claim, [claim.note], checked.seconds)

    def _scored(
        self, site: Site, out: Path, found: Reconstruction, made: ReconstructionFinding
    ) -> ReconstructionFinding:
        """The finding of a claim with its picture and its scores. Here the truth comes in."""
        picture = save_picture(out, made.item, found.inputs, site.domain(self.index)) if site.pictures else None
        scores = score_images(found, site.batches[self.index], beside=site.batches)
        return made.but(picture=picture, scores=tuple(scores))


def run_attack(
    attack: Attack,
    update: Update,
    knowledge: Knowledge,
    generator: torch.Generator,
    into: tuple[ReconstructionFinding, Checkpoint | None],
) -> tuple[Reconstruction | None, ReconstructionFinding]:
    """The adversary's side: the reconstruction, or None with the reason for a refusal. No truth comes in here.

    Args:
        attack: what to run.
        update: what the adversary sees.
        knowledge: what the adversary knows.
        generator: draws its guesses.
        into: the finding that is filled in, and where the attack leaves its state.

    Returns:
        The claim, and the finding without scores.
    """
    started = time.perf_counter()
    blank, state = into
    knowledge, width = wide(knowledge)
    try:
        found = attack(update, knowledge, generator=generator, checkpoint=state)
    except (KnowledgeError, UnsupportedError) as refusal:
        return None, blank.but(
            status=Status.REFUSED,
            outcome=Outcome.UNSUPPORTED,
            note=str(refusal),
            seconds=time.perf_counter() - started,
        )
    sensitivity, rows = protocol_sensitivity(found, update, knowledge)
    made = _claimed(blank, found, [found.note, sensitivity, width], time.perf_counter() - started)
    return found, made.but(details={**made.details, "assumed_protocol": jsonable(rows)}) if rows else made


def _claimed(
    blank: ReconstructionFinding, found: Reconstruction, notes: Sequence[str], seconds: float
) -> ReconstructionFinding:
    """The finding with what a claim says of itself."""
    labels = found.details.get("labels")
    return blank.but(
        outcome=found.outcome,
        loss=found.loss,
        iterations=found.iterations,
        plain_gradients=found.plain_gradients,
        labels=None if labels is None else str(labels),
        history=tuple(_thinned(found.history)),
        note="; ".join(text for text in notes if text),
        details=jsonable(dict(found.details)),
        seconds=seconds,
    )


def wide(knowledge: Knowledge) -> tuple[Knowledge, str]:
    """The knowledge of an attack, with a float32 objective where the client computes in half precision, and a note on it.

    The update stays as it came: its format tells an attack how far it was rounded.
    """
    objective = knowledge.objective
    if objective is None or objective.dtype not in HALF:
        return knowledge, ""
    return replace(
        knowledge, objective=objective.to(torch.float32)
    ), f"computed in float32: {describe(objective.dtype)} is too short for second derivatives"


def estimate(attack: Attack, knowledge: Knowledge) -> float:
    """The expected cost in plain gradients of an attack and of the check of its claim; 0 where it is refused.

    Raises:
        GradleakError: if a fact that it depends on is not disclosed.
    """
    if attack.refusal(knowledge):
        return 0.0
    return attack.estimate(knowledge) + check_estimate(attack, knowledge)


def _thinned(history: Sequence[float], most: int = 200) -> list[float]:
    """At most `most` values, evenly spaced, the last one included."""
    if len(history) <= most:
        return list(history)
    step = (len(history) - 1) / (most - 1)
    return [history[round(place * step)] for place in range(most)]

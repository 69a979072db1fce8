"""One attack on one update as a task: what is refused, what the attacker assumes, and which claims are inventions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from gradleak.attacks import Attack, Checkpoint, InventionCheck, ProtocolTrial, neighboring_protocols, residuals_under
from gradleak.audits.base import (
    Adversary,
    Refusal,
    Scenario,
    Site,
    attack_generator,
    internal_example,
    save_picture,
    save_text,
    state_of,
)
from gradleak.core import HALF, Knowledge, Protocol, Reconstruction, Update, derive_generator, describe
from gradleak.results import GradleakError, KnowledgeError, Outcome, Status, UnsupportedError
from gradleak.results.findings.reconstruction import ReconstructionFinding
from gradleak.results.score import jsonable
from gradleak.scoring import score_claim


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


WRONG = 0.5
"""Below this share of the assumed protocol's residual, another one is the likelier."""


def protocol_sensitivity(found: Reconstruction, update: Update, knowledge: Knowledge) -> tuple[str, list[Any]]:
    """A sentence and JSON-ready rows on how well the claim explains the update under other assumptions.

    Learning rates from a quarter to four times the assumed one, and half and twice as many epochs; the attack is not run
    again (`gradleak.attacks.rerun_under` does that).

    Args:
        found: an attack's claim.
        update: what it was given.
        knowledge: what it was given.

    Returns:
        ("", []) where the protocol is known or nothing was claimed.

    **Cost**: seven released means.
    """
    if (
        "protocol" not in (knowledge.assumed or ())
        or found.inputs is None
        or knowledge.protocol is None
        or found.bag is not None
    ):
        return "", []
    protocols = list(dict.fromkeys([knowledge.protocol, *neighboring_protocols(knowledge.protocol)]))
    try:
        trials = residuals_under(found, update, knowledge, protocols)
    except GradleakError as refusal:
        return f"the sensitivity to the assumed protocol could not be computed: {refusal}", []
    rows = [
        {
            "protocol": describe(trial.protocol),
            "relative_residual": trial.relative_residual,
            "cosine_distance": trial.cosine_distance,
        }
        for trial in trials
    ]
    return _sentence(trials), rows


def _sentence(trials: list[ProtocolTrial]) -> str:
    here = trials[0].relative_residual
    known = [trial for trial in trials if trial.relative_residual is not None]
    if here is None or len(known) < 2:
        return "the dependence on the assumed protocol could not be tested"
    best = min(known, key=lambda trial: trial.relative_residual or 0.0)
    worst = max(trial.relative_residual or 0.0 for trial in known)
    text = (
        f"under the assumed protocol the claim leaves a relative residual of {here:.2g}; under {len(known) - 1} others "
        f"(learning rates from ¼ to 4 times it, half and twice the epochs) {best.relative_residual:.2g} to {worst:.2g}"
    )
    if best.protocol == trials[0].protocol:
        return text
    text = f"{text}, smallest for {_difference(trials[0].protocol, best.protocol)}"
    return f"{text}: the assumption looks wrong" if (best.relative_residual or 0.0) <= WRONG * here else text


def _difference(first: Protocol, second: Protocol) -> str:
    """The settings of the second that differ, or the whole of it."""
    one, two = describe(first), describe(second)
    changed = [f"{key}={value}" for key, value in two.items() if one.get(key) != value]
    return ", ".join(changed) if one["use"] == two["use"] else str(second)


REFINED = " refined without the generator"
"""How the names of refined claims end in the record."""

CHECK = InventionCheck()
"""As audits run it."""


@dataclass(frozen=True, kw_only=True)
class CheckedClaim:
    """Result of a check of a claim, and its cost.

    Attributes:
        sentence: for the note of the attack's line.
        facts: JSON-ready numbers; empty where the check was refused.
        refined: the claim refined without the generator, a claim of its own; None where there is none.
        plain_gradients: what the check cost.
        seconds: how long it took.
    """

    sentence: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    refined: Reconstruction | None = None
    plain_gradients: float = 0.0
    seconds: float = 0.0


def claim_support(attack: Attack, found: Reconstruction, update: Update, knowledge: Knowledge) -> CheckedClaim | None:
    """Support of the update for a generator's picture, and the picture that the update leads to from there.

    A verdict goes by the error against the auditor's own batch, of the claim and of the refined one; who reads a picture
    alone needs the sentence.

    Args:
        attack: that made the claim.
        found: its claim.
        update: what it was given.
        knowledge: what it was given.

    Returns:
        None for an attack that needs no generator, or where nothing was claimed.

    **Cost**: see `gradleak.attacks.InventionCheck`: about 3,300 plain gradients, up to 6,600 T for T local steps.
    """
    if not attack.searches_images or found.inputs is None:
        return None
    started = time.perf_counter()
    try:
        said = CHECK(found, update, knowledge, generator=derive_generator(0, "claim support"))
    except GradleakError as refusal:
        return CheckedClaim(
            sentence=f"the support of the update for the claim could not be checked: {refusal}",
            seconds=time.perf_counter() - started,
        )
    return CheckedClaim(
        sentence=f"{said.support.value}: {said.sentence}",
        facts=said.facts(),
        refined=said.refined,
        plain_gradients=said.plain_gradients,
        seconds=time.perf_counter() - started,
    )


def check_estimate(attack: Attack, knowledge: Knowledge) -> float:
    """Cost of checking a claim of this attack in plain gradients; 0 where nothing is checked.

    Raises:
        KnowledgeError: if a fact that it depends on is not disclosed.
    """
    return CHECK.estimate(knowledge) if attack.searches_images else 0.0


def refined_name(attack: str) -> str:
    """Name of the refined claim of an attack in the record."""
    return f"{attack}{REFINED}"


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
        return self.named(internal_example(self.index))

    def named(self, subject: object) -> str:
        """Its name, with what is attacked called so."""
        name = f"{self.scenario}/{subject}/{self.name}"
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
        batch, picture = site.batches[self.index], None
        if site.pictures:
            domain = site.domain(self.index)
            picture = save_picture(out, made.item, found.inputs, domain) or save_text(out, made.item, batch, found)
        scores = score_claim(found, batch, beside=site.beside, objective=site.objective)
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

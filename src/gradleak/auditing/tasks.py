"""The work of an audit, cut into groups; each group turns a plan into lines of the record.

The wall runs through this file: `_attack` gets updates and knowledge, never a batch; scoring comes after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from gradleak.attacks import Attack, Checkpoint
from gradleak.auditing.adversary import Adversary
from gradleak.auditing.assumption import protocol_sensitivity
from gradleak.auditing.controls import noise_update, planted_leak, shortened
from gradleak.auditing.gate import check_update
from gradleak.auditing.inference_task import InferenceControl, InferenceTask
from gradleak.auditing.invention import claim_support
from gradleak.auditing.items import Line, domain_of, item_line, precision_facts, released, score_lines, uniform_std
from gradleak.auditing.layer_task import LayersTask
from gradleak.auditing.pictures import file_name, save_picture
from gradleak.auditing.plan import Plan, Scenario
from gradleak.auditing.privacy_task import PrivacyControl, PrivacyTask
from gradleak.auditing.risk_tasks import RiskTask, SettingTask, same_labels
from gradleak.auditing.utility_task import UtilityTask
from gradleak.core import (
    HALF,
    Batch,
    DiagonalGaussian,
    HonestButCurious,
    Knowledge,
    Reconstruction,
    Update,
    derive_generator,
    describe,
)
from gradleak.dp import guarantee_of
from gradleak.results import KnowledgeError, Outcome, UnsupportedError
from gradleak.risk import SettingMeasure
from gradleak.scoring import blind_baseline, score_images

NEGATIVE_DRAWS = 5


@dataclass(frozen=True, kw_only=True)
class Group:
    """One unit of work and of resuming.

    Attributes:
        name: unique in the run; fixed by the plan alone.
        work: makes the lines; called in a worker.
        headline: what a progress bar shows.
    """

    name: str
    work: Callable[[Plan, Path], list[Line]]
    headline: str


def groups(plan: Plan) -> list[Group]:
    """The groups of a plan: controls, releases, their risk, settings, attacks, utility, games, privacy audits, layers."""
    found: list[Group] = []
    used = [name for name in plan.attacks if any(name in scenario.attacks for scenario in plan.scenarios)]
    if used and plan.controls.positive:
        chosen = plan.controls.attack or used[0]
        found.append(Group(name="control/positive", work=_PositiveControl(chosen), headline="planted leak"))
    for name in used if plan.controls.negative else ():
        found.append(Group(name=f"control/negative/{name}", work=_NegativeControl(name), headline=f"noise for {name}"))
    for index in sorted({index for scenario in plan.scenarios for index in scenario.examples}):
        found.append(Group(name=f"release/example {index}", work=_Release(index), headline=f"release {index}"))
    for index in sorted({index for scenario in plan.scenarios for index in scenario.examples}):
        noun = "batch" if plan.batches[index].size > 1 else "example"
        found.append(Group(name=f"risk/example {index}", work=RiskTask(index), headline=f"risk of {noun} {index}"))
    if any(isinstance(measure, SettingMeasure) for measure in plan.measures):
        for scenario in plan.scenarios:
            for index in same_labels(plan, scenario):
                place = f"{scenario.name}/example {index}"
                work = SettingTask(scenario.name, index)
                found.append(Group(name=f"setting/{place}", work=work, headline=f"setting of {place}"))
    for scenario in plan.scenarios:
        for name, examples in scenario.attacks.items():
            for index in examples:
                for withheld in plan.withheld(scenario, name):
                    task = _AttackTask(scenario.name, name, index, withheld)
                    found.append(Group(name=f"attack/{task.item}", work=task, headline=task.item))
    for scenario in plan.scenarios if plan.utility is not None else ():
        trained = UtilityTask(scenario.name)
        found.append(Group(name=f"utility/{scenario.name}", work=trained, headline=f"utility of {scenario.name}"))
    return [*found, *_games(plan), *_audits(plan), *_layers(plan)]


def _games(plan: Plan) -> list[Group]:
    """The controls of every game, and the game against every scenario."""
    found: list[Group] = []
    for name, game in plan.inference.items():
        controls = {"positive": plan.controls.positive, "negative": plan.controls.negative}
        for kind in (kind for kind, wanted in controls.items() if wanted):
            work = InferenceControl(name, planted=kind == "positive")
            found.append(
                Group(name=f"control/inference/{kind}/{name}", work=work, headline=f"{kind} control of {name}")
            )
        for scenario in plan.scenarios:
            if game.against(scenario.name):
                task = InferenceTask(name, scenario.name)
                found.append(
                    Group(name=f"inference/{scenario.name}/{name}", work=task, headline=f"{name}: {scenario.name}")
                )
    return found


def _audits(plan: Plan) -> list[Group]:
    """The controls of every privacy audit, and the audit of every scenario."""
    found: list[Group] = []
    for name, audit in plan.privacy.items():
        controls = {"positive": plan.controls.positive, "negative": plan.controls.negative}
        for kind in (kind for kind, wanted in controls.items() if wanted):
            work = PrivacyControl(name, planted=kind == "positive")
            found.append(Group(name=f"control/privacy/{kind}/{name}", work=work, headline=f"{kind} control of {name}"))
        for scenario in plan.scenarios:
            if audit.against(scenario.name):
                task = PrivacyTask(name, scenario.name)
                found.append(
                    Group(name=f"privacy/{scenario.name}/{name}", work=task, headline=f"{name}: {scenario.name}")
                )
    return found


def _layers(plan: Plan) -> list[Group]:
    """One measure of layers against one scenario at a time."""
    return [
        Group(
            name=f"layers/{scenario.name}/{name}/{label}",
            work=LayersTask(name, scenario.name, label),
            headline=f"{name}: {scenario.name}, {label}",
        )
        for name, chosen in plan.layers.items()
        for scenario in plan.scenarios
        if chosen.against(scenario.name)
        for label in chosen.audit.labels
    ]


def attack_generator(seed: int, scenario: str, index: int, attack: str) -> torch.Generator:
    """The generator that an audit gives to an attack, so that the attack can be repeated from a saved update.

    The adaptive and the static adversary start alike: what differs between them is what they know.
    """
    return derive_generator(seed, "attack", scenario, f"example {index}", attack)


@dataclass(frozen=True)
class _Release:
    """What leaves the client for one batch over all scenarios: knowledge, gate, blind baseline."""

    index: int

    def __call__(self, plan: Plan, out: Path) -> list[Line]:
        batch = plan.batches[self.index]
        original = None
        if plan.pictures:
            original = save_picture(out, f"example {self.index} original", batch.inputs, domain_of(batch))
        lines: list[Line] = []
        for scenario in plan.scenarios:
            if self.index in scenario.examples:
                lines += self._release(plan, scenario, original, out)
        return lines

    def _release(self, plan: Plan, scenario: Scenario, original: str | None, out: Path) -> list[Line]:
        started = time.perf_counter()
        update = released(plan, scenario, self.index)
        batch = plan.batches[self.index]
        item = f"{scenario.name}/example {self.index}"
        knowledge = plan.knowledge(scenario, self.index)
        gate = check_update(plan.objective, scenario.release, batch, update)
        noise = scenario.release.noise(plan.objective, examples=batch.size)
        std = uniform_std(noise) if isinstance(noise, DiagonalGaussian) else None
        saved = None
        if plan.save_updates:
            (out / "updates").mkdir(parents=True, exist_ok=True)
            saved = f"updates/{file_name(item)}.safetensors"
            update.save(out / saved)
        with torch.no_grad():
            loss = float(plan.objective.loss(plan.objective.params, batch.to(plan.objective.dtype)))
        line = item_line(item, "release", scenario.name, self.index, seconds=time.perf_counter() - started) | {
            "knowledge": knowledge.card(),
            "release": scenario.release.describe(),
            "defenses": [
                {**describe(defense), "guarantee": defense.guarantee.value, "stage": defense.stage.value}
                for defense in scenario.release.defenses
            ],
            "guarantee": guarantee_of(scenario.release, plan.objective, batch.size),
            "noise_std": std,
            "noise_variance": None if std is None else std**2,
            "gate": gate.to_dict(),
            "given": self.index in scenario.updates,
            "zero_tensors": update.zero_tensors(),
            "precision": precision_facts(update),
            "alignment": list(update.provenance.get("alignment", ())),
            "batch_size": batch.size,
            "client_loss": float(f"{loss:.1e}"),
            "dtype": describe(plan.objective.dtype),
            "loss_name": plan.objective.loss_name,
            "picture": original,
            "update": saved,
            "domain_guessed": plan.domain_guessed,
            "domain_kind": domain_of(batch).kind.value,
            "note": scenario.release.protocol.note(batch.size),
        }
        public = plan.threat.public if isinstance(plan.threat, HonestButCurious) else None
        baseline = blind_baseline(batch, domain_of(batch), public=None if public is None else public.inputs)
        base_line = item_line(f"{item}/baseline", "baseline", scenario.name, self.index)
        return [line, base_line, *score_lines(baseline, base_line)]


@dataclass(frozen=True)
class _AttackTask:
    """One attack on one update, then its scores.

    A run from which the defenses are withheld though the threat model discloses them has a name of its own.
    """

    scenario: str
    attack: str
    index: int
    withheld: bool = False

    @property
    def item(self) -> str:
        name = f"{self.scenario}/example {self.index}/{self.attack}"
        return f"{name}/{Adversary.STATIC.value}" if self.withheld else name

    def __call__(self, plan: Plan, out: Path) -> list[Line]:
        scenario = next(scenario for scenario in plan.scenarios if scenario.name == self.scenario)
        batch = plan.batches[self.index]
        update = released(plan, scenario, self.index)
        knowledge = plan.knowledge(scenario, self.index, withheld=self.withheld)
        generator = attack_generator(plan.seed, self.scenario, self.index, self.attack)
        line = item_line(self.item, "attack", self.scenario, self.index)
        line |= {"attack": self.attack, "attack_config": describe(plan.attacks[self.attack])}
        if scenario.release.defenses and plan.attacks[self.attack].reads_update:
            line["adversary"] = (Adversary.STATIC if knowledge.defenses is None else Adversary.ADAPTIVE).value
        checkpoint = None
        if plan.checkpoint_seconds is not None:
            path = out / "checkpoints" / f"{file_name(self.item)}.safetensors"
            checkpoint = Checkpoint(path=path, seconds=plan.checkpoint_seconds)
        found, facts = _attack(plan.attacks[self.attack], update, knowledge, generator, checkpoint)
        line |= facts
        if found is None:
            return [line]
        support, told = claim_support(plan.attacks[self.attack], found, update, knowledge)
        if support:
            line["note"] = "; ".join(text for text in (line["note"], support) if text)
            line["details"] |= {"support": told} if told else {}
        if plan.pictures:
            line["picture"] = save_picture(out, self.item, found.inputs, domain_of(batch))
        return [line, *score_lines(score_images(found, batch), line)]


def _attack(
    attack: Attack,
    update: Update,
    knowledge: Knowledge,
    generator: torch.Generator,
    checkpoint: Checkpoint | None = None,
) -> tuple[Reconstruction | None, Line]:
    """The adversary's side: the reconstruction, or None with the reason for a refusal. No truth comes in here."""
    started = time.perf_counter()
    knowledge, width = _wide(knowledge)
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
    return found, {
        "outcome": found.outcome.label,
        "loss": found.loss,
        "iterations": found.iterations,
        "plain_gradients": found.plain_gradients,
        "labels": found.details.get("labels"),
        "history": _thinned(found.history),
        "note": "; ".join(text for text in (found.note, sensitivity, width) if text),
        "details": details,
        "seconds": time.perf_counter() - started,
    }


def _wide(knowledge: Knowledge) -> tuple[Knowledge, str]:
    """What an attack is told, with a float32 objective where the client computes in half precision, and a note on it.

    The update stays as it came: its format tells an attack how far it was rounded.
    """
    objective = knowledge.objective
    if objective is None or objective.dtype not in HALF:
        return knowledge, ""
    wide = replace(knowledge, objective=objective.to(torch.float32))
    return wide, f"computed in float32: {describe(objective.dtype)} is too short for second derivatives"


@dataclass(frozen=True)
class _PositiveControl:
    """The planted leak: has to come out as *leaks*."""

    attack: str

    def __call__(self, plan: Plan, out: Path) -> list[Line]:
        domain = domain_of(plan.batches[0])
        generator = derive_generator(plan.seed, "control", "positive")
        # What the attack is given in this audit it is given here, too.
        known = plan.threat if isinstance(plan.threat, HonestButCurious) else HonestButCurious()
        needs = plan.attacks[self.attack].needs
        objective, batch, release = planted_leak(domain, generator, known.generator if "generator" in needs else None)
        update = release(objective, batch, generator)
        threat = HonestButCurious(targets="targets" in needs, statistics=known.statistics, generator=known.generator)
        knowledge = threat.disclose(objective, release, batch)
        lines, leaks = _control(plan, "positive", self.attack, (update, knowledge, batch))
        lines[0] |= {"passed": leaks, "expects": "a planted leak is found"}
        return lines


@dataclass(frozen=True)
class _NegativeControl:
    """Noise of the norm of a real update: must not come out as *leaks*; one lucky draw in five is forgiven twice."""

    attack: str

    def __call__(self, plan: Plan, out: Path) -> list[Line]:
        expects = {"expects": "noise of the same norm gives nothing"}
        place = self._place(plan)
        if place is None:
            line = item_line(f"control/negative/{self.attack}", "control", None, None) | {"attack": self.attack}
            note = "every update under this attack is zero; there is nothing to imitate"
            return [line | expects | {"passed": None, "status": "refused", "note": note}]
        scenario, index, withheld = place
        batch = plan.batches[index]
        knowledge = plan.knowledge(scenario, index, withheld=withheld)
        first: list[Line] = []
        leaks: bool | None = None
        hits = draws = 0
        for draw in range(NEGATIVE_DRAWS):
            generator = derive_generator(plan.seed, "control", "negative", self.attack, str(draw))
            noise = noise_update(released(plan, scenario, index), generator)
            lines, leaks = _control(plan, f"negative/{self.attack}", self.attack, (noise, knowledge, batch))
            first = first or lines
            draws, hits = draws + 1, hits + bool(leaks)
            # A guess can land near an example of few numbers; only a habit is a fault.
            if leaks is None or hits == 0 or hits > NEGATIVE_DRAWS // 2:
                break
        ran = leaks is not None
        first[0] |= {"passed": hits <= NEGATIVE_DRAWS // 2 if ran else None, "draws": draws, "hits": hits} | expects
        return first

    def _place(self, plan: Plan) -> tuple[Scenario, int, bool] | None:
        """The first update under this attack that is not zero, and for whom; one who is not refused, if there is any."""
        first = None
        for scenario in plan.scenarios:
            for index in scenario.attacks.get(self.attack, ()):
                if not any(bool(tensor.any()) for tensor in released(plan, scenario, index).tensors.values()):
                    continue
                for withheld in plan.withheld(scenario, self.attack):
                    knowledge = plan.knowledge(scenario, index, withheld=withheld)
                    if plan.attacks[self.attack].refusal(knowledge) is None:
                        return scenario, index, withheld
                    first = first or (scenario, index, withheld)
        return first


def _control(
    plan: Plan, name: str, chosen: str, case: tuple[Update, Knowledge, Batch]
) -> tuple[list[Line], bool | None]:
    """The lines of a control and whether its attack rebuilt the batch; None if the attack was refused."""
    update, knowledge, batch = case
    attack = shortened(plan.attacks[chosen])
    generator = derive_generator(plan.seed, "control", name, chosen)
    line = item_line(f"control/{name}", "control", None, None) | {"attack": chosen, "attack_config": describe(attack)}
    found, facts = _attack(attack, update, knowledge, generator)
    line |= facts
    if found is None:
        return [line], None
    scores = score_images(found, batch)
    baseline = next(score for score in blind_baseline(batch, domain_of(batch)) if score.name == "pixel_rmse")
    line["baseline_pixel_rmse"] = baseline.value
    errors = next(score for score in scores if score.name == "pixel_rmse").details.get("per_example", [])
    leaks = bool(errors) and plan.thresholds.leaks(errors, list(baseline.details["per_example"]))
    return [line, *score_lines(scores, line)], leaks


def _thinned(history: Sequence[float], most: int = 200) -> list[float]:
    """At most `most` values, evenly spaced, the last one included."""
    if len(history) <= most:
        return list(history)
    step = (len(history) - 1) / (most - 1)
    return [history[round(place * step)] for place in range(most)]

"""The work of an audit, cut into groups; each group turns a plan into lines of the record."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from gradleak.accounting import guarantee_of
from gradleak.attacks import Checkpoint
from gradleak.auditing.attack_task import AttackTask, attack_generator, state_path
from gradleak.auditing.control_tasks import NegativeControl, PositiveControl, noise_controls
from gradleak.auditing.gate import check_update
from gradleak.auditing.inference_task import InferenceControl, InferenceTask
from gradleak.auditing.items import (
    Line,
    domain_of,
    item_line,
    luck,
    precision_facts,
    released,
    score_lines,
    uniform_std,
)
from gradleak.auditing.layer_task import LayersTask
from gradleak.auditing.pictures import file_name, save_picture
from gradleak.auditing.plan import Plan, Scenario
from gradleak.auditing.privacy_task import PrivacyControl, PrivacyTask
from gradleak.auditing.refusals import first_to_run
from gradleak.auditing.risk_tasks import RiskTask, SettingTask, same_labels
from gradleak.auditing.utility_task import UtilityTask
from gradleak.core import DiagonalGaussian, HonestButCurious, describe
from gradleak.results import GradleakError, Score
from gradleak.risk import SettingMeasure
from gradleak.scoring import blind_baseline


@dataclass(frozen=True, kw_only=True)
class Group:
    """One unit of work and of resuming.

    Attributes:
        name: unique in the run; fixed by the plan alone.
        work: makes the lines; called in a worker.
        headline: what a progress bar shows.
        states: names of the states that its attacks leave on the way; they go when its lines are in the record.
    """

    name: str
    work: Callable[[Plan, Path], list[Line]]
    headline: str
    states: Sequence[str] = ()


def groups(plan: Plan) -> list[Group]:
    """The groups of a plan: controls, releases, their risk, settings, attacks, utility, games, privacy audits, layers."""
    found: list[Group] = []
    used = [name for name in plan.attacks if any(name in scenario.attacks for scenario in plan.scenarios)]
    if used and plan.controls.positive:
        chosen = plan.controls.attack or first_to_run(plan, used)
        name, positive = "control/positive", PositiveControl(chosen)
        found.append(Group(name=name, work=positive, headline="planted leak", states=positive.states))
    for name in used if plan.controls.negative else ():
        for noise in noise_controls(plan, name):
            found.append(Group(name=noise.name, work=noise, headline=f"noise for {noise.title}", states=noise.states))
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
                    task = AttackTask(scenario.name, name, index, withheld)
                    group = f"attack/{task.item}"
                    found.append(Group(name=group, work=task, headline=task.item, states=(task.item,)))
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
        chance = luck(plan, batch, f"example {self.index}")
        for scenario in plan.scenarios:
            if self.index in scenario.examples:
                lines += self._release(plan, scenario, original, chance, out)
        return lines

    def _release(
        self, plan: Plan, scenario: Scenario, original: str | None, chance: Sequence[Score], out: Path
    ) -> list[Line]:
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
        rows = None if public is None else public.inputs
        baseline = blind_baseline(batch, domain_of(batch), public=rows, beside=plan.batches)
        line["range_note"] = baseline[0].note
        base_line = item_line(f"{item}/baseline", "baseline", scenario.name, self.index)
        return [line, base_line, *score_lines([*baseline, *chance], base_line)]


def clear_states(group: Group, out: Path) -> None:
    """Remove the states that the attacks of a group have left."""
    for name in group.states:
        Checkpoint(path=state_path(out, name)).clear()


def controls_estimate(plan: Plan) -> float:
    """The expected cost in plain gradients of the controls of the plan's attacks."""
    total = 0.0
    for group in groups(plan):
        if isinstance(group.work, PositiveControl | NegativeControl):
            try:
                total += group.work.estimate(plan)
            except GradleakError:
                # Refused when it runs, which the record says.
                continue
    return total


__all__ = ["Group", "attack_generator", "clear_states", "controls_estimate", "groups", "released"]

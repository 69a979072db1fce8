"""The work of an audit, cut into groups; each group turns a plan into lines of the record.

The wall runs through this file: `_attack` gets updates and knowledge, never a batch; scoring comes after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from gradleak.attacks import Attack
from gradleak.auditing.controls import noise_update, planted_leak, shortened
from gradleak.auditing.gate import check_update
from gradleak.auditing.pictures import file_name, save_picture
from gradleak.auditing.plan import Plan, Scenario
from gradleak.core import (
    Batch,
    DiagonalGaussian,
    Domain,
    Exposure,
    HonestButCurious,
    Knowledge,
    Reconstruction,
    Release,
    Update,
    derive_generator,
    describe,
)
from gradleak.defenses import GaussianNoise
from gradleak.operators import GradientJacobian
from gradleak.results import (
    Evidence,
    GradleakError,
    KnowledgeError,
    Leakier,
    Outcome,
    Score,
    UnsupportedError,
)
from gradleak.risk import GaussianReconstructionError, InversionInfluence, perfect_attacker
from gradleak.scoring import blind_baseline, score_images

Line = dict[str, Any]
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
    """The groups of a plan, in the order of the record: controls, releases with their risk, attacks."""
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
        found.append(Group(name=f"risk/example {index}", work=_Risk(index), headline=f"risk of example {index}"))
    for scenario in plan.scenarios:
        for name, examples in scenario.attacks.items():
            for index in examples:
                task = _AttackTask(scenario.name, name, index)
                found.append(Group(name=f"attack/{task.item}", work=task, headline=task.item))
    return found


def released(plan: Plan, scenario: Scenario, index: int) -> Update:
    """The update of one batch under one scenario: the one that was given, else drawn; the same in every process."""
    if index in scenario.updates:
        return scenario.updates[index].align(plan.objective)
    generator = derive_generator(plan.seed, "release", scenario.name, f"example {index}", device=plan.objective.device)
    return scenario.release(plan.objective, plan.batches[index], generator)


def attack_generator(seed: int, scenario: str, index: int, attack: str) -> torch.Generator:
    """The generator that an audit gives to an attack, so that the attack can be repeated from a saved update."""
    return derive_generator(seed, "attack", scenario, f"example {index}", attack)


@dataclass(frozen=True)
class _Release:
    """What leaves the client for one batch over all scenarios: knowledge, gate, blind baseline."""

    index: int

    def __call__(self, plan: Plan, out: Path) -> list[Line]:
        batch = plan.batches[self.index]
        original = None
        if plan.pictures:
            original = save_picture(out, f"example {self.index} original", batch.inputs, _domain(batch))
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
        knowledge = plan.threat.disclose(plan.objective, scenario.release, batch)
        gate = check_update(plan.objective, scenario.release, batch, update)
        noise = scenario.release.noise(plan.objective)
        std = _uniform_std(noise) if isinstance(noise, DiagonalGaussian) else None
        saved = None
        if plan.save_updates:
            (out / "updates").mkdir(parents=True, exist_ok=True)
            saved = f"updates/{file_name(item)}.safetensors"
            update.save(out / saved)
        with torch.no_grad():
            loss = float(plan.objective.loss(plan.objective.params, batch.to(plan.objective.dtype)))
        line = _item(item, "release", scenario.name, self.index, seconds=time.perf_counter() - started) | {
            "knowledge": knowledge.card(),
            "release": scenario.release.describe(),
            "defenses": [
                {**describe(defense), "guarantee": defense.guarantee.value, "stage": defense.stage.value}
                for defense in scenario.release.defenses
            ],
            "noise_std": std,
            "noise_variance": None if std is None else std**2,
            "gate": gate.to_dict(),
            "given": self.index in scenario.updates,
            "zero_tensors": update.zero_tensors(),
            "alignment": list(update.provenance.get("alignment", ())),
            "batch_size": batch.size,
            "client_loss": float(f"{loss:.1e}"),
            "dtype": describe(plan.objective.dtype),
            "loss_name": plan.objective.loss_name,
            "picture": original,
            "update": saved,
            "domain_guessed": plan.domain_guessed,
        }
        public = plan.threat.public if isinstance(plan.threat, HonestButCurious) else None
        baseline = blind_baseline(batch, _domain(batch), public=None if public is None else public.inputs)
        base_line = _item(f"{item}/baseline", "baseline", scenario.name, self.index)
        return [line, base_line, *_score_lines(baseline, base_line)]


@dataclass(frozen=True)
class _Risk:
    """Closed-form measures and the perfect attacker of one batch over all scenarios; they share one operator."""

    index: int

    def __call__(self, plan: Plan, out: Path) -> list[Line]:
        lines: list[Line] = []
        operators: dict[str, GradientJacobian] = {}
        for scenario in plan.scenarios:
            if self.index not in scenario.examples:
                continue
            update = released(plan, scenario, self.index)
            exposure = Exposure(plan.objective, plan.batches[self.index], scenario.release)
            try:
                operator = _shared_operator(plan, exposure, operators)
                lines += self._closed_form(plan, scenario, update, exposure, operator)
            except GradleakError as refusal:
                line = _item(f"{scenario.name}/example {self.index}/risk", "risk", scenario.name, self.index)
                lines.append(line | {"status": "refused", "outcome": Outcome.UNSUPPORTED.label, "note": str(refusal)})
        return lines

    def _closed_form(
        self, plan: Plan, scenario: Scenario, update: Update, exposure: Exposure, operator: GradientJacobian
    ) -> list[Line]:
        started = time.perf_counter()
        item = f"{scenario.name}/example {self.index}"
        exact = exposure.to(torch.float64)
        delta = plan.objective.flatten(update.tensors).double() - exact.released_mean()
        noisy = isinstance(exposure.noise, DiagonalGaussian) or bool(scenario.updates)
        scores = []
        for measure in plan.measures:
            if measure.needs_delta and not noisy:
                continue
            scores.append(measure(exposure, delta=delta if measure.needs_delta else None, operator=operator))
        scores += _noise_scores(plan, exposure, operator)
        line = _item(f"{item}/risk", "risk", scenario.name, self.index) | {
            "eigenvalues": operator.gram_spectrum().tolist() if operator.is_dense else None,
            "d": operator.shape[1],
            "P": operator.shape[0],
            "rank": operator.rank if operator.is_dense else None,
            "route": operator.route,
        }
        line["seconds"] = time.perf_counter() - started
        lines = [line, *_score_lines(scores, line)]
        predicted = next(
            (s.value for s in scores if s.name == InversionInfluence.name and s.unit == "pixel_rmse"), None
        )
        rule = scenario.perfect_attacker
        if rule is not None and predicted is not None and predicted < rule.below:
            lines += self._perfect_attacker(plan, scenario, update, exposure, operator)
        return lines

    def _perfect_attacker(
        self, plan: Plan, scenario: Scenario, update: Update, exposure: Exposure, operator: GradientJacobian
    ) -> list[Line]:
        started = time.perf_counter()
        assert scenario.perfect_attacker is not None
        found = perfect_attacker(exposure, update, max_steps=scenario.perfect_attacker.max_steps, operator=operator)
        line = _item(
            f"{scenario.name}/example {self.index}/perfect_attacker", "perfect_attacker", scenario.name, self.index
        )
        line |= {
            "outcome": found.outcome.label,
            "iterations": found.steps,
            "note": "a validation routine that starts from the truth; never an attack",
            "seconds": time.perf_counter() - started,
        }
        claim = Reconstruction(inputs=found.inputs, targets=exposure.batch.targets, loss=None, outcome=found.outcome)
        scores = [score for score in score_images(claim, exposure.batch) if score.name in ("mse", "pixel_rmse", "psnr")]
        scores = [replace(score, evidence=Evidence.ESTIMATE) for score in scores]
        return [line, *_score_lines(scores, line)]


@dataclass(frozen=True)
class _AttackTask:
    """One attack on one update, then its scores."""

    scenario: str
    attack: str
    index: int

    @property
    def item(self) -> str:
        return f"{self.scenario}/example {self.index}/{self.attack}"

    def __call__(self, plan: Plan, out: Path) -> list[Line]:
        scenario = next(scenario for scenario in plan.scenarios if scenario.name == self.scenario)
        batch = plan.batches[self.index]
        update = released(plan, scenario, self.index)
        knowledge = plan.threat.disclose(plan.objective, scenario.release, batch)
        generator = attack_generator(plan.seed, self.scenario, self.index, self.attack)
        line = _item(self.item, "attack", self.scenario, self.index)
        line |= {"attack": self.attack, "attack_config": describe(plan.attacks[self.attack])}
        found, facts = _attack(plan.attacks[self.attack], update, knowledge, generator)
        line |= facts
        if found is None:
            return [line]
        if plan.pictures:
            line["picture"] = save_picture(out, self.item, found.inputs, _domain(batch))
        return [line, *_score_lines(score_images(found, batch), line)]


def _attack(
    attack: Attack, update: Update, knowledge: Knowledge, generator: torch.Generator
) -> tuple[Reconstruction | None, Line]:
    """The adversary's side: the reconstruction, or None with the reason for a refusal. No truth comes in here."""
    started = time.perf_counter()
    try:
        found = attack(update, knowledge, generator=generator)
    except (KnowledgeError, UnsupportedError) as refusal:
        label = Outcome.UNSUPPORTED.label
        return None, {
            "status": "refused",
            "outcome": label,
            "note": str(refusal),
            "seconds": time.perf_counter() - started,
        }
    return found, {
        "outcome": found.outcome.label,
        "loss": found.loss,
        "iterations": found.iterations,
        "plain_gradients": found.plain_gradients,
        "labels": found.details.get("labels"),
        "history": _thinned(found.history),
        "note": found.note,
        "details": dict(found.details),
        "seconds": time.perf_counter() - started,
    }


@dataclass(frozen=True)
class _PositiveControl:
    """The planted leak: has to come out as *leaks*."""

    attack: str

    def __call__(self, plan: Plan, out: Path) -> list[Line]:
        domain = _domain(plan.batches[0])
        generator = derive_generator(plan.seed, "control", "positive")
        objective, batch, release = planted_leak(domain, generator)
        update = release(objective, batch, generator)
        knowledge = HonestButCurious().disclose(objective, release, batch)
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
            line = _item(f"control/negative/{self.attack}", "control", None, None) | {"attack": self.attack}
            note = "every update under this attack is zero; there is nothing to imitate"
            return [line | expects | {"passed": None, "status": "refused", "note": note}]
        scenario, index = place
        batch = plan.batches[index]
        knowledge = plan.threat.disclose(plan.objective, scenario.release, batch)
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

    def _place(self, plan: Plan) -> tuple[Scenario, int] | None:
        """The first update under this attack that is not zero."""
        for scenario in plan.scenarios:
            for index in scenario.attacks.get(self.attack, ()):
                if any(bool(tensor.any()) for tensor in released(plan, scenario, index).tensors.values()):
                    return scenario, index
        return None


def _control(
    plan: Plan, name: str, chosen: str, case: tuple[Update, Knowledge, Batch]
) -> tuple[list[Line], bool | None]:
    """The lines of a control and whether its attack rebuilt the batch; None if the attack was refused."""
    update, knowledge, batch = case
    attack = shortened(plan.attacks[chosen])
    generator = derive_generator(plan.seed, "control", name, chosen)
    line = _item(f"control/{name}", "control", None, None) | {"attack": chosen, "attack_config": describe(attack)}
    found, facts = _attack(attack, update, knowledge, generator)
    line |= facts
    if found is None:
        return [line], None
    scores = score_images(found, batch)
    baseline = next(score for score in blind_baseline(batch, _domain(batch)) if score.name == "pixel_rmse")
    line["baseline_pixel_rmse"] = baseline.value
    errors = next(score for score in scores if score.name == "pixel_rmse").details.get("per_example", [])
    leaks = bool(errors) and plan.thresholds.leaks(errors, list(baseline.details["per_example"]))
    return [line, *_score_lines(scores, line)], leaks


def _shared_operator(plan: Plan, exposure: Exposure, operators: dict[str, GradientJacobian]) -> GradientJacobian:
    """One operator for all releases of a batch that differ by noise alone, since they share the mean map."""
    quiet = Release(
        exposure.release.protocol, [d for d in exposure.release.defenses if not isinstance(d, GaussianNoise)]
    )
    key = str(quiet.describe())
    if key not in operators:
        operators[key] = GradientJacobian(replace(exposure, release=quiet), max_bytes=plan.max_bytes)
    return operators[key]


def _noise_scores(plan: Plan, exposure: Exposure, operator: GradientJacobian) -> list[Score]:
    """The expected error under the release's own Gaussian noise, or, without noise, how much of it would be needed."""
    noise = exposure.noise
    std = _uniform_std(noise) if isinstance(noise, DiagonalGaussian) else None
    if std is not None and std > 0:
        return [
            GaussianReconstructionError(std=std, unit=unit)(exposure, operator=operator)
            for unit in ("pixel_rmse", "input")
        ]
    unit = GaussianReconstructionError(std=1.0, unit="pixel_rmse")(exposure, operator=operator)
    if noise is not None or unit.value is None or not 0 < unit.value < float("inf"):
        return []
    threshold = plan.thresholds.pixel_rmse
    return [
        Score(
            name="noise_std_for_threshold",
            value=threshold / unit.value,
            unit="update",
            leakier=Leakier.HIGHER,
            evidence=Evidence.ESTIMATE,
            outcome=unit.outcome,
            note=f"standard deviation of Gaussian noise at which sqrt(E[squared error]/d) of an unbiased attacker is "
            f"{threshold:g}; an attacker with a prior can need more. {unit.note}".strip(),
            details=unit.details,
        )
    ]


def _domain(batch: Batch) -> Domain:
    return batch.domain or Domain.guess(batch.inputs)


def _uniform_std(noise: DiagonalGaussian) -> float | None:
    values = set(noise.std.values())
    return values.pop() if len(values) == 1 else None


def _item(item: str, kind: str, scenario: str | None, example: int | None, *, seconds: float = 0.0) -> Line:
    return {
        "type": "item",
        "item": item,
        "kind": kind,
        "scenario": scenario,
        "example": example,
        "status": "done",
        "outcome": None,
        "note": "",
        "seconds": seconds,
    }


def _score_lines(scores: Sequence[Score], owner: Mapping[str, Any]) -> list[Line]:
    place = {key: owner.get(key) for key in ("item", "scenario", "example", "attack")}
    return [{"type": "score", **place, **score.to_dict()} for score in scores]


def _thinned(history: Sequence[float], most: int = 200) -> list[float]:
    """At most `most` values, evenly spaced, the last one included."""
    if len(history) <= most:
        return list(history)
    step = (len(history) - 1) / (most - 1)
    return [history[round(place * step)] for place in range(most)]

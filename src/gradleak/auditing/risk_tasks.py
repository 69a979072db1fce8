"""Closed-form risk of a plan: what follows from the derivative of its releases, once that derivative was checked."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from gradleak.auditing.items import Line, item_line, released, score_lines, uniform_std
from gradleak.auditing.plan import Plan, Scenario
from gradleak.core import (
    Batch,
    DiagonalGaussian,
    Exposure,
    Objective,
    Reconstruction,
    Release,
    Unchanged,
    Update,
    derive_generator,
)
from gradleak.operators import DerivativeCheck, GradientJacobian, check_derivative
from gradleak.results import Evidence, GradleakError, Leakier, Outcome, Score, UnsupportedError
from gradleak.risk import (
    GaussianReconstructionError,
    InversionInfluence,
    Measure,
    SettingMeasure,
    Unit,
    perfect_attacker,
)
from gradleak.scoring import score_images

# Of one check of a derivative, in plain gradients: at most 11 values, a product and its graph.
CHECK_COST = 14.0


def quiet(release: Release, objective: Objective) -> Release:
    """The release without defenses that add noise alone: what shares a mean map shares its derivative."""
    names = list(objective.params)
    return Release(release.protocol, [d for d in release.defenses if not isinstance(d.effect(names), Unchanged)])


def derivative_of(plan: Plan, release: Release, index: int) -> DerivativeCheck:
    """Whether the derivative of a release at one batch of the plan is what differences of its values say."""
    exposure = Exposure(plan.objective, plan.batches[index], quiet(release, plan.objective))
    generator = derive_generator(plan.seed, "derivative", f"example {index}")
    return check_derivative(exposure, generator=generator, max_bytes=plan.max_bytes)


def same_labels(plan: Plan, scenario: Scenario) -> dict[int, list[int]]:
    """The batches of a scenario by the first one that has the same labels."""
    groups: dict[int, list[int]] = {}
    for index in scenario.examples:
        targets = plan.batches[index].targets
        twin = next((first for first in groups if _equal(plan.batches[first].targets, targets)), index)
        groups.setdefault(twin, []).append(index)
    return groups


def _equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.dtype == second.dtype and torch.equal(first, second)


@dataclass(frozen=True)
class SettingTask:
    """The measures of a setting for the releases of a scenario whose batches have the same labels."""

    scenario: str
    index: int

    def __call__(self, plan: Plan, out: Path) -> list[Line]:
        """An item with its scores for every release with these labels."""
        scenario = next(scenario for scenario in plan.scenarios if scenario.name == self.scenario)
        started = time.perf_counter()
        batch = plan.batches[self.index]
        measures = [measure for measure in _distinct(plan.measures) if isinstance(measure, SettingMeasure)]
        reads = any(measure.reads_derivative for measure in measures)
        wrong = _wrong(derivative_of(plan, scenario.release, self.index)) if reads else ""
        scores = [
            measure.unsupported(wrong)
            if wrong and measure.reads_derivative
            else self._score(plan, scenario, measure, batch, place)
            for place, measure in enumerate(measures)
        ]
        lines: list[Line] = []
        for index in same_labels(plan, scenario)[self.index]:
            line = item_line(f"{self.scenario}/example {index}/setting", "setting", self.scenario, index)
            line["seconds"] = time.perf_counter() - started if index == self.index else 0.0
            lines += [line, *score_lines(scores, line)]
        return lines

    def _score(self, plan: Plan, scenario: Scenario, measure: SettingMeasure, batch: Batch, place: int) -> Score:
        try:
            return measure(
                plan.objective,
                scenario.release,
                targets=batch.targets,
                domain=batch.domain,
                generator=derive_generator(plan.seed, "setting", str(place)),
            )
        except GradleakError as refusal:
            return measure.unsupported(str(refusal))


@dataclass(frozen=True)
class RiskTask:
    """Closed-form measures and the perfect attacker of one batch over all scenarios; they share one operator."""

    index: int

    def __call__(self, plan: Plan, out: Path) -> list[Line]:
        """The check of the derivative, the risk and the perfect attacker of every release of this batch."""
        lines: list[Line] = []
        shared: dict[str, _Shared] = {}
        for scenario in plan.scenarios:
            if self.index not in scenario.examples:
                continue
            update = released(plan, scenario, self.index)
            exposure = Exposure(plan.objective, plan.batches[self.index], scenario.release)
            try:
                here = _shared(plan, exposure, self.index, shared)
                lines.append(_derivative_line(scenario, self.index, here.check))
                lines += self._closed_form(plan, scenario, update, exposure, here)
            except GradleakError as refusal:
                line = item_line(f"{scenario.name}/example {self.index}/risk", "risk", scenario.name, self.index)
                lines.append(line | {"status": "refused", "outcome": Outcome.UNSUPPORTED.label, "note": str(refusal)})
        return lines

    def _closed_form(
        self, plan: Plan, scenario: Scenario, update: Update, exposure: Exposure, shared: _Shared
    ) -> list[Line]:
        started = time.perf_counter()
        operator, wrong = shared.operator, _wrong(shared.check)
        item = f"{scenario.name}/example {self.index}"
        exact = exposure.to(torch.float64)
        delta = plan.objective.flatten(update.tensors).double() - exact.released_mean()
        noisy = isinstance(exposure.noise, DiagonalGaussian) or bool(scenario.updates)
        scores = []
        for measure in _distinct(plan.measures):
            if not isinstance(measure, Measure) or (measure.needs_delta and not noisy):
                continue
            if wrong and measure.reads_derivative:
                scores.append(measure.unsupported(wrong))
                continue
            try:
                scores.append(measure(exposure, delta=delta if measure.needs_delta else None, operator=operator))
            except GradleakError as refusal:  # the others may still have a value
                scores.append(measure.unsupported(str(refusal)))
        wrong = wrong or _not_finite(operator)
        scores += [] if wrong else _noise_scores(plan, exposure, operator)
        line = item_line(f"{item}/risk", "risk", scenario.name, self.index) | {
            "eigenvalues": operator.gram_spectrum().tolist() if operator.is_dense and not wrong else None,
            "d": operator.shape[1],
            "P": operator.shape[0],
            "rank": operator.rank if operator.is_dense and not wrong else None,
            "route": operator.route,
        }
        line["seconds"] = time.perf_counter() - started
        lines = [line, *score_lines(scores, line)]
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
        line = item_line(
            f"{scenario.name}/example {self.index}/perfect_attacker", "perfect_attacker", scenario.name, self.index
        )
        line |= {
            "outcome": found.outcome.label,
            "iterations": found.steps,
            "note": "a validation routine that starts from the truth; never an attack",
            "seconds": time.perf_counter() - started,
        }
        claim = Reconstruction(inputs=found.inputs, targets=exposure.batch.targets, loss=None, outcome=found.outcome)
        every = score_images(claim, exposure.batch, beside=plan.batches)
        scores = [
            replace(score, evidence=Evidence.ESTIMATE) for score in every if score.name in ("mse", "pixel_rmse", "psnr")
        ]
        return [line, *score_lines(scores, line)]


@dataclass(frozen=True, eq=False)
class _Shared:
    """The derivative of one mean map at one batch, and whether it was confirmed."""

    operator: GradientJacobian
    check: DerivativeCheck


def _shared(plan: Plan, exposure: Exposure, index: int, known: dict[str, _Shared]) -> _Shared:
    """One operator for all releases of a batch that differ by noise alone, since they share the mean map."""
    without_noise = quiet(exposure.release, plan.objective)
    key = str(without_noise.describe())
    if key not in known:
        operator = GradientJacobian(replace(exposure, release=without_noise), max_bytes=plan.max_bytes)
        known[key] = _Shared(operator, derivative_of(plan, exposure.release, index))
    return known[key]


def _distinct(measures: Sequence[Measure | SettingMeasure]) -> list[Measure | SettingMeasure]:
    """The measures without repeats; those that hold tensors are told apart by identity."""
    kept: list[Measure | SettingMeasure] = []
    for measure in measures:
        if not any(_same(measure, other) for other in kept):
            kept.append(measure)
    return kept


def _same(first: object, second: object) -> bool:
    try:
        return first is second or bool(first == second)
    except RuntimeError:  # tensors of several entries do not compare to one truth value
        return False


def _wrong(check: DerivativeCheck) -> str:
    """Why nothing that is computed from the derivative can be read, or "" where it can."""
    if check.outcome is not Outcome.INCONSISTENT:
        return ""
    return f"{check.note} (relative error {check.error:.1g})"


def _not_finite(operator: GradientJacobian) -> str:
    """Why there is no spectrum, or "" where there is one or none is asked for."""
    try:
        if operator.is_dense:
            operator.gram()
    except UnsupportedError as refusal:
        return str(refusal)
    return ""


def _derivative_line(scenario: Scenario, index: int, check: DerivativeCheck) -> Line:
    """The preflight item: whether closed-form scores rest on a derivative that was confirmed."""
    line = item_line(f"{scenario.name}/example {index}/derivative", "derivative", scenario.name, index)
    wrong = check.outcome is Outcome.INCONSISTENT
    return line | {
        "status": "refused" if wrong else "done",
        "outcome": Outcome.UNSUPPORTED.label if wrong else check.outcome.label,
        "check": {Outcome.CONVERGED: "confirmed", Outcome.INCONSISTENT: "wrong"}.get(check.outcome, "not checked"),
        "relative_error": check.error,
        "route": check.route,
        "note": _wrong(check) or check.note,
    }


def _noise_scores(plan: Plan, exposure: Exposure, operator: GradientJacobian) -> list[Score]:
    """The expected error under the release's own Gaussian noise, or, without noise, how much of it would be needed."""
    noise = exposure.noise
    std = uniform_std(noise) if isinstance(noise, DiagonalGaussian) else None
    if std is not None and std > 0:
        asked = {measure.predicts_noise(std) for measure in plan.measures if isinstance(measure, Measure)}
        return [
            GaussianReconstructionError(std=std, unit=unit)(exposure, operator=operator)
            for unit in Unit
            if unit not in asked
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

"""Closed-form measures of the releases of one batch, and the perfect attacker that the prediction is held against."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from gradleak.audits.base import Scenario, Site, internal_example
from gradleak.audits.risk.derivative import derivative_finding, derivative_of, distinct, quiet
from gradleak.core import DiagonalGaussian, Exposure, Reconstruction, Update
from gradleak.operators import GradientJacobian
from gradleak.results import Evidence, GradleakError, Leakier, Outcome, Score, Status, UnsupportedError
from gradleak.results.findings.risk import RiskFinding, Spectrum, Validation
from gradleak.risk import (
    GaussianReconstructionError,
    InversionInfluence,
    Measure,
    SettingMeasure,
    Unit,
    perfect_attacker,
)
from gradleak.scoring import score_images


@dataclass(frozen=True, kw_only=True)
class Releases:
    """Closed-form measures and the perfect attacker of one batch over all scenarios; they share one operator.

    Attributes:
        audit: the name of the section.
        measures: of the section; those of a setting are left out.
        scenarios: names of those that release it.
        index: of the batch.
    """

    audit: str
    measures: Sequence[Measure | SettingMeasure]
    scenarios: Sequence[str]
    index: int

    def __call__(self, site: Site, out: Path) -> list[RiskFinding]:
        """The check of the derivative, the risk and the perfect attacker of every release of this batch."""
        found: list[RiskFinding] = []
        known: dict[str, GradientJacobian] = {}
        for scenario in map(site.scenario, self.scenarios):
            plain = Exposure(site.objective, site.batches[self.index], scenario.release)
            work = _Release(
                site=site,
                scenario=scenario,
                index=self.index,
                audit=self.audit,
                update=site.released(scenario, self.index),
                exposure=plain,
            )
            try:
                operator = _shared(site, plain.at_embeddings(), self.index, known)
                found.append(derivative_finding(work.blank("derivative"), operator.check))
                found += work.measured(self.measures, operator)
            except GradleakError as refusal:
                found.append(work.without_derivative(self.measures, str(refusal)))
        return found


def _shared(site: Site, exposure: Exposure, index: int, known: dict[str, GradientJacobian]) -> GradientJacobian:
    """One operator for all releases of a batch that differ by noise alone, since they share the mean map."""
    without_noise = quiet(exposure.release, site.objective)
    key = str(without_noise.describe())
    if key not in known:
        known[key] = GradientJacobian(
            replace(exposure, release=without_noise),
            max_bytes=site.max_bytes,
            check=derivative_of(site, exposure, index),
        )
    return known[key]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Release:
    """One release of a batch."""

    site: Site
    scenario: Scenario
    index: int
    audit: str
    update: Update
    exposure: Exposure

    @property
    def noise_std(self) -> float | None:
        """Standard deviation of noise that is the same on every entry."""
        noise = self.exposure.noise
        return noise.level if isinstance(noise, DiagonalGaussian) else None

    def blank(self, part: str) -> RiskFinding:
        """A finding about this release, without a result yet."""
        return RiskFinding(
            item=f"{self.scenario.name}/{internal_example(self.index)}/{part}",
            audit=self.audit,
            scenario=self.scenario.name,
            subject=self.site.subject(self.index),
            noise_std=self.noise_std if part == "risk" else None,
        )

    def measured(self, measures: Sequence[Measure | SettingMeasure], operator: GradientJacobian) -> list[RiskFinding]:
        """The scores with the spectrum, and the perfect attacker where the prediction is small."""
        started = time.perf_counter()
        delta = None
        noisy = isinstance(self.exposure.noise, DiagonalGaussian) or bool(self.scenario.updates)
        scores: list[Score] = []
        for measure in distinct(measures):
            if not isinstance(measure, Measure) or (measure.needs_delta and not noisy):
                continue
            if measure.needs_delta and delta is None:
                delta = self._delta
            scores += self._scores(measure, operator, delta if measure.needs_delta else None)
        scores += self._noise_scores(measures, operator)
        spectrum = _spectrum(operator)
        seconds = time.perf_counter() - started
        found = [self.blank("risk").but(scores=tuple(scores), spectrum=spectrum, seconds=seconds)]
        predicted = next(
            (s.value for s in scores if s.name == InversionInfluence.name and s.unit == "pixel_rmse"), None
        )
        rule = self.scenario.perfect_attacker
        if rule is not None and predicted is not None and predicted < rule.below:
            found.append(self._validated(operator, rule.max_steps))
        return found

    @property
    def _delta(self) -> torch.Tensor:
        """The difference of the update from its mean, in double precision."""
        mean = self.exposure.to(torch.float64).released_mean()
        return self.site.objective.flatten(self.update.tensors).double() - mean

    def without_derivative(self, measures: Sequence[Measure | SettingMeasure], refusal: str) -> RiskFinding:
        """The scores of measures of ids, where a release has no derivative; the refusal where there are none."""
        started = time.perf_counter()
        own = [measure for measure in distinct(measures) if isinstance(measure, Measure)]
        if not any(measure.reads_ids for measure in own):
            return self.blank("risk").but(status=Status.REFUSED, outcome=Outcome.UNSUPPORTED, note=refusal)
        scores: list[Score] = []
        for measure in own:
            scores += self._scores(measure, None) if measure.reads_ids else [measure.unsupported(refusal)]
        return self.blank("risk").but(scores=tuple(scores), note=refusal, seconds=time.perf_counter() - started)

    def _scores(
        self, measure: Measure, operator: GradientJacobian | None, delta: torch.Tensor | None = None
    ) -> Sequence[Score]:
        try:
            return measure.scores(self.exposure, delta=delta, operator=operator)
        except GradleakError as refusal:  # the others may still have a value
            return [measure.unsupported(str(refusal))]

    def _validated(self, operator: GradientJacobian, max_steps: int) -> RiskFinding:
        started = time.perf_counter()
        exposure = self.exposure.at_embeddings()
        found = perfect_attacker(exposure, self.update, max_steps=max_steps, operator=operator)
        batch = exposure.batch
        claim = Reconstruction(inputs=found.inputs, targets=batch.targets, loss=None, outcome=found.outcome)
        every = score_images(claim, batch, beside=self.site.beside)
        return self.blank("perfect_attacker").but(
            outcome=found.outcome,
            note="a validation routine that starts from the truth; never an attack",
            seconds=time.perf_counter() - started,
            validation=Validation(steps=found.steps),
            scores=tuple(
                replace(score, evidence=Evidence.ESTIMATE)
                for score in every
                if score.name in ("mse", "pixel_rmse", "psnr")
            ),
        )

    def _noise_scores(self, measures: Sequence[Measure | SettingMeasure], operator: GradientJacobian) -> list[Score]:
        """The expected error under the release's own Gaussian noise, or, without noise, how much of it would be needed."""
        std = self.noise_std
        domain = self.exposure.batch.domain
        # The threshold of sentences is in tokens, and no norm of embeddings is.
        of_tokens = domain is not None and domain.vocabulary is not None
        if std is not None and std > 0:
            asked = {measure.predicts_noise(std) for measure in measures if isinstance(measure, Measure)}
            return [
                score
                for unit in ([Unit.INPUT] if of_tokens else Unit)
                if unit not in asked
                for score in self._scores(GaussianReconstructionError(std=std, unit=unit), operator)
            ]
        if of_tokens:
            return []
        (unit,) = self._scores(GaussianReconstructionError(std=1.0, unit="pixel_rmse"), operator)
        refused = bool(operator.check.refusal)
        if self.exposure.noise is not None or not (refused or 0 < (unit.value or 0.0) < float("inf")):
            return []
        threshold = self.site.thresholds.pixel_rmse
        return [
            Score(
                name="noise_std_for_threshold",
                value=threshold / unit.value if unit.value else None,
                unit="update",
                leakier=Leakier.HIGHER,
                evidence=Evidence.ESTIMATE,
                outcome=unit.outcome,
                note=unit.note
                if refused
                else f"standard deviation of Gaussian noise at which sqrt(E[squared error]/d) of an unbiased attacker is "
                f"{threshold:g}; an attacker with a prior can need more. {unit.note}".strip(),
                details=unit.details,
            )
        ]


def _spectrum(operator: GradientJacobian) -> Spectrum:
    """The spectrum of AᵀA: without eigenvalues where it is too large, not to be read, or not finite."""
    whole, route = operator.is_dense and not operator.check.refusal, ""
    try:
        route = operator.route
        if whole:
            operator.gram()
    except UnsupportedError:
        whole = False
    return Spectrum(
        unknowns=operator.shape[1],
        entries=operator.shape[0],
        eigenvalues=tuple(operator.gram_spectrum().tolist()) if whole else None,
        rank=operator.rank if whole else None,
        route=route,
    )

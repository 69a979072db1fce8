"""Reasons not to begin an attack or a control, from what was found before; asked where time is short."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from gradleak.audits.base import Scenario, Site
from gradleak.core import DiagonalGaussian, Exposure
from gradleak.results import (
    ERRORS,
    Attempt,
    Evidence,
    Finding,
    GradleakError,
    Grounds,
    Score,
    Status,
    Thresholds,
    by_example,
)
from gradleak.risk import LinearizedPosteriorError, ReconstructionProbability

# An attack is not begun where the closed form leaves at least so many times the error that counts as rebuilt: it is
# linearized, so that some room is left.
HOPELESS = 2.0
# Up to so many unknowns the whole spectrum takes a second or two.
DENSE_UNKNOWNS = 1024
# Of a pixel that is uniform on [0, 1].
UNIFORM_STD = 12**-0.5


class ClosedForm:
    """Errors that the noise of a release leaves on every example, each computed once; for releases of up to 1,024 unknowns."""

    def __init__(self) -> None:
        """Begin without any."""
        self._known: dict[tuple[str, int], Score | None] = {}

    def __reduce__(self) -> tuple[type[ClosedForm], tuple[()]]:
        # A worker is not asked.
        return ClosedForm, ()

    def error(self, site: Site, scenario: Scenario, index: int) -> Score | None:
        """`LinearizedPosteriorError` under the noise of the release and the prior of uniform pixels; None where there is none.

        Args:
            site: whose batch.
            scenario: whose release.
            index: of the batch.
        """
        key = (scenario.name, index)
        if key not in self._known:
            self._known[key] = self._computed(site, scenario, index)
        return self._known[key]

    def _computed(self, site: Site, scenario: Scenario, index: int) -> Score | None:
        batch = site.batches[index]
        if not batch.inputs.is_floating_point() or batch.inputs.numel() > DENSE_UNKNOWNS:
            return None
        batch = replace(batch, domain=site.domain(index))
        try:
            exposure = Exposure(site.objective, batch, scenario.release).to(torch.float64)
            noise = exposure.noise
            std = noise.level if isinstance(noise, DiagonalGaussian) else None
            if not std:
                return None
            measure = LinearizedPosteriorError(noise_std=std, prior_std=UNIFORM_STD, unit="pixel_rmse")
            return measure(exposure)
        except (GradleakError, RuntimeError, NotImplementedError):  # the attack itself will say what is wrong
            return None


@dataclass(frozen=True, kw_only=True)
class AttackChance:
    """Chance of an attack on one release by what was found: none where it leaks already, or where a closed form leaves none.

    Attributes:
        scenario: whose release.
        index: of the batch.
    """

    scenario: str
    index: int

    def __call__(self, site: Site, grounds: Grounds) -> str:
        """The reason why the attack is not worth its time, or ""."""
        subject, limits = site.subject(self.index), grounds.thresholds
        about = grounds.about(self.scenario, subject)
        if any(reaches(one, about, grounds) for one in about if isinstance(one, Attempt)):
            return "another attack has rebuilt an example already"
        for _, score in grounds.scores(ReconstructionProbability.name, self.scenario, subject):
            if score.value is not None and score.evidence is Evidence.UPPER_BOUND:
                within = float(score.details["within"])
                if score.value <= limits.reconstruction_probability and within >= limits.pixel_rmse:
                    return f"differential privacy leaves every attacker a chance of at most {score.value:.2g}"
        reasons = (_hopeless(score, limits) for score in self.stated(site, grounds))
        return next(filter(None, reasons), "")

    def stated(self, site: Site, grounds: Grounds) -> list[Score]:
        """The closed forms that the plan has measured, in pixels.

        Args:
            site: of the plan.
            grounds: what was found.
        """
        found = grounds.scores(LinearizedPosteriorError.name, self.scenario, site.subject(self.index))
        return [score for _, score in found if score.unit == "pixel_rmse"]


@dataclass(frozen=True, kw_only=True)
class ComputedChance:
    """Chance of an attack on one release by the closed form, which is computed where the plan has not measured it.

    Attributes:
        by: what was found.
        form: computes it.
    """

    by: AttackChance
    form: ClosedForm

    def __call__(self, site: Site, grounds: Grounds) -> str:
        """The reason why the attack is not worth its time, or ""; a second or two at 1,024 unknowns."""
        if self.by.stated(site, grounds):
            return ""
        computed = self.form.error(site, site.scenario(self.by.scenario), self.by.index)
        return "" if computed is None else _hopeless(computed, grounds.thresholds)


@dataclass(frozen=True, kw_only=True)
class ControlChance:
    """Use of a control: none where no attack ran that it bears out, or, of noise, where that came near nothing.

    Attributes:
        attack: the name of the attack; "" for a control of all of them.
    """

    attack: str = ""

    def __call__(self, site: Site, grounds: Grounds) -> str:
        """The reason why the control is not needed, or ""."""
        attempts = [one for one in grounds.findings if isinstance(one, Attempt) and one.control is None]
        if not any(one.status is Status.DONE for one in attempts):
            return "no attack ran whose result it could bear out"
        near = [
            one
            for one in attempts
            if one.base == self.attack and reaches(one, grounds.about(one.scenario, one.subject), grounds)
        ]
        return "its attack rebuilt nothing, so that there is nothing to bear out" if self.attack and not near else ""


def _hopeless(score: Score, limits: Thresholds) -> str:
    # An average over a batch hides the one example that can be read.
    least = min(score.details.get("per_example", ()), default=0.0)
    if score.value is None or least < HOPELESS * limits.pixel_rmse:
        return ""
    return (
        f"the closed form leaves an error of at least {least:.2g} on every example to an attacker with a prior "
        f"(linearized at the truth, an estimate), {least / limits.pixel_rmse:.1f} times the limit"
    )


def reaches(attempt: Attempt, about: Sequence[Finding], grounds: Grounds) -> bool:
    """True if an attack came as near as the plan's limits say, luck aside.

    Args:
        attempt: the attack.
        about: all that was found about its release, the blind guess among it.
        grounds: whose thresholds.
    """
    blind = next((score for one in about if (score := _blind(one)) is not None), None)
    baselines = by_example(blind)
    limits = grounds.thresholds.for_data(next((kind for one in about if (kind := _kind(one))), None))
    return bool(baselines) and attempt.best is not None and limits.leaks(attempt.errors, baselines)


def _kind(finding: Finding) -> str | None:
    return None if finding.score("token_error") is None else "tokens"


def _blind(finding: Finding) -> Score | None:
    found = (finding.score(name) for name in ERRORS if not isinstance(finding, Attempt))
    score = next((one for one in found if one is not None), None)
    return score if score is not None and score.evidence is Evidence.EXACT else None

"""The controls of a privacy audit: a planted difference that must be found, and one hypothesis twice."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from gradleak.audits.base import Site
from gradleak.audits.privacy.trials import Hypotheses, apart
from gradleak.core import derive_generator, derive_seed
from gradleak.privacy import GaussianPair, Statistic
from gradleak.privacy.lower_bounds import TrialScores, gaussian_dp_epsilon
from gradleak.results import Control, GradleakError, InputError, Outcome, Score, Status
from gradleak.results.findings.privacy import PrivacyFinding

# A shift that every estimator has to find, and one whose epsilon (2.0 at δ = 1e-5) is so small that these trials could
# certify more: a bound that is too large is seen.
FOUND_MU, SMALL_MU = 3.0, 0.5
CONTROL_TRIALS = 4000
# A control that fails by chance takes an audit with it; at 95 % one in twenty would.
CONTROL_CONFIDENCE = 0.999

PLANTED = Control(
    planted=True,
    title="Positive control of a privacy audit: a planted difference",
    expects="bounds above 0, and none above the planted epsilon, of two hypotheses of known epsilon",
    meaning="The estimators do not find what is there, or find too much: no bound of this audit can be read. This control "
    "speaks of its audit alone, which has no verdict then.",
    measure="epsilon_lower_bound",
)
TWICE = Control(
    planted=False,
    title="Negative control of a privacy audit: one hypothesis twice",
    expects="bounds of 0, of trials of the null hypothesis held against others of the same",
    meaning="Something other than the hypotheses tells the trials apart. No bound of this audit can be trusted, so it has no "
    "verdict; other audits keep theirs.",
    measure="epsilon_lower_bound",
)


def control_blank(audit: str, *, planted: bool) -> PrivacyFinding:
    """The finding of a control of an audit without a result.

    Args:
        audit: name of the audit.
        planted: whether a difference is planted.
    """
    word, control = ("positive", PLANTED) if planted else ("negative", TWICE)
    return PrivacyFinding(item=f"control/{word}/{audit}", audit=audit, control=control)


@dataclass(frozen=True, kw_only=True, eq=False)
class PrivacyControl:
    """A control of one audit: hypotheses of known epsilon, or one hypothesis twice.

    Attributes:
        hypotheses: of the audit.
        scenarios: names of those that it is done for.
        seed: of everything that is drawn.
        blank: its finding without a result.
    """

    hypotheses: Hypotheses
    scenarios: Sequence[str]
    seed: int
    blank: PrivacyFinding

    def __call__(self, site: Site, out: Path) -> list[PrivacyFinding]:
        """One finding with the bounds, the one that is nearest to a failure first."""
        control = self.blank.control
        assert control is not None
        started = time.perf_counter()
        try:
            scores, passed, note = self._planted() if control.planted else self._null(site)
        except GradleakError as refusal:
            return [self.blank.but(status=Status.REFUSED, outcome=Outcome.UNSUPPORTED, note=str(refusal))]
        # What was planted has to be found by all of them, and nothing by none.
        known = [score for score in scores if score.value is not None]
        known.sort(key=lambda score: score.value or 0.0, reverse=not control.planted)
        return [
            self.blank.but(
                outcome=Outcome.CONVERGED,
                note=note,
                seconds=time.perf_counter() - started,
                scores=(*known, *(score for score in scores if score.value is None)),
                control=control.but(passed=passed),
            )
        ]

    def _planted(self) -> tuple[list[Score], bool, str]:
        """Two Gaussians of a known epsilon, twice; and, of an audit, its own hypotheses without any defense."""
        delta, audit = self.hypotheses.delta, self.hypotheses.audit
        far, near = (gaussian_dp_epsilon(mu, delta) for mu in (FOUND_MU, SMALL_MU))
        scores, small = (self._gaussians(mu) for mu in (FOUND_MU, SMALL_MU))
        # What so many trials can never resolve (an estimator of few coins at a large δ) is no failure, unless all are.
        values = [score.value for score in scores if score.value is not None]
        largest = max((score.value for score in small if score.value is not None), default=0.0)
        passed = bool(values) and all(0.0 < value <= far for value in values) and largest <= near
        note = (
            f"{CONTROL_TRIALS} trials of two Gaussians of epsilon {far:.3g} at δ = {delta:g}; of others of epsilon "
            f"{near:.3g} the largest bound is {largest:.3g}"
        )
        if audit is not None:
            told = all(apart(pair) for pair in audit.planted_control(self.seed).pairs)
            passed = passed and told
            note += f"; the audit's own hypotheses, with no defense, were {'' if told else 'NOT '}told apart"
        return scores, passed, note

    def _null(self, site: Site) -> tuple[list[Score], bool, str]:
        """The null hypothesis of the audit against itself, through the first release that has noise."""
        mine = [site.scenario(name) for name in self.scenarios]
        mine.sort(key=lambda scenario: self.hypotheses.without_noise(scenario, site.objective))
        for place, scenario in enumerate(mine):
            try:
                scores = self._read(self.hypotheses.null(scenario, self.seed, CONTROL_TRIALS))
            except GradleakError:
                # One that the audit cannot take; another will do.
                if place == len(mine) - 1:
                    raise
                continue
            passed = all(score.value is None or score.value == 0.0 for score in scores)
            return scores, passed, f"releases of scenario {scenario.name}"
        raise InputError("expected a scenario that is audited, got none")

    def _gaussians(self, mu: float) -> list[Score]:
        """Every lower bound of two unit Gaussians so far apart."""
        pair = GaussianPair(null=torch.zeros(1), alternatives=torch.full((1, 1), mu), std=1.0)
        found = pair.trials(CONTROL_TRIALS, generator=derive_generator(self.seed, "control", str(mu)))
        return self._read([found[Statistic.LIKELIHOOD_RATIO]])

    def _read(self, several: Sequence[TrialScores]) -> list[Score]:
        """Every lower bound of every statistic, together at the confidence of a control."""
        bounds = self.hypotheses.bounds
        many = max(1, len(bounds) * len(several))
        return [
            replace(estimator, confidence=CONTROL_CONFIDENCE, comparisons=many).estimate(
                scores, seed=derive_seed(self.seed, "control", scores.name)
            )
            for scores in several
            for estimator in bounds
        ]

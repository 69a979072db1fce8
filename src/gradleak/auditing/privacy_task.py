"""Carries out the privacy audits of an audit, with a planted difference that must be found and one hypothesis twice."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gradleak.auditing.items import Line, item_line, score_lines
from gradleak.auditing.plan import Plan, Scenario
from gradleak.auditing.privacy_plan import PrivacyPlan
from gradleak.core import derive_generator, derive_seed
from gradleak.privacy import AuditResult, GaussianPair, NullPair, PairResult, Statistic, as_estimate, assumes_gaussians
from gradleak.privacy.lower_bounds import EpsilonEstimator, TrialScores, gaussian_dp_epsilon
from gradleak.results import Evidence, GradleakError, InputError, Leakier, Outcome, Score

# A shift that every estimator has to find, and one whose epsilon (2.0 at δ = 1e-5) is so small that these trials could
# certify more: a bound that is too large is seen.
FOUND_MU, SMALL_MU = 3.0, 0.5
CONTROL_TRIALS = 4000
# A control that fails by chance takes an audit with it; at 95 % one in twenty would.
CONTROL_CONFIDENCE = 0.999
# So many times the round-off of a release without noise another one has to be away to be another.
ROUND_OFF = 100.0


@dataclass(frozen=True)
class PrivacyTask:
    """The lines of one audit of one scenario."""

    audit: str
    scenario: str

    def __call__(self, plan: Plan, out: Path) -> list[Line]:
        """An item line a pair of hypotheses, each followed by what was measured and what is known."""
        chosen = plan.privacy[self.audit]
        scenario = next(scenario for scenario in plan.scenarios if scenario.name == self.scenario)
        item = f"{self.scenario}/{self.audit}"
        claim = chosen.claim(scenario.release, plan.objective).to_dict()
        facts = {"scenario": self.scenario, "audit_name": self.audit, "claim": claim}
        try:
            seeds = chosen.seeds_of(plan.seed, self.audit)
            results = [chosen.play(self.scenario, scenario.release, seed, self.audit) for seed in seeds]
        except GradleakError as refusal:
            line = item_line(item, "privacy", self.scenario, None) | facts
            return [line | {"status": "refused", "outcome": Outcome.UNSUPPORTED.label, "note": str(refusal)}]
        if not any(found.pairs for found in results):
            notes = "; ".join(dict.fromkeys(note for found in results for note in found.notes))
            line = item_line(item, "privacy", self.scenario, None) | facts
            return [
                line | {"outcome": results[0].outcome.label, "note": notes or "no pair of hypotheses could be made"}
            ]
        quiet = _no_noise(plan, scenario, chosen)
        scenarios = sum(chosen.against(other.name) for other in plan.scenarios)
        bounds = [estimator for estimator in chosen.reading if estimator.evidence is Evidence.LOWER_BOUND]
        # All lower bounds of the audit over all scenarios are to hold together.
        many = max(1, scenarios * len(bounds) * sum(len(pair.samples) for found in results for pair in found.pairs))
        lines: list[Line] = []
        for number, found in enumerate(results):
            strict = _together(found, many)
            told = strict.lines(item)
            for line in _without_noise(told, strict) if quiet else told:
                line["scenario"] = self.scenario
                if len(results) > 1:
                    line["pair"] = f"{line['pair']}, seed {number + 1}"
                lines.append(line | (facts if line["type"] == "item" else {}))
        for line in lines:
            if line["type"] == "item":
                line |= {
                    "bounds": many,
                    "confidence": next((estimator.confidence for estimator in chosen.reading), 0.95),
                    "settings": _settings(chosen, many, scenarios),
                }
        return lines


@dataclass(frozen=True)
class PrivacyControl:
    """The line of a control of one audit: hypotheses of known epsilon, or one hypothesis twice."""

    audit: str
    planted: bool

    def __call__(self, plan: Plan, out: Path) -> list[Line]:
        """An item line with `passed`, and its scores."""
        chosen = plan.privacy[self.audit]
        kind = "positive" if self.planted else "negative"
        started = time.perf_counter()
        seed = derive_seed(plan.seed, "privacy control", kind, self.audit)
        line = item_line(f"control/{kind}/{self.audit}", "control", None, None) | {"audit_name": self.audit}
        try:
            scores, passed, note = self._planted(chosen, seed) if self.planted else self._null(plan, chosen, seed)
        except GradleakError as refusal:
            facts = {"status": "refused", "outcome": Outcome.UNSUPPORTED.label, "note": str(refusal)}
            return [line | facts | {"passed": None}]
        line |= {
            "outcome": Outcome.CONVERGED.label,
            "passed": passed,
            "expects": "bounds above 0, and none above the planted epsilon" if self.planted else "bounds of 0",
            "note": note,
            "seconds": time.perf_counter() - started,
        }
        return [line, *score_lines(scores, line)]

    def _planted(self, chosen: PrivacyPlan, seed: int) -> tuple[list[Score], bool, str]:
        """Two Gaussians of a known epsilon, twice; and, of an audit, its own hypotheses without any defense."""
        delta = chosen.shared_delta
        far, near = (gaussian_dp_epsilon(mu, delta) for mu in (FOUND_MU, SMALL_MU))
        scores, small = (_gaussians(mu, chosen, seed) for mu in (FOUND_MU, SMALL_MU))
        # What so many trials can never resolve (an estimator of few coins at a large δ) is no failure, unless all are.
        values = [score.value for score in scores if score.value is not None]
        largest = max((score.value for score in small if score.value is not None), default=0.0)
        passed = bool(values) and all(0.0 < value <= far for value in values) and largest <= near
        note = (
            f"{CONTROL_TRIALS} trials of two Gaussians of epsilon {far:.3g} at δ = {delta:g}; of others of epsilon "
            f"{near:.3g} the largest bound is {largest:.3g}"
        )
        if chosen.audit is not None:
            apart = all(_apart(pair) for pair in chosen.audit.planted_control(seed).pairs)
            passed = passed and apart
            note += f"; the audit's own hypotheses, with no defense, were {'' if apart else 'NOT '}told apart"
        return scores, passed, note

    def _null(self, plan: Plan, chosen: PrivacyPlan, seed: int) -> tuple[list[Score], bool, str]:
        """The null hypothesis of the audit against itself, through the first release that has noise."""
        mine = [scenario for scenario in plan.scenarios if chosen.against(scenario.name)]
        mine.sort(key=lambda scenario: _no_noise(plan, scenario, chosen))
        for place, scenario in enumerate(mine):
            try:
                scores = _read(_null_trials(chosen, scenario, seed), chosen.reading, seed)
            except GradleakError:
                # One that the audit cannot take; another will do.
                if place == len(mine) - 1:
                    raise
                continue
            passed = all(score.value is None or score.value == 0.0 for score in scores)
            return scores, passed, f"releases of scenario {scenario.name}"
        raise InputError("expected a scenario that is audited, got none")


def _null_trials(chosen: PrivacyPlan, scenario: Scenario, seed: int) -> list[TrialScores]:
    """The statistics of releases of the null hypothesis under both."""
    if chosen.audit is None:
        pair = NullPair(pair=chosen.pairs[scenario.name])
        return list(pair.trials(CONTROL_TRIALS, generator=derive_generator(seed, "control")).values())
    found = replace(chosen.audit, release=scenario.release).null_control(seed)
    return [scores for pair in found.pairs for scores in pair.samples.values()]


def _gaussians(mu: float, chosen: PrivacyPlan, seed: int) -> list[Score]:
    """Every lower bound of two unit Gaussians so far apart."""
    pair = GaussianPair(null=torch.zeros(1), alternatives=torch.full((1, 1), mu), std=1.0)
    found = pair.trials(CONTROL_TRIALS, generator=derive_generator(seed, "control", str(mu)))
    return _read([found[Statistic.LIKELIHOOD_RATIO]], chosen.reading, seed)


def _read(several: Sequence[TrialScores], reading: Sequence[EpsilonEstimator], seed: int) -> list[Score]:
    """Every lower bound of every statistic, together at the confidence of a control."""
    bounds = [estimator for estimator in reading if estimator.evidence is Evidence.LOWER_BOUND]
    many = max(1, len(bounds) * len(several))
    return [
        replace(estimator, confidence=CONTROL_CONFIDENCE, comparisons=many).estimate(
            scores, seed=derive_seed(seed, "control", scores.name)
        )
        for scores in several
        for estimator in bounds
    ]


def _together(found: AuditResult, many: int) -> AuditResult:
    """Its bounds again, so that `many` of them hold together; estimates as they are."""
    strict = tuple(
        replace(one, comparisons=many * one.comparisons) if one.evidence is Evidence.LOWER_BOUND else one
        for one in found.estimators
    )
    pairs = [
        replace(
            pair,
            scores={
                statistic: tuple(
                    _held(
                        estimator,
                        estimator.estimate(scores, seed=derive_seed(found.seed, "estimate", pair.name, statistic)),
                        pair,
                    )
                    for estimator in strict
                )
                for statistic, scores in pair.samples.items()
            },
        )
        for pair in found.pairs
    ]
    return replace(found, estimators=strict, pairs=pairs)


def _held(estimator: EpsilonEstimator, score: Score, pair: PairResult) -> Score:
    """A bound that assumes two Gaussians is an estimate where they are not known to be that."""
    return score if not assumes_gaussians(estimator) or _two_gaussians(pair.facts) else as_estimate(score)


def _two_gaussians(facts: Mapping[str, Any]) -> bool:
    one = len(facts.get("distances", ())) == 1
    return facts.get("law") == "Gaussian" and one and facts.get("std") == facts.get("std_alternative")


def _no_noise(plan: Plan, scenario: Scenario, chosen: PrivacyPlan) -> bool:
    """Whether nothing of a release is random, as far as it says; of a user's own pair that is not known."""
    if chosen.audit is None:
        return False
    try:
        return scenario.release.noise(plan.objective, examples=chosen.examples) is None
    except GradleakError:
        return False


def _apart(pair: PairResult) -> bool:
    """Whether releases without noise are others under the alternative, by more than round-off.

    The distance from the release that was computed beforehand is 0 under the null hypothesis, up to round-off.
    """
    distance = pair.samples[Statistic.DISTANCE]
    return float(distance.alternative.min()) > ROUND_OFF * float(distance.null.max())


def _without_noise(lines: Sequence[Line], found: AuditResult) -> list[Line]:
    """The lines of releases that never vary: no rate of errors is a measurement, they are the same or they are not."""
    named = {pair.name: pair for pair in found.pairs}
    kept: list[Line] = []
    for line in lines:
        pair = named[str(line["pair"])]
        if not _never_varies(pair):
            kept.append(line)
        elif line["type"] == "item":
            apart = _apart(pair)
            note = (
                "no noise: perfectly distinguishable"
                if apart
                else "no noise, and the same release under both hypotheses: this record shows nothing"
            )
            kept.append(line | {"histograms": [], "note": "; ".join(part for part in (line["note"], note) if part)})
            kept.append(_certain(line, apart=apart, note=note))
        elif not line.get("estimator"):
            kept.append(line)
    return kept


def _never_varies(pair: PairResult) -> bool:
    return all(float(np.ptp(scores.null)) == 0.0 for scores in pair.samples.values())


def _certain(line: Line, *, apart: bool, note: str) -> Line:
    score = Score(
        name="epsilon",
        value=math.inf if apart else 0.0,
        unit="epsilon",
        leakier=Leakier.HIGHER,
        evidence=Evidence.EXACT,
        note=note,
    )
    place = {key: line.get(key) for key in ("item", "scenario", "example", "attack", "pair")}
    return {"type": "score", **place, "statistic": "the release itself", "estimator": "no noise", **score.to_dict()}


def _settings(chosen: PrivacyPlan, many: int, scenarios: int) -> str:
    """How many bounds hold together, and what no epsilon covers."""
    confidence = next((estimator.confidence for estimator in chosen.reading), 0.95)
    each = 1.0 - (1.0 - confidence) / many
    text = (
        f"the {many} lower bounds of this audit over all its scenarios hold together with a confidence of {confidence:.3g} "
        f"(each with {each:.6g})"
        if many > 1
        else f"the lower bound holds with a confidence of {confidence:.3g}"
    )
    if scenarios > 1:
        text += (
            f"; {scenarios} settings were tried, and choosing one of them by what it did to private rows is covered by no "
            "epsilon of one release"
        )
    return text


__all__ = ["PrivacyControl", "PrivacyTask"]

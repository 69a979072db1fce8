"""Findings on one release, as audits write them: blind guess, attacks, controls, bounds, a check of the derivative."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradleak.auditing import Thresholds, judge
from gradleak.audits.released import ReleaseAudit
from gradleak.results import (
    Control,
    Evidence,
    Finding,
    Leakier,
    Outcome,
    Score,
    Status,
    Subject,
    Verdict,
)
from gradleak.results.findings.reconstruction import ReconstructionFinding
from gradleak.results.findings.released import Gate, ReleaseFinding
from gradleak.results.findings.risk import DERIVATIVE_ERROR, RiskFinding

FIRST = Subject(noun="example", name="0")


def score(name: str, value: float | None, **more: Any) -> Score:
    facts: dict[str, Any] = {"unit": "pixel_rmse", "leakier": Leakier.LOWER, "evidence": Evidence.EXACT}
    facts["outcome"] = Outcome.CONVERGED if value is not None else Outcome.UNSUPPORTED
    return Score(name=name, value=value, **facts | more)


def rmse(errors: float | Sequence[float], evidence: Evidence) -> Score:
    listed = [errors] if isinstance(errors, float | int) else list(errors)
    return score("pixel_rmse", min(listed), details={"per_example": listed}, evidence=evidence)


def release(
    scenario: str = "undefended",
    *,
    baseline: float | Sequence[float] | None = 0.3,
    luck: Sequence[float] = (),
    **more: Any,
) -> ReleaseFinding:
    """A release with its blind guess, and the limits that luck sets."""
    scores = [] if baseline is None else [rmse(baseline, Evidence.EXACT)]
    if luck:
        limits = {"limits": list(luck)}
        scores.append(score("chance_pixel_rmse", luck[0], details=limits, evidence=Evidence.ESTIMATE))
    facts: dict[str, Any] = {
        "item": f"{scenario}/example 0",
        "audit": "released",
        "scenario": scenario,
        "subject": FIRST,
        "scores": tuple(scores),
        "gate": Gate(status="consistent"),
        "client_loss": 2.3,
        "loss_name": "cross_entropy",
    }
    return ReleaseFinding(**facts | more)


def attack(
    error: float | Sequence[float] | None,
    *,
    name: str = "gn",
    scenario: str = "undefended",
    suffix: str = "",
    **more: Any,
) -> ReconstructionFinding:
    """An attack that reached an error, or none."""
    facts: dict[str, Any] = {
        "item": f"{scenario}/example 0/{name}{suffix}",
        "audit": "reconstruction",
        "scenario": scenario,
        "subject": FIRST,
        "attack": name,
        "outcome": Outcome.CONVERGED,
        "scores": () if error is None else (rmse(error, Evidence.ATTACK),),
    }
    return ReconstructionFinding(**facts | more)


def refused(scenario: str, name: str = "gn", note: str = "gn needs generator") -> ReconstructionFinding:
    return attack(None, name=name, scenario=scenario, status=Status.REFUSED, outcome=Outcome.UNSUPPORTED, note=note)


def control(
    name: str, *, passed: bool | None, attack: str = "gn", suffix: str = "", **more: Any
) -> ReconstructionFinding:
    """A control of an attack: "positive" or "negative"."""
    return ReconstructionFinding(
        item=f"control/{name}{suffix}",
        audit="reconstruction",
        attack=attack,
        control=Control(planted=name == "positive", passed=passed, of=attack),
        **more,
    )


def planted(name: str = "gn", *, passed: bool | None = None, **more: Any) -> ReconstructionFinding:
    status = Status.REFUSED if passed is None else Status.DONE
    return control("positive", passed=passed, attack=name, **{"status": status, "note": "gn needs generator"} | more)


def about(*scores: Score, scenario: str = "undefended") -> RiskFinding:
    """Scores of another audit on the release."""
    item = f"{scenario}/example 0/setting"
    return RiskFinding(item=item, audit="risk", scenario=scenario, subject=FIRST, scores=scores)


def bound(value: float | None = 0.2, *, details: dict[str, Any] | None = None, **more: Any) -> Score:
    """A van Trees score as an audit writes it."""
    facts = {
        "noise_std": 0.1,
        "release_noise_std": 0.1,
        "holds_for_release": True,
        "prior": {"origin": "Gaussian fitted to 300 public examples"},
        "prior_error": 0.27,
        "confidence": 0.95,
    }
    given = {"evidence": Evidence.LOWER_BOUND} | more
    return score("bayesian_cramer_rao", value, details=facts | (details or {}), **given)


def chance(value: float | None = 0.02, *, details: dict[str, Any] | None = None, **more: Any) -> Score:
    """A score of reconstruction robustness as an audit writes it."""
    facts = {
        "within": 0.1, "mu": 0.5, "kappa": 0.005, "each_example": 0.02, "examples": 1, "rounds": 1, "hidden": "example",
        "sensitivity": 1.0, "std": 2.0, "epsilon": 1.9, "delta": 1e-5,
        "prior": {"origin": "drawn like 900 public examples", "examples": 900, "confidence": 0.95},
    }  # fmt: skip
    given = {"evidence": Evidence.UPPER_BOUND, "unit": "probability", "leakier": Leakier.HIGHER} | more
    return score("reconstruction_probability", value, details=facts | (details or {}), **given)


def wrong_derivative() -> RiskFinding:
    """What stands in a record where the derivative of a release was found wrong."""
    return about(score(DERIVATIVE_ERROR, None, outcome=Outcome.INCONSISTENT, evidence=Evidence.ESTIMATE, unit="1"))


def judged(*findings: Finding, thresholds: Thresholds | None = None) -> list[Verdict]:
    """The verdicts on releases, scenarios and the run."""
    return judge([ReleaseAudit()], findings, thresholds or Thresholds())

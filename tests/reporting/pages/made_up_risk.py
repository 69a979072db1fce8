"""Made-up findings of closed-form risk: six digits undefended, three of them under five noise levels. No model, no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradleak.reporting.context import Context
from gradleak.results import Evidence, Finding, Leakier, Outcome, Record, Score, Subject, UnknownFinding
from gradleak.results.findings.risk import RiskFinding, Spectrum, Validation

SIZE = 784
VARIANCES = (1e-8, 1e-7, 1e-6, 1e-5, 1e-4)
PRIOR = "Gaussian fitted to 300 public examples, Ledoit-Wolf shrinkage 0.05"


def score(name: str, value: float | None, evidence: str = "exact", unit: str = "pixel_rmse", **fields: Any) -> Score:
    return Score(
        name=name, value=value, unit=unit, leakier=Leakier.LOWER, evidence=Evidence(evidence), **fields
    )  # fmt: skip


def place(scenario: str, example: int, part: str) -> dict[str, Any]:
    return {
        "item": f"{scenario}/example {example}/{part}",
        "audit": "risk",
        "scenario": scenario,
        "subject": Subject(noun="example", name=str(example)),
    }


def eigenvalues(example: int) -> tuple[float, ...]:
    """Smallest first, as in a record."""
    places = np.linspace(0, 1, SIZE)
    return tuple(float(value) for value in np.sort(10 ** (1.2 - 5.2 * places**1.4 + 0.1 * example)))


def around(scenario: str, example: int, *errors: float) -> list[Finding]:
    """What other kinds of audits know of a release: the blind guess, and attacks."""
    here = place(scenario, example, "blind") | {"audit": "release", "kind": "left"}
    found: list[Finding] = [UnknownFinding(**here, scores=(score("pixel_rmse", 0.28 + example / 100),))]
    for number, error in enumerate(errors):
        tried = place(scenario, example, f"attack {number}") | {"audit": "attacks", "kind": "tried"}
        found.append(UnknownFinding(**tried, scores=(score("pixel_rmse", error, "attack"),)))
    return found


def digits() -> list[Finding]:
    """The whole study."""
    random = np.random.default_rng(0)
    found: list[Finding] = []
    for example in range(6):
        spectrum = Spectrum(unknowns=SIZE, entries=17038, eigenvalues=eigenvalues(example), rank=SIZE, route="loop")
        inverse = math.sqrt(sum(1 / value for value in eigenvalues(example)) / SIZE)
        needed = score("noise_std_for_threshold", 0.1 / inverse, "estimate", "update")
        found.append(RiskFinding(**place("undefended", example, "risk"), spectrum=spectrum, scores=(needed,)))
        for variance in VARIANCES if example < 3 else ():
            scenario, std = f"noise {variance:.0e}".replace("e-0", "e-"), math.sqrt(variance)
            drawn = std * inverse * (1 + 0.03 * float(random.normal()))
            scores = (
                score("inversion_influence", drawn, details={"epsilon": 0.0}),
                score("inversion_influence_lower_bound", drawn / 800, "lower_bound"),
                score("gaussian_reconstruction_error", std * inverse, "estimate"),
            )
            found.append(
                RiskFinding(**place(scenario, example, "risk"), spectrum=spectrum, noise_std=std, scores=scores)
            )
            if drawn < 0.05:
                reached = drawn * (1 + 0.04 * float(random.normal()))
                perfect = (score("psnr", 40.0, "estimate", "dB"), score("pixel_rmse", reached, "estimate"))
                found.append(
                    RiskFinding(
                        **place(scenario, example, "perfect_attacker"),
                        validation=Validation(steps=4),
                        outcome=Outcome.CONVERGED,
                        scores=perfect,
                    )
                )
            found += around(scenario, example, *([drawn * 1.02, 0.9] if example == 0 else []))
    return found


def setting(example: int, made: Score, scenario: str = "noisy") -> RiskFinding:
    return RiskFinding(**place(scenario, example, "setting"), scores=(made,))


def bound(value: float | None, **fields: Any) -> Score:
    details = {
        "noise_std": 0.1, "holds_for_release": True, "prior": {"origin": PRIOR, "entries": 64, "trace": 4.2},
        "prior_error": 0.2675, "plug_in": 0.3,
    } | fields.pop("details", {})  # fmt: skip
    made = {"evidence": "lower_bound", "note": "average over the stated prior", "details": details, **fields}
    return score("bayesian_cramer_rao", value, **made)


def chance(value: float | None, **fields: Any) -> Score:
    details = {
        "within": 0.1, "mu": 0.5, "kappa": 0.0078125, "each_example": 0.03125, "rounds": 4, "epsilon": 1.875, "delta": 1e-5,
        "prior": {"origin": "one of 128 candidates, each as likely, any two more than 0.2 apart"},
    } | fields.pop("details", {})  # fmt: skip
    made = {"evidence": "upper_bound", "unit": "probability", "note": "the stated prior", "details": details, **fields}
    return score("reconstruction_probability", value, **made)


def context(findings: Sequence[Finding]) -> Context:
    return Context(record=Record.of(findings))

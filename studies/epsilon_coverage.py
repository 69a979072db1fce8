"""Do lower bounds on epsilon stay below it, and how close do they come?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gradleak.core import describe
from gradleak.privacy.lower_bounds import (
    CorrectedThresholdEpsilon,
    EpsilonEstimator,
    GaussianFitEpsilon,
    OneRunEpsilon,
    PlugInEpsilon,
    SplitThresholdEpsilon,
    TradeOff,
    TrialScores,
    attainable_epsilon,
    gaussian_dp_epsilon,
)
from gradleak.results import LI_2024, Citation, Evidence, Outcome, Score, check_count, check_not_negative
from gradleak.scoring.roc import rate_interval
from studies.study import Finding, Say, Study, StudyResult, Table


@dataclass(frozen=True, kw_only=True)
class EpsilonCoverage(Study):
    """Every estimate of ε on two unit Gaussians a known distance μ apart, many times, against the exact ε(δ).

    At μ = 0 both hypotheses are the same noise, and every bound above 0 is wrong. Beside the truth stands what the best
    threshold can certify with so many trials. The coverage of a lower bound is the share of runs in which it is at most the
    truth; of the naive plug-in, which is no bound, the same share is printed.

    **Source**: the estimate of Li et al. 2024, section 7; a coverage study is not in the paper.

    Attributes:
        distances: μ, at least 0 each.
        trials: under each hypothesis, in each run.
        runs: independent repetitions.
        delta: δ.
        confidence: of every bound.
        seed: of all draws.
    """

    name: ClassVar[str] = "epsilon_coverage"
    source: ClassVar[str] = "the estimate of section 7"
    citations: ClassVar[tuple[Citation, ...]] = (LI_2024,)

    distances: Sequence[float] = (0.0, 0.5, 1.0, 2.0, 3.0, 4.0)
    trials: int = 10_000
    runs: int = 1000
    delta: float = 1e-5
    confidence: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_count("EpsilonCoverage.trials", self.trials)
        check_count("EpsilonCoverage.runs", self.runs)
        for distance in self.distances:
            check_not_negative("EpsilonCoverage.distances", distance)
        self._estimators()

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; about two minutes on one core."""
        estimators = self._estimators()
        findings: list[Finding] = []
        rows: list[list[str]] = []
        raw: dict[str, Any] = {}
        for mu in self.distances:
            truth = gaussian_dp_epsilon(mu, self.delta)
            best = attainable_epsilon(mu, self.trials, delta=self.delta, confidence=self.confidence)
            found = self._runs(mu, estimators)
            say(f"μ = {mu:g}: {self.runs} runs of {self.trials} trials a hypothesis")
            raw[f"{mu:g}"] = {"truth": truth, "attainable": best} | {
                label: _summary(scores, truth) for label, scores in found.items()
            }
            rows += [[f"{mu:g}", f"{truth:.3f}", _of(best, truth), *cells] for cells in _cells(found, truth, best)]
            findings += [self._finding(mu, label, scores, truth) for label, scores in found.items()]
        columns = (
            "μ", "ε(δ)", "best threshold", "estimate", "median", "of the best threshold", "largest certifiable", "at most ε",
            "saturated",
        )  # fmt: skip
        title = (
            f"δ = {self.delta:g}, {self.trials} trials a hypothesis, {self.runs} runs, confidence {self.confidence:g}"
        )
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=findings,
            conclusion=self._conclude(raw),
            details=raw,
            tables=[Table(title=title, columns=columns, rows=rows)],
        )

    def _estimators(self) -> dict[str, EpsilonEstimator]:
        setting: dict[str, Any] = {"delta": self.delta, "confidence": self.confidence}
        return {
            "SplitThresholdEpsilon": SplitThresholdEpsilon(**setting),
            "CorrectedThresholdEpsilon": CorrectedThresholdEpsilon(**setting),
            "OneRunEpsilon": OneRunEpsilon(**setting),
            "OneRunEpsilon, Gaussian": OneRunEpsilon(curve=TradeOff.GAUSSIAN, **setting),
            "GaussianFitEpsilon": GaussianFitEpsilon(**setting),
            "PlugInEpsilon": PlugInEpsilon(**setting),
        }

    def _runs(self, mu: float, estimators: Mapping[str, EpsilonEstimator]) -> dict[str, list[Score]]:
        generator = np.random.default_rng((self.seed, round(1e6 * mu)))
        scores: dict[str, list[Score]] = {label: [] for label in estimators}
        for run in range(self.runs):
            trials = TrialScores(
                null=generator.standard_normal(self.trials), alternative=mu + generator.standard_normal(self.trials)
            )
            for label, estimator in estimators.items():
                scores[label].append(estimator.estimate(trials, seed=run))
        return scores

    def _finding(self, mu: float, label: str, scores: Sequence[Score], truth: float) -> Finding:
        values = _values(scores)
        below = int(np.count_nonzero(values <= truth))
        bound = scores[0].evidence is Evidence.LOWER_BOUND
        return Finding(
            quantity=f"share of runs in which {label} is at most ε, μ = {mu:g}",
            ours=below / len(values),
            interval=rate_interval(below, len(values)),
            n=len(values),
            note="" if bound else "no bound: an estimate",
        )

    def _conclude(self, raw: Mapping[str, Mapping[str, Any]]) -> list[str]:
        lines = []
        for label, estimator in self._estimators().items():
            coverages = [row[label]["coverage"] for row in raw.values()]
            if estimator.evidence is Evidence.LOWER_BOUND:
                kept = "keeps" if min(coverages) >= self.confidence else "DOES NOT keep"
                lines.append(
                    f"{label} {kept} its word: at most ε in {100 * min(coverages):.1f} % to {100 * max(coverages):.1f} % of runs."
                )
            else:
                lines.append(
                    f"{label} is no bound: at most ε in {100 * min(coverages):.1f} % to {100 * max(coverages):.1f} % of runs."
                )
        if "0" in raw:
            plug_in = raw["0"]["PlugInEpsilon"]["median"]
            lines.append(f"On pure noise the naive plug-in says {plug_in:.2f} in the median, the bounds 0.")
        return lines


def _values(scores: Sequence[Score]) -> NDArray[np.float64]:
    """Certified values: 0 where there is no value."""
    return np.array([0.0 if score.value is None else score.value for score in scores])


def _summary(scores: Sequence[Score], truth: float) -> dict[str, float]:
    values = _values(scores)
    return {
        "median": float(np.median(values)),
        "coverage": float(np.mean(values <= truth)),
        "largest_certifiable": float(scores[0].details["largest_certifiable"]),
        "saturated": float(np.mean([score.outcome is Outcome.SATURATED for score in scores])),
    }


def _cells(found: Mapping[str, Sequence[Score]], truth: float, best: float) -> list[list[str]]:
    rows = []
    for label, scores in found.items():
        summary = _summary(scores, truth)
        rows.append(
            [
                label,
                _of(summary["median"], truth),
                f"{100 * summary['median'] / best:.0f} %" if best > 0.0 else "-",
                f"{summary['largest_certifiable']:.2f}",
                f"{100 * summary['coverage']:.1f} %",
                f"{100 * summary['saturated']:.0f} %",
            ]
        )
    return rows


def _of(value: float, truth: float) -> str:
    return f"{value:.3f} ({100 * value / truth:.0f} %)" if truth > 0.0 else f"{value:.3f}"


__all__ = ["EpsilonCoverage"]

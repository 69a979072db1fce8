"""The report as one JSON document for machines, from the same data as the page."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from gradleak.reporting.adversaries import adversaries
from gradleak.reporting.inference_view import InferenceView, inferences
from gradleak.reporting.layers_summary import summarize_layers
from gradleak.reporting.layers_view import layer_maps
from gradleak.reporting.privacy_view import PrivacyView, privacies
from gradleak.reporting.reading import load
from gradleak.reporting.report import Attempt, Report, ScenarioView, build
from gradleak.reporting.utility_view import utilities
from gradleak.results import Record, Verdict
from gradleak.results.score import jsonable

SUMMARY_SCHEMA = 1
_MEASURES = {"AUROC": "auroc", "epsilon of at least": "epsilon_lower_bound"}


def write_json(
    record: Record | str | os.PathLike[str], path: str | os.PathLike[str], *, per_record: bool = False
) -> Path:
    """One JSON document on a record: verdict, reason, thresholds and the numbers of each scenario.

    Infinities are written as the strings "inf" and "-inf"; a number that could not be had is null beside its
    outcome. The same record gives the same bytes.

    Args:
        record: the record, or its file or folder.
        path: where the document is written; its folder must exist.
        per_record: whether results on single examples are written too; off by default, since they say which of the
            private examples are exposed.

    Returns:
        The path.

    Raises:
        InputError: there is no record.
    """
    target = Path(path)
    document = summarize(build(load(record)), per_record=per_record)
    target.write_text(json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n", encoding="utf-8")
    return target


def summarize(report: Report, *, per_record: bool = False) -> dict[str, Any]:
    """The document as a JSON-ready dictionary.

    Args:
        report: what to tell.
        per_record: whether results on single examples are included.
    """
    document: dict[str, Any] = {
        "schema": SUMMARY_SCHEMA,
        "name": report.title,
        "complete": report.complete,
        "verdict": _verdict(report.verdict),
        "thresholds": dict(report.thresholds),
        "data": report.kind,
        "range_notes": list(report.range_notes),
        "worst": _attempt(report.worst, per_record=per_record),
        "exact_hits": {"hits": report.hits, "attacked": report.attacked, "evidence": "attack"},
        "scenarios": [_scenario(view, per_record=per_record) for view in report.scenarios],
        "disclosed_truths": list(dict.fromkeys(text for setting in report.settings for text in setting.disclosed)),
        "prediction": {
            "measure": "inversion_influence",
            "compared": report.noise.compared,
            "below_pixel_rmse": report.noise.limit,
            "median_relative_difference": report.noise.difference,
            "levels": [
                {
                    "noise_std": level.noise_std,
                    "releases": len(level.points),
                    "compared": level.compared,
                    "counts": dict(level.counts),
                    "median_relative_difference": level.difference,
                    "median_pixel_rmse": {name: quantity.value for name, quantity in level.medians.items()},
                }
                for level in report.noise.levels
            ],
        },
        "bounds": [
            {
                "scenario": view.scenario,
                "value": view.value.value,
                "evidence": view.value.evidence or None,
                "unit": view.unit,
                "prior": view.prior,
                "prior_error": view.prior_error.value,
                "noise_std": view.noise_std,
                "holds_for_release": view.holds,
                "note": view.note,
            }
            for view in report.bounds
        ],
        "chances": [
            {
                "scenario": view.scenario,
                "value": view.value.value,
                "evidence": view.value.evidence or None,
                "each_example": view.each.value,
                "blind": view.blind.value,
                "within": view.within,
                "mu": view.mu,
                "epsilon": view.epsilon,
                "delta": view.delta,
                "rounds": view.rounds,
                "prior": view.prior,
                "note": view.note,
            }
            for view in report.chances
        ],
        "adversaries": [
            {
                "scenario": view.scenario,
                **({"example": view.example} if per_record else {}),
                "attack": view.attack,
                "static_pixel_rmse": view.static.value,
                "adaptive_pixel_rmse": view.adaptive.value,
                "baseline_pixel_rmse": view.baseline.value,
                "notes": list(view.notes),
            }
            for view in adversaries(report)
        ],
        "utility": [
            {
                "scenario": view.scenario,
                "metric": view.metric,
                "value": view.value.value,
                "outcome": view.value.outcome.label if view.value.outcome else None,
                "interval": view.interval or None,
                "test_rows": view.rows,
                "seeds": view.seeds,
                "credit": view.credit,
                "standing": view.standing,
                "learning_rate": view.learning_rate,
                "attacked": view.attacked or None,
                "trained_through": view.trained or None,
                "epsilon": view.epsilon.value,
                "epsilon_holds_for": view.epsilon_terms or None,
                "epsilon_note": view.epsilon_note or None,
                "kept_share": view.kept_share,
                "cosine": view.cosine,
                "layers_replaced": list(view.replaced),
            }
            for view in utilities(report.reading)
        ],
        "inference": [_inference(view) for view in inferences(report.reading)],
        "privacy": [_privacy(view) for view in privacies(report.reading)],
        "layers": [summarize_layers(one) for one in layer_maps(report.reading)],
        "controls": [
            {
                "name": control.title,
                "passed": control.passed,
                **({} if control.words else {_MEASURES.get(control.measure, "pixel_rmse"): control.pixel_rmse.value}),
            }
            for control in report.controls
        ],
        "problems": [
            {
                "item": problem.item,
                "status": problem.status,
                "outcome": problem.outcome.label if problem.outcome else None,
                "note": problem.note,
            }
            for problem in report.problems
        ],
        "unreadable_lines": report.unreadable,
        "made_by": dict(report.provenance.facts),
    }
    if per_record:
        document["per_record"] = [_attempt(attempt, per_record=True) for attempt in report.attempts]
    made: dict[str, Any] = jsonable(document)
    return made


def _scenario(view: ScenarioView, *, per_record: bool) -> dict[str, Any]:
    return {
        "name": view.name,
        **{f"verdict_{key}" if key != "verdict" else key: value for key, value in _verdict(view.verdict).items()},
        "releases": view.releases,
        "attacked": view.attacked,
        "leaking": view.leaking,
        "worst": _attempt(view.worst, per_record=per_record),
        "smallest_predicted_pixel_rmse": view.predicted.value,
    }


def _inference(view: InferenceView) -> dict[str, Any]:
    numbers = {
        name: {
            "value": found.value,
            "evidence": found.evidence or None,
            "outcome": found.outcome.label if found.outcome else None,
        }
        for name, found in (
            ("auroc", view.auroc),
            ("tpr_at_fpr", view.tpr),
            ("attack_success_rate", view.success),
            ("advantage", view.advantage),
            ("information_bound", view.information),
            ("fano_advantage_bound", view.fano_bound),
            ("information_estimate", view.estimate),
            ("fano_advantage_estimate", view.fano_estimate),
        )
    }
    return {
        "scenario": view.scenario,
        "game": view.game,
        "adversary": view.adversary,
        "above_chance": view.above_chance,
        "advantage_interval": view.advantage_interval,
        "false_positive_rate": view.false_positive_rate,
        "blind": view.blind_value,
        "trials": view.trials,
        "seeds": view.seeds,
        "utility": view.utility,
        "utility_metric": view.metric or None,
        **numbers,
    }


def _privacy(view: PrivacyView) -> dict[str, Any]:
    return {
        "scenario": view.scenario,
        "audit": view.audit,
        "pair": view.pair or None,
        "trials": view.trials,
        "state": view.state,
        "claim_broken": view.loud,
        "epsilon_lower_bound": view.best.epsilon.value if view.best else None,
        "outcome": view.epsilon.outcome.label if view.epsilon.outcome else None,
        "delta": view.delta,
        "claimed_epsilon": view.claim.value,
        "claimed": view.claimed or None,
        "theory": {
            name: {"value": found.value, "evidence": found.evidence or None} for name, found in view.theory.items()
        },
        "measured": [
            {
                "statistic": found.statistic,
                "estimator": found.estimator,
                "value": found.epsilon.value,
                "evidence": found.epsilon.evidence or None,
                "outcome": found.epsilon.outcome.label if found.epsilon.outcome else None,
                "interval": found.span,
                "largest_certifiable": found.largest,
                "trials": found.trials,
            }
            for found in view.measured
        ],
        "histograms": [
            {
                "statistic": histogram.statistic,
                "edges": histogram.edges,
                "null": histogram.null,
                "alternative": histogram.alternative,
            }
            for histogram in view.histograms
        ],
    }


def _verdict(verdict: Verdict | None) -> dict[str, Any]:
    if verdict is None:
        return {"verdict": None, "reason": None, "explanation": "the record holds no verdict"}
    return {"verdict": verdict.verdict.value, "reason": verdict.reason, "explanation": verdict.explanation}


def _attempt(attempt: Attempt | None, *, per_record: bool) -> dict[str, Any] | None:
    if attempt is None:
        return None
    numbers = {
        name: {"value": quantity.value, "evidence": quantity.evidence or None}
        for name, quantity in (
            ("pixel_rmse", attempt.pixel_rmse),
            ("psnr", attempt.psnr),
            ("ssim", attempt.ssim),
            ("baseline_pixel_rmse", attempt.baseline),
            ("label_accuracy", attempt.labels),
        )
    }
    place = {"item": attempt.item, "example": attempt.example} if per_record else {}
    counts = attempt.label_counts.value
    return {
        **place,
        "scenario": attempt.scenario,
        "attack": attempt.attack,
        **({"adversary": attempt.adversary} if attempt.adversary else {}),
        "outcome": attempt.outcome.label if attempt.outcome else None,
        **numbers,
        "label_accuracy_by_counts": attempt.labels.value if counts is None else counts,
        "plain_gradients": attempt.plain_gradients,
    }

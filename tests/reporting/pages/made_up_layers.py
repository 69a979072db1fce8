"""Made-up findings on where a release leaks: nothing is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gradleak.results import Control, Evidence, Finding, Leakier, Outcome, Record, Score
from gradleak.results.findings.layers import LAYER, Advice, AdvisedLayer, Layer, LayersFinding

# A value, (value, low, high), or an outcome with the reason.
Given = float | tuple[float, float, float] | tuple[Outcome, str]

LAYERS = {
    "body.0": ("body.0.weight", "body.0.bias"),
    "body.3": ("body.3.weight", "body.3.bias"),
    "body.6": ("body.6.weight", "body.6.bias"),
    "head": ("head.weight", "head.bias"),
}
_OF_ATTRIBUTE = ("latent_information", "subspace_distance", "mine_information")


def layer_score(name: str, given: Given, **rest: Any) -> Score:
    value, interval, outcome, note = None, None, Outcome.CONVERGED, ""
    if not isinstance(given, tuple):
        value = float(given)
    elif len(given) == 2:
        outcome, note = given
    else:
        value, *ends = map(float, given)
        interval = (ends[0], ends[1])
    shared: dict[str, Any] = {
        "unit": "nats",
        "leakier": Leakier.HIGHER,
        "evidence": Evidence.ESTIMATE,
        "n": 400,
        "note": note,
    }
    return Score(name=name, value=value, interval=interval, **{"outcome": outcome, **shared, **rest})


def profile(
    measure: str,
    values: Sequence[Given],
    *,
    layers: Mapping[str, Sequence[str]] = LAYERS,
    audit: str = "digits",
    scenario: str | None = None,
    fields: Mapping[str, Any] | None = None,
    rivals: Sequence[bool | None] = (),
    details: Sequence[Mapping[str, Any]] = (),
    **rest: Any,
) -> LayersFinding:
    """The finding of a measure with a score a layer."""
    beside = list(details) or [{}] * len(values)
    scores = [layer_score(measure, given, details=more, **rest) for given, more in zip(values, beside, strict=True)]
    told = list(rivals) or [None] * len(values)
    made: dict[str, Any] = {
        "item": f"{scenario}/{audit}/{measure}",
        "audit": audit,
        "scenario": scenario,
        "measure": measure,
        "grouping": "by layer",
        "about": "latent" if measure.partition(" (")[0] in _OF_ATTRIBUTE else "original",
        "layers": [
            Layer(name=name, tensors=tuple(tensors), rival=rival)
            for (name, tensors), rival in zip(layers.items(), told, strict=True)
        ],
        "scores": [replace(score, about={LAYER: name}) for name, score in zip(layers, scores, strict=True)],
    }
    return LayersFinding(**{**made, **(fields or {})})


def shuffled(
    like: LayersFinding, passed: bool | None = True, given: Given = (0.01, -0.02, 0.03), note: str = ""
) -> LayersFinding:
    """The control of a measure, with the same score for every layer."""
    score = layer_score(like.measure, given)
    return like.but(
        item=f"control/negative/{like.item}",
        note=note,
        scores=tuple(replace(score, about={LAYER: layer.name}) for layer in like.layers),
        control=Control(
            planted=False,
            title="Negative control of where it leaks: a shuffled attribute",
            passed=passed,
            of=like.measure,
        ),
    )


def advice(
    ranked: Sequence[tuple[str, float, bool, str]],
    *,
    layers: Mapping[str, Sequence[str]] = LAYERS,
    audit: str = "digits",
    scenario: str | None = None,
    **more: Any,
) -> LayersFinding:
    """The advice from (layer, share, chosen, why)."""
    shared: dict[str, Any] = {
        "budget": 0.1,
        "profiles": ["original_information", "latent_information"],
        "entries": 60_000,
    } | more
    rows = [
        AdvisedLayer(
            name=layer,
            rank=place,
            tensors=tuple(layers[layer]),
            entries=round(share * 60_000),
            share=share,
            chosen=chosen,
            why=why,
        )
        for place, (layer, share, chosen, why) in enumerate(ranked, 1)
    ]
    told = Advice(layers=tuple(rows), **shared)
    return LayersFinding(item=f"{scenario}/{audit}/advice", audit=audit, scenario=scenario, advice=told)


def digits(**more: Any) -> list[LayersFinding]:
    """Four layers of one setting by four measures, and the advice."""
    blind = [{"ssim": s, "blind_ssim": 0.11, "against_blind": b} for s, b in ((0.9, 14.0), (0.5, 7.0), (0.2, 1.0))]
    dark = [
        {},
        {"unclipped": -0.01, "blind_accuracy": 0.7, "accuracy": 0.71},
        {"blind_accuracy": 0.7, "accuracy": 0.9},
        {},
    ]
    null = [
        {"null_mean": 1.1, "effect_size": e, "p_value": p}
        for e, p in ((0.4, 0.3), (2.5, 0.01), (6.0, 0.01), (1.0, 0.2))
    ]
    lost = (Outcome.UNSUPPORTED, "the last layer gives the labels away, and the attack takes no labels")
    return [
        profile(
            "original_information",
            [(15.2, 13.9, 16.5), (7.4, 4.0, 14.1), (1.9, 0.7, 3.1), lost],
            evidence=Evidence.ATTACK,
            n=12,
            details=[*blind, {}],
            **more,
        ),
        profile(
            "mean_sensitivity",
            [(0.31, 0.28, 0.34), (0.12, 0.1, 0.14), (0.055, 0.05, 0.06), (2.1e-7, 1e-7, 3e-7)],
            unit="gradient/input",
            **more,
        ),
        profile(
            "latent_information",
            [(0.02, 0.0, 0.05), (0.1, 0.05, 0.2), (0.41, 0.35, 0.47), (0.38, 0.31, 0.45)],
            note="from below, for this family of attackers: another may find more",
            details=dark,
            **more,
        ),
        profile("subspace_distance", [1.5, 1.61, 1.4, 0.9], unit="rad", details=null, **more),
        advice(
            [
                ("body.6", 0.062, True, "leaks most by latent_information, subspace_distance."),
                ("body.0", 0.003, True, "leaks most by original_information, mean_sensitivity."),
                ("head", 0.9, False, "has no value by original_information, which is no evidence of safety."),
                ("body.3", 0.035, True, "leaks less than the leakiest by latent_information (place 3 of 4)."),
            ],
            **more,
        ),
    ]


def record(*findings: Finding, name: str = "where it leaks") -> Record:
    return Record.of(findings, name=name)

"""Lines of a record on where a release leaks, made up: nothing is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradleak.results import Evidence, Leakier, Outcome, Record, Score

Row = dict[str, Any]
# A value, (value, low, high), or an outcome with the reason.
Given = float | tuple[float, float, float] | tuple[Outcome, str]

LAYERS = {
    "body.0": ("body.0.weight", "body.0.bias"),
    "body.3": ("body.3.weight", "body.3.bias"),
    "body.6": ("body.6.weight", "body.6.bias"),
    "head": ("head.weight", "head.bias"),
}


def layer_score(name: str, given: Given, **rest: Any) -> Score:
    value, interval, outcome, note = None, None, Outcome.CONVERGED, ""
    if not isinstance(given, tuple):
        value = float(given)
    elif len(given) == 2:
        outcome, note = given
    else:
        value, *ends = map(float, given)
        interval = (ends[0], ends[1])
    rest = {"unit": "nats", "leakier": Leakier.HIGHER, "evidence": Evidence.ESTIMATE, "n": 400, "note": note} | rest
    return Score(name=name, value=value, interval=interval, **({"outcome": outcome} | rest))


def profile(
    measure: str,
    values: Sequence[Given],
    *,
    layers: Mapping[str, Sequence[str]] = LAYERS,
    setting: str = "digits",
    item: str = "",
    fields: Mapping[str, Any] | None = None,
    details: Sequence[Mapping[str, Any]] = (),
    **rest: Any,
) -> list[Row]:
    """One line a layer, as `LayerProfile.lines` writes them."""
    beside = list(details) or [{}] * len(values)
    scores = [layer_score(measure, given, details=more, **rest) for given, more in zip(values, beside, strict=True)]
    sign = 1.0 if scores[0].leakier is Leakier.LOWER else -1.0
    ranked = sorted((s for s in scores if s.value is not None), key=lambda s: sign * (s.value or 0.0))
    return [
        {
            "type": "item",
            "kind": "layers",
            "status": "done",
            "setting": setting,
            "item": item or f"layers/{setting}",
            "measure": measure,
            "layer": name,
            "rank": None if score.value is None else 1 + next(n for n, one in enumerate(ranked) if one is score),
            "tensors": list(tensors),
            "score": score.to_dict(),
            **(fields or {}),
        }
        for (name, tensors), score in zip(layers.items(), scores, strict=True)
    ]


def advice(
    ranked: Sequence[tuple[str, float, bool, str]],
    *,
    layers: Mapping[str, Sequence[str]] = LAYERS,
    setting: str = "digits",
    **more: Any,
) -> list[Row]:
    """One line a layer, as `LayerAdvice.lines` writes them, from (layer, share, chosen, why)."""
    shared = {
        "budget": 0.1,
        "profiles": ["original_information", "latent_information"],
        "silent": [],
        "note": "",
    } | more
    return [
        {
            "type": "item",
            "kind": "layer_advice",
            "status": "done",
            "setting": setting,
            "item": f"layers/{setting}",
            "layer": layer,
            "rank": place,
            "tensors": list(layers[layer]),
            "entries": round(share * 60_000),
            "share": share,
            "first_in": [],
            "rival_in": [],
            "unknown_in": [],
            "chosen": chosen,
            "why": why,
            **shared,
        }
        for place, (layer, share, chosen, why) in enumerate(ranked, 1)
    ]


def digits(**more: Any) -> list[Row]:
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
        *profile(
            "original_information",
            [(15.2, 13.9, 16.5), (7.4, 4.0, 14.1), (1.9, 0.7, 3.1), lost],
            evidence=Evidence.ATTACK,
            n=12,
            details=[*blind, {}],
            **more,
        ),
        *profile(
            "mean_sensitivity",
            [(0.31, 0.28, 0.34), (0.12, 0.1, 0.14), (0.055, 0.05, 0.06), (2.1e-7, 1e-7, 3e-7)],
            unit="gradient/input",
            **more,
        ),
        *profile(
            "latent_information",
            [(0.02, 0.0, 0.05), (0.1, 0.05, 0.2), (0.41, 0.35, 0.47), (0.38, 0.31, 0.45)],
            note="from below, for this family of attackers: another may find more",
            details=dark,
            **more,
        ),
        *profile("subspace_distance", [1.5, 1.61, 1.4, 0.9], unit="rad", details=null, **more),
        *advice(
            [
                ("body.6", 0.062, True, "leaks most by latent_information, subspace_distance."),
                ("body.0", 0.003, True, "leaks most by original_information, mean_sensitivity."),
                ("head", 0.9, False, "has no value by original_information, which is no evidence of safety."),
                ("body.3", 0.035, True, "leaks less than the leakiest by latent_information (place 3 of 4)."),
            ],
            setting=str(more.get("setting", "digits")),
        ),
    ]


def record(*groups: Sequence[Mapping[str, Any]], name: str = "where it leaks") -> Record:
    return Record(run={"type": "run", "name": name}, lines=tuple(line for group in groups for line in group))

"""From the lines of layers to verdicts: an attribute that is told from a layer leaks; layers that were compared do not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gradleak.auditing.layer_reach import VISIBLE, reaches
from gradleak.results import Score, Verdict, VerdictKind

Line = Mapping[str, Any]
COMPARED = "layers_compared"
MOST_NATS = 2.0 * math.pi**2  # of original information: an exact copy


def judge_layers(rows: Sequence[Line]) -> list[Verdict]:
    """A verdict on every section of layers of every scenario.

    *leaks* where held-out `LatentInformation` of a sensitive variable lies above 0 in some layer, by an interval that covers
    all layers and classifiers together; never *bounded*; else *inconclusive*. What measures of the inputs say is no attack on
    the release, and what a classifier does not find another may.

    Args:
        rows: the item and score lines of a record.
    """
    found: dict[str, list[Line]] = {}
    for row in rows:
        if row["type"] == "item" and row.get("kind") == "layers":
            found.setdefault(f"{row.get('scenario')}/{row.get('setting')}", []).append(row)
    controls = {
        str(row["control_of"]): row
        for row in rows
        if row.get("kind") == "control" and row.get("control_of") is not None
    }
    return [_judge(item, mine, controls) for item, mine in found.items()]


def _judge(item: str, rows: Sequence[Line], controls: Mapping[str, Line]) -> Verdict:
    details: dict[str, Any] = {"layers": rows[0].get("setting")}
    failed = [row for row in rows if row.get("status") == "failed"]
    if failed:
        text = f"A measure could not be finished: {failed[0].get('note')}."
        return _inconclusive(item, "item_failed", text, details)
    if all(row.get("status") != "done" for row in rows):
        text = f"No measure could be taken: {rows[0].get('note')}"
        return _inconclusive(item, "layers_refused", text, details)
    asked = [row for row in rows if _about_attribute(row)]
    if not asked:
        text = (
            "Layers were compared, and no attack on the whole release was judged here: the profiles say where to look, not "
            "whether it leaks."
        )
        return _inconclusive(item, COMPARED, text + _of_inputs(rows), details)
    held = [row for row in asked if (controls.get(str(row["item"])) or {}).get("passed", True) is not False]
    if not held:
        text = "On shuffled attributes the measure found something too, so that nothing it found can be read."
        return _inconclusive(item, "control_failed", text, details)
    told = [(row, Score.from_dict(row["score"])) for row in held]
    found = [(row, score) for row, score in told if reaches(score, len(asked))]
    if not found and all(reaches(score, len(asked)) is None for _, score in told):
        score = told[0][1]
        text = (
            f"Whether any layer tells {asked[0].get('attribute')} is not known: latent information has no value that could be "
            f"judged ({score.outcome.label.replace('_', ' ')}{f': {score.note}' if score.note else ''}). Nothing was found "
            "because nothing could be measured."
        )
        return _inconclusive(item, "not_judged", text + _of_inputs(rows), details)
    if not found:
        text = (
            f"In no layer was more told of {asked[0].get('attribute')} than its shares tell, by the classifiers that were tried "
            "and by intervals that hold for all layers together, which are wider than those of single layers. Another "
            "classifier, other features or more rows may find more: this is no evidence of safety."
        )
        return _inconclusive(item, "nothing_told", text + _of_inputs(rows), details)
    row, score = max(found, key=lambda pair: pair[1].value or 0.0)
    others = [str(other["layer"]) for other, _ in found if other is not row]
    assert score.value is not None
    assert score.interval is not None
    of = score.details.get("entropy")
    most = "" if of is None else f" of at most {float(of):.3g}"
    return Verdict(
        item=item,
        verdict=VerdictKind.LEAKS,
        reason="attribute_told_by_layer",
        explanation=(
            f"{row.get('attribute')} is told from the gradients of layer {row['layer']} alone: {score.value:.3g} nats{most} "
            f"(95 %: {score.interval[0]:.3g} to {score.interval[1]:.3g}), on rows that the classifier had not seen"
            + (f"; also from {', '.join(dict.fromkeys(others))}" if others else "")
            + "."
        ),
        details=details | {"layer": row["layer"], "nats": score.value, "measure": row["measure"]},
    )


def _about_attribute(row: Line) -> bool:
    """Whether a line says what attackers tell of a sensitive variable from one layer."""
    score = row.get("score") or {}
    sensitive = row.get("told") == "sensitive" and row.get("grouping") != VISIBLE
    return sensitive and score.get("name") == "latent_information"


def _of_inputs(rows: Sequence[Line]) -> str:
    """What an inversion rebuilt, which no verdict on an attribute reads and nobody should miss; "" where it rebuilt nothing."""
    scores = [(row, Score.from_dict(row["score"])) for row in rows if (row.get("score") or {}).get("value") is not None]
    rebuilt = [
        (row, score)
        for row, score in scores
        if score.name == "original_information"
        and float(score.details.get("against_blind", score.value or 0.0)) > 0.0
        and score.interval is not None
        and score.interval[0] > 0.0
    ]
    if not rebuilt:
        return ""
    row, score = max(rebuilt, key=lambda pair: pair[1].value or 0.0)
    return (
        f" This verdict is not about the inputs: an inversion that sees {row['layer']} alone reached {score.value:.3g} nats "
        f"of at most {MOST_NATS:.3g} about them."
    )


def _inconclusive(item: str, reason: str, explanation: str, details: Mapping[str, Any]) -> Verdict:
    return Verdict(item=item, verdict=VerdictKind.INCONCLUSIVE, reason=reason, explanation=explanation, details=details)


__all__ = ["COMPARED", "judge_layers"]

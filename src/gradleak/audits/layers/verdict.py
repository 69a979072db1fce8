"""From the findings of layers to verdicts: an attribute that is told from a layer leaks; layers that were compared do not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gradleak.audits.layers.reach import reaches
from gradleak.results import Grounds, Score, Status, Verdict, VerdictKind
from gradleak.results.findings.layers import VISIBLE, LayersFinding

NOUN = "layer audits"
COMPARED = "layers_compared"
MOST_NATS = 2.0 * math.pi**2  # of original information: an exact copy
TOLD = "latent_information"
REBUILT = "original_information"
# A finding, a layer of it and its score.
Row = tuple[LayersFinding, str, Score]


def judge_layers(found: Sequence[LayersFinding], grounds: Grounds) -> list[Verdict]:
    """A verdict on the layers of every scenario.

    *leaks* where held-out `LatentInformation` of a sensitive variable lies above 0 in some layer, by an interval that covers
    all layers and classifiers together; never *bounded*; else *inconclusive*. What measures of the inputs say is no attack on
    the release, and what a classifier does not find another may. Layers that were only compared say nothing beside what was
    attacked.

    Args:
        found: the findings of one audit.
        grounds: the verdicts that were given before.
    """
    attacked = any(verdict.tested and verdict.noun != NOUN for verdict in grounds.verdicts)
    scenarios: dict[str | None, list[LayersFinding]] = {}
    for one in found:
        if one.measure and one.control is None:
            scenarios.setdefault(one.scenario, []).append(one)
    broken = [(one.scenario, one.measure) for one in found if one.control is not None and one.control.passed is False]
    verdicts = [
        _judge(mine, [measure for where, measure in broken if where == scenario])
        for scenario, mine in scenarios.items()
    ]
    return [verdict for verdict in verdicts if verdict.reason != COMPARED or not attacked]


def _judge(findings: Sequence[LayersFinding], broken: Sequence[str]) -> Verdict:
    first = findings[0]
    failed = [one for one in findings if one.status is Status.FAILED]
    if failed:
        return _inconclusive(first, "item_failed", f"A measure could not be finished: {failed[0].note}.")
    if all(one.status is not Status.DONE for one in findings):
        return _inconclusive(first, "layers_refused", f"No measure could be taken: {first.note}")
    rows = [(one, layer, score) for one in findings for layer, score in one.by_layer.items()]
    asked = [row for row in rows if _about_attribute(row)]
    if not asked:
        text = (
            "Layers were compared, and no attack on the whole release was judged here: the profiles say where to look, not "
            "whether it leaks."
        )
        return _inconclusive(first, COMPARED, text + _of_inputs(rows))
    told = [row for row in asked if row[0].measure not in broken]
    if not told:
        text = "On shuffled attributes the measure found something too, so that nothing it found can be read."
        return _inconclusive(first, "control_failed", text)
    attribute = asked[0][0].attribute
    reached = [row for row in told if reaches(row[2], len(asked))]
    if not reached and all(reaches(score, len(asked)) is None for _, _, score in told):
        score = told[0][2]
        text = (
            f"Whether any layer tells {attribute} is not known: latent information has no value that could be "
            f"judged ({score.outcome.label.replace('_', ' ')}{f': {score.note}' if score.note else ''}). Nothing was found "
            "because nothing could be measured."
        )
        return _inconclusive(first, "not_judged", text + _of_inputs(rows))
    if not reached:
        text = (
            f"In no layer was more told of {attribute} than its shares tell, by the classifiers that were tried "
            "and by intervals that hold for all layers together, which are wider than those of single layers. Another "
            "classifier, other features or more rows may find more: this is no evidence of safety."
        )
        return _inconclusive(first, "nothing_told", text + _of_inputs(rows))
    best = max(reached, key=lambda row: row[2].value or 0.0)
    finding, layer, score = best
    others = dict.fromkeys(row[1] for row in reached if row is not best)
    assert score.value is not None
    assert score.interval is not None
    of = score.details.get("entropy")
    most = "" if of is None else f" of at most {float(of):.3g}"
    text = (
        f"{finding.attribute} is told from the gradients of layer {layer} alone: {score.value:.3g} nats{most} "
        f"(95 %, for other rows too: {score.interval[0]:.3g} to {score.interval[1]:.3g}), on rows that the classifier had "
        "not seen"
        + (f"; also from {'layer' if len(others) == 1 else 'layers'} {', '.join(others)}" if others else "")
        + "."
    )
    details = {"layer": layer, "nats": score.value, "measure": finding.measure}
    return _verdict(first, VerdictKind.LEAKS, "attribute_told_by_layer", text, details)


def _about_attribute(row: Row) -> bool:
    """True if a score says what attackers tell of a sensitive variable from one layer."""
    finding, _, score = row
    return finding.told == "sensitive" and finding.grouping != VISIBLE and score.name == TOLD


def _of_inputs(rows: Sequence[Row]) -> str:
    """Sentence on an inversion that rebuilt inputs, which no verdict on an attribute reads and nobody should miss; or ""."""
    rebuilt = [
        (score.value, layer)
        for _, layer, score in rows
        if score.name == REBUILT
        and score.value is not None
        and float(score.details.get("against_blind", score.value)) > 0.0
        and score.interval is not None
        and score.interval[0] > 0.0
    ]
    if not rebuilt:
        return ""
    value, layer = max(rebuilt, key=lambda pair: pair[0])
    return (
        f" This verdict is not about the inputs: an inversion that sees {layer} alone reached {value:.3g} nats "
        f"of at most {MOST_NATS:.3g} about them."
    )


def _inconclusive(finding: LayersFinding, reason: str, explanation: str) -> Verdict:
    return _verdict(finding, VerdictKind.INCONCLUSIVE, reason, explanation, {})


def _verdict(
    finding: LayersFinding, verdict: VerdictKind, reason: str, explanation: str, details: dict[str, Any]
) -> Verdict:
    return Verdict(
        item=f"{finding.scenario}/{finding.audit}",
        audit=finding.audit,
        scenario=finding.scenario,
        verdict=verdict,
        reason=reason,
        explanation=explanation,
        details=details,
        noun=NOUN,
    )

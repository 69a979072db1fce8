"""The sensitivity of each layer, averaged over examples."""

from __future__ import annotations

import math

import numpy as np
import scipy.stats
import torch

from gradleak.core import Exposure
from gradleak.results import Evidence, InputError, Outcome, Score, check_share
from gradleak.risk.examples import each_example
from gradleak.risk.layer_profile import LayerProfile
from gradleak.risk.paired_rows import PairedRows
from gradleak.risk.sensitivity import Sensitivity

_NAME = "mean_sensitivity"
_SKEWED = 20


def mean_sensitivity(
    exposure: Exposure,
    measure: Sensitivity | None = None,
    *,
    confidence: float = 0.95,
    max_bytes: int = 2**30,
) -> dict[str, Score]:
    """The mean over the examples of a batch of ‖A_l‖, each example a release of its own, by tensor, layer or group.

    **Assumptions**: examples are independent draws of one population, whose mean the interval (Student's) is for; below
    20 examples a skewed population may be missed more often, and a note says so. Each ‖A_l‖ is exact unless
    `dense_limit` makes it an estimate, whose sampling is then part of the spread. An example whose derivative is zero
    counts with 0 (`zero_examples`). A mean over a batch of private examples is the defender's number.

    Args:
        exposure: the examples as one batch, the objective and the release.
        measure: norm and grouping; by default the Frobenius norm by tensor.
        confidence: of the intervals.
        max_bytes: memory budget.

    Returns:
        Scores by tensor, layer or group in the order of the model, with standard deviation, least and largest example
        and number of entries P_l in the details. One example has no interval; if one example is not finite, no layer has a
        value.

    Raises:
        InputError: for another kind of measure or confidence, and as `Sensitivity` does.

    **Cost**: that of `Sensitivity` for each example, small inputs in lockstep.

    **Source**: Mo et al. 2021, equations 10 and 11 and the error bars of figures 6 and 8, which do not say what they
    are; here Student's interval over examples.
    """
    return dict(sensitivity_profile(exposure, measure, confidence=confidence, max_bytes=max_bytes).scores)


def sensitivity_profile(
    exposure: Exposure,
    measure: Sensitivity | None = None,
    *,
    confidence: float = 0.95,
    max_bytes: int = 2**30,
) -> LayerProfile:
    """The same scores ranked, with what every example contributes, so that layers are compared on the same examples.

    `LayerProfile.difference` has the paired intervals. A layer of more entries has a larger norm, so that one layer can
    react more than another and tell less.

    Args:
        exposure: as `mean_sensitivity`.
        measure: as `mean_sensitivity`.
        confidence: of the intervals, and of those of differences.
        max_bytes: memory budget.

    Raises:
        InputError: as `mean_sensitivity`.

    **Cost**: that of `mean_sensitivity`.

    **Source**: as `mean_sensitivity`.
    """
    measure = Sensitivity() if measure is None else measure
    if not isinstance(measure, Sensitivity):
        raise InputError(f"mean_sensitivity: expected a Sensitivity, got {type(measure).__name__}")
    check_share("confidence", confidence)
    measure.check(exposure.objective)
    groups = {layer: tuple(members) for layer, members in measure._groups(list(exposure.objective.params)).items()}
    scores = each_example(measure, exposure, max_bytes=max_bytes)
    facts = {"norm": str(measure.norm), "confidence": confidence}
    lost = next(
        (score for score in scores if score.value is None and score.outcome is not Outcome.NOT_INFORMATIVE), None
    )
    zero = sum(score.value is None for score in scores)
    if lost is not None or zero == len(scores):
        why = lost or scores[0]
        unknown = {layer: _without_value(measure, why, facts) for layer in groups}
        return LayerProfile(measure=_NAME, scores=unknown, groups=groups)
    values = torch.tensor(
        [[0.0 if score.value is None else score.details["values"][layer] for layer in groups] for score in scores],
        dtype=torch.float64,
    )
    found = {
        layer: _mean(
            measure,
            column,
            confidence,
            facts
            | {
                "entries": sum(exposure.objective.params[name].numel() for name in members),
                "zero_examples": zero,
            },
        )
        for (layer, members), column in zip(groups.items(), values.T, strict=True)
    }
    paired = PairedRows(
        values=dict(zip(groups, values.T.numpy(), strict=True)),
        clusters=np.arange(len(values)),
        confidence=confidence,
    )
    return LayerProfile(measure=_NAME, scores=found, groups=groups, rows=paired)


def _mean(measure: Sensitivity, values: torch.Tensor, confidence: float, facts: dict[str, object]) -> Score:
    count, mean = len(values), float(values.mean())
    details = facts | {"smallest": float(values.min()), "largest": float(values.max())}
    if count == 1:
        return _score(measure, mean, n=1, note="one example, so no interval", details=details)
    spread = float(values.std())
    reach = float(scipy.stats.t.isf((1 - confidence) / 2, count - 1)) * spread / math.sqrt(count)
    note = f"only {count} examples: the interval may miss a skewed population" if count < _SKEWED else ""
    interval = (max(0.0, mean - reach), mean + reach)
    return _score(measure, mean, n=count, interval=interval, note=note, details=details | {"std": spread})


def _without_value(measure: Sensitivity, why: Score, facts: dict[str, object]) -> Score:
    return _score(measure, None, outcome=why.outcome, note=why.note, details=facts)


def _score(measure: Sensitivity, value: float | None, **rest: object) -> Score:
    return Score(
        name=_NAME,
        value=value,
        unit=measure._unit,
        leakier=measure.leakier,
        evidence=Evidence.ESTIMATE,
        **rest,  # type: ignore[arg-type]
    )


__all__ = ["mean_sensitivity", "sensitivity_profile"]

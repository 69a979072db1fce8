"""Closed-form measures of single layers, averaged over releases."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.stats
import torch
from torch import Tensor

from gradleak.core import Batch, DiagonalGaussian, Exposure, derive_generator
from gradleak.results import Evidence, Leakier, Outcome, Score
from gradleak.risk import (
    LayerProfile,
    Measure,
    PairedRows,
    Sensitivity,
    VisibleLayers,
    each_example,
    sensitivity_profile,
)

CONFIDENCE = 0.95
# Below so many releases Student's interval may miss the mean of a skewed population.
_FEW = 20


def averaged(
    measure: Measure,
    exposures: Sequence[Exposure],
    groups: Mapping[str, tuple[str, ...]],
    *,
    label: str,
    seed: int,
    max_bytes: int,
) -> LayerProfile:
    """The mean of a closed-form measure over releases, for every group of tensors, with Student's interval.

    `Sensitivity` is that of the group's rows of A; of other measures the group is all that is released. Groups are compared on
    the same releases (`LayerProfile.difference`).

    Args:
        measure: any.
        exposures: releases of one model, each independent.
        groups: names of tensors.
        label: of the profile.
        seed: of the noise that measures of a perturbation are given.
        max_bytes: memory budget.

    Raises:
        GradleakError: as the measure does.
    """
    single = all(exposure.batch.size == 1 for exposure in exposures)
    if isinstance(measure, Sensitivity):
        chosen = replace(measure, by={name: list(members) for name, members in groups.items()})
        if single:
            found = sensitivity_profile(_together(exposures), chosen, max_bytes=max_bytes)
            return replace(found, measure=label)
        whole = [chosen(exposure) for exposure in exposures]
        return _profile(label, groups, {name: [_of_group(score, name) for score in whole] for name in groups})
    drawn = _noise(measure, exposures, seed)
    if isinstance(drawn, str):
        lost = measure.unsupported(drawn)
        return LayerProfile(measure=label, scores=dict.fromkeys(groups, lost), groups=groups)
    of_each = {}
    for name, members in groups.items():
        sets = VisibleLayers(names=members)
        deltas = [None if delta is None else {one: delta[one] for one in sets.names} for delta in drawn]
        visible = [sets.exposure(exposure) for exposure in exposures]
        if single:
            given = None if deltas[0] is None else [delta for delta in deltas if delta is not None]
            of_each[name] = each_example(measure, _together(visible), given, max_bytes=max_bytes)
        else:
            of_each[name] = [measure(one, delta=delta) for one, delta in zip(visible, deltas, strict=True)]
    return _profile(label, groups, of_each)


def _profile(label: str, groups: Mapping[str, tuple[str, ...]], of_each: Mapping[str, Sequence[Score]]) -> LayerProfile:
    """The means of every group, with what every release contributes."""
    scores = {name: _mean_of(found) for name, found in of_each.items()}
    known = [name for name, score in scores.items() if score.value is not None]
    values = {name: np.array([score.value for score in of_each[name]], dtype=np.float64) for name in known}
    rows = None
    if known and len(values[known[0]]) > 1 and all(np.isfinite(one).all() for one in values.values()):
        rows = PairedRows(values=values, clusters=np.arange(len(values[known[0]])), confidence=CONFIDENCE)
    return LayerProfile(measure=label, scores=scores, groups=groups, rows=rows)


def without_value(measure: Any, outcome: Outcome, note: str) -> Score:
    """The score of a measure of layers that could not be taken.

    Args:
        measure: of any kind.
        outcome: why.
        note: why, in words.
    """
    leakier = getattr(measure, "leakier", Leakier.HIGHER)
    name = "mean_sensitivity" if isinstance(measure, Sensitivity) else str(measure.name)
    unit = str(getattr(measure, "_unit", "nats"))
    return Score(
        name=name, value=None, unit=unit, leakier=leakier, evidence=Evidence.ESTIMATE, outcome=outcome, note=note
    )


def _together(exposures: Sequence[Exposure]) -> Exposure:
    """Releases of single examples as one exposure of them all."""
    batches = [exposure.batch for exposure in exposures]
    batch = Batch(
        torch.cat([batch.inputs for batch in batches]),
        torch.cat([batch.targets for batch in batches]),
        batches[0].domain,
    )
    return replace(exposures[0], batch=batch)


def _noise(measure: Measure, exposures: Sequence[Exposure], seed: int) -> list[Mapping[str, Tensor] | None] | str:
    """What noise did to each release, for measures that ask for it; why there is none otherwise."""
    if not measure.needs_delta:
        return [None] * len(exposures)
    if not isinstance(exposures[0].noise, DiagonalGaussian):
        return (
            f"{type(measure).__name__} predicts what noise of the release does, and this one has none that is Gaussian"
        )
    found: list[Mapping[str, Tensor] | None] = []
    for place, exposure in enumerate(exposures):
        objective = exposure.objective
        generator = derive_generator(seed, str(place), device=objective.device)
        update = objective.flatten(exposure.release(objective, exposure.batch, generator).tensors).double()
        found.append(objective.unflatten(update - exposure.to(torch.float64).released_mean()))
    return found


def _of_group(score: Score, group: str) -> Score:
    """The norm of one group from the score of all; a release without a derivative counts with 0."""
    if score.value is None and score.outcome is not Outcome.NOT_INFORMATIVE:
        return replace(score, name="mean_sensitivity")
    value = 0.0 if score.value is None else float(score.details["values"][group])
    return replace(score, name="mean_sensitivity", value=value, outcome=Outcome.CONVERGED, details={}, note="")


def _mean_of(scores: Sequence[Score]) -> Score:
    """One score of many: without a value where one has none, or leaves directions of its input unseen."""
    first = scores[0]
    facts = {"releases": len(scores), "of_each": str(first.evidence)}
    lost = [score for score in scores if score.value is None]
    if lost:
        few = "" if len(lost) == len(scores) else f"{len(lost)} of {len(scores)} releases have no value: "
        return _without(lost[0], lost[0].outcome, few + lost[0].note, facts)
    partial = [score for score in scores if score.outcome is Outcome.NOT_IDENTIFIABLE]
    values = [float(score.value) for score in scores if score.value is not None]
    mean = math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.inf
    if partial:
        facts |= {"over_range": mean, "null_dimension": partial[0].details.get("null_dimension")}
        return _without(first, Outcome.NOT_IDENTIFIABLE, partial[0].note, facts)
    if len(scores) == 1:
        return replace(first, details={**first.details, **facts})
    interval = None
    if math.isfinite(mean):
        spread = float(torch.tensor(values, dtype=torch.float64).std())
        reach = float(scipy.stats.t.isf((1 - CONFIDENCE) / 2, len(values) - 1)) * spread / math.sqrt(len(values))
        low = max(0.0, mean - reach) if min(values) >= 0.0 else mean - reach
        interval = (low, mean + reach)
        facts |= {"std": spread, "smallest": min(values), "largest": max(values)}
    outcome = next((score.outcome for score in scores if score.outcome is not Outcome.CONVERGED), Outcome.CONVERGED)
    note = f"only {len(values)} releases: the interval may miss a skewed population" if len(values) < _FEW else ""
    return replace(
        first,
        value=mean,
        evidence=Evidence.ESTIMATE,
        interval=interval,
        n=len(values),
        outcome=outcome,
        note=note,
        details=facts | {"confidence": CONFIDENCE},
    )


def _without(score: Score, outcome: Outcome, note: str, facts: Mapping[str, Any]) -> Score:
    return replace(
        score,
        value=None,
        evidence=Evidence.ESTIMATE,
        interval=None,
        n=int(facts["releases"]),
        outcome=outcome,
        note=note,
        details=dict(facts),
    )


__all__ = ["averaged", "without_value"]

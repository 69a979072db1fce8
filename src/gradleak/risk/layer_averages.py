"""Means over releases of what was measured of every layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.stats
import torch

from gradleak.core import Batch, Exposure
from gradleak.results import Evidence, Outcome, Score
from gradleak.risk.layer_profile import LayerProfile
from gradleak.risk.paired_rows import PairedRows

CONFIDENCE = 0.95
# The number of releases behind a mean, among its details.
RELEASES = "releases"
# Below so many releases Student's interval may miss the mean of a skewed population.
_FEW = 20


def mean_profile(
    label: str, groups: Mapping[str, tuple[str, ...]], of_each: Mapping[str, Sequence[Score]]
) -> LayerProfile:
    """The mean over releases for every group of tensors, with Student's interval and what every release contributes.

    Groups are compared on the same releases (`LayerProfile.difference`).

    Args:
        label: of the profile.
        groups: names of tensors.
        of_each: the score of every release, by group.
    """
    scores = {name: _mean_of(found) for name, found in of_each.items()}
    known = [name for name, score in scores.items() if score.value is not None]
    values = {name: np.array([score.value for score in of_each[name]], dtype=np.float64) for name in known}
    rows = None
    if known and len(values[known[0]]) > 1 and all(np.isfinite(one).all() for one in values.values()):
        rows = PairedRows(values=values, clusters=np.arange(len(values[known[0]])), confidence=CONFIDENCE)
    return LayerProfile(measure=label, scores=scores, groups=groups, rows=rows)


def together(exposures: Sequence[Exposure]) -> Exposure:
    """Releases of single examples as one exposure of them all.

    Args:
        exposures: of one model, each of one example.
    """
    batches = [exposure.batch for exposure in exposures]
    batch = Batch(
        torch.cat([batch.inputs for batch in batches]),
        torch.cat([batch.targets for batch in batches]),
        batches[0].domain,
    )
    return replace(exposures[0], batch=batch)


def _mean_of(scores: Sequence[Score]) -> Score:
    """One score of many: without a value where one has none, or leaves directions of its input unseen."""
    first = scores[0]
    facts = {RELEASES: len(scores), "of_each": str(first.evidence)}
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
        n=int(facts[RELEASES]),
        outcome=outcome,
        note=note,
        details=dict(facts),
    )

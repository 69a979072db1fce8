"""Reaction of each layer of a release to the input, of one exposure and averaged over examples."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, ClassVar

import numpy as np
import scipy
import torch
from torch import Tensor

from gradleak.core import Exposure, Objective
from gradleak.linalg import TraceEstimate, group_squared_norms
from gradleak.operators import DENSE_LIMIT, DerivativeCheck, GradientJacobian
from gradleak.results import (
    MO_2021,
    Citation,
    Evidence,
    InputError,
    Leakier,
    Natural,
    Outcome,
    Score,
    Seed,
    Whole,
    check_share,
)
from gradleak.risk.layer_exposure import Partition
from gradleak.risk.layer_measure import mean_profile, together
from gradleak.risk.layer_profile import Groups, LayerProfile, LayerScale, LayerSite, PairedRows
from gradleak.risk.measure import Measure, each_example

_NAME = "mean_sensitivity"
_SKEWED = 20


class JacobianNorm(StrEnum):
    """A norm of A_l: Frobenius, or induced by the 1-norm or the maximum norm."""

    FROBENIUS = "frobenius"
    ONE = "one"
    INF = "inf"


@dataclass(frozen=True, kw_only=True)
class Sensitivity(Measure):
    """The largest norm ‖A_l‖ over the tensors, layers or named groups l of a release; all of them are in the details.

    A_l (P_l, d) are the rows of A = ∂g/∂x that belong to l. `frobenius` is √Σ aᵢⱼ², `one` the largest column sum of
    |aᵢⱼ| (how much one pixel moves the layer), `inf` the largest row sum (how much all pixels move one entry).

    Assumptions: exact, to first order at the truth, in model-input units: channels with another normalization weigh
    differently. It measures that a layer reacts, not that the reaction can be inverted: large layers have large norms.
    Beyond `dense_limit` the Frobenius norms are estimates from random products, each with an interval of 95 %
    (Student) for its sampling; the largest of several estimates is on average a little too large. The other two norms
    have no such short cut and stay exact at any size.

    Args:
        norm: `frobenius`, `one` or `inf`.
        by: `tensor`, `layer` (what precedes the last dot of a parameter's name), or named groups of parameter names.
        dense_limit: largest d for which Frobenius norms are exact.
        samples: random products beyond it, at least 2.
        seed: of the random products.

    Raises:
        InputError: for another norm or grouping, an empty group, too few samples, or (when measured) an unknown
            parameter.

    Cost: d JVPs in blocks (P VJPs where P < d), or one pass over A where it is held; A need not fit in memory. Beyond
    `dense_limit`, `samples` JVPs for the Frobenius norm.

    Source: Mo et al. 2021, equations 10 and 11. Deviation: one exposure has one value; `mean_sensitivity` averages over
    examples. The estimate is Hutchinson's (1989) for A_lᵀA_l.
    """

    name: ClassVar[str] = "sensitivity"
    citations: ClassVar[tuple[Citation, ...]] = (MO_2021,)
    summary: ClassVar[str] = "norm of the derivative of each layer's gradient with respect to the input"
    leakier: ClassVar[Leakier] = Leakier.HIGHER
    needs_every_layer: ClassVar[bool] = False

    norm: JacobianNorm | str = JacobianNorm.FROBENIUS
    by: Partition | str | Mapping[str, Sequence[str]] = Partition.TENSOR
    dense_limit: Natural = DENSE_LIMIT
    samples: Annotated[int, Whole(2)] = 64
    seed: Seed = 0

    def __post_init__(self) -> None:
        """Check what depends on more than one field."""
        super().__post_init__()
        if isinstance(self.by, Mapping) and (not self.by or not all(self.by.values())):
            raise InputError(f"by: expected groups such as {{'head': ['9.weight', '9.bias']}}, got {self.by!r}")

    @property
    def assumed_noise(self) -> str:
        """Its own, in place of that of the release."""
        return "no noise"

    @property
    def layer_name(self) -> str:
        """Layer name of the mean over releases."""
        return _NAME

    @property
    def variant(self) -> str:
        """The norm."""
        return str(self.norm)

    def layer_cost(self, scale: LayerScale) -> float:
        """One product an unknown and release, for all layers together."""
        return scale.releases * scale.unknowns * (1 + scale.sets)

    def _over_releases(
        self, site: LayerSite, groups: Groups, exposures: Sequence[Exposure], check: DerivativeCheck | None
    ) -> LayerProfile:
        """The norms of the groups' rows of A: all of them are had at once."""
        chosen = replace(self, by={name: list(members) for name, members in groups.items()})
        if all(exposure.batch.size == 1 for exposure in exposures):
            found = sensitivity_profile(together(exposures), chosen, max_bytes=site.max_bytes, check=check)
            return replace(found, measure=site.label)
        whole = [chosen(exposure, operator=GradientJacobian(exposure, check=check)) for exposure in exposures]
        of_each = {name: [_of_group(score, name) for score in whole] for name in groups}
        return mean_profile(site.label, groups, of_each)

    @property
    def _unit(self) -> str:
        return "gradient/input"

    def check(self, objective: Objective) -> None:
        """Refuse groups that name parameters which the model does not share.

        Raises:
            InputError: with the nearest name that there is.
        """
        self._groups(list(objective.params))

    def _measure(self, exposure: Exposure, delta: Tensor | None, operator: GradientJacobian) -> Score:
        groups = self._groups(list(exposure.objective.params))
        if self.norm == JacobianNorm.FROBENIUS and operator.shape[1] > self.dense_limit:
            return self._by_sampling(exposure, operator, groups)
        parts = self._by_tensor(exposure, operator)
        values = {group: self._of_group([parts[name] for name in names]) for group, names in groups.items()}
        if not all(torch.isfinite(part).all() for part in parts.values()):
            return self._not_finite()
        leakiest = max(values, key=lambda group: values[group])
        if values[leakiest] == 0.0:
            return self._zero_map(operator)
        return self._score(
            values[leakiest],
            Evidence.EXACT,
            note=f"the largest of {len(values)}: {leakiest}",
            details=self._details(operator, leakiest, values),
        )

    def _by_sampling(
        self, exposure: Exposure, operator: GradientJacobian, groups: Mapping[str, Sequence[str]]
    ) -> Score:
        sizes = [tensor.numel() for tensor in exposure.objective.params.values()]
        ends = torch.tensor(sizes).cumsum(0).tolist()
        rows = {
            name: slice(end - size, end) for name, size, end in zip(exposure.objective.params, sizes, ends, strict=True)
        }
        held = operator.shape[0] * operator.value.element_size()
        found = group_squared_norms(
            operator,
            [[rows[name] for name in names] for names in groups.values()],
            generator=torch.Generator().manual_seed(self.seed),
            samples=self.samples,
            # A Z and its square.
            block=max(1, min(self.samples, operator.max_bytes // (2 * held))),
        )
        by_group = dict(zip(groups, found, strict=True))
        if any(estimate.value is None for estimate in found):
            return self._not_finite()
        values = {group: math.sqrt(estimate.value or 0.0) for group, estimate in by_group.items()}
        leakiest = max(values, key=lambda group: values[group])
        if values[leakiest] == 0.0:
            return self._zero_map(operator)
        intervals = {group: _root_interval(estimate) for group, estimate in by_group.items()}
        return self._score(
            values[leakiest],
            Evidence.ESTIMATE,
            interval=intervals[leakiest],
            n=self.samples,
            note=f"the largest of {len(values)}: {leakiest}; d = {operator.shape[1]} is above {self.dense_limit}, so from "
            f"{self.samples} random products",
            details=self._details(operator, leakiest, values)
            | {"intervals": intervals, "solver": "Hutchinson", "samples": self.samples},
        )

    def _details(self, operator: GradientJacobian, leakiest: str, values: Mapping[str, float]) -> dict[str, Any]:
        return {
            "norm": str(self.norm),
            "by": "groups" if isinstance(self.by, Mapping) else str(self.by),
            "leakiest": leakiest,
            "values": values,
            "route": operator.route,
        }

    def _not_finite(self) -> Score:
        return self._without_value(Outcome.NOT_FINITE, "the derivative of the release is not finite")

    def _groups(self, names: list[str]) -> dict[str, list[str]]:
        if isinstance(self.by, Mapping):
            for group, members in self.by.items():
                for name in members:
                    if name not in names:
                        near = difflib.get_close_matches(name, names, n=1, cutoff=0.0)[0]
                        raise InputError(f"by: group {group!r} names {name!r}, no shared tensor; is it {near!r}?")
            return {group: list(dict.fromkeys(members)) for group, members in self.by.items()}
        groups: dict[str, list[str]] = {}
        for name in names:
            layer = name.rpartition(".")[0] or "(root)"
            groups.setdefault(name if self.by == Partition.TENSOR else layer, []).append(name)
        return groups

    def _by_tensor(self, exposure: Exposure, operator: GradientJacobian) -> dict[str, Tensor]:
        """Contribution of each tensor: its sum of squares (), its column sums (d,) or its row sums (P_l,)."""
        params = exposure.objective.params
        sizes = [tensor.numel() for tensor in params.values()]
        row_sums = operator.value.new_zeros(operator.shape[0])
        column_sums = operator.value.new_zeros(len(sizes), operator.shape[1] if self.norm == JacobianNorm.ONE else 0)
        owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)).to(row_sums.device)
        by_rows = operator.shape[0] < operator.shape[1]
        start = 0
        for block in operator.row_blocks() if by_rows else operator.column_blocks():
            size = block.abs() if self.norm != JacobianNorm.FROBENIUS else block**2
            here = slice(start, start + block.shape[0 if by_rows else 1])
            start = here.stop
            if self.norm != JacobianNorm.ONE:
                row_sums[here if by_rows else slice(None)] += size.sum(dim=1)
            elif by_rows:
                column_sums.index_add_(0, owner[here], size)
            else:
                column_sums[:, here].index_add_(0, owner, size)
        if self.norm == JacobianNorm.ONE:
            return dict(zip(params, column_sums, strict=True))
        by_row = dict(zip(params, row_sums.split(sizes), strict=True))
        if self.norm == JacobianNorm.INF:
            return by_row
        return {name: part.sum() for name, part in by_row.items()}

    def _of_group(self, parts: list[Tensor]) -> float:
        if self.norm == JacobianNorm.FROBENIUS:
            return float(torch.stack(parts).sum().sqrt())
        if self.norm == JacobianNorm.ONE:
            return float(torch.stack(parts).sum(dim=0).max())
        return max(float(part.max()) for part in parts)


def _root_interval(squared: TraceEstimate) -> tuple[float, float]:
    """The interval of the norm from that of its square."""
    assert squared.interval is not None
    low, high = squared.interval
    return math.sqrt(max(low, 0.0)), math.sqrt(max(high, 0.0))


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
    check: DerivativeCheck | None = None,
) -> LayerProfile:
    """The same scores ranked, with what every example contributes, so that layers are compared on the same examples.

    `LayerProfile.difference` has the paired intervals. A layer of more entries has a larger norm, so that one layer can
    react more than another and tell less.

    Args:
        exposure: as `mean_sensitivity`.
        measure: as `mean_sensitivity`.
        confidence: of the intervals, and of those of differences.
        max_bytes: memory budget.
        check: as `each_example`.

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
    scores = each_example(measure, exposure, max_bytes=max_bytes, check=check)
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


def _of_group(score: Score, group: str) -> Score:
    """The norm of one group from the score of all; a release without a derivative counts with 0."""
    if score.value is None and score.outcome is not Outcome.NOT_INFORMATIVE:
        return replace(score, name=_NAME)
    value = 0.0 if score.value is None else float(score.details["values"][group])
    return replace(score, name=_NAME, value=value, outcome=Outcome.CONVERGED, details={}, note="")

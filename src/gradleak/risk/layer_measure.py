"""Measures that are taken layer by layer: of one exposure, of averages over a data set, and of gradients of many rows."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import numpy as np
import scipy
import torch
from torch import Tensor

from gradleak.core import Batch, Exposure, Knowledge
from gradleak.results import Citation, Evidence, GradleakError, InputError, Leakier, Outcome, Score, Settings
from gradleak.risk.layer_exposure import VisibleLayers, layer_groups
from gradleak.risk.layer_profile import Groups, LayerProfile, LayerScale, LayerSite, PairedRows

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


class LayerMeasure(Settings, ABC):
    """A number for each layer of a release, or each group of tensors, with what an audit has to know of the measure.

    Authors write `by_layer` and `layer_cost`; everything else has a default that asks for nothing and claims nothing.
    A profile has paired intervals where the measure says what every row or release contributes (`LayerProfile.rows`).

    Attributes:
        name: the name of the scores.
        citations: where the measure comes from.
        summary: one line for listings.
        leakier: which direction leaks.
        reads_told: whether it reads gradients of many rows and what is told of each (an attribute, labels, inputs). Shuffled
            attributes are then its null control.
        needs_values: whether what is told has to have values (an attribute, labels), which inputs have none of.
        most_values: how many values there may be, None for any number.
        needs_every_layer: whether layers can be compared only where all of them have a value.
    """

    name: ClassVar[str]
    citations: ClassVar[tuple[Citation, ...]]
    summary: ClassVar[str]
    leakier: ClassVar[Leakier] = Leakier.HIGHER
    reads_told: ClassVar[bool] = False
    needs_values: ClassVar[bool] = False
    most_values: ClassVar[int | None] = None
    needs_every_layer: ClassVar[bool] = False

    @abstractmethod
    def by_layer(self, site: LayerSite, groups: Groups) -> LayerProfile:
        """The profile over groups of tensors, called as the site's label.

        Args:
            site: objective, release and rows.
            groups: names of tensors.

        Raises:
            GradleakError: where the measure and the release do not fit together.
        """

    @abstractmethod
    def layer_cost(self, scale: LayerScale) -> float:
        """The cost of the profiles of one release in plain gradients of a row, roughly.

        Args:
            scale: how much there is to measure.
        """

    def apart(self, scale: LayerScale) -> bool:
        """True if every group may as well be measured by itself, on another machine: same scores, little done twice.

        Args:
            scale: how much there is to measure.
        """
        return False

    def by_visible(self, site: LayerSite, visible: Mapping[str, VisibleLayers]) -> LayerProfile:
        """The profile over sets of visible tensors: each as if nothing else were released, so that they may be taken apart.

        Args:
            site: objective, release and rows; of all tensors.
            visible: sets by name, at least one.
        """
        scores = {}
        for name, sets in visible.items():
            try:
                seen = site.seen(sets)
                groups = layer_groups(list(seen.objective.params), {name: sets.names})
                scores[name] = self.by_layer(seen, groups).scores[name]
            except GradleakError as refusal:
                scores[name] = self.without_layer(Outcome.UNSUPPORTED, str(refusal))
        groups = {name: sets.names for name, sets in visible.items()}
        return LayerProfile(measure=site.label, scores=scores, groups=groups)

    @property
    def layer_name(self) -> str:
        """The name of the scores of layers."""
        return self.name

    @property
    def assumed_noise(self) -> str:
        """The noise that a value is for, in words, whatever that of the release is; "" where that of the release counts."""
        return ""

    @property
    def variant(self) -> str:
        """Variant that tells this measure from others of its name, "" for nothing."""
        return ""

    @property
    def layer_parts(self) -> tuple[object, ...]:
        """Parts that have sources of their own: an attack, a classifier."""
        return ()

    @property
    def public_inputs(self) -> Tensor | None:
        """Public examples (n, ...) that the measure rests on; an audit sees to it that no private one is among them."""
        return None

    def obstacle(self, batch: Batch) -> str:
        """Reason why the measure is not defined for such examples, and what to do in a plan; "" where it is.

        Args:
            batch: examples of a release.
        """
        return ""

    def refusal(self, known: Knowledge) -> str:
        """Reason why nothing can be measured against an adversary with such knowledge, on any layer; "" where it can.

        Args:
            known: about the whole release.
        """
        return ""

    def without_layer(self, outcome: Outcome, note: str) -> Score:
        """The score of a layer that could not be measured.

        Args:
            outcome: why.
            note: why, in words.
        """
        return Score(
            name=self.layer_name,
            value=None,
            unit=self._unit,
            leakier=self.leakier,
            evidence=Evidence.ESTIMATE,
            outcome=outcome,
            note=note,
        )

    def refused(self, label: str, groups: Groups, reason: str) -> LayerProfile:
        """The profile of a measure that could not be taken: no group has a value, and the reason is told.

        Args:
            label: of the profile.
            groups: the tensors of every group.
            reason: as the measure gives it.
        """
        lost = self.without_layer(Outcome.UNSUPPORTED, reason)
        return LayerProfile(measure=label, scores=dict.fromkeys(groups, lost), groups=dict(groups))

    @property
    def _unit(self) -> str:
        """The unit of the scores."""
        return "nats"


# Columns of a layer that are brought into float64 at a time.
_BLOCK = 2**16


@dataclass(frozen=True, kw_only=True)
class GradientMeasure(LayerMeasure):
    """A number for each layer, from its gradients on many examples or batches, or a named outcome where there is none.

    The defender's side: it holds gradients and what may leak from them. Layers are whatever the names stand for: one
    tensor, one layer, or any group of tensors whose gradients are put side by side. Authors write `_measure`.
    """

    reads_told: ClassVar[bool] = True

    @final
    def __call__(
        self, gradients: Mapping[str, Tensor], target: Tensor, *, generator: torch.Generator | None = None
    ) -> dict[str, Score]:
        """The score of each layer, in the order of `gradients`.

        Args:
            gradients: by layer, (n, P_l): one row an example (or a batch), the same rows in every layer.
            target: (n, ...) what may leak, one entry a row.
            generator: of all random numbers; None is a fresh one with seed 0. Every layer meets the same ones.

        Raises:
            InputError: for no layer, a layer that is no real matrix, other numbers of rows, or a target that the
                measure cannot take.
        """
        if not isinstance(gradients, Mapping) or not gradients:
            raise InputError(f"gradients: expected matrices by layer, got {type(gradients).__name__} without any")
        if not isinstance(target, Tensor) or target.dim() == 0:
            raise InputError(f"target: expected a tensor with one entry a row, got {type(target).__name__}")
        if not isinstance(generator, torch.Generator | None):
            raise InputError(f"generator: expected a torch.Generator or None, got {type(generator).__name__}")
        for layer, matrix in gradients.items():
            if not isinstance(matrix, Tensor) or matrix.dim() != 2 or not matrix.is_floating_point():
                what = tuple(matrix.shape) if isinstance(matrix, Tensor) else type(matrix).__name__
                raise InputError(f"gradients[{layer!r}]: expected a real matrix (n, P_l), got {what}")
            if matrix.shape[0] != target.shape[0] or matrix.shape[1] == 0:
                raise InputError(
                    f"gradients[{layer!r}]: expected {target.shape[0]} rows, one for each entry of target, and at "
                    f"least one column, got {tuple(matrix.shape)}"
                )
        self._check(target)
        draws = generator or torch.Generator().manual_seed(0)
        seed = int(torch.randint(2**31, (), generator=draws))
        return {layer: self._layer(matrix.detach(), target.detach(), seed) for layer, matrix in gradients.items()}

    def by_layer(self, site: LayerSite, groups: Groups) -> LayerProfile:
        """The scores of the site's gradients."""
        scores = self(site.gradients(groups), site.target, generator=site.draws)
        return LayerProfile(measure=site.label, scores=scores, groups=groups)

    def layer_cost(self, scale: LayerScale) -> float:
        """One gradient a row, each time that they are read."""
        return scale.rows * (1 + scale.null + scale.sets)

    def apart(self, scale: LayerScale) -> bool:
        """True where the gradients are quickly taken again for every group."""
        return scale.few

    @abstractmethod
    def _check(self, target: Tensor) -> None:
        """Refuse a target that the measure cannot take.

        Raises:
            InputError: for such a target.
        """

    @abstractmethod
    def _measure(self, matrix: Tensor, target: Tensor, generator: torch.Generator) -> Score:
        """The score of one layer with finite gradients that are not all zero; all random numbers come from `generator`."""

    @property
    @abstractmethod
    def _unit(self) -> str:
        """The unit of the scores."""

    def _layer(self, matrix: Tensor, target: Tensor, seed: int) -> Score:
        facts = {"rows": matrix.shape[0], "entries": matrix.shape[1]}
        if not bool(torch.isfinite(matrix).all()):
            return self._without_value(Outcome.NOT_FINITE, "the gradients have NaN or infinite entries", **facts)
        if not bool(matrix.any()):
            return self._without_value(Outcome.NO_SIGNAL, "the gradients of this layer are zero", **facts)
        return self._measure(matrix, target, torch.Generator().manual_seed(seed))

    def _score(self, value: float | None, **rest: Any) -> Score:
        return Score(
            name=self.name,
            value=value,
            unit=self._unit,
            leakier=self.leakier,
            evidence=Evidence.ESTIMATE,
            **rest,
        )

    def _without_value(self, outcome: Outcome, note: str, **details: Any) -> Score:
        return self._score(None, outcome=outcome, note=note, n=int(details.get("rows", 1)), details=details)


def coordinates(rows: Tensor) -> Tensor:
    """The rows (n, P) in an orthonormal basis of what they span, (n, min(n, P)) float64, on the CPU.

    With the QR factorization rowsᵀ = QR these are the columns of R, which is built block by block.
    """
    factor = rows.new_zeros((0, rows.shape[0]), dtype=torch.float64)
    for block in rows.T.split(_BLOCK):
        factor = torch.linalg.qr(torch.cat([factor, block.double()]), mode="r").R
    return factor.T.cpu()

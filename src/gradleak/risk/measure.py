"""Base of every closed-form measure, taken of each example, of each layer, of what is visible."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from gradleak.core import Batch, DiagonalGaussian, Exposure, NotGaussian, Objective, derive_generator
from gradleak.linalg import relative_round_off
from gradleak.operators import DerivativeCheck, GradientJacobian, check_derivative, example_operators
from gradleak.results import Evidence, InputError, Leakier, Outcome, Score
from gradleak.risk.layer_exposure import VisibleLayers
from gradleak.risk.layer_measure import LayerMeasure, mean_profile, together
from gradleak.risk.layer_profile import Groups, LayerProfile, LayerScale, LayerSite
from gradleak.risk.unseen_words import modulo_unseen

Delta = Tensor | Mapping[str, Tensor]
# A number with a larger bound on its relative error (three digits) is an estimate, however it was computed.
EXACT_TO = 1e-3


class Unit(StrEnum):
    """Space in which a reconstruction error is stated.

    `input` is the formula's own value, a norm in model-input units; where the formula is a squared error, scores say
    `input^2`.
    `pixel_rmse` is a root mean squared error over the d entries, in pixels scaled to [0, 1], with the normalization
    undone.
    """

    INPUT = "input"
    PIXEL_RMSE = "pixel_rmse"

    @property
    def squared(self) -> str:
        """The unit of a score whose formula is a squared error, of which `pixel_rmse` takes the root."""
        return "input^2" if self is Unit.INPUT else str(self)


@dataclass(frozen=True, kw_only=True)
class Measure(LayerMeasure):
    """A number that is computed from an exposure in closed form, or a named outcome where there is none.

    Authors write `_measure`; the public call checks the perturbation, prepares everything in float64 and never
    changes the exposure. What reads a derivative that differences contradict, or that is infinite, has no value; what
    reads one that they do not confirm is an estimate. Of layers it is the mean over releases of which a layer is all
    that is seen: an error over the directions that one layer sees cannot be compared with one over others, so a layer
    that leaves directions unseen has no value there.

    Of sentences A is taken at the embeddings of their words (`Exposure.at_embeddings`).

    Attributes:
        needs_delta: whether a perturbation of the release must be given.
        reads_derivative: whether A is used at all, not the released mean alone.
        reads_ids: whether it is taken of the ids of a sentence, in `_of_ids`, with no derivative at all.
    """

    leakier: ClassVar[Leakier] = Leakier.LOWER
    needs_every_layer: ClassVar[bool] = True
    needs_delta: ClassVar[bool] = False
    reads_derivative: ClassVar[bool] = True
    reads_ids: ClassVar[bool] = False

    @final
    def __call__(
        self, exposure: Exposure, *, delta: Delta | None = None, operator: GradientJacobian | None = None
    ) -> Score:
        """The score of this measure on an exposure.

        Args:
            exposure: objective, private batch and release.
            delta: the perturbation of the release, (P,) or tensors by name; needed if `needs_delta`, else unused.
            operator: A of this exposure, or of one that differs by its noise alone, to reuse what it has computed.

        Raises:
            InputError: for a missing delta, a delta of the wrong size or names, or the operator of another batch,
                model or release, or errors in pixels of a batch without a domain.
            UnsupportedError: if the release cannot be differentiated.

        Cost: besides its own, that of `GradientJacobian.check` where the operator has none yet.
        """
        return self.scores(exposure, delta=delta, operator=operator)[0]

    @final
    def scores(
        self, exposure: Exposure, *, delta: Delta | None = None, operator: GradientJacobian | None = None
    ) -> list[Score]:
        """The score of a call, and what else comes out of the same computation, which most measures have nothing of.

        Args:
            exposure: as in a call.
            delta: as in a call.
            operator: as in a call.

        Raises:
            InputError: as a call.
            UnsupportedError: as a call.
        """
        if not isinstance(exposure, Exposure):
            raise InputError(f"{type(self).__name__}: expected an Exposure, got {type(exposure).__name__}")
        if not isinstance(operator, GradientJacobian | None):
            raise InputError(f"operator: expected a GradientJacobian or None, got {type(operator).__name__}")
        if getattr(self, "unit", None) == Unit.PIXEL_RMSE:
            exposure.batch.declared_domain()
        if self.needs_delta and delta is None:
            raise InputError(
                f"{type(self).__name__} needs delta, the perturbation of the release: expected "
                f"{exposure.objective.size} entries, got None; for noise that was drawn pass the flat update minus "
                "exposure.released_mean()"
            )
        if self.reads_ids:
            return [_of_chance(score, exposure) for score in self._of_ids(exposure)]
        told, exposure = exposure, exposure.at_embeddings()
        flat = None
        if self.needs_delta and delta is not None:
            flat = flat_perturbation(exposure, delta, "delta")
            if not bool(torch.isfinite(flat).all()):
                return [self._without_value(Outcome.NOT_FINITE, "the perturbation has NaN or infinite entries")]
        if operator is None:
            operator = GradientJacobian(exposure)
        else:
            check_operator(exposure, operator)
        flat = None if flat is None else flat.to(operator.dtype)
        if not self.reads_derivative:
            return [_of_chance(score, exposure) for score in self._measures(exposure, flat, operator)]
        check = operator.check
        if check.refusal:
            return [self._without_value(outcome_of(check), check.refusal)]
        found = [earned(score, check) for score in self._measures(exposure, flat, operator)]
        found = [_of_chance(_of_precision(score, operator.dtype), exposure) for score in found]
        return found if told is exposure else [modulo_unseen(score, told, operator) for score in found]

    def by_layer(self, site: LayerSite, groups: Groups) -> LayerProfile:
        """The means over the site's releases, with Student's intervals, once their derivative was checked."""
        exposures = site.exposures
        if not self.reads_derivative:
            return self._over_releases(site, groups, exposures, None)
        check = check_derivative(exposures[0], generator=derive_generator(site.seed, "derivative"))
        if check.refusal:
            return self.refused(site.label, groups, check.refusal)
        return self._over_releases(site, groups, exposures, check)

    def layer_cost(self, scale: LayerScale) -> float:
        """One product an unknown, release and layer."""
        return scale.releases * scale.unknowns * (scale.groups + scale.sets)

    @property
    def variant(self) -> str:
        """The unit, or the metric, that it is stated in, where it has one."""
        return str(getattr(self, "metric", getattr(self, "unit", "")))

    def _over_releases(
        self, site: LayerSite, groups: Groups, exposures: Sequence[Exposure], check: DerivativeCheck | None
    ) -> LayerProfile:
        """The profile of releases whose derivative was checked."""
        drawn = self._perturbations(exposures, site.derived_seed("noise"))
        if isinstance(drawn, str):
            lost = self.unsupported(drawn)
            return LayerProfile(measure=site.label, scores=dict.fromkeys(groups, lost), groups=groups)
        of_each: dict[str, Sequence[Score]] = {}
        for name, members in groups.items():
            sets = VisibleLayers(names=members)
            deltas = [None if delta is None else {one: delta[one] for one in sets.names} for delta in drawn]
            visible = [sets.exposure(exposure) for exposure in exposures]
            if all(exposure.batch.size == 1 for exposure in exposures):
                given = None if deltas[0] is None else [delta for delta in deltas if delta is not None]
                of_each[name] = each_example(self, together(visible), given, max_bytes=site.max_bytes, check=check)
            else:
                of_each[name] = [
                    self(one, delta=delta, operator=GradientJacobian(one, check=check))
                    for one, delta in zip(visible, deltas, strict=True)
                ]
        return mean_profile(site.label, groups, of_each)

    def _perturbations(self, exposures: Sequence[Exposure], seed: int) -> list[Mapping[str, Tensor] | None] | str:
        """Perturbations of each release by noise, for measures that ask for it; the reason where there is none."""
        if not self.needs_delta:
            return [None] * len(exposures)
        if not isinstance(exposures[0].noise, DiagonalGaussian):
            return (
                f"{type(self).__name__} predicts what noise of the release does, and this one has none that is Gaussian"
            )
        found: list[Mapping[str, Tensor] | None] = []
        for place, exposure in enumerate(exposures):
            objective = exposure.objective
            generator = derive_generator(seed, str(place))
            update = objective.flatten(exposure.release(objective, exposure.batch, generator).tensors).double()
            found.append(objective.unflatten(update - exposure.to(torch.float64).released_mean()))
        return found

    def _measures(self, exposure: Exposure, delta: Tensor | None, operator: GradientJacobian) -> list[Score]:
        """The score of a call and what else comes out beside it; takes what `_measure` takes."""
        return [self._measure(exposure, delta, operator)]

    def _of_ids(self, exposure: Exposure) -> list[Score]:
        """The scores of a measure that `reads_ids`."""
        raise NotImplementedError(f"{type(self).__name__} reads no ids")

    @abstractmethod
    def _measure(self, exposure: Exposure, delta: Tensor | None, operator: GradientJacobian) -> Score:
        """The score; `delta` is flat, finite and in the dtype of `operator`, and not None if `needs_delta`."""

    def check(self, objective: Objective) -> None:
        """Refuse a model that this measure, as it is configured, does not fit, before anything is computed.

        Raises:
            InputError: saying what does not fit.
        """

    def predicts_noise(self, std: float) -> Unit | None:
        """The unit in which it states the error that Gaussian noise of this std makes; None where it states another thing.

        Args:
            std: of every entry.
        """
        return None

    def unsupported(self, reason: str) -> Score:
        """The score without a value, for a reason that lies outside of the measure."""
        return self._without_value(Outcome.UNSUPPORTED, reason)

    def extra_cost(self, batch: Batch) -> float:
        """Plain gradients that it takes beside products of the derivative.

        Args:
            batch: that is measured.
        """
        return 0.0

    def extra_seconds(self, batch: Batch, entries: int) -> float:
        """Processor seconds of work on numbers beside gradients, as `Task.seconds`.

        Args:
            batch: that is measured.
            entries: of the update.
        """
        return 0.0

    @property
    def _unit(self) -> str:
        """Unit of the scores."""
        return str(getattr(self, "unit", Unit.INPUT))

    def _score(self, value: float | None, evidence: Evidence, **rest: Any) -> Score:
        if value is not None and not math.isfinite(value):
            note = "the value is too large for a floating point number, or NaN"
            return self._without_value(Outcome.NOT_FINITE, note, **rest.get("details", {}))
        return Score(
            name=self.name,
            value=value,
            unit=str(self._unit),
            leakier=self.leakier,
            evidence=evidence,
            **rest,
        )

    def _without_value(self, outcome: Outcome, note: str, **details: Any) -> Score:
        return self._score(None, Evidence.ESTIMATE, outcome=outcome, note=note, details=details)

    def _zero_map(self, operator: GradientJacobian) -> Score:
        return self._without_value(
            Outcome.NOT_INFORMATIVE,
            "the derivative of the release with respect to the input is zero: to first order the release says nothing, "
            f"which is no evidence of safety ({operator.out_of_scale or 'a sign, a rounding or dead units look like this'})",
            null_dimension=operator.shape[1],
            rank=0,
        )

    def _too_large(self, operator: GradientJacobian, limit: int, remedy: str) -> Score:
        return self._without_value(
            Outcome.UNSUPPORTED,
            f"d = {operator.shape[1]} is above the limit of {limit} for a whole spectrum; {remedy}",
        )


def _of_chance(score: Score, exposure: Exposure) -> Score:
    """The score, an estimate where the client draws something: the mean was measured, and it sends another update."""
    chance = exposure.release.protocol.chance(exposure.batch.size)
    if chance is None or score.value is None:
        return score
    note = "; ".join(filter(None, [score.note, f"an estimate: {chance.reason}"]))
    return replace(score, evidence=Evidence.ESTIMATE, note=note)


def each_example(
    measure: Measure,
    exposure: Exposure,
    delta: Tensor | Sequence[Delta] | None = None,
    *,
    max_bytes: int = 2**30,
    lockstep: bool = True,
    check: DerivativeCheck | None = None,
) -> list[Score]:
    """The scores of independent exposures, one for each example of the batch, which share the parameters.

    This is not the joint exposure of the batch (`measure(exposure)`), where one release mixes all examples: here each
    example is a batch of its own. Small inputs are differentiated in lockstep, with the values of the loop.

    Args:
        measure: any measure.
        exposure: the examples as one batch, the objective and the release.
        delta: for measures that need it: one perturbation an example (b, P), a sequence of b, or one (P,) for all.
        max_bytes: memory budget.
        lockstep: False for the loop, one example after the other.
        check: of the derivative of this release, where it was made already; else it is made at the first example.

    Raises:
        InputError: for another number of perturbations, and as the measure does.

    Cost: that of the measure for each example; on an MLP 12-32-16-3 the matrices A of 64 examples take 13 ms in
    lockstep and 810 ms one by one.
    """
    if not isinstance(measure, Measure):
        raise InputError(f"each_example: expected a measure, got {type(measure).__name__}")
    if not isinstance(exposure, Exposure):
        raise InputError(f"each_example: expected an Exposure, got {type(exposure).__name__}")
    count = exposure.batch.size
    deltas: Sequence[Delta | None]
    if delta is None or (isinstance(delta, Tensor) and delta.dim() == 1):
        deltas = [delta] * count
    else:
        if not isinstance(delta, Tensor | Sequence) or (isinstance(delta, Tensor) and delta.dim() == 0):
            raise InputError(f"delta: expected one perturbation for each of {count} examples, got {_what(delta)}")
        deltas = list(delta)
        if len(deltas) != count:
            raise InputError(f"delta: expected one perturbation for each of {count} examples, got {len(deltas)}")
    side_by_side = lockstep and measure.reads_derivative
    operators = example_operators(exposure, max_bytes=max_bytes, lockstep=side_by_side, check=check)
    return [
        measure(operator.exposure, delta=one, operator=operator)
        for operator, one in zip(operators, deltas, strict=True)
    ]


def measure_visible(exposure: Exposure, visible: Mapping[str, VisibleLayers], measure: Measure) -> LayerProfile:
    """A closed-form measure of the visible part of a release, one score a set of visible tensors.

    Args:
        exposure: of the whole release.
        visible: sets by name, for instance `what_ifs(exposure.objective, exposure.domain)`.
        measure: one that needs no perturbation.

    Raises:
        InputError: for a measure that needs a perturbation of the release, no set, or unknown tensors.
        UnsupportedError: if the release cannot be differentiated, or looks at the batch after hiding.

    **Cost**: that of the measure, once a set.
    """
    if measure.needs_delta:
        raise InputError(
            f"measure_visible: expected a measure that needs no perturbation, got {type(measure).__name__}; call it with "
            "visible.exposure(exposure) and the perturbation of the visible tensors"
        )
    check = None
    if measure.reads_derivative:
        check = check_derivative(exposure, generator=torch.Generator().manual_seed(0))
    seen = {label: sets.exposure(exposure) for label, sets in visible.items()}
    scores = {label: measure(one, operator=GradientJacobian(one, check=check)) for label, one in seen.items()}
    return LayerProfile(
        measure=measure.name, scores=scores, groups={label: sets.names for label, sets in visible.items()}
    )


def outcome_of(check: DerivativeCheck) -> Outcome:
    """The outcome of a measure that cannot read the derivative that was checked."""
    return Outcome.NOT_FINITE if check.outcome is Outcome.NOT_FINITE else Outcome.UNSUPPORTED


def earned(score: Score, check: DerivativeCheck) -> Score:
    """The score, as an estimate where differences do not confirm the derivative that it was taken from."""
    if check.exact or score.value is None or score.evidence in (Evidence.ESTIMATE, Evidence.ATTACK):
        return score
    why = f"an estimate, since its derivative was not confirmed by differences of values: {check.note}"
    return replace(score, evidence=Evidence.ESTIMATE, note="; ".join(filter(None, [score.note, why])))


def _of_precision(score: Score, dtype: torch.dtype) -> Score:
    """The score, as an estimate where single precision loses directions that may be there."""
    lost = dtype is torch.float32 and score.outcome is Outcome.NOT_IDENTIFIABLE and score.evidence is Evidence.EXACT
    if not lost:
        return score
    why = "an estimate, since single precision takes small eigenvalues for zero: take dtype=torch.float64"
    return replace(score, evidence=Evidence.ESTIMATE, note="; ".join(filter(None, [score.note, why])))


def check_operator(exposure: Exposure, operator: GradientJacobian) -> None:
    """Refuse an operator that is not the derivative of this exposure's released mean at its batch.

    Raises:
        InputError: for another shape, other inputs or another released mean.

    Cost: one plain gradient.
    """
    size = (exposure.objective.size, exposure.batch.inputs.numel())
    if operator.shape != size:
        raise InputError(
            f"operator: expected the derivative of this exposure, of shape {size}, got shape {operator.shape}"
        )
    here = exposure.to(operator.dtype)
    same_inputs = torch.equal(here.inputs, operator.exposure.inputs)
    # Entries that are zero but for round-off differ by kernel (fused or written out attention).
    round_off = 1e-10 * float(operator.value.abs().max())
    if not same_inputs or not torch.allclose(here.released_mean(), operator.value, rtol=1e-6, atol=round_off):
        what = "released mean" if same_inputs else "batch"
        raise InputError(
            f"operator: expected the derivative of this exposure, got that of another {what}; only releases that "
            "differ by their noise alone share an operator"
        )


def not_gaussian(exposure: Exposure) -> str | None:
    """Reason why noise measures do not apply to a release, or None if its noise is Gaussian or absent."""
    noise = exposure.noise
    return noise.reason if isinstance(noise, NotGaussian) else None


def rank_facts(operator: GradientJacobian) -> tuple[Outcome, str, dict[str, Any]]:
    """The outcome, note and details of a value that is taken over the range of A.

    `round_off` in the details is about the relative error of 1/λmin over the range: eps·λmax/λmin from AᵀA, the root of it
    from A.
    """
    size, rank, values = operator.shape[1], operator.spectrum.rank, operator.spectrum.values
    smallest = float(values[size - rank]) if rank else None
    details: dict[str, Any] = {
        "rank": rank,
        "null_dimension": size - rank,
        "eigenvalue_max": float(values[-1]),
        "eigenvalue_min_of_range": smallest,
        "round_off": relative_round_off(values, smallest, of_factor=operator.spectrum.of_factor) if smallest else None,
        "solver": "singular values of A" if operator.spectrum.of_factor else "dense spectrum",
        "route": operator.route,
    }
    if rank == size:
        return Outcome.CONVERGED, "", details
    return (
        Outcome.NOT_IDENTIFIABLE,
        f"{size - rank} of {size} directions of the input leave the release unchanged to first order; the error along "
        "them is not counted",
        details,
    )


def _what(delta: object) -> str:
    return "a tensor without axes" if isinstance(delta, Tensor) else type(delta).__name__


def _is_real(entry: object) -> bool:
    if not isinstance(entry, Tensor) or entry.is_complex():
        return False
    return entry.layout is torch.strided and not entry.is_meta


def flat_perturbation(exposure: Exposure, delta: Delta, name: str) -> Tensor:
    """Tensors of the release as one float64 vector (P,), in the order of the shared parameters.

    Raises:
        InputError: for missing, unknown or differently shaped tensors, or another number of entries.
    """
    entries = list(delta.values()) if isinstance(delta, Mapping) else [delta]
    if not all(_is_real(entry) for entry in entries):
        kinds = sorted({f"{x.layout} of {x.dtype}" if isinstance(x, Tensor) else type(x).__name__ for x in entries})
        raise InputError(f"{name}: expected a real dense tensor, or one a shared parameter, got {', '.join(kinds)}")
    if isinstance(delta, Mapping):
        expected = exposure.objective.params
        wrong = [
            key
            for key in {**expected, **delta}
            if key not in delta or key not in expected or delta[key].shape != expected[key].shape
        ]
        if wrong:
            raise InputError(
                f"{name}: expected one tensor a shared parameter, of its shape; missing, unknown or of another shape: "
                f"{', '.join(sorted(wrong))}"
            )
        delta = {key: tensor.detach() for key, tensor in delta.items()}
    else:
        delta = delta.detach()
    # In the objective's own dtype a float32 model would round the perturbation.
    return exposure.to(torch.float64).flat_delta(delta)

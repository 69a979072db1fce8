"""What every closed-form measure shares."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from gradleak.core import Exposure, NotGaussian, Objective
from gradleak.operators import GradientJacobian
from gradleak.results import Citation, Evidence, InputError, Leakier, Outcome, Score, Settings

Delta = Tensor | Mapping[str, Tensor]
# A number with a larger bound on its relative error (three digits) is an estimate, however it was computed.
EXACT_TO = 1e-3


class Unit(StrEnum):
    """In which space a reconstruction error is stated.

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
class Measure(Settings, ABC):
    """A number that is computed from an exposure in closed form, or a named outcome where there is none.

    Authors write `_measure`; the public call checks the perturbation, prepares everything in float64 and never
    changes the exposure.

    Attributes:
        name: the name of the scores.
        citations: where the measure comes from.
        summary: one line for listings.
        needs_delta: whether a perturbation of the release must be given.
        reads_derivative: whether A is used at all, not the released mean alone.
    """

    name: ClassVar[str]
    citations: ClassVar[tuple[Citation, ...]]
    summary: ClassVar[str]
    leakier: ClassVar[Leakier] = Leakier.LOWER
    needs_delta: ClassVar[bool] = False
    reads_derivative: ClassVar[bool] = True

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
        flat = None
        if self.needs_delta and delta is not None:
            flat = flat_perturbation(exposure, delta, "delta")
            if not bool(torch.isfinite(flat).all()):
                return self._without_value(Outcome.NOT_FINITE, "the perturbation has NaN or infinite entries")
        if operator is None:
            operator = GradientJacobian(exposure)
        else:
            check_operator(exposure, operator)
        return self._measure(exposure, None if flat is None else flat.to(operator.dtype), operator)

    @abstractmethod
    def _measure(self, exposure: Exposure, delta: Tensor | None, operator: GradientJacobian) -> Score:
        """The score; `delta` is flat, finite and in the dtype of `operator`, and not None if `needs_delta`."""

    def check(self, objective: Objective) -> None:
        """Refuse a model that this measure, as it is configured, does not fit, before anything is computed.

        Raises:
            InputError: saying what does not fit.
        """

    def unsupported(self, reason: str) -> Score:
        """The score without a value, for a reason that lies outside of the measure."""
        return self._without_value(Outcome.UNSUPPORTED, reason)

    @property
    def _unit(self) -> str:
        """What the scores are stated in."""
        return str(getattr(self, "unit", Unit.INPUT))

    def _score(self, value: float | None, evidence: Evidence, **rest: Any) -> Score:
        if value is not None and not math.isfinite(value):
            note = "the value is too large for a floating point number, or none"
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
            "which is no evidence of safety (a sign, a rounding or dead units look like this)",
            null_dimension=operator.shape[1],
            rank=0,
        )

    def _too_large(self, operator: GradientJacobian, limit: int, remedy: str) -> Score:
        return self._without_value(
            Outcome.UNSUPPORTED,
            f"d = {operator.shape[1]} is above the limit of {limit} for a whole spectrum; {remedy}",
        )


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
    """Why noise measures do not apply to a release, or None if its noise is Gaussian or absent."""
    noise = exposure.noise
    return noise.reason if isinstance(noise, NotGaussian) else None


def rank_facts(operator: GradientJacobian) -> tuple[Outcome, str, dict[str, Any]]:
    """The outcome, note and details of a value that is taken over the range of A.

    `round_off` in the details is eps·λmax/λmin over the range: about the relative error of 1/λmin.
    """
    size, rank, values = operator.shape[1], operator.spectrum.rank, operator.spectrum.values
    smallest = float(values[size - rank]) if rank else None
    details: dict[str, Any] = {
        "rank": rank,
        "null_dimension": size - rank,
        "eigenvalue_max": float(values[-1]),
        "eigenvalue_min_of_range": smallest,
        # AᵀA has the squared condition of A: its smallest eigenvalues carry the round-off of the largest.
        "round_off": torch.finfo(values.dtype).eps * float(values[-1]) / smallest if smallest else None,
        "solver": "dense spectrum",
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

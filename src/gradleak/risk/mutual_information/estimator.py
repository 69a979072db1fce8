"""Base of every estimator of mutual information."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from gradleak.results import Count, InputError, Outcome, Score
from gradleak.risk.gradient_measure import GradientMeasure, coordinates

# So near to the largest number that the sample can give, a value says how many rows there were.
_NEAR_CEILING = 0.5
# Components with less of the largest standard deviation are round-off.
_FLAT = 1e-7


@dataclass(frozen=True, kw_only=True)
class InformationEstimator(GradientMeasure):
    """An estimate of I(G_l; T) in nats for each layer, T the labels (whole numbers) or the inputs (real numbers).

    Gradients and inputs are first put into their `components` leading principal components, each of unit variance:
    neither neighbors nor critics read thousands of entries from some hundred rows. What a function of G tells of T is
    at most what G tells, so this step can only lower I.

    Attributes:
        components: the number of principal components of the gradients, and of real inputs.
    """

    components: Count = 8

    @property
    def _unit(self) -> str:
        return "nat"

    @property
    @abstractmethod
    def _least_rows(self) -> int:
        """The fewest rows that an estimate is made from."""

    @abstractmethod
    def _estimate(self, rows: Tensor, target: Target, generator: torch.Generator) -> Estimate:
        """The estimate from rows (n, p) float64, in which distances are those of the gradients."""

    def _check(self, target: Tensor) -> None:
        if target.is_complex() or (target.is_floating_point() and not bool(torch.isfinite(target).all())):
            raise InputError("target: expected finite real inputs (n, ...) or whole numbers as labels (n,)")
        if not target.is_floating_point() and target.dim() != 1:
            raise InputError(
                f"target: expected one label a row, (n,), got whole numbers of shape {tuple(target.shape)}; give inputs "
                "as real numbers"
            )

    @final
    def _measure(self, matrix: Tensor, target: Tensor, generator: torch.Generator) -> Score:
        prepared = Target.of(target)
        facts: dict[str, Any] = {
            "rows": matrix.shape[0],
            "entries": matrix.shape[1],
            "target": "labels" if prepared.entropy is not None else "inputs",
        }
        if prepared.entropy is not None:
            facts["target_entropy"] = prepared.entropy
        if not bool((target != target[:1]).any()):
            return self._without_value(Outcome.NOT_RESOLVABLE, "every row has the same target", **facts)
        if not bool((matrix != matrix[:1]).any()):
            return self._without_value(Outcome.NO_SIGNAL, "every row has the same gradients in this layer", **facts)
        if matrix.shape[0] < self._least_rows:
            return self._without_value(
                Outcome.NOT_RESOLVABLE,
                f"an estimate needs at least {self._least_rows} rows, got {matrix.shape[0]}",
                **facts,
            )
        found = self._estimate(coordinates(matrix), prepared, generator)
        if not math.isfinite(found.value):
            return self._without_value(Outcome.NOT_FINITE, "the estimate is not finite", **facts)
        near = found.ceiling is not None and found.value > found.ceiling - _NEAR_CEILING
        # Near the ceiling the spread goes to 0 while the truth may be infinite.
        interval = None if near else found.interval
        if near:
            note = f"{matrix.shape[0]} rows cannot tell more than {found.ceiling:.3g} nats"
        elif interval is None:
            note = "too few rows for an interval"
        else:
            note = "the interval is for the draw of the rows, not for the bias of the estimator"
        ceiling = {} if found.ceiling is None else {"ceiling": found.ceiling}
        return self._score(
            found.value,
            n=matrix.shape[0],
            interval=interval,
            outcome=Outcome.SATURATED if near else Outcome.CONVERGED,
            note=note,
            details=facts | ceiling | dict(found.details),
        )


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Result of an estimator.

    Attributes:
        value: in nats.
        interval: of 95 %, or None.
        ceiling: no sample of this size gives more, or None where nothing but the labels' entropy bounds it.
        details: further numbers for the score.
    """

    value: float
    interval: tuple[float, float] | None
    ceiling: float | None
    details: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """Labels or inputs, one a row.

    Attributes:
        values: labels (n,) from 0 to classes − 1, or inputs (n, p) float64 in which distances are those of the inputs.
        entropy: of the labels in nats, as often as they occur; None for inputs.
    """

    values: Tensor
    entropy: float | None

    @classmethod
    def of(cls, target: Tensor) -> Target:
        """The target as an estimator reads it."""
        if target.is_floating_point():
            return cls(values=coordinates(target.reshape(len(target), -1)), entropy=None)
        _, labels, counts = target.cpu().unique(return_inverse=True, return_counts=True)
        shares = counts.double() / counts.sum()
        return cls(values=labels, entropy=float(-(shares * shares.log()).sum()))


def components_of(rows: Tensor, count: int, *, fitted_on: Tensor | None = None) -> Tensor:
    """The leading principal components of rows (n, p), of unit variance on the rows that they are fitted on.

    Args:
        rows: float64.
        count: at most so many; fewer where the rows span less.
        fitted_on: row numbers; None for all.
    """
    known = rows if fitted_on is None else rows[fitted_on]
    center = known.mean(dim=0)
    directions: Tensor
    _, values, directions = torch.linalg.svd(known - center, full_matrices=False)
    kept = min(count, max(1, int((values > _FLAT * values[0]).sum())))
    spread = values[:kept] / (len(known) - 1) ** 0.5
    # Rows that are all alike on one half keep their scale.
    spread = torch.where(spread > 0, spread, 1.0)
    return (rows - center) @ directions[:kept].T / spread

"""How strongly each layer of a release reacts to the input."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.core import Exposure
from gradleak.operators import DENSE_LIMIT, GradientJacobian
from gradleak.results import MO_2021, Citation, Evidence, InputError, Leakier, Outcome, Score
from gradleak.risk.measure import Measure


class JacobianNorm(StrEnum):
    """A norm of A_l: Frobenius, or induced by the 1-norm or the maximum norm."""

    FROBENIUS = "frobenius"
    ONE = "one"
    INF = "inf"


class Partition(StrEnum):
    """How the shared tensors are grouped: each by itself, or those of one layer together."""

    TENSOR = "tensor"
    LAYER = "layer"


@dataclass(frozen=True, kw_only=True)
class Sensitivity(Measure):
    """The largest norm ‖A_l‖ over the tensors, layers or named groups l of a release; all of them are in the details.

    A_l (P_l, d) are the rows of A = ∂g/∂x that belong to l. `frobenius` is √Σ aᵢⱼ², `one` the largest column sum of
    |aᵢⱼ| (how much one pixel moves the layer), `inf` the largest row sum (how much all pixels move one entry).

    Assumptions: exact, to first order at the truth, in model-input units: channels with another normalization weigh
    differently. It measures that a layer reacts, not that the reaction can be inverted: large layers have large norms.

    Args:
        norm: `frobenius`, `one` or `inf`.
        by: `tensor`, `layer` (what precedes the last dot of a parameter's name), or named groups of parameter names.
        dense_limit: largest d; each of the d columns of A is computed.

    Raises:
        InputError: for another norm or grouping, an empty group, or (when measured) an unknown parameter.

    Cost: d JVPs in blocks, or one pass over A where it is held; A need not fit in memory.

    Source: Mo et al. 2021, equations 10 and 11. Deviation: one exposure has one value; the average over samples is
    left to the reader of the scores.
    """

    name: ClassVar[str] = "sensitivity"
    citations: ClassVar[tuple[Citation, ...]] = (MO_2021,)
    summary: ClassVar[str] = "norm of the derivative of each layer's gradient with respect to the input"
    leakier: ClassVar[Leakier] = Leakier.HIGHER

    norm: JacobianNorm | str = JacobianNorm.FROBENIUS
    by: Partition | str | Mapping[str, Sequence[str]] = Partition.TENSOR
    dense_limit: int = DENSE_LIMIT

    def __post_init__(self) -> None:
        """Check the fields."""
        if self.norm not in tuple(JacobianNorm):
            raise InputError(f"norm: expected one of {', '.join(JacobianNorm)}, got {self.norm!r}")
        object.__setattr__(self, "norm", JacobianNorm(self.norm))
        if isinstance(self.by, Mapping):
            if not self.by or any(isinstance(names, str) or not names for names in self.by.values()):
                raise InputError(f"by: expected groups such as {{'head': ['9.weight', '9.bias']}}, got {self.by!r}")
        elif self.by not in tuple(Partition):
            raise InputError(f"by: expected one of {', '.join(Partition)} or named groups, got {self.by!r}")
        else:
            object.__setattr__(self, "by", Partition(self.by))

    @property
    def _unit(self) -> str:
        return "gradient/input"

    def _measure(self, exposure: Exposure, delta: Tensor | None, operator: GradientJacobian) -> Score:
        groups = self._groups(list(exposure.objective.params))
        if operator.shape[1] > self.dense_limit:
            return self._without_value(
                Outcome.UNSUPPORTED,
                f"d = {operator.shape[1]} columns of A are above the limit of {self.dense_limit}; raise dense_limit",
            )
        parts = self._by_tensor(exposure, operator)
        values = {group: self._of_group([parts[name] for name in names]) for group, names in groups.items()}
        if not all(torch.isfinite(part).all() for part in parts.values()):
            return self._without_value(Outcome.NOT_FINITE, "the derivative of the release is not finite")
        leakiest = max(values, key=lambda group: values[group])
        if values[leakiest] == 0.0:
            return self._zero_map(operator)
        return self._score(
            values[leakiest],
            Evidence.EXACT,
            note=f"the largest of {len(values)}: {leakiest}",
            details={
                "norm": str(self.norm),
                "by": "groups" if isinstance(self.by, Mapping) else str(self.by),
                "leakiest": leakiest,
                "values": values,
                "route": operator.route,
            },
        )

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
        """What each tensor contributes: its sum of squares (), its column sums (d,) or its row sums (P_l,)."""
        params = exposure.objective.params
        sizes = [tensor.numel() for tensor in params.values()]
        rows = torch.zeros(operator.shape[0], dtype=operator.dtype, device=operator.device)
        columns: list[list[Tensor]] = [[] for _ in sizes]
        for block in operator.column_blocks():
            if self.norm == JacobianNorm.ONE:
                for place, part in enumerate(block.split(sizes)):
                    columns[place].append(part.abs().sum(dim=0))
            elif self.norm == JacobianNorm.INF:
                rows += block.abs().sum(dim=1)
            else:
                rows += (block**2).sum(dim=1)
        if self.norm == JacobianNorm.ONE:
            return {name: torch.cat(parts) for name, parts in zip(params, columns, strict=True)}
        by_row = dict(zip(params, rows.split(sizes), strict=True))
        if self.norm == JacobianNorm.INF:
            return by_row
        return {name: part.sum() for name, part in by_row.items()}

    def _of_group(self, parts: list[Tensor]) -> float:
        if self.norm == JacobianNorm.FROBENIUS:
            return float(torch.stack(parts).sum().sqrt())
        if self.norm == JacobianNorm.ONE:
            return float(torch.stack(parts).sum(dim=0).max())
        return max(float(part.max()) for part in parts)

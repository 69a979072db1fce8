"""Base of every measure of matrices of gradients, one a layer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from gradleak.results import Evidence, InputError, Outcome, Score
from gradleak.risk.layer_measure import LayerMeasure
from gradleak.risk.layer_profile import LayerProfile
from gradleak.risk.layer_site import Groups, LayerScale, LayerSite

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

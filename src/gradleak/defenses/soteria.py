"""Soteria: columns of one linear layer's gradient left out by how much its inputs tell of the example."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.core import Batch, BatchDefense, Bounds, Guarantee, Noise, Objective, Release
from gradleak.core.evaluation import LinearCalls
from gradleak.results import BALUNOVIC_STAAB_2022, SUN_2021, BelowOne, Citation, InputError, UnsupportedError


@dataclass(frozen=True, kw_only=True)
class Soteria(BatchDefense):
    """The update with the columns of one linear layer's weight set to zero whose inputs give the example away most.

    With r(x) the k inputs of the layer, column j of its weight gradient is left out for the ⌊share · k⌋ smallest values of
    Σᵢ ‖∇r_j(xᵢ)‖ / |r_j(xᵢ)| over the examples of the batch: to first order, the smaller the ratio, the further the example
    that explains r without r_j is from the true one. A column whose input is zero has no gradient and is left out last.
    Its bias and all other layers are shared as they are.

    Which columns are zero is seen in the update. An adversary who knows the defense takes them for unknown and holds every
    other entry against his guess (`before`): Balunović et al. leave out the whole layer and rebuild images early in a
    training as if there were no defense. All other layers give the example away as before; what the defense can take away
    is what that layer alone tells.

    Closed-form measures see A without the rows that are left out, the choice taken for constant. Of sentences
    the derivatives are those by the embeddings of their words. It gives no formal guarantee, and no epsilon: what is left
    out depends on the data.

    **Cost**: k derivatives of the layer's inputs by the example.

    **Source**: Sun et al. 2021 and their code, which leaves out 60 % in its example; the break: Balunović et al. 2022, and
    the code of Vero et al. 2023, which leaves a defended layer out. Deviations: absolute values of r_j, which behind ReLU are
    the same; after several local steps it acts once, on the finished update, by the model that was sent out, where a client
    could do so in every step.

    Attributes:
        layer: name of the linear module that is defended.
        share: of its columns that are left out, from 0 to below 1.

    Raises:
        InputError: for a share out of range; at the release, for a layer that is no linear one of the model.
        UnsupportedError: at the release, for a layer that is called for several places of an example, or more than once.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC
    citations: ClassVar[tuple[Citation, ...]] = (SUN_2021, BALUNOVIC_STAAB_2022)

    layer: str
    share: BelowOne = 0.6

    def mean(self, update: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """The update itself: which columns go does not follow from update and batch alone."""
        return dict(update)

    def mean_at(
        self, update: Mapping[str, Tensor], batch: Batch, objective: Objective, params: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """The update without the columns that go by this model; the choice is a constant for derivatives."""
        kept = self._kept(objective, params, batch)
        name = self._name(update)
        return {**update, name: torch.where(kept, update[name], 0.0)}

    def noise(self, shapes: Mapping[str, Tensor]) -> Noise:
        """None: what is left out is determined by the batch."""
        return None

    def draw(
        self,
        update: Mapping[str, Tensor],
        *,
        objective: Objective,
        batch: Batch,
        before: Release,
        generator: torch.Generator,
    ) -> dict[str, Tensor]:
        """The update without the columns that go."""
        return self.mean_at(update, batch, objective, objective.params)

    def before(self, after: Bounds) -> Bounds:
        """Bounds that leave columns of zeros open, and hold every other entry as it is."""
        name = f"{self.layer}.weight"
        if name not in after.lower:
            return after
        gone = after.hold_zero(name).all(dim=0, keepdim=True).expand_as(after.lower[name])
        lower = {**after.lower, name: torch.where(gone, -math.inf, after.lower[name])}
        upper = {**after.upper, name: torch.where(gone, math.inf, after.upper[name])}
        return Bounds(lower=lower, upper=upper)

    def _name(self, tensors: Mapping[str, Tensor]) -> str:
        name = f"{self.layer}.weight"
        if name not in tensors or tensors[name].dim() != 2:
            linear = [
                key.removesuffix(".weight") for key, t in tensors.items() if key.endswith(".weight") and t.dim() == 2
            ]
            raise InputError(
                f"Soteria.layer: expected a linear layer of the model, one of {', '.join(map(repr, linear)) or 'none'}, got "
                f"{self.layer!r}"
            )
        return name

    def _kept(self, objective: Objective, params: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Mask (k,) of the columns that stay."""
        inputs = batch.inputs.detach()
        if not inputs.is_floating_point():
            objective, inputs = objective.at_embeddings(inputs), objective.embed(inputs).detach()
        told = self._ratios(objective, {name: t.detach() for name, t in params.items()}, inputs)
        count = math.floor(self.share * told.numel() * (1 + 1e-12))
        return torch.ones_like(told, dtype=torch.bool).scatter(0, told.argsort(stable=True)[:count], False)

    def _ratios(self, objective: Objective, params: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Σᵢ ‖∇r_j(xᵢ)‖ / |r_j(xᵢ)| of every input j of the layer, (k,); infinite where r_j is zero."""
        weight = params[self._name(params)]

        def represented(examples: Tensor) -> Tensor:
            recorder = LinearCalls()
            with recorder:
                objective.outputs(params, examples)
            found = [call.inputs for call in recorder.calls if call.weight is weight]
            if len(found) != 1 or found[0].dim() != 2:
                raise UnsupportedError(
                    f"Soteria: expected that the layer {self.layer!r} is called once, with one vector an example, got "
                    f"{len(found)} calls{f' with {found[0].dim()} axes' if found else ''}"
                )
            return found[0]

        values, pull = torch.func.vjp(represented, inputs)[:2]
        norms = []
        for unit in range(values.shape[1]):
            one = torch.zeros_like(values)
            one[:, unit] = 1.0
            norms.append(pull(one)[0].flatten(start_dim=1).norm(dim=1))
        ratios: Tensor = torch.stack(norms, dim=1) / values.abs()
        return ratios.nan_to_num(nan=math.inf, posinf=math.inf).sum(dim=0)

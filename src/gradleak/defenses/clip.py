"""Clipping of the update, of each layer, and of each example; DP-SGD."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import reduce
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from gradleak.core import DiagonalGaussian, ExampleDefense, Guarantee, Noise, Scaled, ScaledRows, UpdateDefense
from gradleak.defenses.draws import check_names, layers, normal
from gradleak.results import (
    ABADI_2016,
    LI_2024,
    MCMAHAN_2018,
    Citation,
    Hint,
    InputError,
    Positive,
    check_positive,
)


@dataclass(frozen=True)
class Clip(UpdateDefense):
    """The update scaled down so that the L2 norm over all its tensors is at most `max_norm`.

    g -> g · min(1, C / ‖g‖). Where it bites, the derivative is (C/‖g‖)(I − ĝĝᵀ): the direction survives, so a
    scale-free attack loses nothing. Alone it gives no formal guarantee; with noise it bounds the sensitivity of the
    whole update (not of one example: that is per-example clipping).

    Attributes:
        max_norm: C, positive.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC
    citations: ClassVar[tuple[Citation, ...]] = (ABADI_2016,)

    max_norm: Positive

    def effect(self, names: Iterable[str]) -> Scaled:
        """All tensors times one factor."""
        return Scaled(groups=[list(names)], max_norm=self.max_norm)

    def mean(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The clipped update; squares neither overflow nor vanish, whatever the format and the size of the entries."""
        return scaled_to(self.max_norm, update)

    def noise(self, shapes: Mapping[str, Tensor]) -> Noise:
        """None: clipping is deterministic."""
        return None

    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """The clipped update."""
        return self.mean(update)

    def bound(self, shapes: Mapping[str, Tensor]) -> float:
        """C."""
        return float(self.max_norm)


def scaled_to(max_norm: float, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors scaled down together so that their joint L2 norm is at most `max_norm`; differentiable, also at zero.

    Squares are taken of x/s, with s the power of two below the largest magnitude, so that they neither overflow nor
    vanish. Dividing by it rounds nothing, and no derivative runs through s, on which the norm s‖x/s‖ does not depend.
    """
    inverse = 1 / power_of_two(tensors.values())
    squared = sum((_at_least_float32(tensor) * inverse).square().sum() for tensor in tensors.values())
    assert isinstance(squared, Tensor)
    bites = squared > (max_norm * inverse) ** 2
    # The inner where keeps the derivative of rsqrt finite at a zero update.
    scale = torch.where(bites, max_norm * torch.rsqrt(torch.where(bites, squared, 1.0)) * inverse, 1.0)
    return {name: (tensor * scale).to(tensor.dtype) for name, tensor in tensors.items()}


def power_of_two(tensors: Iterable[Tensor]) -> Tensor:
    """The power of two at most as large as the largest magnitude, a constant whose inverse is a number, too.

    1 where all entries are zero, or there is none.
    """
    wide = [_at_least_float32(tensor.detach()) for tensor in tensors if tensor.numel()]
    if not wide:
        return torch.ones(())
    largest = reduce(torch.maximum, [torch.maximum(tensor.amax(), -tensor.amin()) for tensor in wide])
    tiny = torch.finfo(largest.dtype).tiny
    return torch.where(largest > 0, largest.clamp(tiny, 1 / tiny), 1.0).log2().floor().exp2()


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


@dataclass(frozen=True)
class ClipPerLayer(UpdateDefense):
    """Each layer's part of the update scaled down to an L2 norm of at most `max_norm`.

    g_l -> g_l · min(1, C / ‖g_l‖) for every layer l (weight and bias of a module together); the whole update of L
    layers has a norm of at most C·√L. Where it bites, the rows of A of that layer become (C/‖g_l‖)(I − ĝ_lĝ_lᵀ)A_l:
    the proportions between layers are lost, directions within a layer survive. Alone it gives no formal guarantee.

    Attributes:
        max_norm: C, positive.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC
    citations: ClassVar[tuple[Citation, ...]] = (MCMAHAN_2018,)

    max_norm: Positive

    def effect(self, names: Iterable[str]) -> Scaled:
        """Every layer times a factor of its own."""
        return Scaled(groups=list(layers(names).values()), max_norm=self.max_norm)

    def mean(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The update with every layer clipped by itself."""
        clipped: dict[str, Tensor] = {}
        for names in layers(update).values():
            clipped |= scaled_to(self.max_norm, {name: update[name] for name in names})
        return {name: clipped[name] for name in update}

    def noise(self, shapes: Mapping[str, Tensor]) -> Noise:
        """None: clipping is deterministic."""
        return None

    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """The clipped update."""
        return self.mean(update)

    def bound(self, shapes: Mapping[str, Tensor]) -> float:
        """C·√L for L layers."""
        bound: float = float(self.max_norm) * len(layers(shapes)) ** 0.5
        return bound


@dataclass(frozen=True)
class ClipPerExample(ExampleDefense):
    """Every example's gradient scaled down to an L2 norm of at most `max_norm`, then averaged: DP-SGD without noise.

    (1/b) Σᵢ gᵢ · min(1, C / ‖gᵢ‖), with gᵢ the gradient of the loss of the batch that holds example i alone, its norm
    over all tensors. The mean has this form whatever the reduction of the loss: for a sum it is 1/b of the clipped
    sum. Under FedAvg every local step is clipped so. The rows of A that belong to example i become
    (C/(b‖gᵢ‖))(I − ĝᵢĝᵢᵀ)Aᵢ where it bites.

    It bounds what one example adds to a step (C/b), and with noise that is what DP-SGD accounts for; alone it gives no
    formal guarantee. Models that mix examples (BatchNorm in train mode) are refused.

    Attributes:
        max_norm: C, positive.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC
    citations: ClassVar[tuple[Citation, ...]] = (ABADI_2016,)

    max_norm: Positive

    @property
    def bound(self) -> float:
        """C."""
        return float(self.max_norm)

    def effect(self, names: Iterable[str]) -> ScaledRows:
        """Every example's gradient times a factor of its own."""
        return ScaledRows(groups=[list(names)], max_norms=[self.bound])

    def mean(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The gradients (b, ...) with each row clipped by its own norm over all tensors."""

        def clipped(gradient: dict[str, Tensor]) -> dict[str, Tensor]:
            return scaled_to(self.max_norm, gradient)

        rows: dict[str, Tensor] = torch.func.vmap(clipped)(dict(gradients))
        return rows


@dataclass(frozen=True)
class ClipTensorsPerExample(ExampleDefense):
    """Every tensor of every example's gradient scaled down to an L2 norm of its own, then averaged.

    gᵢₜ -> gᵢₜ · min(1, Cₜ / ‖gᵢₜ‖) for every tensor t of example i, with Cₜ = C·wₜ/√(Σ w²), so that one example's whole
    gradient has a norm of at most C = √(Σ Cₜ²). It is what Opacus calls clipping per layer; there a weight and its bias are two
    layers, too. `DPSGD` of the same C behind it adds the noise of DP-SGD and clips nothing more:

        [ClipTensorsPerExample(1.0), DPSGD.from_noise_multiplier(1.1, clip_norm=1.0)]

    Where it bites, the rows of A that belong to example i and tensor t become (Cₜ/(b‖gᵢₜ‖))(I − ĝᵢₜĝᵢₜᵀ)Aᵢₜ: the
    proportions between tensors are lost, directions within a tensor survive. Alone it gives no formal guarantee. Models that
    mix examples (BatchNorm in train mode) are refused.

    **Source**: McMahan et al. 2018 (per-layer clipping); `DPPerLayerOptimizer` of Opacus 1.6, which takes the norms
    Cₜ one by one: C is the root of the sum of their squares, and they are the weights.

    Attributes:
        max_norm: C, positive.
        weights: wₜ by name of a tensor, positive; 1 for a tensor that is not named.

    Raises:
        InputError: for a number that is not positive; at the first use, for a tensor that the gradient does not have.

    Examples:
        >>> gradients = {"a": torch.tensor([[6.0, 8.0]]), "b": torch.tensor([[0.5]])}
        >>> ClipTensorsPerExample(5.0, weights={"a": 4.0, "b": 3.0}).mean(gradients)
        {'a': tensor([[2.4000, 3.2000]]), 'b': tensor([[0.5000]])}
    """

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC
    citations: ClassVar[tuple[Citation, ...]] = (MCMAHAN_2018,)

    max_norm: Positive
    weights: Annotated[Mapping[str, Positive], Hint("write {'0.weight': 2.0}")] = field(default_factory=dict)

    def __hash__(self) -> int:
        """Hash of the numbers, since a mapping has none."""
        return hash((self.max_norm, tuple(sorted(self.weights.items()))))

    @property
    def bound(self) -> float:
        """C."""
        return float(self.max_norm)

    def norms(self, names: Iterable[str]) -> dict[str, float]:
        """Cₜ of every tensor by name."""
        known = list(names)
        check_names("ClipTensorsPerExample.weights", self.weights, known, what="tensors")
        weights = {name: float(self.weights.get(name, 1.0)) for name in known}
        return {name: self.bound * weight / math.hypot(*weights.values()) for name, weight in weights.items()}

    def effect(self, names: Iterable[str]) -> ScaledRows:
        """Every tensor of an example's gradient times a factor of its own."""
        norms = self.norms(names)
        return ScaledRows(groups=[[name] for name in norms], max_norms=list(norms.values()))

    def mean(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The gradients (b, ...) with each tensor of each row clipped by its own norm."""
        norms = self.norms(gradients)

        def clipped(gradient: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: scaled_to(norm, {name: gradient[name]})[name] for name, norm in norms.items()}

        rows: dict[str, Tensor] = torch.func.vmap(clipped)(dict(gradients))
        return rows


class NoiseOn(StrEnum):
    """Sum or gradient that the noise of standard deviation σ is added to."""

    PER_EXAMPLE = "per_example"
    SUM = "sum"


@dataclass(frozen=True, kw_only=True)
class DPSGD(ExampleDefense):
    """The mean of per-example gradients, each clipped to an L2 norm of C, with Gaussian noise, at every local step.

    Two conventions, which differ by √k for k examples:

    - "per_example": N(0, σ²) on every entry of every clipped gradient, then the mean. The mean carries std σ/√k and the
      sum σ√k. This is what Li et al. do.
    - "sum": N(0, σ²) on every entry of the sum, then the division by k. The mean carries σ/k. This is DP-SGD as Abadi
      et al. and the libraries have it, with `noise_multiplier` = σ/C.

    Only the mean leaves the client, so that the noise is drawn once, on the mean, with the law that it has there. With
    local steps (FedAvg) every step draws its own: for one step the delta carries learning rate times that; for more the
    noise is inside the training and the update is not Gaussian.

    `expected_batch_size` divides the sum by that constant instead of k. Poisson sampling needs it: k depends on the data
    then, and a divisor that does gives it away. It has to be public (a rounded sampling rate times the size of a private
    data set is not).

    The guarantee is formal, for an unbounded number of examples of any kind; how much it is says `gradleak.accounting` from the
    std really added. It protects single examples, not what a whole batch has in common. Models that mix examples
    (BatchNorm in train mode) are refused.

    **Source**: Abadi et al. 2016, algorithm 1 ("sum"); Li et al. 2024, section 6.1 ("per_example").

    Attributes:
        clip_norm: C, positive.
        noise_std: σ, positive, in units of the gradient.
        noise: "per_example" or "sum": what σ is added to.
        expected_batch_size: the public divisor of the sum, or None for k; with "sum" only.

    Raises:
        InputError: for a number that is not positive, an unknown convention, or a divisor with noise per example.

    Examples:
        >>> DPSGD(clip_norm=2.0, noise_std=0.1, noise="per_example").mean_std(16)
        0.025
        >>> DPSGD(clip_norm=2.0, noise_std=0.1, noise="sum").mean_std(16)
        0.00625
        >>> DPSGD.from_noise_multiplier(1.1, clip_norm=2.0).noise_std
        2.2
    """

    guarantee: ClassVar[Guarantee] = Guarantee.FORMAL
    citations: ClassVar[tuple[Citation, ...]] = (ABADI_2016, LI_2024)
    closes: ClassVar[bool] = True
    adds_in_order: ClassVar[bool] = True

    clip_norm: Positive
    noise_std: Annotated[Positive, Hint("without noise it is ClipPerExample")]
    noise: NoiseOn | str
    expected_batch_size: Positive | None = None

    def __post_init__(self) -> None:
        """Check what depends on more than one field."""
        super().__post_init__()
        if self.expected_batch_size is not None and self.noise is NoiseOn.PER_EXAMPLE:
            raise InputError(
                "DPSGD.expected_batch_size: expected None with noise='per_example', whose noise grows with the examples "
                "anyway; use noise='sum'"
            )

    @classmethod
    def from_noise_multiplier(
        cls, noise_multiplier: float, *, clip_norm: float, expected_batch_size: float | None = None
    ) -> DPSGD:
        """DP-SGD with noise on the sum of standard deviation `noise_multiplier` times `clip_norm`.

        Raises:
            InputError: for a number that is not positive.
        """
        check_positive("DPSGD.noise_multiplier", noise_multiplier)
        check_positive("DPSGD.clip_norm", clip_norm)
        return cls(
            clip_norm=clip_norm,
            noise_std=noise_multiplier * clip_norm,
            noise=NoiseOn.SUM,
            expected_batch_size=expected_batch_size,
        )

    def sum_std(self, examples: int) -> float:
        """The standard deviation that the sum over so many examples carries: σ√k or σ."""
        return self.noise_std * (math.sqrt(examples) if self.noise is NoiseOn.PER_EXAMPLE else 1.0)

    def mean_std(self, examples: int) -> float:
        """The standard deviation that the average carries: σ/√k, σ/k or σ/expected_batch_size."""
        return self.sum_std(examples) / self.divisor(examples)

    def noise_multiplier(self, examples: int) -> float:
        """The standard deviation on the sum over C, for so many examples; for noise on the sum it is σ/C whatever k."""
        return self.sum_std(examples) / self.clip_norm

    @property
    def bound(self) -> float:
        """C."""
        return float(self.clip_norm)

    def effect(self, names: Iterable[str]) -> ScaledRows:
        """Every example's gradient times a factor of its own."""
        return ScaledRows(groups=[list(names)], max_norms=[self.bound])

    def divisor(self, examples: int) -> float:
        """k, or `expected_batch_size`."""
        return self.expected_batch_size or examples

    def mean(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The gradients (b, ...) with each row clipped by its own norm over all tensors."""
        return ClipPerExample(self.clip_norm).mean(gradients)

    def average(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sum over k, or over `expected_batch_size`."""
        return {name: rows.sum(dim=0) / self.divisor(rows.shape[0]) for name, rows in gradients.items()}

    def law(self, shapes: Mapping[str, Tensor], examples: int) -> DiagonalGaussian:
        """Gaussian of `mean_std` on every entry."""
        return DiagonalGaussian(std=dict.fromkeys(shapes, self.mean_std(examples)))

    def pooled(self, draws: int) -> DPSGD:
        """σ/√R for R draws."""
        return replace(self, noise_std=self.noise_std / math.sqrt(draws))

    def draw(self, average: Mapping[str, Tensor], examples: int, generator: torch.Generator) -> dict[str, Tensor]:
        """The average with fresh noise; a CPU generator gives the same noise on every device."""
        std = self.mean_std(examples)
        return {name: tensor + std * normal(tensor, generator) for name, tensor in average.items()}

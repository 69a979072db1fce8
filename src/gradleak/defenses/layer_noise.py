"""Gaussian noise whose standard deviation differs from layer to layer."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from gradleak.core import DiagonalGaussian, Guarantee, Noise, Unchanged, UpdateDefense
from gradleak.defenses.draws import mean_of, normal
from gradleak.defenses.layers import layers
from gradleak.results import MO_2021, Citation, Hint, InputError, NonNegative


@dataclass(frozen=True, kw_only=True)
class LayerNoise(UpdateDefense):
    """The update plus noise drawn from N(0, σ_l²) for every entry of layer l.

    A layer is the module that owns the tensors: weight and bias together. The mean map is the identity, so that A
    stays. Where some layers carry no noise, those alone may rebuild the input: noise on the first layers then hides
    nothing from who reads the last ones.

    Without a bound on the sensitivity it has no epsilon, so it is labeled heuristic. After per-example clipping to C
    the accounting holds the clipped norm against the smallest σ_l (an upper bound), and gives none where one is 0.

    **Source**: Mo et al. 2021, section 6 on differential privacy (clipping to norm 1, then noise on some layers); the
    paper names no rule for σ_l, so that it is an argument here.

    Attributes:
        std: σ_l by the name of the layer, "" for parameters of the model itself; at least 0.
        default: σ of the layers that are not named.

    Raises:
        InputError: for a number below 0; at the first use, for a layer that the update does not have.

    Examples:
        >>> import torch
        >>> LayerNoise(std={"0": 0.5}).noise({"0.weight": torch.zeros(2), "0.bias": torch.zeros(1)}).std
        {'0.weight': 0.5, '0.bias': 0.5}
    """

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC
    citations: ClassVar[tuple[Citation, ...]] = (MO_2021,)
    adds_in_order: ClassVar[bool] = True

    std: Annotated[Mapping[str, NonNegative], Hint("write {'0': 0.1}")]
    default: NonNegative = 0.0

    def __hash__(self) -> int:
        """Hash of the numbers, since a mapping has none."""
        return hash((tuple(sorted(self.std.items())), self.default))

    def effect(self, names: Iterable[str]) -> Unchanged:
        """The update, plus noise."""
        return Unchanged()

    def seen_without(self, layers: Collection[str]) -> LayerNoise:
        """The noise on the other layers."""
        return replace(self, std={name: std for name, std in self.std.items() if name not in layers})

    def mean(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The update itself."""
        return dict(update)

    def noise(self, shapes: Mapping[str, Tensor]) -> Noise:
        """Gaussian with the standard deviation of each tensor's layer; None where all of them are 0."""
        std = self._std(shapes)
        return DiagonalGaussian(std=std) if any(std.values()) else None

    def carry(self, noise: DiagonalGaussian) -> Noise:
        """Earlier noise passes unchanged."""
        return noise

    def pooled(self, updates: Sequence[Mapping[str, Tensor]]) -> tuple[dict[str, Tensor], LayerNoise]:
        """Their mean, which carries σ_l/√R for R draws."""
        root = math.sqrt(len(updates))
        less = {name: std / root for name, std in self.std.items()}
        return mean_of(updates), LayerNoise(std=less, default=self.default / root)

    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """The update with fresh noise; a CPU generator gives the same noise on every device."""
        std = self._std(update)
        return {
            name: tensor + std[name] * normal(tensor, generator) if std[name] else tensor
            for name, tensor in update.items()
        }

    def _std(self, shapes: Mapping[str, Tensor]) -> dict[str, float]:
        groups = layers(shapes)
        unknown = sorted(set(self.std) - set(groups))
        if unknown:
            raise InputError(
                f"LayerNoise.std: expected names of layers, got {', '.join(map(repr, unknown))}; the update has "
                f"{', '.join(map(repr, groups))}"
            )
        by_tensor = {
            name: float(self.std.get(layer, self.default)) for layer, names in groups.items() for name in names
        }
        return {name: by_tensor[name] for name in shapes}

"""Small exposures whose answer is known, or whose derivative is written out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from gradleak.core import Batch, Domain, Exposure, Guarantee, NotGaussian, Objective, Release, UpdateDefense
from gradleak.core.defense import Noise
from gradleak.protocols import FedSGD


class Scale(nn.Module):
    """y = w ∘ x."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.double())

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x


def diagonal(weight: list[float], inputs: list[float]) -> Exposure:
    """Mean squared error of w ∘ x against 0: g = 2 w x²/d, so A is diagonal with 4 w x/d."""
    x = torch.tensor([inputs], dtype=torch.float64)
    objective = Objective.from_module(Scale(torch.tensor(weight)), loss="mse")
    return Exposure(objective, Batch(x, torch.zeros_like(x)), Release(FedSGD()))


def color(generator: torch.Generator, *, low: float = 0.0, high: float = 1.0) -> Exposure:
    """Two 2x3x3 examples whose channels have different normalizations, under a smooth network."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Flatten(), nn.Linear(18, 30), nn.Sigmoid(), nn.Linear(30, 4))
    model.to_empty(device="cpu").double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.7, 0.7, generator=generator)
    domain = Domain(shape=(2, 3, 3), low=low, high=high, mean=(0.4, 0.1), std=(0.2, 0.7))
    pixels = torch.rand(2, 2, 3, 3, generator=generator, dtype=torch.float64)
    batch = Batch(domain.from_pixels(pixels), torch.tensor([1, 3]), domain)
    return Exposure(Objective.from_module(model), batch, Release(FedSGD()))


@dataclass(frozen=True)
class Sign(UpdateDefense):
    """The sign of every entry: a map whose derivative is zero."""

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC

    def mean(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.sign() for name, tensor in update.items()}

    def noise(self, shapes: Mapping[str, Tensor]) -> Noise:
        return NotGaussian(reason="signs are flipped at random")

    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        return self.mean(update)


def signed(exposure: Exposure) -> Exposure:
    return replace(exposure, release=Release(FedSGD(), [Sign()]))

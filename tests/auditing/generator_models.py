"""Generator modules that plan files of the tests name by import path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradleak.auditing import Plan, build_plan
from gradleak.core import Batch, Domain, ImageGenerator, derive_seed
from gradleak.datasets import mnist_digits


def generator_plan(**changes: Any) -> Plan:
    """GIAS behind a generator that was never trained, on one 8×8 digit, after one gradient and after three local steps."""
    generator = {
        "use": "own_generator",
        "module": {"use": "tests.auditing.generator_models:TinyGenerator"},
        "latent_shape": [3], "channels": 1, "height": 8, "width": 8, "source": "never trained",
    }  # fmt: skip
    averaged = {"use": "FedAvg", "learning_rate": 0.1, "epochs": 3}
    content: dict[str, Any] = {
        "name": "prior",
        "seed": 3,
        "controls": {"positive": False, "negative": False},
        "model": {"use": "tests.auditing.small_model:small_mlp"},
        "data": {"use": "scikit_digits", "count": 1},
        "threat": {"use": "HonestButCurious", "generator": generator},
        "attacks": {"gias": {"use": "GIAS", "latent_iterations": 6, "weight_iterations": 6}},
        "scenarios": [
            {"name": "once", "attacks": {"gias": "all"}},
            {"name": "trained", "protocol": averaged, "attacks": {"gias": "all"}},
        ],
    }
    return build_plan(content | changes, folder=Path())


class TinyGenerator(nn.Module):
    """8×8 images in [0, 1] from three numbers."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 64), nn.Sigmoid(), nn.Unflatten(1, (1, 8, 8))
        )

    def forward(self, latents: Tensor) -> Tensor:
        images: Tensor = self.layers(latents)
        return images


class TinyConditional(nn.Module):
    """8×8 images in [−1, 1] from three numbers and one of ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.classes = nn.Embedding(10, 3)
        self.last = nn.Linear(6, 64)

    def forward(self, latents: Tensor, labels: Tensor) -> Tensor:
        images: Tensor = self.last(torch.cat([latents, self.classes(labels)], dim=1)).tanh()
        return images.reshape(-1, 1, 8, 8)


def made_elsewhere(*, side: int = 8) -> ImageGenerator:
    """A generator that a user's own function returns."""
    module = nn.Sequential(nn.Linear(2, side * side), nn.Sigmoid(), nn.Unflatten(1, (1, side, side)))
    domain = Domain.image(channels=1, height=side, width=side)
    return ImageGenerator(module=module, latent_shape=(2,), domain=domain, source="a function of one's own")


def digits_seen(*, normalized: bool = False, seen: bool = True) -> Batch:
    """A digit out of the 24 that the training file of the tests draws, or the one drawn after them."""
    drawn = mnist_digits(count=25, seed=derive_seed(4, "data"))
    row = slice(0, 1) if seen else slice(24, 25)
    domain = Domain.image(channels=1, height=28, width=28, mean=(0.13,), std=(0.31,)) if normalized else drawn.domain
    assert domain is not None
    return Batch(domain.from_pixels(drawn.inputs[row]), drawn.targets[row], domain)

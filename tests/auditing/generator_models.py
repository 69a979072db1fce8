"""Generator modules that plan files of the tests name by import path."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gradleak.core import Batch, Domain, ImageGenerator, derive_seed
from gradleak.datasets import mnist_digits


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

"""Registration of one guess on another before they are averaged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.core import Domain, DomainKind
from gradleak.results import Natural, Settings


class Registration(Settings, ABC):
    """A transformation of guesses that makes them comparable; plain numbers, never differentiated."""

    @abstractmethod
    def __call__(self, moving: Tensor, fixed: Tensor, domain: Domain) -> Tensor:
        """`moving` (b, *shape) moved onto `fixed` (b, *shape), example by example."""


@dataclass(frozen=True, kw_only=True)
class NoRegistration(Registration):
    """Leaves guesses as they are: right where position is identified, as with a linear layer on top of all pixels."""

    def __call__(self, moving: Tensor, fixed: Tensor, domain: Domain) -> Tensor:
        """The guess itself."""
        return moving


@dataclass(frozen=True, kw_only=True)
class Translation(Registration):
    """The cyclic shift of whole pixels that correlates best with the fixed image, over all channels at once.

    Convolutional networks with global pooling barely tell shifted images apart, so that starts of one target find it at
    different places. Non-images are left as they are.

    **Source**: Kuglin and Hines 1975 (phase correlation), here plain cross correlation of centered images, which is
    steadier on noisy guesses.

    Attributes:
        largest: shifts of more pixels than this are not looked at.

    Examples:
        >>> image = torch.zeros(1, 1, 8, 8)
        >>> image[0, 0, 2, 3] = 1.0
        >>> domain = Domain.image(channels=1, height=8, width=8)
        >>> moved = Translation(largest=2)(image.roll((1, -2), dims=(2, 3)), image, domain)
        >>> bool((moved == image).all())
        True
    """

    largest: Natural = 4

    def __call__(self, moving: Tensor, fixed: Tensor, domain: Domain) -> Tensor:
        """The shifted guess."""
        if domain.kind is not DomainKind.IMAGE:
            return moving
        height, width = moving.shape[-2:]
        centered = [images - images.mean(dim=(-2, -1), keepdim=True) for images in (fixed, moving)]
        first, second = (torch.fft.rfft2(images) for images in centered)
        correlation = torch.fft.irfft2((first * second.conj()).sum(dim=1), s=(height, width))
        rows = torch.tensor(_shifts(height, self.largest), device=moving.device)
        columns = torch.tensor(_shifts(width, self.largest), device=moving.device)
        near = correlation[:, rows][:, :, columns].flatten(1)
        best = near.argmax(dim=1)
        moved = []
        for image, place in zip(moving, best.tolist(), strict=True):
            shift = (int(rows[place // len(columns)]), int(columns[place % len(columns)]))
            moved.append(image.roll(shift, dims=(-2, -1)))
        return torch.stack(moved)


def _shifts(size: int, largest: int) -> list[int]:
    """0, 1, … largest, and their negatives as places in a cyclic axis."""
    reach = min(largest, (size - 1) // 2)
    return [shift % size for shift in range(-reach, reach + 1)]

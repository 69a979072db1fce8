"""Properties planted in images by a seed, and images written in a hand of one's own: synthetic, and called so."""

from __future__ import annotations

from enum import StrEnum

import torch
from torch import Tensor
from torch.nn import functional

from gradleak.results import InputError, member


class PlantedProperty(StrEnum):
    """What is done to an image according to the value of a synthetic property."""

    TINT = "tint"
    """A cool or a warm cast: red and blue are dimmed. Gray images become RGB."""
    THICKNESS = "thickness"
    """Thin or thick strokes, by erosion or dilation in a 3 by 3 window; gray images, bright strokes on dark ground."""
    SHEAR = "shear"
    """Slanted to the left or to the right."""

    @property
    def values(self) -> tuple[str, str]:
        """Names of its two values."""
        return {"tint": ("cool", "warm"), "thickness": ("thin", "thick"), "shear": ("left", "right")}[self.value]


def plant(images: Tensor, codes: Tensor, planted: PlantedProperty | str, *, strength: float = 0.5) -> Tensor:
    """The images with a synthetic property planted in each.

    Args:
        images: (n, c, h, w) in [0, 1].
        codes: which of the two values of the property each shall have, (n,) of 0 and 1.
        planted: see `PlantedProperty`.
        strength: s, above 0 and at most 1. A cool cast multiplies the channels by 1 − s, 1 − s/2 and 1, a warm one by 1,
            1 − s/2 and 1 − s; thickness mixes s of the eroded or dilated image with 1 − s of the image; a slant moves the top
            and the bottom edge by s · h/2 in opposite directions (clockwise for "right").

    Returns:
        Images in [0, 1], of 3 channels for a tint, else of as many as before.

    Raises:
        InputError: for a strength out of range, no such property, or a thickness of images that are not gray.
    """
    chosen = member("plant", PlantedProperty, planted)
    if not 0.0 < strength <= 1.0:
        raise InputError(f"plant.strength: expected above 0 and at most 1, got {strength}")
    second = codes.bool()[:, None, None, None]
    match chosen:
        case PlantedProperty.TINT:
            cool = images.new_tensor([1 - strength, 1 - strength / 2, 1.0])[:, None, None]
            return images * torch.where(second, cool.flip(0), cool)
        case PlantedProperty.THICKNESS:
            if images.shape[1] != 1:
                raise InputError(
                    f"plant: expected gray images for a thickness of strokes, got {images.shape[1]} channels"
                )
            return torch.where(second, stroke(images, strength), stroke(images, -strength))
        case PlantedProperty.SHEAR:
            slant = images.new_full((len(images),), strength) * (2 * codes - 1)
            matrices = torch.eye(2).repeat(len(images), 1, 1)
            matrices[:, 0, 1] = -slant
            return warp(images, matrices, torch.zeros(len(images), 2))


def stroke(images: Tensor, amount: float) -> Tensor:
    """The images with thicker (amount above 0) or thinner strokes; at ±k dilated or eroded k times in a 3 by 3 window.

    In between it is a mixture: at 1.5 half of the image dilated once and half of that dilated twice.

    Args:
        images: (n, c, h, w), bright strokes on dark ground.
        amount: how often, with a sign.
    """
    sign = 1.0 if amount >= 0 else -1.0
    left = abs(amount)
    while left > 0:
        changed = sign * functional.max_pool2d(sign * images, kernel_size=3, stride=1, padding=1)
        images = images + min(left, 1.0) * (changed - images)
        left -= 1.0
    return images


def warp(images: Tensor, matrices: Tensor, shifts: Tensor) -> Tensor:
    """The images moved by an affine map about their center, with linear interpolation and black beyond the edge.

    What was at p (in pixels from the center, x to the right and y downward) is then at A p + t.

    Args:
        images: (n, c, h, w).
        matrices: A of each, (n, 2, 2), invertible.
        shifts: t of each in pixels, (n, 2).
    """
    half = images.new_tensor([images.shape[3] / 2, images.shape[2] / 2])
    back = torch.linalg.inv(matrices)
    start = -(back @ shifts[:, :, None])
    theta = torch.cat([back * half / half[:, None], start / half[:, None]], dim=2)
    grid = functional.affine_grid(theta, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


__all__ = ["PlantedProperty", "plant", "stroke", "warp"]

"""Images with a property that a seed planted in them: synthetic, and called so."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gradleak.core import Domain
from gradleak.data import Population
from gradleak.datasets import image_file
from gradleak.datasets.files import read_idx
from gradleak.datasets.synthetic import stroke, warp
from gradleak.results import InputError, member

_Path = str | os.PathLike[str]


class PlantedProperty(StrEnum):
    """Change of an image according to the value of a synthetic property."""

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


def idx_images(
    images: _Path,
    labels: _Path,
    *,
    planted: PlantedProperty | str = PlantedProperty.TINT,
    strength: float = 0.5,
    share: float = 0.5,
    seed: int = 0,
) -> Population:
    """MNIST or Fashion-MNIST images with a **synthetic** property, independent of the class, in each.

    Args:
        images: idx3 file of bytes, plain or gzipped, as both sets are published.
        labels: its idx1 file.
        planted: "tint" (the images are then RGB), "thickness" or "shear"; see `PlantedProperty`.
        strength: how strong, see `plant`.
        share: probability of the second value of the property, above 0 and below 1.
        seed: seed of who has the property; the global RNG is never touched.

    Returns:
        Inputs (n, 1 or 3, 28, 28) in [0, 1], in the order of the file; the label as target.

    Raises:
        InputError: for a missing or unfit file or a setting out of range.

    Source:
        LeCun et al. 1998 (MNIST and the idx format); Xiao et al. 2017 (Fashion-MNIST). The property is ours.
    """
    levels, classes = read_idx(images, 3), read_idx(labels, 1)
    if len(levels) != len(classes):
        raise InputError(f"{Path(labels)}: expected {len(levels)} labels, as many as images, got {len(classes)}")
    pixels = torch.from_numpy(levels.astype(np.float32) / 255)[:, None]
    targets = torch.from_numpy(classes.astype(np.int64))
    return _planted(pixels, targets, Path(images).name, planted, strength, share, seed)


def cifar_images(
    path: _Path,
    *,
    planted: PlantedProperty | str = PlantedProperty.TINT,
    strength: float = 0.5,
    share: float = 0.5,
    seed: int = 0,
    only: str | None = None,
) -> Population:
    """Labeled images of an npz file with a **synthetic** property, independent of the class, in each.

    Args:
        path: npz with `x`, uint8 (n, h, w) or (n, h, w, 1 or 3), and `y`, integers (n,); never unpickled.
        planted: "tint" or "shear", and for gray images "thickness"; see `PlantedProperty`.
        strength: how strong, see `plant`.
        share: probability of the second value of the property, above 0 and below 1.
        seed: seed of who has the property and of the order of the rows; the global RNG is never touched.
        only: name of a boolean array (n,) in the file; only images where it is true are taken.

    Returns:
        Inputs (n, 1 or 3, h, w) in [0, 1]; the label as target.

    Raises:
        InputError: for a missing or unfit file or a setting out of range.

    Source:
        Krizhevsky 2009 for CIFAR. The property is ours.
    """
    file = Path(path)
    with_one = image_file(path=file, count=1, only=only)  # names what is wrong with an unfit file
    with np.load(file, allow_pickle=False) as arrays:
        count = int(arrays[only].sum()) if only else len(arrays["y"])
    batch = image_file(path=file, count=count, seed=seed, only=only) if count > 1 else with_one
    return _planted(batch.inputs, batch.targets, file.name, planted, strength, share, seed)


def _planted(
    pixels: Tensor,
    targets: Tensor,
    file: str,
    planted: PlantedProperty | str,
    strength: float,
    share: float,
    seed: int,
) -> Population:
    if not 0.0 < share < 1.0:
        raise InputError(f"share: expected above 0 and below 1, got {share}")
    codes = (torch.rand(len(pixels), generator=torch.Generator().manual_seed(seed)) < share).long()
    inputs = plant(pixels, codes, planted, strength=strength)
    _, channels, height, width = inputs.shape
    named = PlantedProperty(planted)
    return Population(
        name=f"{file}: synthetic {named}",
        inputs=inputs,
        targets=targets,
        sensitive=codes,
        values=named.values,
        domain=Domain.image(channels=channels, height=height, width=width),
    )


__all__ = ["PlantedProperty", "cifar_images", "idx_images", "plant"]

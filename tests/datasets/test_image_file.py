"""Images from a file of one's own, against NumPy's own reading of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gradleak.datasets import image_file
from gradleak.results import InputError

pytestmark = pytest.mark.usefixtures("global_rng_unchanged")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    path = tmp_path / "images.npz"
    images = random.integers(0, 256, (9, 5, 4, 3), dtype=np.uint8)
    np.savez(path, x=images, y=np.arange(9), uniform=np.arange(9) % 2 == 0)
    return path


def test_images_are_those_of_the_file(file: Path) -> None:
    batch = image_file(path=file, count=9, seed=1)
    with np.load(file) as arrays:
        for image, label in zip(batch.inputs, batch.targets, strict=True):
            expected = arrays["x"][int(label)].transpose(2, 0, 1).astype(np.float32) / 255
            assert torch.equal(image, torch.from_numpy(expected))
    assert sorted(batch.targets.tolist()) == list(range(9))
    assert batch.domain is not None
    assert batch.domain.shape == (3, 5, 4)


def test_a_mask_selects_and_a_larger_count_begins_the_same(file: Path) -> None:
    some = image_file(path=file, count=3, only="uniform")
    more = image_file(path=file, count=5, only="uniform")
    assert set(more.targets.tolist()) == {0, 2, 4, 6, 8}
    assert torch.equal(more.inputs[:3], some.inputs)


def test_gray_images_get_a_channel(tmp_path: Path) -> None:
    np.savez(tmp_path / "gray.npz", x=np.zeros((2, 6, 6), np.uint8), y=np.zeros(2, int))
    assert image_file(path=tmp_path / "gray.npz", count=2).inputs.shape == (2, 1, 6, 6)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"x": np.zeros((2, 6, 6), np.uint8)}, "expected arrays y, got x"),
        ({"x": np.zeros((2, 6, 6)), "y": np.zeros(2)}, "expected x uint8"),
        ({"x": np.zeros((2, 6, 6), np.uint8), "y": np.zeros(3)}, "expected x uint8"),
        ({"x": np.array([{"a": 1}], dtype=object), "y": np.zeros(1)}, "not an npz of numeric arrays"),
    ],
)
def test_an_unfit_file_is_one_clear_line(tmp_path: Path, content: dict[str, np.ndarray], message: str) -> None:
    np.savez(tmp_path / "bad.npz", **content)
    with pytest.raises(InputError, match=message):
        image_file(path=tmp_path / "bad.npz", count=1)


def test_missing_file_and_too_many_images(file: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        image_file(path=tmp_path / "none.npz", count=1)
    with pytest.raises(
        InputError, match=r"no more than the 5 of the rows from 0 to 9 of images.npz where uniform is true, got 6"
    ):
        image_file(path=file, count=6, only="uniform")
    with pytest.raises(InputError, match=r"no more than the 5 of the rows"):
        image_file(path=file, count=10, only="uniform")
    with pytest.raises(InputError, match=r"expected 1 to 9, the rows from 0 to 9 of images.npz, got 10"):
        image_file(path=file, count=10)


def test_ranges_of_rows_are_apart(file: Path) -> None:
    assert set(image_file(path=file, count=6, last=6).targets.tolist()) == set(range(6))
    assert set(image_file(path=file, count=3, first=6).targets.tolist()) == {6, 7, 8}
    assert set(image_file(path=file, count=2, first=3, last=7, only="uniform").targets.tolist()) == {4, 6}
    with pytest.raises(InputError, match="where uniform is true"):
        image_file(path=file, count=3, first=3, last=7, only="uniform")


def test_cifar_of_the_bench(shared: Path) -> None:
    batch = image_file(path=shared / "data" / "cifar10" / "cifar10_test_500.npz", count=4, only="uniform")
    assert batch.inputs.shape == (4, 3, 32, 32)
    assert float(batch.inputs.max()) <= 1.0

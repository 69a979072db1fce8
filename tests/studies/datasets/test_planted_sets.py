"""Image sets with a planted property, from generated idx files and the files of the bench."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from gradleak.results import InputError
from studies.datasets import cifar_images, idx_images

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


def test_gray_levels_and_labels_are_those_of_the_file(files: tuple[Path, Path]) -> None:
    images, labels = files
    levels = np.frombuffer(gzip.decompress(images.read_bytes())[16:], np.uint8).reshape(40, 28, 28)
    people = idx_images(images, labels, strength=0.5, share=0.3, seed=5)
    assert people.targets.tolist() == [row % 10 for row in range(40)]
    # A cast keeps the brightest channel.
    np.testing.assert_allclose(people.inputs.max(dim=1).values.numpy(), levels / 255, atol=1e-6)
    red = people.inputs[:, 0].sum(dim=(1, 2)) > people.inputs[:, 2].sum(dim=(1, 2))
    assert people.sensitive.tolist() == red.long().tolist()
    assert 0 < int(people.sensitive.sum()) < 20
    assert "synthetic" in people.name
    assert tuple(people.values) == ("cool", "warm")


@pytest.mark.parametrize(("planted", "channels"), [("tint", 3), ("thickness", 1), ("shear", 1)])
def test_the_seed_alone_decides_who_has_the_property(files: tuple[Path, Path], planted: str, channels: int) -> None:
    first, again, other = (idx_images(*files, planted=planted, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.inputs, again.inputs)
    assert first.inputs.shape == (40, channels, 28, 28)
    assert not torch.equal(first.sensitive, other.sensitive)
    same = first.sensitive == other.sensitive
    assert torch.equal(first.inputs[same], other.inputs[same])


def test_an_unfit_idx_file_is_one_clear_line(files: tuple[Path, Path], tmp_path: Path) -> None:
    images, labels = files
    with pytest.raises(InputError, match=r"expected an idx3 file of bytes .* got 00 00 08 01"):
        idx_images(labels, images)
    with pytest.raises(InputError, match="expected 40 labels, as many as images, got 3"):
        idx_images(images, idx(tmp_path / "few", np.arange(3)))
    (tmp_path / "torn").write_bytes(labels.read_bytes()[:-2])
    with pytest.raises(InputError, match=r"expected 40 bytes for \(40,\), got 38"):
        idx_images(images, tmp_path / "torn")
    (tmp_path / "gz").write_bytes(images.read_bytes()[:60])
    with pytest.raises(InputError, match="not a whole gzip file"):
        idx_images(tmp_path / "gz", labels)
    with pytest.raises(InputError, match="no such file"):
        idx_images(tmp_path / "none", labels)
    with pytest.raises(InputError, match="share: expected above 0 and below 1"):
        idx_images(images, labels, share=1.0)


def test_mnist_of_the_bench(shared: Path) -> None:
    folder = shared / "data" / "mnist"
    if not folder.is_dir():
        pytest.skip("the files of MNIST are not at hand")
    people = idx_images(folder / "t10k-images-idx3-ubyte.gz", folder / "t10k-labels-idx1-ubyte.gz", planted="thickness")
    assert people.inputs.shape == (10000, 1, 28, 28)
    thin, thick = (people.inputs[people.sensitive == code].mean() for code in (0, 1))
    assert float(thick) > 2 * float(thin)


def test_cifar_of_the_bench_keeps_its_pixels(shared: Path) -> None:
    path = shared / "data" / "cifar10" / "cifar10_test_500.npz"
    if not path.is_file():
        pytest.skip("the CIFAR images are not at hand")
    people = cifar_images(path, only="uniform", strength=0.2)
    with np.load(path) as arrays:
        originals = arrays["x"][arrays["uniform"]]
        labels = arrays["y"][arrays["uniform"]]
    assert people.inputs.shape == (228, 3, 32, 32)
    assert torch.bincount(people.targets, minlength=10).tolist() == np.bincount(labels, minlength=10).tolist()
    for row in range(5):
        # The cast leaves one end of the spectrum as it was.
        kept = 0 if int(people.sensitive[row]) else 2
        distances = np.abs(originals[..., kept] / 255 - people.inputs[row, kept].numpy()).max(axis=(1, 2))
        assert distances.min() < 1e-6
    with pytest.raises(InputError, match="gray images"):
        cifar_images(path, planted="thickness")

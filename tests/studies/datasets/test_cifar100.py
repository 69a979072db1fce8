"""CIFAR-100, against records written byte by byte."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from gradleak.results import InputError
from studies.datasets import cifar100

pytestmark = pytest.mark.usefixtures("global_rng_unchanged")

PIXELS = np.random.default_rng(0).integers(0, 256, (7, 3, 32, 32), dtype=np.uint8)
COARSE, FINE = bytes([19, 0, 3, 3, 5, 5, 1]), bytes([99, 0, 42, 7, 8, 9, 10])


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    file = tmp_path / "test.bin"
    file.write_bytes(b"".join(bytes([c, f]) + p.tobytes() for c, f, p in zip(COARSE, FINE, PIXELS, strict=True)))
    return file


def test_images_and_labels_are_those_of_the_records(binary: Path) -> None:
    batch = cifar100(path=binary, count=7, seed=1)
    superclasses = cifar100(path=binary, count=7, seed=1, coarse=True)
    assert sorted(batch.targets.tolist()) == sorted(FINE)
    for image, fine, coarse in zip(batch.inputs, batch.targets, superclasses.targets, strict=True):
        place = FINE.index(int(fine))
        assert torch.equal(image, torch.from_numpy(PIXELS[place].astype(np.float32) / 255))
        assert int(coarse) == COARSE[place]
    assert batch.domain is not None
    assert batch.domain.shape == (3, 32, 32)
    assert torch.equal(cifar100(path=binary, count=3, seed=1).inputs, batch.inputs[:3])


def test_an_archive_of_the_same_images_gives_the_same_batch(binary: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "c.npz", x=PIXELS.transpose(0, 2, 3, 1), y=np.frombuffer(FINE, dtype=np.uint8).astype(int))
    found, expected = (cifar100(path=file, count=5, seed=2) for file in (tmp_path / "c.npz", binary))
    assert torch.equal(found.inputs, expected.inputs)
    assert torch.equal(found.targets, expected.targets)
    with pytest.raises(InputError, match="expected a binary file for coarse labels"):
        cifar100(path=tmp_path / "c.npz", count=1, coarse=True)


def test_ranges_of_rows_are_apart(binary: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "c.npz", x=PIXELS.transpose(0, 2, 3, 1), y=np.frombuffer(FINE, dtype=np.uint8).astype(int))
    for file in (binary, tmp_path / "c.npz"):
        assert sorted(cifar100(path=file, count=4, last=4).targets.tolist()) == sorted(FINE[:4])
        assert sorted(cifar100(path=file, count=3, first=4).targets.tolist()) == sorted(FINE[4:])
        with pytest.raises(InputError, match="count: expected 1 to 3, the rows from 4 to 7"):
            cifar100(path=file, count=4, first=4)


class Hostile:
    """Touches a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.file,)


@pytest.mark.parametrize("protocol", [0, 2, pickle.HIGHEST_PROTOCOL])
def test_pickles_are_refused_and_never_run(protocol: int, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    (tmp_path / "test").write_bytes(pickle.dumps(Hostile(touched), protocol=protocol))
    with pytest.raises(InputError, match=r"(this is a pickle|expected records of 3,074).*use test\.bin or train\.bin"):
        cifar100(path=tmp_path / "test", count=1)
    assert not touched.exists()


def test_a_pickle_is_called_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "train").write_bytes(pickle.dumps({b"data": PIXELS}, protocol=2))
    with pytest.raises(InputError, match="this is a pickle, which can run any code and is never read"):
        cifar100(path=tmp_path / "train", count=1)


def test_unfit_files_are_refused(binary: Path, tmp_path: Path) -> None:
    whole = binary.read_bytes()
    cases = {
        "cut": (whole[:-1], "expected records of 3,074 bytes, got 21,517 bytes"),
        "empty": (b"", "expected records of 3,074 bytes, got 0 bytes"),
        "packed": (gzip.compress(whole), "expected an unpacked file, got a gzip archive"),
        "other": (bytes([20]) + whole[1:], "expected labels from 0 to 19, got 0 to 20"),
    }
    for name, (content, message) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=message):
            cifar100(path=tmp_path / name, count=1)
    with pytest.raises(InputError, match="got no such file"):
        cifar100(path=tmp_path / "absent", count=1)
    for count in (0, 8):
        with pytest.raises(InputError, match=r"count: expected (a whole number of at least 1|1 to 7)"):
            cifar100(path=binary, count=count)
    np.savez(tmp_path / "gray.npz", x=PIXELS[:, 0], y=np.zeros(7, dtype=int))
    with pytest.raises(InputError, match="expected images of 32 x 32 x 3"):
        cifar100(path=tmp_path / "gray.npz", count=1)


def test_the_images_of_the_shared_file(shared: Path) -> None:
    batch = cifar100(path=shared / "data" / "cifar100" / "cifar100_test_300.npz", count=300)
    assert batch.inputs.shape == (300, 3, 32, 32)
    assert len(batch.targets.unique()) == 89

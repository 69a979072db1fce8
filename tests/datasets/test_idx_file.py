"""Images in the idx format, against bytes written by hand."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from gradleak.datasets import idx_file
from gradleak.results import InputError

pytestmark = pytest.mark.usefixtures("global_rng_unchanged")

PIXELS = np.random.default_rng(0).integers(0, 256, (9, 5, 4), dtype=np.uint8)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    images, labels = tmp_path / "images.gz", tmp_path / "labels"
    images.write_bytes(gzip.compress(struct.pack(">BBBB3I", 0, 0, 8, 3, 9, 5, 4) + PIXELS.tobytes()))
    labels.write_bytes(struct.pack(">BBBBI", 0, 0, 8, 1, 9) + bytes(range(9)))
    return {"images": images, "labels": labels}


def test_images_are_those_of_the_file(files: dict[str, Path]) -> None:
    batch = idx_file(**files, count=9, seed=1)
    assert sorted(batch.targets.tolist()) == list(range(9))
    assert batch.targets.tolist() != list(range(9))
    for image, label in zip(batch.inputs, batch.targets, strict=True):
        assert torch.equal(image[0], torch.from_numpy(PIXELS[int(label)].astype(np.float32) / 255))
    assert batch.domain is not None
    assert batch.domain.shape == (1, 5, 4)


def test_ranges_of_rows_are_apart_and_a_larger_count_begins_the_same(files: dict[str, Path]) -> None:
    seen, held_out = idx_file(**files, count=6, last=6), idx_file(**files, count=3, first=6)
    assert set(seen.targets.tolist()) == set(range(6))
    assert set(held_out.targets.tolist()) == {6, 7, 8}
    assert torch.equal(idx_file(**files, count=2, last=6).inputs, seen.inputs[:2])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 10}, "count: expected 1 to 9, the rows from 0 to 9 of images.gz, got 10"),
        ({"count": 0}, "count: expected a whole number of at least 1, got 0"),
        ({"count": 4, "first": 6}, "count: expected 1 to 3, the rows from 6 to 9 of images.gz, got 4"),
        ({"count": 1, "last": 10}, "expected rows of the 9 in images.gz, got 0 to 10"),
        ({"count": 1, "first": 3, "last": 3}, "expected rows of the 9 in images.gz, got 3 to 3"),
        ({"count": 1, "first": -1}, "first"),
    ],
)
def test_what_the_file_has_not_is_refused(changes: dict[str, int], message: str, files: dict[str, Path]) -> None:
    with pytest.raises(InputError, match=message):
        idx_file(**files, **changes)


def test_files_that_do_not_belong_together_are_refused(files: dict[str, Path]) -> None:
    files["labels"].write_bytes(struct.pack(">BBBBI", 0, 0, 8, 1, 8) + bytes(8))
    with pytest.raises(InputError, match="labels: expected 9 labels, as many as images, got 8"):
        idx_file(**files, count=1)
    with pytest.raises(InputError, match="expected an idx3 file"):
        idx_file(images=files["labels"], labels=files["labels"], count=1)


def test_fashion_images_are_those_of_the_shared_file(shared: Path) -> None:
    folder = shared / "data" / "fashion"
    batch = idx_file(
        images=folder / "t10k-images-idx3-ubyte.gz", labels=folder / "t10k-labels-idx1-ubyte.gz", count=50, first=9000
    )
    assert batch.inputs.shape == (50, 1, 28, 28)
    assert 0.2 < float(batch.inputs.mean()) < 0.4

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from gradleak.datasets import array_file, csv_file, image_folder
from gradleak.results import InputError

ROWS = "age,ward,dose,note,outcome\n18,A,0,x,ill\n54,B,50,y,well\n90,A,100,z,well\n"
RANGES = {"age": (0.0, 90.0), "dose": (0.0, 100.0)}
VALUES = {"ward": ("B", "A"), "outcome": ("ill", "well")}


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    (tmp_path / "rows.csv").write_text(ROWS, encoding="utf-8")
    return tmp_path / "rows.csv"


def test_rows_stand_in_the_order_of_the_file_with_a_range_a_column(rows: Path) -> None:
    batch = csv_file(path=rows, target="outcome", count=3, ranges=RANGES, values=VALUES)
    order = batch.inputs[:, 0].argsort()
    # The age, whether the ward is B, whether it is A, the dose.
    assert batch.inputs[order].tolist() == [[18, 0, 1, 0], [54, 1, 0, 50], [90, 0, 1, 100]]
    assert batch.targets[order].tolist() == [0, 1, 1]
    assert batch.domain is not None
    assert batch.domain.high == (90.0, 1.0, 1.0, 100.0)
    scaled = csv_file(path=rows, target="outcome", count=3, ranges=RANGES, values=VALUES, scale=True)
    assert torch.allclose(scaled.inputs[order][:, 0], torch.tensor([0.2, 0.6, 1.0]))
    assert scaled.domain is not None
    assert (scaled.domain.low, scaled.domain.high) == (0.0, 1.0)
    # A larger count begins with the same rows.
    assert torch.equal(
        csv_file(path=rows, target="outcome", count=1, ranges=RANGES, values=VALUES).inputs, batch.inputs[:1]
    )


def test_a_number_is_a_target_in_its_own_unit(rows: Path) -> None:
    batch = csv_file(path=rows, target="dose", count=3, ranges=RANGES, values={"ward": ("A", "B")})
    assert sorted(batch.targets[:, 0].tolist()) == [0.0, 50.0, 100.0]
    assert batch.inputs.shape == (3, 3)


def test_cells_and_columns_that_do_not_fit_are_named(rows: Path) -> None:
    with pytest.raises(InputError, match=r"rows\.csv, line 4, column age: expected 0 to 80, got 90"):
        csv_file(path=rows, target="outcome", count=1, ranges={**RANGES, "age": (0.0, 80.0)}, values=VALUES)
    with pytest.raises(InputError, match=r"header .*age, ward, dose.*got weight"):
        csv_file(path=rows, target="outcome", count=1, ranges={"weight": (0.0, 9.0)}, values=VALUES)
    with pytest.raises(InputError, match="no such file"):
        csv_file(path=rows.parent / "none.csv", target="outcome", count=1)


def test_arrays_of_both_formats_are_read_alike(tmp_path: Path) -> None:
    inputs, labels = np.arange(12, dtype=np.float32).reshape(4, 3), np.array([0, 1, 2, 3])
    np.savez(tmp_path / "a.npz", x=inputs, y=labels)
    save_file({"x": torch.from_numpy(inputs), "y": torch.from_numpy(labels)}, tmp_path / "a.safetensors")
    first, second = (array_file(path=tmp_path / f"a.{kind}", count=4, seed=1) for kind in ("npz", "safetensors"))
    assert torch.equal(first.inputs, second.inputs)
    assert torch.equal(first.inputs[:, 0], 3.0 * first.targets)
    assert first.domain is None
    with pytest.raises(InputError, match="ids with one"):
        array_file(path=tmp_path / "a.npz", count=1, vocabulary=9)
    with pytest.raises(InputError, match="expected arrays x and z, got x, y"):
        array_file(path=tmp_path / "a.npz", count=1, targets="z")
    (tmp_path / "b.npz").write_bytes(b"no zip")
    with pytest.raises(InputError, match="not an npz"):
        array_file(path=tmp_path / "b.npz", count=1)


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (np.array([[{"a": 1}]], dtype=object), [0], "it holds Python objects, which are never unpickled"),
        (np.ones((2, 3), dtype=np.complex64), [0, 1], "expected an array of real numbers for x, got complex64"),
        (np.array([["a"], ["b"]]), [0, 1], "expected an array of real numbers for x, got <U1"),
        (np.array([[1.0], [np.nan], [np.inf]]), [0, 1, 1], "got NaN or infinity in 2 of 3 rows, first in row 1"),
        (np.zeros((0, 3)), [], r"expected at least one row in x, got shape \(0, 3\)"),
        (np.ones((2, 3)), np.array([0, 2**63], dtype=np.uint64), "whole numbers of at most 63 bits in y"),
    ],
)
def test_arrays_that_are_no_numbers_are_named(inputs: object, targets: object, message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=inputs, y=targets)
    with pytest.raises(InputError, match=message):
        array_file(path=tmp_path / "a.npz", count=1)


@pytest.mark.parametrize("kind", [np.uint16, np.uint32, np.uint64, bool, ">i4"])
def test_classes_of_every_kind_of_number_are_read(kind: object, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((2, 3), dtype=bool), y=np.array([1, 1], dtype=kind))
    batch = array_file(path=tmp_path / "a.npz", count=2)
    assert (batch.inputs.dtype, batch.targets.dtype, batch.targets.tolist()) == (torch.float32, torch.int64, [1, 1])


def test_truncated_files_are_named_as_such(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((2, 3)), y=[0, 1])
    save_file({"x": torch.ones(2, 3), "y": torch.tensor([0, 1])}, tmp_path / "a.safetensors")
    for name, message in (("a.npz", "or a truncated one"), ("a.safetensors", "not a whole safetensors file")):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[: len(content) // 2])
        with pytest.raises(InputError, match=message):
            array_file(path=tmp_path / name, count=1)


def test_ids_get_the_domain_of_tokens(tmp_path: Path) -> None:
    save_file({"x": torch.tensor([[1, 2, 0], [3, 1, 4]]), "y": torch.tensor([0, 1])}, tmp_path / "ids.safetensors")
    batch = array_file(path=tmp_path / "ids.safetensors", count=2, vocabulary=5, padding=0, targets="x")
    assert torch.equal(batch.inputs, batch.targets)
    assert batch.declared_domain().vocabulary is not None
    assert batch.declared_domain().shape == (3,)


def test_the_folders_of_images_are_the_classes(tmp_path: Path) -> None:
    for label, name in enumerate(("b", "a")):
        (tmp_path / name).mkdir()
        Image.new("RGB", (3, 2), (255 * label, 0, 255)).save(tmp_path / name / "1.png")
    batch = image_folder(path=tmp_path, count=2, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    assert batch.inputs.shape == (2, 3, 2, 3)
    reds = {int(label): float(image[0, 0, 0]) for image, label in zip(batch.inputs, batch.targets, strict=True)}
    assert reds == {0: 1.0, 1: -1.0}  # "a" comes first
    assert image_folder(path=tmp_path, count=1, channels=1, height=4, width=5).inputs.shape == (1, 1, 4, 5)
    Image.new("RGB", (9, 9)).save(tmp_path / "a" / "2.png")
    with pytest.raises(InputError, match="state height and width"):
        image_folder(path=tmp_path, count=3)
    with pytest.raises(InputError, match="one folder a class"):
        image_folder(path=tmp_path / "a", count=1)


def png(side: int) -> bytes:
    """A file that says it holds so many pixels a side, and has none."""

    def part(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", zlib.compress(b"")) + part(b"IEND", b"")


@pytest.mark.parametrize("content", [b"", b"text", png(60_000), png(4), png(4)[:20]])
def test_an_image_that_cannot_be_read_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a" / "no.png").mkdir(parents=True)
    (tmp_path / "a" / "1.png").write_bytes(content)
    with pytest.raises(
        InputError, match=r"a/1\.png: expected an image, got one that cannot be read .*; mend it, or take it"
    ):
        image_folder(path=tmp_path, count=1)


@pytest.mark.parametrize("channels", [1, 3])
def test_sixteen_bits_keep_their_levels(channels: int, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    levels = np.array([[0, 257], [32896, 65535]], dtype=np.uint16)
    Image.fromarray(levels).save(tmp_path / "a" / "1.png")
    inputs = image_folder(path=tmp_path, count=1, channels=channels).inputs
    assert inputs.shape == (1, channels, 2, 2)
    assert torch.allclose(inputs[0, -1], torch.tensor([[0, 1 / 255], [128 / 255, 1]]), atol=1e-7)


def test_means_of_levels_up_to_255_and_images_of_floating_point_numbers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    Image.fromarray(np.ones((2, 2), dtype=np.float32)).save(tmp_path / "a" / "1.tiff")
    with pytest.raises(InputError, match=r"expected numbers of pixels in .0, 1., got .123.* divide them by 255"):
        image_folder(path=tmp_path, count=1, mean=(123.0, 116.0, 103.0), std=(58.0, 57.0, 57.0))
    with pytest.raises(InputError, match="expected 8 or 16 bits a channel, got mode F"):
        image_folder(path=tmp_path, count=1)

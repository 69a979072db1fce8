"""Files that lie, are damaged or carry code: each is one `InputError`, and nothing is executed."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from gradleak.core import Update
from gradleak.results import InputError


class Bomb:
    """Unpickling it writes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return (Path.write_text, (self.marker, "executed"))


def hostile_files(folder: Path, marker: Path) -> dict[str, Path]:
    bomb = Bomb(marker)
    files = {
        name: folder / name for name in ("legacy.pt", "zip.pt", "inner.pt", "plain.pkl", "objects.npz", "pickle.npz")
    }
    torch.save({"w": bomb}, files["legacy.pt"], _use_new_zipfile_serialization=False)
    torch.save({"w": bomb}, files["zip.pt"])
    torch.save({"w": torch.ones(1), "config": {"x": bomb}}, files["inner.pt"])
    files["plain.pkl"].write_bytes(pickle.dumps(bomb))
    np.savez(files["objects.npz"], w=np.array([bomb], dtype=object), allow_pickle=True)
    files["pickle.npz"].write_bytes(pickle.dumps(bomb))
    for suffix in (".safetensors", ".pt", ".pth", ".npz", ".bin", ".ckpt", ""):
        files[f"renamed{suffix}"] = folder / f"renamed{suffix}"
        files[f"renamed{suffix}"].write_bytes(pickle.dumps(bomb))
    return files


def test_no_pickle_is_ever_executed(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    files = hostile_files(tmp_path, marker)
    pickle.loads(files["plain.pkl"].read_bytes())  # noqa: TID251 - the bomb is live
    assert marker.exists()
    marker.unlink()
    for name, path in files.items():
        with pytest.raises(InputError) as caught:
            Update.load(path)
        assert not marker.exists(), f"{name} was executed"
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
        assert "\x1b" not in str(caught.value), f"{name}: escape codes of a terminal"
        if not name.endswith(".safetensors"):
            assert "safetensors.torch.save_file" in str(caught.value), f"{name}: the refusal must say how to convert"


def safetensors_bytes(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


ONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 7,
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 2**40) + b"{}",
        safetensors_bytes(b"{not json"),
        safetensors_bytes({"w": {"dtype": "F32", "shape": [2**50], "data_offsets": [0, 2**52]}}),
        safetensors_bytes({"w": {"dtype": "F32", "shape": [2**50], "data_offsets": [0, 4]}}, b"1234"),
        safetensors_bytes({"w": {"dtype": "F32", "shape": [2**62, 8], "data_offsets": [0, 0]}}),
        safetensors_bytes({"w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, b"1234"),
        safetensors_bytes({"w": {"dtype": "EVIL", "shape": [1], "data_offsets": [0, 4]}}, b"1234"),
        safetensors_bytes({}),
        safetensors_bytes({"w": ONE}, b"123"),
        safetensors_bytes({"w": ONE}, b"12345"),
    ],
)
def test_safetensors_that_lie_about_their_sizes(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "u.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"u\.safetensors: "):
        Update.load(path)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("[]", "got another form"),
        ("3", "got another form"),
        ("{broken", "damaged gradleak header"),
        ("[" * 100_000, "damaged gradleak header"),
        ('{"kind": "evil"}', "expected kind 'gradient', 'delta' or 'weights', got 'evil' from the file"),
        ('{"kind": 3}', "got another form"),
        ('{"provenance": [1]}', "got another form"),
        ('{"order": [["w"]]}', "expected names of tensors"),
        ('{"order": {"w": 1}}', "got another form"),
        ('{"order": ["other", "w", "w"]}', None),
        ('{"order": []}', None),
    ],
)
def test_a_hostile_gradleak_header_is_refused(tmp_path: Path, header: str, message: str | None) -> None:
    path = tmp_path / "u.safetensors"
    save_file({"w": torch.ones(1)}, path, metadata={"gradleak": header})
    if message is None:
        assert torch.equal(Update.load(path).tensors["w"], torch.ones(1))
    else:
        with pytest.raises(InputError, match=message):
            Update.load(path)


def zip_bytes(entries: dict[str, bytes], *, method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }"), "promises shape"),
        (npy("{'descr': '<f8', 'fortran_order': False, 'shape': (4,), }", b"12345678"), "promises shape"),
        (npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", b"x"), "got Python objects in 'w.npy'"),
        (npy("__import__('os').system('touch marker')"), "not an npz of numeric arrays"),
        (
            npy("{'descr': '<U4', 'fortran_order': False, 'shape': (1,), }", b"\x00" * 16),
            "not an npz of numeric arrays",
        ),
        (npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", b"1234"), "not an npz"),
        (npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }"), "promises shape"),
        (npy("{'descr': '<f8', 'fortran_order': False, 'shape': (0, -1), }"), "promises shape"),
        (npy("{'descr': '<f8', 'fortran_order': False, 'shape': (4611686018427387904, 8), }"), "promises shape"),
        (npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }", b"1234567890"), "promises shape"),
        (npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1L,), }", b"12345678"), "not an npz"),
        (
            npy("{'descr': ('<f8', (1000000000,)), 'fortran_order': False, 'shape': (1,), }", b"12345678"),
            "holds no numbers",
        ),
        (npy("{'descr': '|V0', 'fortran_order': False, 'shape': (1000000000000,), }"), "not an npz"),
        (npy("{'descr': '<f8', 'fortran_order': False, 'shape': (" + "1," * 500 + "), }", b"12345678"), "not an npz"),
        (npy("(" * 5000), "not an npz"),
        (zip_bytes({"inner.npy": b"x"}), "not an npz of numeric arrays"),
        (b"not an array", "not an npz of numeric arrays"),
        (b"", "not an npz of numeric arrays"),
    ],
)
def test_npz_with_lying_or_foreign_entries(tmp_path: Path, entry: bytes, message: str) -> None:
    path = tmp_path / "u.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("w.npy", entry)
    with pytest.raises(InputError, match=message):
        Update.load(path)
    assert [file.name for file in tmp_path.iterdir()] == ["u.npz"]


@pytest.mark.parametrize("suffix", [".npz", ".pt"])
def test_a_zip_bomb_is_refused_before_it_unpacks(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"bomb{suffix}"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for place in range(4):
            archive.writestr(f"{place}.npy", b"\x00" * 10_000_000)
    assert path.stat().st_size < 100_000
    with pytest.raises(InputError, match="40000000 bytes unpacked, more than the 1000000 allowed"):
        Update.load(path, max_bytes=1_000_000)


def test_size_limits_count_what_memory_would_hold(tmp_path: Path) -> None:
    path = Update(tensors={"w": torch.zeros(1000)}).save(tmp_path / "u.safetensors")
    with pytest.raises(InputError, match=r"\d+ bytes, more than the 3000 allowed \(max_bytes\)"):
        Update.load(path, max_bytes=3000)
    # A tensor expanded over a stride of 0 is small on disk and huge once it is used.
    torch.save({"w": torch.zeros(1).expand(10**13)}, tmp_path / "u.pt")
    with pytest.raises(InputError, match="40000000000000 bytes in memory"):
        Update.load(tmp_path / "u.pt")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"model": {"w": torch.ones(1)}}, "expected tensors only, got dict for 'model'"),
        ({"w": torch.ones(1), "epoch": 3}, "expected tensors only, got int for 'epoch'"),
        (torch.ones(3), "expected a dict or list of tensors, got Tensor"),
        ([], "expected at least one tensor, got none"),
        ({0: torch.ones(1), "0": torch.ones(1)}, "two that read '0'"),
        ({"w": torch.eye(3).to_sparse()}, r"expected plain dense tensors.*rebuild_sparse_tensor.*to_dense"),
        ({"w": torch.ones(2, device="meta")}, "expected plain dense tensors.*rebuild_meta_tensor"),
        ([torch.ones(1), [torch.ones(1)]], "expected tensors only, got list for 1"),
    ],
)
def test_torch_files_with_something_else(tmp_path: Path, content: Any, message: str) -> None:
    torch.save(content, tmp_path / "u.pt")
    with pytest.raises(InputError, match=message):
        Update.load(tmp_path / "u.pt")


def test_names_that_stand_twice_are_refused(tmp_path: Path) -> None:
    """Readers differ in which of the two counts."""
    path = tmp_path / "u.safetensors"
    entry = json.dumps(ONE)
    for header in (f'{{"w": {entry}, "w": {entry}}}', f'{{"w": {entry}, "\\u0077": {entry}}}'):
        path.write_bytes(safetensors_bytes(header.encode(), b"1234"))
        with pytest.raises(InputError, match=r"damaged header.*a name stands there twice"):
            Update.load(path)
    save_file({"w": torch.ones(1)}, path, metadata={"gradleak": '{"kind": "delta", "kind": "gradient"}'})
    with pytest.raises(InputError, match=r"damaged gradleak header.*a name stands there twice"):
        Update.load(path)
    one = npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }", bytes(8))
    path = tmp_path / "u.npz"
    path.write_bytes(zip_bytes({"w.npy": one, "w": one}))
    with pytest.raises(InputError, match="two that read 'w'"):
        Update.load(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("w.npy", one)
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("w.npy", one)
    with pytest.raises(InputError, match="two entries have one name"):
        Update.load(path)


def test_the_size_of_what_is_said_is_bounded_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "u.safetensors"
    with path.open("wb") as file:  # no bytes on the disk
        file.write(struct.pack("<Q", 2**30))
        file.truncate(2**31)
    with pytest.raises(InputError, match="expected at most 16777216 bytes that list the tensors, got 1073741824"):
        Update.load(path)
    many = {str(place): {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for place in range(10**5)}
    path.write_bytes(safetensors_bytes(many))
    with pytest.raises(InputError, match="expected at most 50000 tensors, got 100000"):
        Update.load(path)
    path = tmp_path / "u.npz"
    end = bytearray(zip_bytes({"w.npy": b"x"}))
    end[-10:-6] = struct.pack("<I", 2**30)
    path.write_bytes(bytes(end))
    with pytest.raises(InputError, match="that list the tensors, got 1073741824"):
        Update.load(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_only_the_compressions_that_numpy_writes_are_read(tmp_path: Path, method: int) -> None:
    path = tmp_path / "u.npz"
    path.write_bytes(
        zip_bytes({"w.npy": npy("{'descr': '<f8', 'fortran_order': False, 'shape': (0,), }")}, method=method)
    )
    with pytest.raises(InputError, match=r"'w.npy' promises more than can be in it"):
        Update.load(path)


@pytest.mark.parametrize("suffix", [".npz", ".pt"])
def test_an_entry_that_promises_more_than_its_bytes_can_hold(tmp_path: Path, suffix: str) -> None:
    """Both tables of the archive state 100 MB for 200 bytes: an array of that size was allocated before a byte was read."""
    path = tmp_path / f"u{suffix}"
    header = npy("{'descr': '<f8', 'fortran_order': False, 'shape': (12500000,), }")
    content = bytearray(zip_bytes({"a/data.pkl": header + bytes(100)}, method=zipfile.ZIP_DEFLATED))
    stated = struct.pack("<I", len(header) + 100)
    assert content.count(stated) == 2
    path.write_bytes(bytes(content).replace(stated, struct.pack("<I", 10**8)))
    with pytest.raises(InputError, match="promises more than can be in it"):
        Update.load(path)


def test_an_array_of_zeros_may_unfold_but_not_without_end(tmp_path: Path) -> None:
    path = tmp_path / "u.npz"
    np.savez_compressed(path, w=np.zeros(10**6))
    assert Update.load(path).tensors["w"].shape == (10**6,)
    np.savez_compressed(path, w=np.zeros(2 * 10**7))
    with pytest.raises(InputError, match=r"160000\d+ bytes unpacked from a file of \d+, more than 200 times as much"):
        Update.load(path)


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pt"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.uint8, torch.complex64])
def test_only_floating_point_numbers_are_turned_around(tmp_path: Path, suffix: str, dtype: torch.dtype) -> None:
    path, tensors = tmp_path / f"u{suffix}", {"w": torch.ones(2).to(dtype)}
    write: dict[str, Any] = {
        ".safetensors": lambda: save_file(tensors, path),
        ".npz": lambda: np.savez(path, **{name: tensor.numpy() for name, tensor in tensors.items()}),
        ".pt": lambda: torch.save(tensors, path),
    }
    write[suffix]()
    assert Update.load(path).tensors["w"].dtype == dtype
    with pytest.raises(InputError, match=f"expected floating point numbers to turn around, got {dtype} in 'w'"):
        Update.load(path, sign=-1)


@pytest.mark.parametrize("name", ["w\0", "\u202ew", "w\x1b[2J", "w" * 1001])
def test_names_that_no_line_can_hold_are_refused(tmp_path: Path, name: str) -> None:
    torch.save({name: torch.ones(1)}, tmp_path / "u.pt")
    save_file({name: torch.ones(1)}, tmp_path / "u.safetensors")
    (tmp_path / "u.npz").write_bytes(
        zip_bytes({f"{name}.npy": npy("{'descr': '<f8', 'fortran_order': False, 'shape': (0,), }")})
    )
    for path in tmp_path.iterdir():
        if path.suffix == ".npz" and "\0" in name:
            continue  # names in a zip archive end at NUL
        with pytest.raises(InputError, match="expected names of at most 1000 letters that can be printed") as caught:
            Update.load(path)
        assert str(caught.value).isprintable()


def test_missing_and_unknown_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected an update file, got no such file"):
        Update.load(tmp_path / "none.npz")
    with pytest.raises(InputError, match="expected an update file, got a folder"):
        Update.load(tmp_path)
    (tmp_path / "u.h5").write_bytes(b"x")
    with pytest.raises(InputError, match=r"expected .safetensors, .npz, .pt or .pth, got '.h5'; pickles are never"):
        Update.load(tmp_path / "u.h5")


def small_file(suffix: str) -> bytes:
    buffer = io.BytesIO()
    tensors = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2)}
    if suffix == ".npz":
        np.savez_compressed(buffer, **{name: tensor.numpy() for name, tensor in tensors.items()})
    elif suffix == ".pt":
        torch.save(tensors, buffer)
    else:
        from safetensors.torch import save

        return save(tensors, metadata={"gradleak": '{"kind": "delta", "order": ["w", "b"]}'})
    return buffer.getvalue()


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pt"])
def test_a_truncated_file_is_one_input_error_at_every_length(tmp_path: Path, suffix: str) -> None:
    whole, path = small_file(suffix), tmp_path / f"u{suffix}"
    for length in {*range(0, len(whole), 1 + len(whole) // 150), len(whole) - 1}:
        path.write_bytes(whole[:length])
        with pytest.raises(InputError):
            Update.load(path)


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pt"])
@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_damaged_file_is_an_input_error_or_still_an_update(tmp_path: Path, suffix: str, data: st.DataObject) -> None:
    content = bytearray(small_file(suffix))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / f"u{suffix}"
    path.write_bytes(content)
    with contextlib.suppress(InputError):  # any other error fails the test
        update = Update.load(path, max_bytes=10**6)
        assert sum(tensor.numel() for tensor in update.tensors.values()) <= 10**6

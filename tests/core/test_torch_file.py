"""Torch files are read as torch reads them, and nothing that they ask for is called."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradleak.core import Update
from gradleak.results import InputError

FLAT = torch.arange(24.0)
TIED = nn.Parameter(torch.rand(2, 2))


def contents() -> dict[str, Any]:
    kinds = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.int8, torch.bool)
    return {
        "dtypes": {str(kind): (torch.rand(3, 2) * 9).to(kind) for kind in (*kinds, torch.complex64, torch.uint8)},
        "views": {"a": FLAT[3:9], "b": FLAT.reshape(4, 6).T, "c": FLAT[::5], "d": FLAT[2].reshape(()), "e": FLAT[4:4]},
        "expanded": {"a": torch.tensor([1.5]).expand(4), "b": torch.zeros(0, 3), "c": torch.zeros(2, 0, 5)},
        "tied": {"a": TIED, "b": TIED, "c": TIED.detach()[0]},
        "state": nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).state_dict(),
        "ordered": OrderedDict(b=torch.ones(1), a=torch.zeros(2)),
        "list": [torch.ones(1), torch.zeros(2, 3)],
        "tuple": (torch.ones(1), torch.zeros(2, 3), torch.ones(()), torch.ones(1)),
        "places": {1: torch.ones(1), 0: torch.zeros(1)},
        "many": {f"layer{place}.weight": torch.full((2,), float(place)) for place in range(300)},
    }


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("case", list(contents()))
def test_the_same_tensors_as_torch_loads(tmp_path: Path, case: str, protocol: int) -> None:
    content = contents()[case]
    path = tmp_path / "u.pt"
    torch.save(content, path, pickle_protocol=protocol)
    listed = dict(enumerate(content)) if isinstance(content, list | tuple) else content
    found = Update.load(path).tensors
    assert list(found) == [str(key) for key in listed]
    for tensor, expected in zip(found.values(), listed.values(), strict=True):
        assert tensor.dtype == expected.dtype
        assert torch.equal(tensor, expected.detach())
        assert tensor.is_contiguous()
        assert not tensor.requires_grad
    assert len({tensor.data_ptr() for tensor in found.values() if tensor.numel()}) == sum(
        tensor.numel() > 0 for tensor in found.values()
    )


def archive(path: Path, description: bytes, *, storage: bytes = bytes(16), **more: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("u/data.pkl", description)
        file.writestr("u/data/0", storage)
        for name, content in more.items():
            file.writestr(f"u/{name}", content)
    return path


def text(value: str) -> bytes:
    return b"X" + len(value).to_bytes(4, "little") + value.encode()


def number(value: int) -> bytes:
    return b"\x8a\x08" + value.to_bytes(8, "little", signed=True)


def tensor(
    *,
    kind: str = "FloatStorage",
    key: bytes = text("0"),
    count: int = 4,
    offset: int = 0,
    shape: Any = (4,),
    stride: Any = (1,),
) -> bytes:
    sizes = [b"(" + b"".join(number(size) for size in part) + b"t" for part in (shape, stride)]
    place = b"(" + text("storage") + f"ctorch\n{kind}\n".encode() + key + text("cpu") + number(count) + b"tQ"
    arguments = place + number(offset) + b"".join(sizes) + b"\x89ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + arguments + b"tR"


def table(*pairs: bytes) -> bytes:
    return b"\x80\x02}(" + b"".join(pairs) + b"u."


def test_the_hand_written_description_is_a_proper_one(tmp_path: Path) -> None:
    path = archive(tmp_path / "u.pt", table(text("w"), tensor()), version=b"3\n", byteorder=b"little")
    assert Update.load(path).tensors["w"].tolist() == [0.0] * 4
    assert torch.load(path, weights_only=True)["w"].tolist() == [0.0] * 4


CALL = b"cos\nsystem\n" + b"(" + text("touch marker") + b"tR"
HUGE = b"cbuiltins\nbytearray\n(" + number(10**12) + b"tR"
# Thirty pairs of pairs of pairs: a key whose hash, and whose text, takes forever.
DEEP = (
    text("x")
    + b"q\x00"
    + b"".join(b"h" + bytes([k]) + b"h" + bytes([k]) + b"\x86q" + bytes([k + 1]) for k in range(30))
)


@pytest.mark.parametrize(
    ("description", "message"),
    [
        (table(text("w"), CALL), "got what 'os.system' makes for 'w'"),
        (table(text("w"), HUGE), "got what 'builtins.bytearray' makes"),
        (table(text("w"), tensor(kind="UntypedStorage")), "UntypedStorage' is not read"),
        (table(text("w"), tensor(count=10**12)), "promises 1000000000000 numbers in 16 bytes"),
        (table(text("w"), tensor(shape=(5,))), "lies outside of its storage"),
        (table(text("w"), tensor(offset=1)), "lies outside of its storage"),
        (table(text("w"), tensor(stride=(2,))), "lies outside of its storage"),
        (table(text("w"), tensor(shape=(-4,))), "no list of sizes"),
        (table(text("w"), tensor(shape=(4,), stride=(-1,))), "no list of sizes"),
        (table(text("w"), tensor(offset=-1)), "no list of sizes"),
        (table(text("w"), tensor(shape=(1,) * 65, stride=(1,) * 65)), "no list of sizes"),
        (table(text("w"), tensor(shape=(2**62, 8), stride=(0, 0))), "more than the 8589934592 allowed"),
        (table(text("w"), tensor(shape=(2**30,), stride=(0,))), "4294967296 bytes in memory from a file of"),
        (table(text("w"), tensor(shape=(4, 1), stride=(1,))), "not a torch file of plain tensors"),
        (table(text("w"), tensor(key=text("9"))), "no item named 'u/data/9'"),
        (table(text("w"), tensor(key=text("../../data.pkl"))), "no item named"),
        (table(text("w"), tensor(key=DEEP)), "not a torch file of plain tensors"),
        (table(DEEP, tensor()), "not a torch file of plain tensors"),
        (table(b"(" + number(1) + b"t", tensor()), "expected texts or whole numbers as names, got tuple"),
        (table(text("w"), tensor(), text("w"), tensor()), "the name 'w' stands there twice"),
        (table(text("w"), tensor(), text("b")), "its description is damaged"),
        (table(text("w"), b"]" + tensor() + b"a"), "expected tensors only, got list for 'w'"),
        (table(text("w"), b"N"), "expected tensors only, got NoneType for 'w'"),
        (b"\x80\x02" + tensor() + b".", "expected a dict or list of tensors, got Tensor"),
        (b"\x80\x02" + CALL + b".", "expected a dict or list of tensors, got _Name"),
        (b"\x80\x02].", "expected at least one tensor"),
        (b"\x80\x02}" + text("w") + b"s.", "not a torch file"),
        (b"\x80\x02(((.", "not a torch file"),
        (b"\x80\x02u.", "not a torch file"),
        (b".", "not a torch file"),
        (b"", "not a torch file"),
        (b"\x80\x02]" + b"]a" * 100_000 + b".", "expected tensors only, got list for 0"),
        (b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".", "expected tensors only, got list for 0"),
        (b"\x80\x02X\xff\xff\xff\x7fw.", "not a torch file"),
        (b"\x80\x02}(" + text("w") + b"r\xff\xff\xff\x7f" + tensor() + b"u.", None),
    ],
)
def test_descriptions_that_lie_or_ask_for_more(tmp_path: Path, description: bytes, message: str | None) -> None:
    path = archive(tmp_path / "u.pt", description)
    if message is None:
        assert list(Update.load(path).tensors) == ["w"]
        return
    with pytest.raises(InputError, match=message) as caught:
        Update.load(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700


class Once:
    """Unpickling it, by whatever way a pickle can ask for a call, writes a file."""

    def __init__(self, marker: Path, way: Callable[[Path], Any]) -> None:
        self.marker, self.way = marker, way

    def __reduce__(self) -> Any:
        return self.way(self.marker)


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize(
    "way",
    [
        lambda marker: (Path.write_text, (marker, "x")),
        lambda marker: (eval, (f"__import__('pathlib').Path({str(marker)!r}).touch()",)),
        lambda marker: (OrderedDict, (), {"_metadata": 1}, None, iter([("w", Once(marker, lambda m: (m.touch, ())))])),
    ],
)
def test_no_call_of_a_pickle_is_made(tmp_path: Path, way: Callable[[Path], Any], protocol: int) -> None:
    marker, path = tmp_path / "marker", tmp_path / "u.pt"
    bomb = pickle.dumps({"w": Once(marker, way)}, protocol=protocol)
    pickle.loads(bomb)  # noqa: TID251 - the bomb is live
    assert marker.exists()
    marker.unlink()
    archive(path, bomb)
    with pytest.raises(InputError, match=r"expected (plain dense tensors|tensors only)|not a torch file"):
        Update.load(path)
    assert not marker.exists()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # torch, of prototypes and of tracing
def test_other_things_that_torch_saves(tmp_path: Path) -> None:
    path = tmp_path / "u.pt"
    pairs: list[tuple[Any, str]] = [
        ({"w": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)}, "QInt8Storage' is not read.*dequantize"),
        ({"w": torch.ones(2, dtype=torch.complex64).conj()}, "rebuild_tensor_v2"),
        ({"w": torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])}, "rebuild_nested_tensor"),
        ({"w": torch.eye(2).to_sparse_csr()}, "rebuild_sparse_tensor"),
        ({"w": torch.ones(2).to(torch.float8_e4m3fn)}, "not read|rebuild_tensor_v3"),
        (nn.Linear(2, 1), "expected a dict or list of tensors|not a torch file of plain tensors"),
    ]
    for content, message in pairs:
        torch.save(content, path)
        with pytest.raises(InputError, match=message):
            Update.load(path)
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.trace(nn.Linear(2, 1), torch.ones(1, 2)), buffer)
    path.write_bytes(buffer.getvalue())
    with pytest.raises(InputError, match=r"expected a dict or list|not a torch file of plain tensors"):
        Update.load(path)
    archive(path, table(text("w"), tensor()), byteorder=b"big")
    with pytest.raises(InputError, match="another byte order than little"):
        Update.load(path)


def test_shared_memory_is_counted_as_what_it_becomes(tmp_path: Path) -> None:
    path = tmp_path / "u.pt"
    big = torch.zeros(1000, 1000)
    torch.save({str(place): big for place in range(100)}, path)
    with pytest.raises(InputError, match="400000000 bytes in memory, more than the 100000000 allowed"):
        Update.load(path, max_bytes=10**8)
    small: dict[str, Tensor] = {"w": torch.zeros(1).expand(10**8)}
    torch.save(small, path)
    with pytest.raises(InputError, match=r"400000000 bytes in memory from a file of \d+, more than 200 times as much"):
        Update.load(path)

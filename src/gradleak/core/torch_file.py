"""Plain tensors of a torch file, read without unpickling: what stands there is looked at, and never called.

`torch.load(weights_only=True)` would do for honest files. It ran code that a file brought until torch 2.6, makes containers
and storages of any size that a file asks for, and hashes keys that take forever.
"""

from __future__ import annotations

import math
import pickletools
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradleak.results import InputError
from gradleak.results.errors import shown

HOW_TO_CONVERT = (
    "pickles are never loaded, since they can run code. Convert where the file was made: "
    "safetensors.torch.save_file(dict_of_tensors, 'update.safetensors') or numpy.savez('update.npz', **arrays)"
)
MOST_AXES = 64
# A megabyte of it takes up to 70 in memory.
_MOST_BYTES = 2**23
_STORAGES = {
    f"torch {name}Storage": dtype
    for name, dtype in {
        "Float": torch.float32,
        "Double": torch.float64,
        "Half": torch.float16,
        "BFloat16": torch.bfloat16,
        "Long": torch.int64,
        "Int": torch.int32,
        "Short": torch.int16,
        "Char": torch.int8,
        "Byte": torch.uint8,
        "Bool": torch.bool,
        "ComplexFloat": torch.complex64,
        "ComplexDouble": torch.complex128,
    }.items()
}
_AS_THEY_ARE = ("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT")
_FIXED = {"NEWTRUE": True, "NEWFALSE": False, "NONE": None, "EMPTY_TUPLE": ()}
_LENGTHS = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass(frozen=True)
class _Name:
    """A name that a pickle would import, as "module name", or whose call it asks for."""

    text: str


@dataclass(frozen=True, eq=False)
class _Storage:
    content: bytearray
    dtype: torch.dtype


@dataclass(frozen=True, kw_only=True, eq=False)
class Stored:
    """A tensor as a file describes it, with the bytes that hold it.

    Attributes:
        content: bytes of its storage, which other tensors may share.
        dtype: of the entries.
        shape: of the tensor.
        stride: by axis, in entries.
        offset: of the first entry.
    """

    content: bytearray
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @property
    def bytes(self) -> int:
        """The size of the tensor in memory of its own."""
        return math.prod(self.shape) * self.dtype.itemsize

    def tensor(self) -> Tensor:
        """The tensor, with memory of its own."""
        if self.bytes == 0:
            return torch.empty(self.shape, dtype=self.dtype)
        flat = torch.frombuffer(self.content, dtype=self.dtype)
        return flat.as_strided(self.shape, self.stride, self.offset).clone(memory_format=torch.contiguous_format)


def read_torch_archive(archive: zipfile.ZipFile) -> dict[str, Stored]:
    """The tensors that `torch.save` wrote as a dict or list, by name or position.

    Args:
        archive: the opened file, of entries with different names.

    Raises:
        InputError: for anything else than plain tensors.
        ValueError: for a damaged file; so do the readers of zip archives and pickles, with errors of their own.
    """
    listed = [entry for entry in archive.infolist() if entry.filename.endswith("/data.pkl")]
    if len(listed) != 1 or listed[0].file_size > _MOST_BYTES:
        raise ValueError(
            f"expected one data.pkl of at most {_MOST_BYTES} bytes, got {[one.file_size for one in listed]}"
        )
    root = listed[0].filename.removesuffix("data.pkl")
    order = f"{root}byteorder"
    if order in archive.namelist() and archive.read(order).decode("ascii", "replace") != sys.byteorder:
        raise ValueError(f"written on a machine of another byte order than {sys.byteorder}")
    content = _Description(archive, root).read(archive.read(listed[0]))
    if isinstance(content, list | tuple):
        content = dict(enumerate(content))
    where = f"{archive.filename}: expected"
    if not isinstance(content, dict):
        raise InputError(f"{where} a dict or list of tensors, got {_kind_of(content)}; {HOW_TO_CONVERT}")
    stored: dict[str, Stored] = {}
    for key, tensor in content.items():
        if isinstance(tensor, _Name):
            raise InputError(
                f"{where} plain dense tensors, got what {shown(tensor.text)} makes for {shown(key)}; save sparse tensors as "
                f"tensor.to_dense(), quantized ones as tensor.dequantize(); {HOW_TO_CONVERT}"
            )
        if not isinstance(tensor, Stored):
            raise InputError(f"{where} tensors only, got {_kind_of(tensor)} for {shown(key)}; {HOW_TO_CONVERT}")
        if str(key) in stored:
            raise InputError(f"{where} one entry a name, got two that read {shown(key)}; rename one")
        stored[str(key)] = tensor
    return stored


class _Description:
    """A reader of the description that `torch.save` writes: containers, numbers, texts and tensors, on a stack."""

    def __init__(self, archive: zipfile.ZipFile, root: str) -> None:
        self._archive, self._root = archive, root
        self._storages: dict[str, bytearray] = {}
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def read(self, content: bytes) -> Any:
        """The value that the description describes."""
        for operation, argument, _ in pickletools.genops(content):
            self._step(operation.name, argument)
        return self._stack.pop()

    def _step(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in _AS_THEY_ARE:
            stack.append(argument)
        elif name in _FIXED:
            stack.append(_FIXED[name])
        elif name in ("EMPTY_DICT", "EMPTY_LIST"):
            stack.append({} if name == "EMPTY_DICT" else [])
        elif name == "MARK":
            self._marks.append(len(stack))
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self._memo[len(self._memo) if argument is None else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif name == "TUPLE" or name in _LENGTHS:
            stack.append(tuple(self._popped(_LENGTHS.get(name))))
        elif name in ("APPEND", "APPENDS"):
            items = self._popped(1 if name == "APPEND" else None)
            stack[-1].extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = self._popped(2 if name == "SETITEM" else None)
            _fill(stack[-1], items)
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            stack.append(_Name(argument if name == "GLOBAL" else " ".join(self._popped(2))))
        elif name == "BINPERSID":
            stack.append(self._storage(*self._popped(1)[0]))
        elif name == "REDUCE":
            stack.append(_made(*self._popped(2)))
        elif name == "BUILD":
            self._popped(1)  # attributes of a state_dict: the versions of its layers
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise ValueError(f"it holds something else ({name})")

    def _popped(self, count: int | None) -> list[Any]:
        """The last values of the stack; None for those above the last mark, which goes too."""
        floor = self._marks.pop() if count is None else self._marks[-1] if self._marks else 0
        place = floor if count is None else len(self._stack) - count
        if place < floor or place > len(self._stack):
            raise ValueError("its description is damaged")
        items = self._stack[place:]
        del self._stack[place:]
        return items

    def _storage(self, what: str, kind: _Name, key: str, _location: str, count: int) -> _Storage:
        dtype = _STORAGES.get(kind.text)
        if what != "storage" or dtype is None or type(key) is not str or type(count) is not int:
            raise ValueError(
                f"{shown(kind.text)} is not read; save floating point numbers, tensor.dequantize() for instance"
            )
        if key not in self._storages:
            self._storages[key] = bytearray(self._archive.read(f"{self._root}data/{key}"))
        content = self._storages[key]
        if count * dtype.itemsize != len(content):
            raise ValueError(f"a storage promises {shown(count)} numbers in {len(content)} bytes")
        return _Storage(content, dtype)


def _fill(table: Any, items: Sequence[Any]) -> None:
    if type(table) is not dict or len(items) % 2:
        raise ValueError("its description is damaged")
    for key, value in zip(items[::2], items[1::2], strict=True):
        # Other keys, tuples of tuples for instance, can take forever to hash or to show.
        if type(key) not in (str, int):
            raise ValueError(f"expected texts or whole numbers as names, got {type(key).__name__}")
        if key in table:
            raise ValueError(f"the name {shown(key)} stands there twice")
        table[key] = value


def _made(called: _Name, arguments: tuple[Any, ...]) -> Any:
    """Result of a call that the file asks for: of one of three functions, as it is known here; of others their name."""
    if called.text == "collections OrderedDict" and arguments == ():
        return {}
    if called.text == "torch._utils _rebuild_parameter":
        return arguments[0]
    if called.text == "torch._utils _rebuild_tensor_v2" and not any(arguments[6:]):
        return _tensor(*arguments[:4])
    return _Name(called.text.replace(" ", "."))


def _tensor(storage: _Storage, offset: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> Stored:
    numbers = (offset, *shape, *stride)
    if len(numbers) > 1 + 2 * MOST_AXES or not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
        raise ValueError("the shape of a tensor is no list of sizes")
    last = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    if math.prod(shape) and last >= len(storage.content) // storage.dtype.itemsize:
        raise ValueError(f"a tensor of shape {shown(shape)} lies outside of its storage")
    return Stored(content=storage.content, dtype=storage.dtype, shape=tuple(shape), stride=tuple(stride), offset=offset)


def _kind_of(value: Any) -> str:
    return "Tensor" if isinstance(value, Stored) else type(value).__name__

"""Numbers that an object holds by itself, whatever its type, and where they lie in memory."""

from __future__ import annotations

import array
import math
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Entries that are looked at together.
CHUNK = 2**22
FEWEST_NUMBERS = 8
_NUMBERS = (bool, int, float)
_SEQUENCES = (list, tuple, deque, set, frozenset, dict)
_BYTES = (bytes, bytearray, memoryview, array.array)
_DEEPEST = 6


class Memory(NamedTuple):
    """Addresses from the first byte of some entries to behind the last, those of the single entries, and what they are."""

    start: int
    end: int
    addresses: NDArray[np.int64] | None
    what: str


def may_be_data(value: Any) -> bool:
    """True for tensors, arrays, storages, bytes, and sequences of at least eight numbers."""
    kind = type(value)
    if issubclass(kind, (Tensor, np.ndarray, torch.UntypedStorage, *_BYTES)):
        return True
    return issubclass(kind, _SEQUENCES) and sum(type(item) in _NUMBERS for item in _items(value)) >= FEWEST_NUMBERS


def memory_of(value: Tensor | NDArray[Any], what: str) -> Memory | None:
    """Addresses of the entries; the single ones where they do not lie side by side and are few enough to be listed."""
    try:
        if isinstance(value, Tensor):
            start, size = value.data_ptr(), value.element_size()
            shape, strides = tuple(value.shape), [step * size for step in value.stride()]
        else:
            start, size, shape = value.__array_interface__["data"][0], value.itemsize, value.shape
            strides = list(value.strides)
    except (RuntimeError, NotImplementedError, TypeError, AttributeError):
        return None
    if start == 0 or 0 in shape:
        return None
    reach = [(length - 1) * step for length, step in zip(shape, strides, strict=True)]
    low = start + sum(one for one in reach if one < 0)
    high = start + sum(one for one in reach if one > 0) + size
    count = math.prod(shape)
    if high - low == count * size or count > CHUNK:
        return Memory(low, high, None, what)
    places = np.array([start], dtype=np.int64)
    for length, step in zip(shape, strides, strict=True):
        places = (places[:, None] + step * np.arange(length)).reshape(-1)
    return Memory(low, high, places, what)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The numbers of a tensor, an array, a sequence or bytes as dense real tensors."""
    kind = type(value)
    if issubclass(kind, Tensor):
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            try:
                yield from _dense(value.detach())
            except (RuntimeError, NotImplementedError, TypeError, AttributeError):
                return  # no values, or not this way: what it wraps is met by itself
    elif issubclass(kind, np.ndarray):
        numbers = np.ndarray.view(value, np.ndarray)
        if numbers.dtype.kind in "biuf" and numbers.dtype.itemsize <= 8:
            plain = np.ascontiguousarray(numbers, dtype=numbers.dtype.newbyteorder("="))
            yield torch.from_numpy(
                plain.astype(np.int64) if plain.dtype.kind == "u" and plain.itemsize > 1 else plain.copy()
            )
    elif issubclass(kind, _SEQUENCES):
        found: list[float] = []
        if _flat(value, found, _DEEPEST) and len(found) > 1:
            yield torch.tensor(found, dtype=torch.float64)
    elif issubclass(kind, _BYTES):
        raw = bytes(value)
        for dtype in (torch.uint8, torch.float32, torch.float64, torch.int64):
            if len(raw) and len(raw) % dtype.itemsize == 0:
                yield torch.frombuffer(bytearray(raw), dtype=dtype)


def _dense(tensor: Tensor) -> Iterator[Tensor]:
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    tensor = tensor.resolve_neg().cpu()
    yield tensor.to(torch.int64) if tensor.dtype in (torch.uint16, torch.uint32, torch.uint64) else tensor


def _items(value: Any) -> list[Any]:
    """The items of a sequence or set, the values of a dict; without code of a subclass."""
    kind = next(kind for kind in _SEQUENCES if issubclass(type(value), kind))
    return list(dict.values(value)) if kind is dict else list(kind.__iter__(value))


def _flat(value: Any, into: list[float], deepest: int) -> bool:
    """Append the numbers of a nested sequence; False where it holds anything else."""
    items = _items(value)
    if deepest == 0 or not items:
        return False
    for item in items:
        if type(item) in _NUMBERS:
            into.append(float(item) if abs(item) < 1e300 else math.inf)
        elif _is_scalar(item):
            into.append(float(item))
        elif not (issubclass(type(item), _SEQUENCES) and _flat(item, into, deepest - 1)):
            return False
    return True


def _is_scalar(item: Any) -> bool:
    """True for a real number of numpy, and for a tensor of one."""
    if issubclass(type(item), np.generic):
        return item.dtype.kind in "biuf"
    return issubclass(type(item), Tensor) and item.dim() == 0 and not item.is_complex()

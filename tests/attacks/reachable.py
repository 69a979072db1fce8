"""A second, independent walk: everything that Python's garbage collector can reach, held against canaries by brute force."""

from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradleak.core import Batch

_CODE = (types.ModuleType, types.CodeType, types.BuiltinFunctionType)


def reachable(*roots: Any, graphs: bool = False) -> list[Any]:
    """Every object that can be reached, but for code that is installed and global variables that no function names."""
    found: dict[int, Any] = {}
    waiting = list(roots)
    while waiting:
        value = waiting.pop()
        if id(value) in found or isinstance(value, _CODE):
            continue
        found[id(value)] = value
        waiting += list(_referents(value))
        assert graphs or not isinstance(value, Tensor) or value.grad_fn is None, "a graph leads back to the data"
    return list(found.values())


def _referents(value: Any) -> Iterator[Any]:
    if type(value) is types.FunctionType:
        yield from (value.__closure__, value.__defaults__, value.__kwdefaults__, value.__dict__)
        yield from (
            value.__globals__.get(name) for name in value.__code__.co_names if value.__module__.startswith("tests")
        )
    elif isinstance(value, type):
        yield from vars(value).values() if value.__module__.startswith("tests") else ()
    else:
        yield from gc.get_referents(value)
    if isinstance(value, Tensor):
        yield from (value.grad if value.is_leaf else None, value._base, vars(value))
    if isinstance(value, np.ndarray):
        yield value.base
        yield from value.tolist() if value.dtype == object else ()
    if isinstance(value, weakref.ref):
        yield value()
    if isinstance(value, types.MethodType):
        yield value.__self__


def numbers(value: Any) -> np.ndarray[Any, Any] | None:
    """The numbers of a tensor with all of its storage, an array, or a list of numbers; None for anything else."""
    try:
        if isinstance(value, Tensor):
            whole = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage())
            return (value if value.is_contiguous() and whole.numel() == value.numel() else whole).double().numpy()
        if isinstance(value, torch.UntypedStorage):
            return np.frombuffer(bytes(value.tolist()), np.float32).astype(float)
        if isinstance(value, bytes):
            return np.frombuffer(value, np.float32).astype(float)
        if isinstance(value, np.ndarray | list | tuple | set):
            return np.asarray(list(value), dtype=float)
        if isinstance(value, dict):
            return np.asarray(list(value.values()), dtype=float)
    except (TypeError, ValueError, RuntimeError):
        return None
    return None


class Canaries:
    """The values of a batch of images, and whether an object holds them; by correlation and by the text of labels."""

    def __init__(self, batch: Batch) -> None:
        images = batch.inputs.double().numpy()
        self.values = np.unique(images.astype(np.float32))
        planes = images.reshape(-1, *images.shape[2:]) if images.ndim > 2 else images
        self.patterns = [row for part in (images, planes) for row in _standard(part.reshape(len(part), -1))]
        self.features = _standard(images.reshape(len(images), -1).T)
        self.labels = " ".join(str(float(label)) for label in batch.targets.tolist())
        self.one_hot = torch.nn.functional.one_hot(batch.targets, int(batch.targets.max()) + 1).numpy()
        self.count = len(images)

    def held(self, value: Any) -> bool:
        """True if the object holds private values."""
        found = numbers(value)
        if found is None or found.size < 4 or not np.isfinite(found).all():
            return False
        return self._exact(found) or self._labels(found) or self._scaled(found)

    def _exact(self, found: np.ndarray[Any, Any]) -> bool:
        flat = np.unique(found.astype(np.float32))
        return int(np.isin(flat, self.values).sum()) >= 4

    def _labels(self, found: np.ndarray[Any, Any]) -> bool:
        if self.labels in " ".join(str(entry) for entry in found.reshape(-1).tolist()):
            return True
        if found.size % self.count or found.ndim != 2 or self.count not in found.shape:
            return False
        rows = found if found.shape[0] == self.count else found.T
        width = self.one_hot.shape[1]
        return rows.shape[1] >= width and bool(np.array_equal(rows[:, :width], self.one_hot))

    def _scaled(self, found: np.ndarray[Any, Any]) -> bool:
        flat = found.reshape(-1)
        for patterns in (self.patterns[: self.count], self.patterns[self.count :], list(self.features)):
            size = len(patterns[0])
            for apart in (1, 3, flat.size // size):
                if flat.size % size or apart == 0 or flat.size % (size * apart):
                    continue
                blocks = flat.reshape(-1, size, apart).transpose(0, 2, 1).reshape(-1, size)
                for block in _standard(blocks[blocks.std(axis=1) > 0]):
                    in_order = np.abs(np.stack(patterns) @ block) / size
                    apart_from_order = np.sort(np.stack(patterns), axis=1) @ np.sort(block) / size
                    if in_order.max() > 0.9999 or (size >= 16 and apart_from_order.max() > 0.99999):
                        return True
        return False


def holding(canaries: Canaries, *roots: Any, graphs: bool = False) -> list[Any]:
    """The objects that can be reached from `roots` and hold canaries."""
    return [value for value in reachable(*roots, graphs=graphs) if canaries.held(value)]


def memory(*roots: Any, graphs: bool = False) -> set[int]:
    """Addresses of the storages of all tensors and arrays that can be reached."""
    found = set()
    for value in reachable(*roots, graphs=graphs):
        if isinstance(value, Tensor) and value.numel() and value.layout == torch.strided:
            found.add(value.untyped_storage().data_ptr())
        elif isinstance(value, np.ndarray) and value.size:
            found.add(value.__array_interface__["data"][0])
    return found


def _standard(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    centered = rows - rows.mean(axis=-1, keepdims=True)
    scaled: np.ndarray[Any, Any] = centered / np.maximum(centered.std(axis=-1, keepdims=True), 1e-12)
    return scaled


def spelled(values: Sequence[Any]) -> str:
    """Types and sizes of objects, for messages."""
    return ", ".join(f"{type(value).__name__}{getattr(value, 'shape', '')}" for value in values)

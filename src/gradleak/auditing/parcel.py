"""Tasks on their way to another process: weights, rows and whatever else many of them hold go there once."""

from __future__ import annotations

import io
import pickle
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor
from torch.storage import TypedStorage, UntypedStorage

# Smaller tensors go with every task.
SHARED = 2**12
Arrays = Mapping[str, np.ndarray[Any, np.dtype[np.uint8]]]


@dataclass(frozen=True)
class Parcel:
    """An object without its large tensors and arrays, and what these are called.

    Attributes:
        content: the object, pickled; a reference stands for the memory of every large tensor.
        names: of these memories.
    """

    content: bytes
    names: frozenset[str]

    def unpacked(self, arrays: Arrays) -> Any:
        """The object, in a worker; its tensors share memory with those of the parcel before, and with nothing else.

        Args:
            arrays: the memories by name.
        """
        _HERE.keep({name: arrays[name] for name in self.names})
        return _Unpickler(io.BytesIO(self.content)).load()


class Parcels:
    """Packs objects of one run, so that the memory of every large tensor and array of the CPU is there once, whoever holds it.

    Attributes:
        arrays: the memories so far by name, without a copy.
    """

    def __init__(self, alone: Iterable[Tensor] = (), *, after: Parcels | None = None) -> None:
        """Begin a run, or go on with one.

        Args:
            alone: tensors that few objects hold, and that go with each of them.
            after: parcels that are on their way: what they had is referred to, and not among these memories.
        """
        self.arrays: dict[str, np.ndarray[Any, np.dtype[np.uint8]]] = {}
        self._sent: Arrays = {} if after is None else after.arrays
        self._run: str = secrets.token_hex(8) if after is None else after._run
        self._alone = {tensor.untyped_storage().data_ptr() for tensor in alone}
        # Or the memory could be given to another tensor.
        self._held: list[object] = []

    def pack(self, content: Any) -> Parcel:
        """The parcel of an object."""
        file = io.BytesIO()
        packing = _Pickler(file, self)
        packing.dump(content)
        return Parcel(file.getvalue(), frozenset(packing.names))

    def of_tensor(self, storage: UntypedStorage) -> str | None:
        """Name of the memory of a tensor that goes once, or None for one that goes along."""
        place = storage.data_ptr()
        if storage.device.type != "cpu" or storage.nbytes() < SHARED or place in self._alone:
            return None
        name = f"{self._run}/{place}/{storage.nbytes()}"
        if name not in self._sent and name not in self.arrays:
            self._held.append(storage)
            self.arrays[name] = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
        return name

    def of_array(self, array: np.ndarray[Any, Any]) -> str | None:
        """Name of the memory of an array that goes once, or None for one that goes along."""
        plain = type(array) is np.ndarray and array.flags.c_contiguous and not array.dtype.hasobject
        if not plain or array.nbytes < SHARED:
            return None
        name = f"{self._run}/{array.ctypes.data}/{array.nbytes}"
        if name not in self._sent and name not in self.arrays:
            self._held.append(array)
            self.arrays[name] = array.reshape(-1).view(np.uint8)
        return name


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, parcels: Parcels) -> None:
        super().__init__(file)
        self._parcels = parcels
        self.names: set[str] = set()

    def persistent_id(self, held: Any) -> tuple[str, Any, tuple[int, ...] | None] | None:
        if isinstance(held, TypedStorage):
            name, dtype, shape = self._parcels.of_tensor(held._untyped_storage), held.dtype, None
        elif isinstance(held, np.ndarray):
            name, dtype, shape = self._parcels.of_array(held), held.dtype, held.shape
        else:
            return None
        if name is None:
            return None
        self.names.add(name)
        return name, dtype, shape


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: tuple[str, Any, tuple[int, ...] | None]) -> Any:
        name, dtype, shape = pid
        memory = _HERE.storages[name]
        if shape is None:
            return TypedStorage(wrap_storage=memory, dtype=dtype, _internal=True)
        return torch.empty(0, dtype=torch.uint8).set_(memory).numpy().view(dtype).reshape(shape)


class _Here:
    """Memories that the parcel before had, in this worker: tasks that follow each other mostly hold the same."""

    def __init__(self) -> None:
        self.storages: dict[str, UntypedStorage] = {}

    def keep(self, arrays: Arrays) -> None:
        # A copy, placed as torch places memory: kernels may round by the place of the first number.
        self.storages = {name: self.storages.get(name) or _copied(array) for name, array in arrays.items()}


def _copied(array: np.ndarray[Any, np.dtype[np.uint8]]) -> UntypedStorage:
    copy = torch.empty(array.size, dtype=torch.uint8)
    copy.numpy()[:] = array
    return copy.untyped_storage()


_HERE = _Here()

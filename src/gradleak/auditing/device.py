"""Device of a run: where its tasks compute. The plan itself stays where it was built, so that its digest is one everywhere."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any, TypeVar

import cloudpickle
import torch
from torch import Tensor, nn

from gradleak.results import InputError
from gradleak.results.errors import shown

T = TypeVar("T")

DEVICES = ("cpu", "cuda", "mps")
# Said by torch where a device has no float64.
_NO_DOUBLE = "float64"


def device_of(name: str) -> torch.device:
    """The device of that name.

    Args:
        name: "cpu", "cuda", "cuda:1" or "mps".

    Raises:
        InputError: for another name, or where torch has no such device: with what it has.
    """
    kind, _, number = str(name).partition(":")
    if kind not in DEVICES or (number and not (number.isdecimal() and kind == "cuda")) or str(name).endswith(":"):
        raise InputError(f"device: expected one of cpu, cuda, cuda:1 (its number) or mps, got {shown(name)}")
    if kind == "cuda" and int(number or 0) >= (count := torch.cuda.device_count() if torch.cuda.is_available() else 0):
        raise InputError(f"device: {name} was asked for; torch {torch.__version__} sees {_seen(count)}; {_INSTEAD}")
    if kind == "mps" and not torch.backends.mps.is_available():
        built = "" if torch.backends.mps.is_built() else " and is built without it"
        raise InputError(f"device: mps was asked for; torch {torch.__version__} sees none{built}; {_INSTEAD}")
    return torch.device(name)


_INSTEAD = "write cpu, or leave the device out"


def _seen(count: int) -> str:
    if count:
        return f"{count} of them, numbered from 0"
    return "none" if torch.version.cuda else "none and is built without CUDA"


def check_memory(device: torch.device | None, max_bytes: int) -> None:
    """Refuse a plan whose budget a device does not have.

    Sizes of chunks follow from the plan, never from the memory that is free, so that numbers do not depend on it.

    Args:
        device: where the tasks compute.
        max_bytes: of the plan.

    Raises:
        InputError: with both sizes.
    """
    if device is None or device.type != "cuda":
        return
    there = torch.cuda.get_device_properties(device).total_memory
    if there < max_bytes:
        raise InputError(
            f"device: expected one with the max_bytes of the plan, {max_bytes:,}, got {device} with {there:,}; lower it, or "
            "name another device"
        )


def jobs_on(device: torch.device | None, jobs: int | None) -> int | None:
    """Number of processes that tasks run in: as asked for, else one for an accelerator, which they would share.

    Args:
        device: where they compute.
        jobs: as asked for.
    """
    return 1 if jobs is None and device is not None and device.type != "cpu" else jobs


def device_name(device: torch.device) -> str:
    """Name that its maker gives a device, "" for a processor.

    Args:
        device: of a run, which may have been elsewhere.
    """
    return torch.cuda.get_device_name(device) if device.type == "cuda" and torch.cuda.is_available() else ""


def wait_for(tensors: Mapping[str, Tensor]) -> None:
    """Wait until tensors are computed: an accelerator answers before it is done."""
    for tensor in tensors.values():
        if tensor.device.type != "cpu" and tensor.numel():
            float(tensor.flatten()[0])


def on_device(value: T, device: torch.device | None) -> T:
    """A copy of an object whose tensors, wherever they are in it, lie on a device; one that is held twice is held twice again.

    Args:
        value: anything that may go to another process.
        device: where its tensors go; None for the object itself.

    Raises:
        InputError: for tensors that the device cannot hold.
    """
    if device is None:
        return value
    file = io.BytesIO()
    leaving = _Leaving(file)
    leaving.dump(value)
    file.seek(0)
    arriving = _Arriving(file)
    arriving.tensors = [_moved(tensor, device) for tensor in leaving.tensors]
    found: T = arriving.load()
    return found


def lacks_double(error: BaseException, device: torch.device) -> bool:
    """True if an error says that a device has no float64, which gates, controls and closed forms compute in.

    Args:
        error: what was raised.
        device: where.
    """
    return device.type not in ("cpu", "cuda") and isinstance(error, TypeError) and _NO_DOUBLE in str(error)


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    moved = tensor.detach().to(device)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(moved, requires_grad=tensor.requires_grad)
    return moved.requires_grad_(tensor.requires_grad)


class _Leaving(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[Tensor] = []
        self._places: dict[int, int] = {}

    def persistent_id(self, held: Any) -> int | None:
        if not isinstance(held, Tensor):
            return None
        if id(held) not in self._places:
            self._places[id(held)] = len(self.tensors)
            self.tensors.append(held)
        return self._places[id(held)]


class _Arriving(pickle.Unpickler):
    tensors: list[Tensor]

    def persistent_load(self, pid: int) -> Tensor:
        return self.tensors[pid]

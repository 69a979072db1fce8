"""Description of configured objects for a record: class name and constructor arguments."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping
from enum import Enum
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from gradleak.results.score import jsonable

# Longer lists of numbers are data, not settings.
LONGEST_LIST = 64


def describe(value: Any) -> Any:
    """A JSON-ready description of a frozen dataclass: {"use": class name, field: value ...}, nested.

    Tensors and arrays are described by dtype and shape only, and long lists of numbers by their length, so that no
    private value reaches a record. Fields whose metadata say {"described": False} are left out, with {"described": "given"}
    where they are None; with {"checksum": True} lists that are too long to be listed get one, so that others are told apart.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: _with_checksum(getattr(value, field.name))
            if field.metadata.get("checksum")
            else describe(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if field.init
            and not field.name.startswith("_")
            and _is_described(field.metadata, getattr(value, field.name))
        }
        return {"use": type(value).__name__, **fields}
    if value is None or (isinstance(value, bool | str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Integral | Real) and not isinstance(value, Enum):
        return jsonable(value)
    if isinstance(value, Tensor) or (hasattr(value, "dtype") and hasattr(value, "shape")):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, torch.dtype | torch.device):
        return str(value).removeprefix("torch.")
    if isinstance(value, Enum):
        return value.value if isinstance(value.value, str) else value.name.lower()
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((describe(item) for item in value), key=str)
    if isinstance(value, list | tuple):
        if len(value) > LONGEST_LIST and all(isinstance(item, Real) for item in value):
            return f"list[{len(value)}]"
        return [describe(item) for item in value]
    return getattr(value, "__qualname__", type(value).__name__)


def _is_described(metadata: Mapping[Any, Any], value: Any) -> bool:
    when = metadata.get("described", True)
    return bool(when) and not (when == "given" and value is None)


def _with_checksum(value: Any) -> Any:
    if isinstance(value, tuple | list) and len(value) > LONGEST_LIST and all(isinstance(one, str) for one in value):
        return f"list[{len(value)}], checksum {zlib.crc32(repr(tuple(value)).encode()):08x}"
    found = describe(value)
    if isinstance(value, tuple | list) and isinstance(found, str):
        return f"{found}, checksum {zlib.crc32(repr(tuple(map(float, value))).encode()):08x}"
    return found

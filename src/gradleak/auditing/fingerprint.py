"""Fingerprints by which a run recognizes its own record: of behavior, not of descriptions."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import secrets
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gradleak.core import Objective
from gradleak.results import PlanError

if TYPE_CHECKING:
    from gradleak.auditing.plan import Plan

PRIVATE_FILE = ".private-data"


def fingerprint(*things: Any) -> str:
    """A hexadecimal digest of what `things` are and do.

    Tensors go in by value, dataclasses by their fields, functions by their compiled code, constants and closures, and
    modules by their structure, state and the code of their classes, so that two networks that differ in an activation
    alone differ here.
    """
    digest = hashlib.sha256()
    for part in things:
        for piece in _pieces(part, depth=0):
            digest.update(piece)
            digest.update(b"\x1f")
    return digest.hexdigest()


def check_private_data(plan: Plan, folder: Path) -> None:
    """Compare the plan's private data with those of an earlier run in `folder`; remember them if there was none.

    What is remembered is a keyed hash in a file of its own, under a random key, so that the record can be passed on
    without a fingerprint of the data in it.

    Raises:
        PlanError: if the folder belongs to other data.
    """
    updates = [scenario.updates for scenario in plan.scenarios]
    data = [(batch.inputs, batch.targets, batch.sensitive) for batch in plan.batches]
    rows = [game.game.population for game in plan.inference.values()]
    data += [(population.inputs, population.targets, population.sensitive) for population in rows]
    data += [part for audit in plan.privacy.values() for part in audit.private_data()]
    data += [part for layers in plan.layers.values() for part in layers.private_data()]
    file = folder / PRIVATE_FILE
    if file.exists():
        try:
            known = json.loads(file.read_text(encoding="utf-8"))
            same = known["hash"] == fingerprint(known["key"], data, updates)
        except (ValueError, KeyError, TypeError):
            same = False
        if not same:
            raise PlanError(
                f"{folder}: the record there is about other data or other updates; nothing was written. "
                "Use another --out, or delete the folder to start over"
            )
        return
    key = secrets.token_hex(16)
    content = json.dumps({"key": key, "hash": fingerprint(key, data, updates)})
    partial = file.with_name(file.name + ".partial")
    partial.write_text(content, encoding="utf-8")
    partial.replace(file)


def _pieces(value: Any, *, depth: int) -> Iterable[bytes]:
    if depth > 12:
        return
    deeper = depth + 1
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        yield f"tensor {value.dtype} {tuple(value.shape)}".encode()
        yield flat.view(torch.uint8).numpy().tobytes()
    elif isinstance(value, nn.Module):
        yield repr(value).encode()
        for part in value.modules():
            yield from _class_code(type(part), deeper)
        for name, tensor in value.state_dict().items():
            yield name.encode()
            if isinstance(tensor, Tensor):
                yield from _pieces(tensor, depth=deeper)
    elif isinstance(value, Objective):
        for field in dataclasses.fields(value):
            yield from _pieces(getattr(value, field.name), depth=deeper)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield f"{type(value).__module__}.{type(value).__qualname__}".encode()
        for field in dataclasses.fields(value):
            yield field.name.encode()
            yield from _pieces(getattr(value, field.name), depth=deeper)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key).encode()
            yield from _pieces(item, depth=deeper)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _pieces(item, depth=deeper)
    elif isinstance(value, Enum | str | int | float | bool | bytes | torch.dtype) or value is None:
        yield repr(value).encode()
    elif isinstance(value, ModuleType | type):
        yield getattr(value, "__qualname__", value.__name__).encode()
    elif isinstance(value, FunctionType):
        yield from _code(value.__code__, deeper)
        yield from _pieces([cell.cell_contents for cell in value.__closure__ or ()], depth=deeper)
        yield from _pieces(value.__defaults__, depth=deeper)
    else:
        yield f"{type(value).__module__}.{type(value).__qualname__}".encode()
        yield from _class_code(type(value), deeper)
        yield from _pieces(getattr(value, "__dict__", None), depth=deeper)


def _class_code(kind: type, depth: int) -> Iterable[bytes]:
    """The code of a class that is not torch's own (whose version a record states)."""
    yield f"{kind.__module__}.{kind.__qualname__}".encode()
    if kind.__module__.split(".")[0] == "torch":
        return
    for name, member in sorted(vars(kind).items()):
        if isinstance(member, FunctionType):
            yield name.encode()
            yield from _code(member.__code__, depth)


def _code(code: CodeType, depth: int) -> Iterable[bytes]:
    yield code.co_code
    yield repr(code.co_names).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant, depth + 1)
        else:
            yield repr(constant).encode()

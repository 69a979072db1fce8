"""Fingerprints by which a run recognizes its own record: of structure, code and state, not of descriptions."""

from __future__ import annotations

import copyreg
import dataclasses
import functools
import hashlib
import json
import secrets
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path, PurePath
from pickle import PicklingError
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradleak.results import InputError, PlanError

PRIVATE_FILE = ".private-data"
DEEPEST = 6000
# Code whose version a record states, or that is Python's own: known by its name.
_CONSTANTS = (str, int, float, complex, bool, bytes, tuple, frozenset, Enum, type(None))
_CACHED = type(functools.cache(len))
_CODE = (FunctionType, _CACHED, property, classmethod, staticmethod, functools.cached_property)
# What a class states, or a function finds in its module, and computes with.
_VALUES = (*_CONSTANTS, Tensor, np.ndarray, nn.Module, list, dict, set)
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_STATED = frozenset({"torch", "numpy", "scipy", "sklearn", "pydantic", "pydantic_core", "typing", "typing_extensions"})


def fingerprint(*things: Any) -> str:
    """A hexadecimal digest of what `things` are and do; the same in every process.

    Tensors and arrays go in by value; objects by their fields and attributes and by the code of their class and its bases;
    functions by their compiled code, constants, defaults, closures and the functions, classes, tensors and plain values of
    their module that they read (of other installed packages functions, classes and constants alone); modules by the attributes,
    hooks, code and state of every part. Code of torch, numpy and Python itself goes in by name, since a record states the
    versions. What a function reads of other global values is not covered.
    """
    digest = hashlib.sha256()
    walk = _Walk()
    # Networks in networks, and functions that call functions, lie deeper than calls do.
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, DEEPEST))
    try:
        for part in things:
            for piece in walk.pieces(part):
                digest.update(piece)
                digest.update(b"\x1f")
    except RecursionError as error:
        raise InputError(
            "plan: expected a model, a loss and attacks whose parts lie at most about a thousand deep in each other; got more, "
            "so that a run cannot recognize its own record"
        ) from error
    finally:
        sys.setrecursionlimit(limit)
    return digest.hexdigest()


def check_private_data(data: object, folder: Path) -> None:
    """Compare the private data of a plan with those of an earlier run in `folder`; remember them if there was none.

    What is remembered is a keyed hash in a file of its own, under a random key, so that the record can be passed on
    without a fingerprint of the data in it.

    Args:
        data: batches, rows and updates, as `fingerprint` takes them.
        folder: of the record.

    Raises:
        PlanError: if the folder belongs to other data.
    """
    file = folder / PRIVATE_FILE
    if file.exists():
        try:
            known = json.loads(file.read_text(encoding="utf-8"))
            same = known["hash"] == fingerprint(known["key"], data)
        except (ValueError, KeyError, TypeError):
            same = False
        if not same:
            raise PlanError(
                f"{folder}: the record there is about other data or other updates; nothing was written. "
                "Use another --out, or delete the folder to start over"
            )
        return
    key = secrets.token_hex(16)
    content = json.dumps({"key": key, "hash": fingerprint(key, data)})
    partial = file.with_name(file.name + ".partial")
    partial.write_text(content, encoding="utf-8")
    partial.replace(file)


class _Walk:
    """Walks through values; what it meets again stands there with the same digest, equal or identical alike."""

    def __init__(self) -> None:
        self._known: dict[int, bytes | None] = {}
        self._kept: list[Any] = []

    def pieces(self, value: Any) -> Iterator[bytes]:
        """The bytes that stand for a value."""
        if (
            isinstance(value, Enum | str | int | float | complex | bool | bytes | torch.dtype | PurePath)
            or value is None
        ):
            yield f"{type(value).__qualname__} {value!r}".encode()
        elif isinstance(value, Tensor):
            yield from _tensor(value)
        elif isinstance(value, np.ndarray):
            yield f"array {value.dtype} {value.shape}".encode()
            yield from [np.ascontiguousarray(value).tobytes()] if value.dtype != object else self._all(value.tolist())
        elif isinstance(value, np.generic | torch.device | range | slice):
            yield f"{type(value).__qualname__} {value!r}".encode()
        elif isinstance(value, set | frozenset):
            yield b"set"
            # Each by a walk of its own: their order is that of the run.
            yield from sorted(b"\x1e".join(_Walk().pieces(item)) for item in value)
        elif isinstance(value, ModuleType):
            yield f"module {value.__name__}".encode()
        elif id(value) in self._known:
            yield self._known[id(value)] or b"inside of itself"
        else:
            self._known[id(value)] = None
            self._kept.append(value)  # else another object could come to lie at its address
            digest = hashlib.sha256()
            for piece in self._met_first(value):
                digest.update(piece)
                digest.update(b"\x1f")
            self._known[id(value)] = digest.digest()
            yield digest.digest()

    def _met_first(self, value: Any) -> Iterator[bytes]:
        own = isinstance(value, Mapping | list | tuple) and not _is_stated(type(value).__module__)
        if own:
            yield from self._all((type(value), getattr(value, "__dict__", None)))
        if isinstance(value, Mapping):
            yield b"mapping"
            for key, item in value.items():
                yield from self.pieces(key)
                yield from self.pieces(item)
        elif isinstance(value, list | tuple):
            yield f"{type(value).__name__} {len(value)}".encode()
            yield from self._all(value)
        elif isinstance(value, type):
            yield from self._class(value)
        elif isinstance(value, FunctionType):
            yield from self._function(value)
        elif isinstance(value, _CACHED):
            yield from self._all((b"cached", value.__wrapped__))
        elif isinstance(value, MethodType):
            yield from self._all((value.__func__, value.__self__))
        elif isinstance(value, functools.partial):
            yield b"partial"
            yield from self._all((value.func, value.args, value.keywords))
        elif isinstance(value, BuiltinFunctionType):
            yield f"builtin {value.__module__}.{value.__qualname__}".encode()
        elif isinstance(value, property | classmethod | staticmethod | functools.cached_property):
            yield type(value).__name__.encode()
            names = ("fget", "fset", "fdel", "__func__", "func")
            yield from self._all([getattr(value, name) for name in names if getattr(value, name, None) is not None])
        elif isinstance(value, torch.Generator):
            yield b"generator"
            yield from self.pieces(value.get_state())
        else:
            yield from self._object(value)

    def _all(self, values: Iterable[Any]) -> Iterator[bytes]:
        for value in values:
            yield from self.pieces(value)

    def _object(self, value: Any) -> Iterator[bytes]:
        """The class of an object, then its fields and attributes; of a module also the state of its parts."""
        yield from self.pieces(type(value))
        if isinstance(value, nn.Module):
            yield b"training" if value.training else b"eval"
            for name, tensor in (*value.named_parameters(recurse=False), *value.named_buffers(recurse=False)):
                yield name.encode()
                yield from _tensor(tensor)
            for name, part in value.named_children():
                yield name.encode()
                yield from self.pieces(part)
            yield from self.pieces({name: one for name, one in vars(value).items() if name not in _OF_EVERY_MODULE})
            # Their keys are numbers of a run.
            yield from self._all([list(vars(value).get(name, {}).values()) for name in _HOOKS])
            return
        if callable(getattr(type(value), "identity_in_plans", None)):
            yield from self.pieces(value.identity_in_plans())
            return
        state = dict(getattr(value, "__dict__", None) or {})
        for base in type(value).__mro__:
            slots = base.__dict__.get("__slots__", ())
            names = (slots,) if isinstance(slots, str) else slots
            state |= {
                name: getattr(value, name) for name in names if hasattr(value, name) and not name.startswith("__")
            }
        if dataclasses.is_dataclass(value):
            # What is computed when asked for is no part of it.
            names = [field.name for field in dataclasses.fields(value)]
            state = {name: getattr(value, name) for name in names if hasattr(value, name)}
        parts = _reduced(value) if not state or _is_stated(type(value).__module__) else None
        yield from self.pieces(state if parts is None else parts)

    def _class(self, kind: type) -> Iterator[bytes]:
        """The code and constants of a class and of its bases, unless a record states their version."""
        yield f"class {kind.__module__}.{kind.__qualname__}".encode()
        if _is_stated(kind.__module__):
            return
        for base in kind.__bases__:
            yield from self.pieces(base)
        for name, member in sorted(vars(kind).items()):
            if name.startswith("__") and not isinstance(member, FunctionType):
                continue
            if isinstance(member, (*_CODE, *_read_values(kind.__module__))):
                yield name.encode()
                yield from self.pieces(member)

    def _function(self, function: FunctionType) -> Iterator[bytes]:
        yield f"function {function.__module__}.{function.__qualname__}".encode()
        if _is_stated(function.__module__ or ""):
            return
        yield from self._code(function.__code__)
        for cell in function.__closure__ or ():
            try:
                yield from self.pieces(cell.cell_contents)
            except ValueError:
                yield b"empty cell"
        yield from self.pieces(function.__defaults__)
        yield from self.pieces(function.__kwdefaults__)
        for name in sorted(_names(function.__code__)):
            found = function.__globals__.get(name)
            if name in function.__globals__ and isinstance(
                found, (FunctionType, _CACHED, type, functools.partial, *_read_values(function.__module__ or ""))
            ):
                yield name.encode()
                yield from self.pieces(found)

    def _code(self, code: CodeType) -> Iterator[bytes]:
        yield code.co_code
        yield repr((code.co_names, code.co_varnames, code.co_freevars)).encode()
        for constant in code.co_consts:
            yield from self._code(constant) if isinstance(constant, CodeType) else self.pieces(constant)


def _tensor(value: Tensor) -> Iterator[bytes]:
    yield f"tensor {value.dtype} {tuple(value.shape)} {value.requires_grad}".encode()
    dense = value.detach().cpu().to_dense() if value.layout != torch.strided else value.detach().cpu()
    flat = (torch.dequantize(dense) if dense.is_quantized else dense).contiguous().reshape(-1)
    yield flat.resolve_conj().resolve_neg().view(torch.uint8).numpy().tobytes()


def _reduced(value: Any) -> list[Any] | None:
    """The parts that an object is copied from, which hold what code in C keeps to itself; None where it cannot be copied."""
    reduce = copyreg.dispatch_table.get(type(value))
    try:
        found = value.__reduce_ex__(2) if reduce is None else reduce(value)
    except (TypeError, ValueError, AttributeError, RuntimeError, PicklingError):
        return None
    return [found] if isinstance(found, str) else [list(one) if isinstance(one, Iterator) else one for one in found]


def _names(code: CodeType) -> set[str]:
    """The global names that a code object may read, nested functions included."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(_names, inner))


@functools.cache
def _is_stated(module: str) -> bool:
    root = module.split(".")[0]
    return root in _STATED or root in sys.stdlib_module_names


@functools.cache
def _read_values(module: str) -> tuple[type, ...]:
    """The types of values that count where code of a module reads them.

    Lists and tables of other installed packages do not: what those hold in memory is no part of a plan, and its order may be
    another one in the next process.
    """
    root = module.split(".")[0]
    file = getattr(sys.modules.get(root), "__file__", None)
    installed = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    own = root == "gradleak" or file is None or not any(Path(file).is_relative_to(place) for place in installed)
    return _VALUES if own else _CONSTANTS

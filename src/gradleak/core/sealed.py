"""Copies that share nothing with their originals: what an attack gets in place of the auditor's objects."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from types import BuiltinFunctionType, CellType, FunctionType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from gradleak.core.module_copy import first_line
from gradleak.core.object_walk import walk
from gradleak.results import Settings, UnsupportedError

T = TypeVar("T")
S = TypeVar("S", bound=Settings)

_ATOMIC = (type(None), bool, int, float, complex, str, type, BuiltinFunctionType)


def sealed(values: Sequence[T]) -> list[T]:
    """Deep copies of `values`, one for each, which share no tensor, array or part of a model with them.

    What the originals share among themselves the copies share, too. Tensors come without the memory around them (a slice
    without its base), without gradients, graphs and attributes; functions with closures and defaults of their own. What
    belongs to no object is not copied: global variables and attributes of classes.

    Args:
        values: updates and knowledge.

    Raises:
        UnsupportedError: naming what cannot be copied, or copies as itself (a `__deepcopy__` of its own).

    **Cost**: one copy of every tensor, and two walks.
    """
    memo: dict[int, Any] = {}
    functions: dict[int, tuple[FunctionType, FunctionType]] = {}
    shared: set[int] = set()
    for _, found in walk([("", values)], code=False):
        if type(found) in (Tensor, nn.Parameter):
            memo[id(found)] = _alone(found)
        elif type(found) is FunctionType and _holds(found, set()):
            functions[id(found)] = found, _function(found)
            memo[id(found)] = functions[id(found)][1]
        shared |= set(_identities(found))
    try:
        copies = copy.deepcopy(list(values), memo)
        for function, own in functions.values():
            _fill(function, own, memo)
    except (RuntimeError, TypeError, NotImplementedError, AttributeError, copy.Error) as error:
        raise UnsupportedError(
            f"what attacks receive cannot be copied ({first_line(error)}); attacks get copies alone, so that none changes "
            "another's model. Take what cannot be copied (locks, open files, generators, tensors with a graph) out of the model, "
            "the loss and the defenses"
        ) from error
    for place, found in walk([("", copies)], code=False):
        _exchange(found, functions)
        if not shared.isdisjoint(_identities(found)):
            raise UnsupportedError(
                f"expected what attacks receive to be copied, but {str(place).lstrip('[0123456789].')} "
                f"({type(found).__name__}) is still the auditor's own: its class or one around it copies as itself "
                "(__deepcopy__); take that method out"
            )
    return copies


def fresh(setting: S) -> S:
    """The setting built anew from its fields where it holds more than these (a defense that keeps the last batch).

    Args:
        setting: a protocol or a defense; one that is not a dataclass is handed back.
    """
    if not dataclasses.is_dataclass(setting):
        return setting
    fields = [field.name for field in dataclasses.fields(setting)]
    inner = {name: getattr(setting, name) for name in fields if isinstance(getattr(setting, name), Settings)}
    changed = {name: made for name, value in inner.items() if (made := fresh(value)) is not value}
    if changed or set(getattr(setting, "__dict__", ())) - set(fields):
        return dataclasses.replace(setting, **changed)
    return setting


def _alone(tensor: Tensor) -> Tensor:
    own = tensor.detach().clone()
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(own, tensor.requires_grad)
    return own.requires_grad_(tensor.requires_grad)


def _identities(found: Any) -> Iterator[int]:
    """Marks of one object: of a part of a model, and of the memory of a tensor or an array."""
    if issubclass(type(found), nn.Module):
        yield id(found)
    elif issubclass(type(found), np.ndarray) and found.size:
        yield found.__array_interface__["data"][0]
    elif issubclass(type(found), Tensor):
        try:
            yield found.data_ptr() or id(found)
        except (RuntimeError, NotImplementedError):  # no memory of its own
            yield id(found)


def _holds(function: FunctionType, seen: set[int]) -> bool:
    """True if closure or defaults hold more than constants, classes and functions for which that is not so."""
    if id(function) in seen:
        return False
    seen.add(id(function))
    held = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        try:
            held.append(cell.cell_contents)
        except ValueError:
            continue
    return any(
        _holds(one, seen) if type(one) is FunctionType else not issubclass(type(one), (*_ATOMIC, torch.dtype))
        for one in held
    )


def _function(function: FunctionType) -> FunctionType:
    """The same code with empty cells; to be filled."""
    closure = None if function.__closure__ is None else tuple(CellType() for _ in function.__closure__)
    own = FunctionType(function.__code__, function.__globals__, function.__name__, None, closure)
    own.__qualname__, own.__module__, own.__doc__ = function.__qualname__, function.__module__, function.__doc__
    return own


def _exchange(found: Any, functions: Mapping[int, tuple[FunctionType, FunctionType]]) -> None:
    """Put copied functions into the tables of an object; since Python 3.14 `deepcopy` takes functions for constants."""
    for table in (found, getattr(found, "__dict__", None)):
        if type(table) is dict:
            for key in [key for key, value in table.items() if id(value) in functions]:
                table[key] = functions[id(table[key])][1]


def _fill(function: FunctionType, own: FunctionType, memo: dict[int, Any]) -> None:
    for cell, empty in zip(function.__closure__ or (), own.__closure__ or (), strict=True):
        try:
            content = cell.cell_contents
        except ValueError:
            continue
        empty.cell_contents = copy.deepcopy(content, memo)
    own.__defaults__ = copy.deepcopy(function.__defaults__, memo)
    own.__kwdefaults__ = copy.deepcopy(function.__kwdefaults__, memo)
    own.__dict__.update(copy.deepcopy(function.__dict__, memo))

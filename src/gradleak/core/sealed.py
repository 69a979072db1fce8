"""Objects that an attack gets: copies that share nothing with the original, and objectives without what is not read."""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import BuiltinFunctionType, CellType, FunctionType
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from gradleak.core.batch import Batch
from gradleak.core.losses import LOSSES, evaluated
from gradleak.core.module_copy import INTERNALS, Attributes, first_line
from gradleak.core.object_walk import may_be_data, walk
from gradleak.core.objective import Objective
from gradleak.core.process import ONE_CALL
from gradleak.core.token_tables import arguments, logits_of
from gradleak.results import Settings, UnsupportedError

T = TypeVar("T")
S = TypeVar("S", bound=Settings)

_ATOMIC = (type(None), bool, int, float, complex, str, type, BuiltinFunctionType)


def sealed(values: Sequence[T], device: torch.device | None = None) -> list[T]:
    """Deep copies of `values`, one for each, which share no tensor, array or part of a model with them.

    What the originals share among themselves the copies share, too: objects, and the memory of tensors that show the same
    numbers, as a model and its parameters do. Tensors come without the memory around them (a slice
    without its base), without gradients, graphs and attributes; functions with closures and defaults of their own. What
    belongs to no object is not copied: global variables and attributes of classes.

    Args:
        values: updates and knowledge.
        device: of the tensors of the copies; None for that of the originals.

    Raises:
        UnsupportedError: naming what cannot be copied, or copies as itself (a `__deepcopy__` of its own).

    **Cost**: one copy of every tensor, and two walks.
    """
    memo: dict[int, Any] = {}
    copied: dict[tuple[Any, ...], Tensor] = {}
    functions: dict[int, tuple[FunctionType, FunctionType]] = {}
    shared: set[int] = set()
    for _, found in walk([("", values)], code=False):
        if type(found) in (Tensor, nn.Parameter):
            memo[id(found)] = _alone(found, device, copied)
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


def _alone(tensor: Tensor, device: torch.device | None, copied: dict[tuple[Any, ...], Tensor]) -> Tensor:
    """A copy; of the very memory that another tensor shows in the same way, the one that is there."""
    key: tuple[Any, ...] = (id(tensor),)
    if tensor.layout is torch.strided and not tensor.is_quantized and tensor.data_ptr():
        key = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj())
    if key not in copied:
        own = tensor.detach().clone()
        copied[key] = own if device is None else own.to(device)
    own = copied[key].detach()
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


_CONSTANTS = frozenset((type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.Size))
# Places that a note names.
_NAMED = 5
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
_LEAN: WeakKeyDictionary[Objective, dict[object, Objective]] = WeakKeyDictionary()
# What code may raise that is run on one example alone, or without a part of its module.
_FAILURES = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError, ArithmeticError)


class _Part(NamedTuple):
    """A value that a module holds, which may carry data: in the attributes or the buffers of one of its parts."""

    owner: nn.Module
    name: str
    buffer: bool
    place: str


def lean(objective: Objective, batch: Batch) -> Objective:
    """The same loss in a module without what an evaluation does not read; the objective itself where there is no such thing.

    A module may hold the features of the last batch, an optimizer or a data set. Left out are buffers, and attributes that
    lead to tensors, arrays or long lists of numbers, which neither the batch nor its first example alone makes the code
    read before it writes them. Parameters and the buffers of torch's own layers stay. The gradient of the batch is the same,
    bit for bit; where it is not (or cannot be taken) everything stays. `notes` says what was left out.

    Args:
        objective: the client's loss.
        batch: what it is evaluated on; its values are not kept.

    **Cost**: nothing for modules that hold no such thing; else two plain gradients and four evaluations, once an objective
    and shape.
    """
    parts = list(_parts(objective._module, "")) + list(_parts(objective._loss, "loss."))
    if not parts:
        return objective
    known = _LEAN.setdefault(objective, {})
    key = tuple(batch.inputs.shape), tuple(batch.targets.shape)
    if key not in known:
        known[key] = _made(objective, parts, batch.to(objective.dtype))
    return known[key]


def _made(objective: Objective, parts: list[_Part], batch: Batch) -> Objective:
    try:
        read = _read(objective, batch)
    except _FAILURES:  # whoever evaluates it meets the error
        return objective
    unread = [part for part in parts if not _reads(read, part)]
    if not unread:
        return objective
    made = _without(objective, unread)
    try:
        first, second = (one.gradient(one.params, batch) for one in (objective, made))
    except _FAILURES:
        return objective
    same = all(torch.equal(first[name], second[name]) for name in first)
    return made if same else objective


def _parts(module: Any, prefix: str) -> Iterator[_Part]:
    """Values of a module that may carry data."""
    if not isinstance(module, nn.Module):
        return
    own = {id(one) for one in (*module.modules(), *module.parameters())}
    for path, owner in module.named_modules():
        start = f"{prefix}{path}." if path else prefix
        for name, value in vars(owner).items():
            if name not in INTERNALS and type(value) not in _CONSTANTS and _carries_data(value, own):
                yield _Part(owner, name, False, start + name)
        if not type(owner).__module__.startswith("torch."):
            kept = _STATISTICS if isinstance(owner, nn.modules.batchnorm._NormBase) else ()
            for name, buffer in owner._buffers.items():
                if buffer is not None and name not in kept:
                    yield _Part(owner, name, True, start + name)


def _carries_data(value: Any, own: Collection[int]) -> bool:
    """True if tensors, arrays, bytes or sequences of numbers can be reached, but for those of parts and parameters."""
    try:
        return any(may_be_data(found) for _, found in walk([("", value)], code=False, beside=own))
    except UnsupportedError:  # too much to look at
        return True


def _reads(read: Collection[tuple[int, str]], part: _Part) -> bool:
    return any((id(part.owner), name) in read for name in (part.name, "__dict__", *["_buffers"] * part.buffer))


def _read(objective: Objective, batch: Batch) -> set[tuple[int, str]]:
    """The parts of the model and the names that an evaluation reads of them before it writes them, at least.

    Of the batch and of its first example, with gradients and without; each in a copy that shares the parameters.

    Raises:
        Exception: whatever the code raises on the batch.
    """
    read = _read_by(objective, batch, grad=True) | _read_by(objective, batch, grad=False)
    if batch.size > 1:
        with suppress(*_FAILURES):  # for instance BatchNorm, of one example
            read |= _read_by(objective, batch.example(0), grad=True) | _read_by(objective, batch.example(0), grad=False)
    return read


def _read_by(objective: Objective, batch: Batch, *, grad: bool) -> set[tuple[int, str]]:
    copies: dict[int, Any] = {id(parameter): parameter for parameter in objective._module.parameters()}
    module, loss = copy.deepcopy((objective._module, objective._loss), copies)
    with objective._undisturbed(), _watched() as read, torch.set_grad_enabled(grad):
        args, named = arguments(module, batch.inputs.clone())
        outputs = module(*args, **named)
        evaluated(loss, logits_of(outputs) if objective.loss_name in LOSSES else outputs, batch.targets.clone())
    originals = {id(made): original for original, made in copies.items()}
    return {(originals[made], name) for made, name in read if made in originals}


@contextmanager
def _watched() -> Iterator[set[tuple[int, str]]]:
    """While active, collects the names that this thread reads of modules before it writes them."""
    read: set[tuple[int, str]] = set()
    written: set[tuple[int, str]] = set()
    owner, depth = threading.get_ident(), [0]
    found, assign, delete = nn.Module.__getattr__, nn.Module.__setattr__, nn.Module.__delattr__

    def __getattribute__(self: nn.Module, name: str) -> Any:
        if not depth[0] and threading.get_ident() == owner and (id(self), name) not in written:
            read.add((id(self), name))
        return object.__getattribute__(self, name)

    def unseen(method: Any) -> Any:
        """A method of torch, whose own reads of tables are nobody's."""

        def call(self: nn.Module, name: str, *value: Any) -> Any:
            if threading.get_ident() != owner:
                return method(self, name, *value)
            if method is not found:
                written.add((id(self), name))
            depth[0] += 1
            try:
                return method(self, name, *value)
            finally:
                depth[0] -= 1

        return call

    with ONE_CALL:
        nn.Module.__getattribute__ = __getattribute__  # type: ignore[method-assign, assignment]
        nn.Module.__getattr__, nn.Module.__delattr__ = unseen(found), unseen(delete)  # type: ignore[method-assign]
        nn.Module.__setattr__ = unseen(assign)  # type: ignore[method-assign]
        try:
            yield read
        finally:
            del nn.Module.__getattribute__
            nn.Module.__getattr__, nn.Module.__delattr__ = found, delete  # type: ignore[method-assign]
            nn.Module.__setattr__ = assign  # type: ignore[method-assign]


def _without(objective: Objective, unread: list[_Part]) -> Objective:
    """The objective in a copy of its module, of the same tensors, without these parts."""
    shared: dict[int, Any] = {id(tensor): tensor for tensor in _tensors(objective)}
    module, loss = copy.deepcopy((objective._module, objective._loss), shared)
    for part in unread:
        owner = shared[id(part.owner)]
        del (owner._buffers if part.buffer else vars(owner))[part.name]
    values = {id(buffer): objective.buffers[name] for name, buffer in objective._module.named_buffers()}
    places = [part.place for part in unread[:_NAMED]] + [f"{len(unread) - _NAMED} more"] * (len(unread) > _NAMED)
    return replace(
        objective,
        buffers={name: values[id(buffer)] for name, buffer in module.named_buffers()},
        notes=(*objective.notes, f"kept from attacks, since no evaluation reads it: {', '.join(places)}"),
        _origins=objective._origins.without(
            [part.place if part.place.startswith("loss.") else f"model.{part.place}" for part in unread]
        ),
        _module=module,
        _loss=loss,
        _attributes=Attributes(module, *([loss] if isinstance(loss, nn.Module) else [])),
    )


def _tensors(objective: Objective) -> Iterator[Tensor]:
    yield from objective._module.parameters()
    yield from objective._module.buffers()

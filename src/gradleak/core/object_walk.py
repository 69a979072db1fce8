"""Walk over every object that can be reached from another one, and the numbers that an object holds, without running its code."""

from __future__ import annotations

import array
import ctypes
import dis
import gc
import io
import math
import sys
import weakref
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator
from functools import cache, cached_property
from importlib import util
from types import CellType, CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gradleak.core.installed import is_installed
from gradleak.results import UnsupportedError

MOST_OBJECTS = 1_000_000
# What leads nowhere, and is no data by itself.
_INERT = frozenset(
    (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.Size, ModuleType, CodeType)
)
_CONTAINERS = frozenset((dict, OrderedDict, list, tuple, set, frozenset))
_LEAVES = (bytearray, memoryview, torch.UntypedStorage, torch.Generator)
_WRAPPERS = {
    property: ("fget", "fset", "fdel"),
    classmethod: ("__func__",),
    staticmethod: ("__func__",),
    cached_property: ("func",),
}
# Methods of a module that an evaluation begins with.
_CALLED = ("forward", "__call__", "__getattr__")
_TABLES = ("_parameters", "_buffers", "_modules")
_IMPORT = dis.opmap["IMPORT_NAME"]


class Place(NamedTuple):
    """Way from the beginning of a walk to an object, for messages."""

    label: str
    before: Place | None = None

    def __str__(self) -> str:
        """The steps in order, for instance `model.encoder.table['rows'][0]`."""
        place, labels = self.before, [self.label]
        while place is not None:
            labels.append(place.label)
            place = place.before
        return "".join(reversed(labels))


def walk(
    roots: Iterable[tuple[str, object]], *, code: bool = True, beside: Collection[int] = ()
) -> Iterator[tuple[Place, Any]]:
    """Every object that can be reached from `roots`, once each, with its place; depth first.

    Followed are items, keys, attributes, slots, closures, defaults, referents of weak references, whatever Python's
    garbage collector knows of other objects, and, of code that is not installed as a package, attributes of classes and the
    global variables that it reads by name: of a module's class in `forward` and the methods that it names, else in every
    function. Numbers, text, modules and code of installed packages are not handed out.

    No method, property or `__getattr__` of an object is called. Tensors lead on by attributes of their own alone.

    Args:
        roots: where the walk begins: the names that places begin with, and the objects.
        code: whether classes, global variables and weak references are followed: copies share them with the original.
        beside: the identities of objects that are passed by.

    Raises:
        UnsupportedError: beyond `MOST_OBJECTS` objects.
    """
    children = _Children(code)
    seen: set[int] = set(beside)
    kept: list[Any] = []
    stack = [(Place(name), value) for name, value in reversed(list(roots))]
    while stack:
        place, value = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        kept.append(value)  # else another object could come to lie at its address
        if len(seen) > MOST_OBJECTS:
            raise UnsupportedError(
                f"expected at most {MOST_OBJECTS:,} objects in what attacks receive, got more (the last: {place}), too many "
                "to search for private data; keep tables and caches out of the model, the loss and the defenses"
            )
        yield place, value
        further = [
            (Place(label, place), child)
            for label, child in children.of(value)
            if type(child) not in _INERT and id(child) not in seen and not (type(child) in _CONTAINERS and not child)
        ]
        stack.extend(reversed(further))


class _Children:
    """Objects that one object leads to, with the labels of the steps."""

    def __init__(self, code: bool) -> None:
        self._code = code
        self._layouts: dict[int, tuple[Any, list[tuple[str, Any]]]] = {}

    def of(self, value: Any) -> Iterator[tuple[str, Any]]:
        kind = type(value)
        if kind is bytes or issubclass(kind, _LEAVES):
            return
        if issubclass(kind, FunctionType):
            yield from self._of_function(value)
        elif issubclass(kind, type):
            yield from _of_class(value) if self._code else ()
        elif issubclass(kind, CellType):
            try:
                yield "", value.cell_contents
            except ValueError:
                return
        elif issubclass(kind, list):
            yield from ((f"[{number}]", item) for number, item in enumerate(list.__iter__(value)))
        elif issubclass(kind, tuple):
            yield from ((f"[{number}]", item) for number, item in enumerate(tuple.__iter__(value)))
        elif issubclass(kind, dict):
            yield from ((".keys()", key) for key in dict.__iter__(value) if type(key) not in _INERT)
            yield from ((_item(key), item) for key, item in dict.items(value))
        elif issubclass(kind, weakref.ReferenceType) and self._code:
            yield "()", weakref.ReferenceType.__call__(value)
        if kind not in (dict, list, tuple, FunctionType, CellType) and not issubclass(kind, type):
            yield from self._of_object(value)
            if self._code and not is_installed(_module(kind)):
                yield f" (class {_own(kind, '__name__')})", kind

    def _of_object(self, value: Any) -> Iterator[tuple[str, Any]]:
        """Attributes and slots by name, then whatever else the garbage collector knows of."""
        kind = type(value)
        table, slots = self._layout(kind)
        attributes = None if table is None else table.__get__(value)
        if type(attributes) is dict:
            for name, item in attributes.items():
                if name in _TABLES and issubclass(kind, nn.Module) and type(item) is dict:
                    yield from ((f".{key}", part) for key, part in item.items())
                else:
                    yield f".{name}" if type(name) is str else "", item
        for name, slot in slots:
            try:
                yield f".{name}", slot.__get__(value)
            except (AttributeError, TypeError):
                continue
        if issubclass(kind, np.ndarray) and np.ndarray.dtype.__get__(value).hasobject:
            yield from ((f"[{number}]", item) for number, item in enumerate(np.ndarray.tolist(value)))
        if not issubclass(kind, Tensor | np.ndarray):
            known = (id(kind), id(attributes))
            yield from (
                (f" (in {_own(kind, '__name__')})", one) for one in gc.get_referents(value) if id(one) not in known
            )

    def _layout(self, kind: type) -> tuple[Any, list[tuple[str, Any]]]:
        """The descriptor of the attributes of an object of this kind, or None, and those of its slots."""
        if id(kind) not in self._layouts:
            table, slots = None, []
            for base in _own(kind, "__mro__"):
                for name, member in _own(base, "__dict__").items():
                    if name == "__dict__" and type(member) is GetSetDescriptorType:
                        table = table or member
                    elif type(member) is MemberDescriptorType and name != "__weakref__":
                        slots.append((name, member))
            self._layouts[id(kind)] = table, slots
        return self._layouts[id(kind)]

    def _of_function(self, function: FunctionType) -> Iterator[tuple[str, Any]]:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            yield f" (closure: {name})", cell
        yield " (defaults)", function.__defaults__
        yield " (defaults)", function.__kwdefaults__
        yield ".__dict__", function.__dict__
        if not self._code or is_installed(str(function.__module__)):
            return
        yield from ((" (constant)", constant) for constant in _constants(function.__code__))
        names = sorted(_names(function.__code__))
        imported = set(imports_in(function.__code__, str(dict.get(function.__globals__, "__package__") or "")))
        for name in (*names, *sorted(imported.difference(names))):
            found = dict.get(function.__globals__, name, sys.modules.get(name) if name in imported else None)
            kind = type(found)
            if issubclass(kind, ModuleType):
                inside = vars(ModuleType)["__dict__"].__get__(found)
                if not is_installed(str(inside.get("__name__"))):
                    yield from ((f" (global: {name}.{one})", inside.get(one)) for one in names)
            elif not issubclass(kind, FunctionType | type) or not is_installed(str(found.__module__)):
                yield f" (global: {name})", found


def _of_class(kind: type) -> Iterator[tuple[str, Any]]:
    """The attributes of a class and its bases; of a module's class only those methods that an evaluation can name."""
    members: dict[str, Any] = {}
    for base in reversed(_own(kind, "__mro__")):
        if not is_installed(_module(base)):
            members |= _own(base, "__dict__")
    reached = set(members)
    if issubclass(kind, nn.Module):
        reached, waiting = set(), list(_CALLED)
        while waiting:
            name = waiting.pop()
            if name in members and name not in reached:
                reached.add(name)
                waiting += [one for function in _functions(members[name]) for one in _names(function.__code__)]
    for name, member in members.items():
        functions = list(_functions(member))
        if functions:
            yield from ((f".{name}", function) for function in functions if name in reached)
        elif type(member) not in (GetSetDescriptorType, MemberDescriptorType):
            yield f".{name}", member
    if not is_installed(_module(type(kind))):
        yield " (metaclass)", type(kind)


def _functions(member: Any) -> Iterator[FunctionType]:
    """The functions that a member of a class is, or wraps."""
    if type(member) is FunctionType:
        yield member
    for name in _WRAPPERS.get(type(member), ()):
        yield from _functions(getattr(member, name))


@cache
def _names(code: CodeType) -> frozenset[str]:
    """The names of global variables and attributes that a code object reads, nested functions included."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return frozenset(code.co_names).union(*map(_names, inner))


def imports_in(code: CodeType, package: str) -> Iterator[str]:
    """The modules that a code object imports when it runs.

    Args:
        code: of a function.
        package: that of its module.
    """
    if _IMPORT in code.co_code[::2]:
        steps = list(dis.get_instructions(code))
        for place, step in enumerate(steps):
            if step.opname == "IMPORT_NAME":
                level = steps[place - 2].argval
                dots = "." * level if isinstance(level, int) else ""
                yield util.resolve_name(f"{dots}{step.argval}", package) if dots and package else str(step.argval)
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from imports_in(one, package)


def _constants(code: CodeType) -> Iterator[Any]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _constants(constant)
        elif isinstance(constant, tuple | frozenset):
            yield constant


def _module(kind: type) -> str:
    return str(_own(kind, "__module__"))


def _own(kind: type, name: str) -> Any:
    """Attribute that every class has by this name; one that its metaclass puts before it would run code."""
    return vars(type)[name].__get__(kind)


def _item(key: Any) -> str:
    return f"[{key!r}]" if type(key) in (str, int, bool) else "[...]"


# Entries that are looked at together.
CHUNK = 2**22
FEWEST_NUMBERS = 8
_NUMBERS = (bool, int, float)
_SEQUENCES = (list, tuple, deque, set, frozenset, dict)
_BYTES = (bytes, bytearray, memoryview, array.array, io.BytesIO, ctypes.Array)
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
        if numbers.dtype.names:
            for name in numbers.dtype.names:
                yield from tensors_in(numbers[name])
        elif numbers.dtype.hasobject:
            yield from tensors_in(numbers.reshape(-1).tolist())
        elif numbers.dtype.kind == "c":
            yield from (part for half in (numbers.real, numbers.imag) for part in tensors_in(half))
        elif numbers.dtype.kind in "biuf" and numbers.dtype.itemsize <= 8:
            plain = np.ascontiguousarray(numbers, dtype=numbers.dtype.newbyteorder("="))
            yield torch.from_numpy(
                plain.astype(np.int64) if plain.dtype.kind == "u" and plain.itemsize > 1 else plain.copy()
            )
    elif issubclass(kind, _SEQUENCES):
        for items in (value, *_columns(value)):
            found: list[float] = []
            if _flat(items, found, _DEEPEST) and len(found) > 1:
                yield torch.tensor(found, dtype=torch.float64)
    elif issubclass(kind, _BYTES):
        yield from _in_bytes(
            io.BytesIO.getvalue(value) if issubclass(kind, io.BytesIO) else memoryview(value).tobytes()
        )


def _in_bytes(raw: bytes) -> Iterator[Tensor]:
    """The bytes as numbers of each size, whatever stands before them (a file's header)."""
    for dtype in (torch.uint8, torch.float32, torch.float64, torch.int64):
        for start in range(dtype.itemsize):
            count = (len(raw) - start) // dtype.itemsize
            if count > 1:
                yield torch.frombuffer(bytearray(raw[start : start + count * dtype.itemsize]), dtype=dtype)


def _columns(value: Any) -> Iterator[tuple[Any, ...]]:
    """The columns of a list of tuples of one length, such as (path, label)."""
    items = _items(value)
    kinds = len(items) >= FEWEST_NUMBERS and all(type(item) is tuple or type(item) is list for item in items)
    if kinds and all(len(item) == len(items[0]) for item in items):
        yield from zip(*items, strict=True)


def _dense(tensor: Tensor) -> Iterator[Tensor]:
    if tensor.is_quantized:
        yield tensor.int_repr().cpu()
        tensor = tensor.dequantize()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    tensor = tensor.resolve_neg().cpu()
    if tensor.dtype is torch.uint8 and tensor.numel() <= 4 * CHUNK:
        yield from _in_bytes(tensor.numpy().tobytes())
    if tensor.is_floating_point() and tensor.dtype.itemsize == 1:
        tensor = tensor.to(torch.float32)
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

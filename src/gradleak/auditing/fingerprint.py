"""Fingerprints by which a run recognizes its own record: of structure, code and state, not of descriptions."""

from __future__ import annotations

import functools
import hashlib
import random
import struct
import sys
import types
from collections import ChainMap
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from enum import Enum
from operator import is_
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from gradleak.auditing.whose_code import (
    Whose,
    attributes,
    belongs_to_gradleak,
    copied_from,
    file_print,
    imported,
    names_in,
    package_print,
    tells_its_state,
    whose,
    whose_module,
)
from gradleak.core.process import in_turn
from gradleak.results import InputError

DEEPEST = 6000
_CONSTANTS = (str, int, float, complex, bool, bytes, type(None), type(...))
_WORDS = (torch.dtype, torch.device, torch.layout, torch.memory_format, PurePath)
_CACHED = type(functools.cache(len))
_WRAPPERS = (property, classmethod, staticmethod, functools.cached_property)
# Locks hold nothing that numbers depend on; what is held weakly is a cache, or somebody else's.
_INERT = ("_thread.lock", "_thread.RLock", "weakref.", "_weakrefset.")
# Attribute of what torch.compile made: the function that it was made of. The rest is a cache of this process.
_COMPILED = "_torchdynamo_orig_callable"
# Whose classes and functions are compiled.
_BINDINGS = ("pybind11", "nanobind")
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_GLOBAL_GENERATORS = (random._inst, np.random.mtrand._rand, torch.default_generator)
_OF_EVERY_MEMBER = ("_value_", "_name_", "__objclass__", "_sort_order_")
# What stays as it is.
_FIXED = (types.CodeType, tuple)
# Of a class: what Python makes of its code.
_MADE = (types.GetSetDescriptorType, types.MemberDescriptorType)


class Reading(NamedTuple):
    """Result of reading things for their fingerprint.

    Attributes:
        digest: hexadecimal; the same in every process.
        unread: places and types of what could not be read, so that it may have changed unseen.
    """

    digest: str
    unread: tuple[str, ...]


def fingerprint(*things: Any) -> str:
    """The digest of `read`."""
    return read(*things).digest


@in_turn
def read(*things: Any) -> Reading:
    """A digest of what `things` are and do, and the names of what could not be read.

    Tensors and arrays go in by value; objects by their attributes, by what their class keeps in C, and by the code of their
    class and its bases; functions by their compiled code, constants, defaults, attributes, closures and what they read of their
    module and of modules that they import; networks by the attributes, hooks, code and state of every part. Of torch, numpy and
    Python itself the name goes in, since a record states the versions; of other installed packages the name and the list of
    files that the installer wrote. What code finds by a name that it computes, in a file or in the environment is not covered.

    Args:
        *things: objects of any kind; tables name their parts.

    Raises:
        InputError: if parts lie too deep in each other.

    **Cost**: half a second for code of gradleak, and hardly anything where this process has read the same classes before.
    """
    walk = _Walk(apart={})
    # Networks in networks, and functions that call functions, lie deeper than calls do.
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, DEEPEST))
    try:
        total = _join(*[walk.token(thing) for thing in things])
        code = _code_of_gradleak(walk.apart or {})
    except RecursionError as error:
        raise InputError(
            "plan: expected a model, a loss and attacks whose parts lie at most about a thousand deep in each other; got more, "
            "so that a run cannot recognize its own record"
        ) from error
    finally:
        sys.setrecursionlimit(limit)
    return Reading(_join(total, code.token).hex(), tuple(walk.unread | dict.fromkeys(code.unread)))


class _Walk:
    """Walks through values; what it meets again stands there with the same digest, equal or identical alike.

    Args:
        around: the walk that this one is a part of.
        apart: for classes and functions of gradleak by name, which are to be read apart; None to read them as others.
    """

    def __init__(self, around: _Walk | None = None, *, apart: dict[str, Any] | None = None) -> None:
        self.apart: dict[str, Any] | None = apart if around is None else around.apart
        # By address: the digests of what was read, and how deep that lies which is being read.
        self._done: MutableMapping[int, bytes] = {} if around is None else ChainMap({}, around._done)
        self._open: dict[int, int] = {} if around is None else dict(around._open)
        self._path: list[str] = [] if around is None else list(around._path)
        self._modules: set[tuple[str, frozenset[str]]] = set()
        self.kept: list[Any] = [] if around is None else around.kept
        self.unread: dict[str, None] = {} if around is None else around.unread

    def token(self, value: Any, name: object = "") -> bytes:
        """The bytes that stand for a value.

        Args:
            value: anything.
            name: under which it was found, for messages.
        """
        kind = type(value)
        if kind in _CONSTANTS or (isinstance(value, _WORDS) and whose(kind) is Whose.STATED):
            # Decimal digits of an int are limited.
            return f"{kind.__qualname__} {hex(value) if kind is int else repr(value)}".encode()
        place = id(value)
        if place in self._done:
            return self._done[place]
        if place in self._open:
            return b"inside of itself %d" % (len(self._path) - self._open[place])
        self.kept.append(value)  # else another object could come to lie at its address
        self._open[place] = len(self._path)
        self._path.append(str(name)[:60])
        made = self._read(value)
        self._path.pop()
        del self._open[place]
        self._done[place] = made
        return made

    def _all(self, mark: str, values: Iterable[Any]) -> bytes:
        return _join(mark.encode(), *[self.token(value, place) for place, value in enumerate(values)])

    def _table(self, mark: str, table: Mapping[Any, Any]) -> bytes:
        return _join(mark.encode(), *[part for k, v in table.items() for part in (self.token(k), self.token(v, k))])

    def _read(self, value: Any) -> bytes:
        kind = type(value)
        if kind in (dict, types.MappingProxyType):
            return self._table("table", value)
        if kind in (list, tuple):
            return self._all(kind.__name__, value)
        if isinstance(value, set | frozenset):
            # Each by a walk of its own: their order is that of the run.
            return _join(b"set", self._further(value, set, frozenset), *sorted(_Walk(self).token(one) for one in value))
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, np.ndarray | np.generic):
            return self._array(value)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, types.ModuleType):
            return self._module(value, frozenset(name for name in vars(value) if not name.startswith("__")))
        if isinstance(value, Enum):
            return _join(b"member", self.token(kind), (value.name or repr(value)).encode())
        return self._code_or_object(value)

    def _code_or_object(self, value: Any) -> bytes:
        if any(value is one for one in _GLOBAL_GENERATORS):
            # Its state is the moment's: distributions of scipy hold numpy's.
            return f"global generator {type(value).__module__}".encode()
        compiled = value.__dict__.get(_COMPILED) if isinstance(value, types.FunctionType | nn.Module) else None
        if compiled is not None:
            return self._all("compiled", [compiled])
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.CodeType):
            return self._code(value)
        if isinstance(value, types.CellType):
            return _join(b"cell", *[self.token(held, "closure") for held in _held(value)])
        if isinstance(value, _CACHED):
            return self._all("cached", [value.__wrapped__])
        if isinstance(value, types.MethodType):
            return self._all("method", [value.__func__, value.__self__])
        if isinstance(value, functools.partial):
            return self._all("partial", [type(value), value.func, value.args, value.keywords, vars(value)])
        if isinstance(value, types.BuiltinFunctionType):
            # A function in C belongs to its module, or to what pybind11 keeps for it; a method to an object.
            owner = value.__self__
            name = f"builtin {value.__module__}.{value.__qualname__}".encode()
            free = owner is None or isinstance(owner, types.ModuleType) or type(owner).__name__ == "PyCapsule"
            free = free or type(owner).__module__.startswith(_BINDINGS)
            return _join(name, file_print(value.__module__ or "") if free else self.token(owner, "self"))
        if isinstance(value, _WRAPPERS):
            names = ("fget", "fset", "fdel", "__func__", "func")
            return self._table(type(value).__name__, {name: getattr(value, name, None) for name in names})
        if isinstance(value, torch.Generator):
            return _join(b"generator", self.token(value.get_state()))
        return self._object(value)

    def _tensor(self, value: Tensor) -> bytes:
        head = f"tensor {value.dtype} {tuple(value.shape)} {value.requires_grad} {value.layout}".encode()
        try:
            dense = value.detach().cpu().to_dense() if value.layout != torch.strided else value.detach().cpu()
            flat = (torch.dequantize(dense) if dense.is_quantized else dense).contiguous().reshape(-1)
            content = flat.resolve_conj().resolve_neg().view(torch.uint8).numpy().tobytes()
        except (RuntimeError, NotImplementedError, TypeError):
            # On the meta device, nested, or of a class without memory of its own.
            self._miss(value)
            content = b""
        return _join(head, content, self._further(value, Tensor, nn.Parameter))

    def _array(self, value: Any) -> bytes:
        made = np.asanyarray(value)
        head = f"array {type(value).__name__} {made.dtype} {made.shape}".encode()
        content = self.token(made.tolist()) if made.dtype.hasobject else np.ascontiguousarray(made).tobytes()
        # Such as the mask of a masked array.
        more = b"" if type(made) is np.ndarray else self.token(self._copied_from(made))
        return _join(head, content, more, self._further(made, np.ndarray))

    def _further(self, value: Any, *plain: type) -> bytes:
        """The class and the attributes of a value that has more of them than its kind; else nothing."""
        own = attributes(value)
        return self._all("further", [type(value), own]) if own or type(value) not in plain else b""

    def _object(self, value: Any) -> bytes:
        """The class of an object, its attributes, and what it is copied from; of a network the state of every part."""
        kind = type(value)
        if f"{kind.__module__}.{kind.__qualname__}".startswith(_INERT):
            return f"inert {kind.__qualname__}".encode()
        if kind.__module__ == "torch._ops":
            # They keep what was asked of them before.
            return f"operator {value}".encode()
        parts = [self.token(kind, "class")]
        if isinstance(value, nn.Module):
            return _join(*parts, *self._network(value))
        if callable(getattr(kind, "identity_in_plans", None)):
            return _join(*parts, self.token(value.identity_in_plans()))
        found, owner = self._copied_from(value), whose(kind)
        if isinstance(found, str):
            # A global name: of a function that Cython compiled, say. What `numpy.frompyfunc` makes has none.
            if not found.replace(".", "_").isidentifier():
                self._miss(value)
            parts.append(_join(found.encode(), file_print(str(getattr(value, "__module__", None) or ""))))
        if found is None or owner is Whose.OWN:
            parts.append(self._table("attributes", attributes(value)))
        if isinstance(found, list):
            # The attributes stand above, unless the class has a way of its own to tell its state.
            whole = owner is not Whose.OWN or tells_its_state(kind)
            parts.append(self._all("copied from", [one for place, one in enumerate(found) if place != 2 or whole]))
        return _join(*parts)

    def _copied_from(self, value: Any) -> Any:
        try:
            return copied_from(value)
        except Exception:  # anything that a user's class or one in C may raise; the object is named as unread
            self._miss(value)
            return None

    def _network(self, module: nn.Module) -> list[bytes]:
        own = {name: value for name, value in attributes(module).items() if name not in _OF_EVERY_MODULE}
        everywhere = [getattr(nn.modules.module, f"_global{name}", {}) for name in _HOOKS]
        # The keys of hooks are numbers of a run.
        hooks = [list(table.values()) for table in (*(vars(module).get(name, {}) for name in _HOOKS), *everywhere)]
        parts = {name: part for name, part in module._modules.items() if part is not None}
        tensors = {**module._parameters, **module._buffers}
        return [
            b"training" if module.training else b"eval",
            *(self._table("part", table) for table in (tensors, own, parts, {"hooks": hooks})),
        ]

    def _class(self, kind: type) -> bytes:
        head = f"class {kind.__module__}.{kind.__qualname__}".encode()
        owner = whose(kind)
        if owner is not Whose.OWN:
            return _join(head, package_print(kind.__module__) if owner is Whose.INSTALLED else b"")
        if self._is_apart(kind):
            return head
        if str(type(kind).__module__).startswith(_BINDINGS):
            return _join(head, file_print(kind.__module__))
        members = {name: member for name, member in sorted(vars(kind).items()) if _counts(name, member)}
        if issubclass(kind, Enum):
            # In place of the tables by which Python finds them.
            members = {name: one for name, one in members.items() if not name.startswith("_") or callable(one)}
            members |= {name: (one.value, _further(one)) for name, one in kind.__members__.items()}
        return _join(head, self._all("bases", [type(kind), *kind.__bases__]), self._table("members", members))

    def _function(self, function: types.FunctionType) -> bytes:
        head = f"function {function.__module__}.{function.__qualname__}".encode()
        owner = whose(function)
        if owner is not Whose.OWN:
            return _join(head, package_print(function.__module__) if owner is Whose.INSTALLED else b"")
        if self._is_apart(function):
            return head
        parts = [function.__code__, function.__closure__, function.__defaults__, function.__kwdefaults__]
        return _join(head, self._all("function", [*parts, vars(function)]), *self._read_by(function))

    def _read_by(self, function: types.FunctionType) -> list[bytes]:
        """Tokens of what a function reads of its module, of modules in it, and of those that it imports when it runs."""
        module = sys.modules.get(function.__module__ or "")
        if (
            module is not None
            and vars(module) is function.__globals__
            and whose_module(module.__name__) is not Whose.OWN
        ):
            return []
        names, texts = names_in(function.__code__)
        of_modules = frozenset(names | texts)
        read = {name: function.__globals__[name] for name in sorted(names) if name in function.__globals__}
        found: list[bytes] = []
        for name, value in (read | imported(function)).items():
            found.append(name.encode())
            found.append(
                self._module(value, of_modules) if isinstance(value, types.ModuleType) else self.token(value, name)
            )
        return found

    def _module(self, module: types.ModuleType, names: frozenset[str]) -> bytes:
        """The name of a module; of a user's own also its attributes of these names."""
        head = f"module {module.__name__}".encode()
        owner = whose_module(module.__name__)
        if owner is not Whose.OWN:
            return _join(head, package_print(module.__name__) if owner is Whose.INSTALLED else b"")
        if (module.__name__, names) in self._modules:
            return head
        self._modules.add((module.__name__, names))
        found: list[bytes] = []
        for name in sorted(names & vars(module).keys()):
            value = vars(module)[name]
            found.append(name.encode())
            found.append(self._module(value, names) if isinstance(value, types.ModuleType) else self.token(value, name))
        return _join(head, *found)

    def _is_apart(self, thing: type | types.FunctionType) -> bool:
        """True for what gradleak has under its name, which is read in an order of its own, once in a process."""
        if self.apart is None or not belongs_to_gradleak(thing):
            return False
        self.apart[f"{thing.__module__}.{thing.__qualname__}"] = thing
        return True

    def _code(self, code: types.CodeType) -> bytes:
        shape = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        parts = [code.co_code, getattr(code, "co_exceptiontable", b""), repr((shape, names)).encode()]
        return _join(*parts, self._all("constants", code.co_consts))

    def _miss(self, value: Any) -> None:
        kind = type(value)
        path = [part for part in self._path if part]
        place = ".".join(path if len(path) <= 6 else [*path[:2], "…", *path[-3:]])
        self.unread[f"{place or 'plan'} ({kind.__module__}.{kind.__qualname__})"] = None


class _Code(NamedTuple):
    """Result of reading code of gradleak.

    Attributes:
        token: that stands for it.
        unread: as of a `Reading`.
        seen: everything that was read, each with the objects that it held.
    """

    token: bytes
    unread: tuple[str, ...]
    seen: Sequence[tuple[Any, Sequence[Any]]]

    @property
    def stands(self) -> bool:
        """True while everything holds the very objects that it held: nobody has put other code in their place."""
        return all(len(held) == len(now := _holding(value)) and all(map(is_, held, now)) for value, held in self.seen)


def _code_of_gradleak(things: Mapping[str, Any]) -> _Code:
    """The code of classes and functions of gradleak, by name, and of all that they read: the same whoever refers to them."""
    names = sorted(things)
    known = _known(*(things[name] for name in names))
    if not known or not known[0].stands:
        walk = _Walk()
        token = _join(*[walk.token(things[name], name) for name in names])
        read = [one for one in walk.kept if type(one) not in _FIXED]
        spaces = {id(one.__globals__): one.__globals__ for one in read if type(one) is types.FunctionType}
        seen = [(one, _holding(one)) for one in (*read, *spaces.values())]
        known[:] = [_Code(token, tuple(walk.unread), seen)]
    return known[0]


@functools.lru_cache(maxsize=8)
def _known(*things: Any) -> list[_Code]:
    """A place for what was read of these things, of the last few plans: a gate reads the same classes every round."""
    del things
    return []


def _holding(value: Any) -> Sequence[Any]:
    """The objects that a value refers to, as far as they can be put in another's place; equal numbers are the same object."""
    if isinstance(value, types.FunctionType):
        return (value.__code__, value.__closure__, value.__defaults__, value.__kwdefaults__, *vars(value).values())
    if isinstance(value, types.CellType):
        return _held(value)
    if isinstance(value, Tensor):
        # Of small numbers each is one object.
        return (value._version,)
    if isinstance(value, dict | list | set | frozenset | types.MappingProxyType):
        return list(value.values() if isinstance(value, Mapping) else value)
    return list(getattr(value, "__dict__", {}).values())


def _join(*parts: bytes) -> bytes:
    """One digest of parts and their lengths, so that no two lists of parts read alike."""
    digest = hashlib.sha256(struct.pack(f">{len(parts)}Q", *map(len, parts)))
    for part in parts:
        digest.update(part)
    return digest.digest()


def _further(member: Enum) -> dict[str, Any]:
    """The attributes of a member of an enumeration beside Python's own."""
    return {name: value for name, value in sorted(vars(member).items()) if name not in _OF_EVERY_MEMBER}


def _held(cell: types.CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:  # empty
        return []


def _counts(name: str, member: Any) -> bool:
    """True for a member of a class that a user wrote; most names between double underscores are Python's own."""
    if isinstance(member, _MADE) or name in ("_abc_impl", "_autograd_function_id", "__class__"):
        return False
    return callable(member) or isinstance(member, _WRAPPERS) or not (name.startswith("__") and name.endswith("__"))

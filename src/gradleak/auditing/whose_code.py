"""Owner of code that a fingerprint meets: a library whose version a record states, another package, or the user."""

from __future__ import annotations

import copyreg
import functools
import hashlib
import importlib
import sys
import types
import warnings
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from gradleak.core.installed import COMPILED, files_beside, lies_with_installed, lies_with_python, place_of
from gradleak.core.object_walk import imports_in
from gradleak.results.versions import version_of

# Libraries beside Python's own whose versions a record states, by the name that their code has: that of the distribution.
STATED = {
    "torch": "torch",
    "numpy": "numpy",
    "scipy": "scipy",
    "sklearn": "scikit-learn",
    "pydantic": "pydantic",
    "pydantic_core": "pydantic-core",
    "typing_extensions": "typing_extensions",
}
_HEAP_TYPE = 1 << 9


@functools.cache
def stated_versions() -> Mapping[str, str]:
    """The versions of gradleak and of these libraries, as installed, by distribution; read once in a process."""
    return {name: version_of(name) for name in ("gradleak", *STATED.values())}


class Whose(Enum):
    """Owner of code, who decides how it is read."""

    STATED = "by name, since a record states the version"
    INSTALLED = "by name and by the list of files that the installer wrote"
    OWN = "as it stands"


def whose(thing: type | types.FunctionType) -> Whose:
    """The owner of a class or function; that of a library only where the library has it under its name."""
    module = thing.__module__
    owner = whose_module(module) if isinstance(module, str) else Whose.OWN
    if owner is Whose.OWN or (isinstance(thing, type) and not thing.__flags__ & _HEAP_TYPE):
        return owner
    return owner if _stands_under_its_name(thing) else Whose.OWN


def belongs_to_gradleak(thing: type | types.FunctionType) -> bool:
    """True for a class or function that gradleak has under its name."""
    module = thing.__module__
    return isinstance(module, str) and module.partition(".")[0] == "gradleak" and _stands_under_its_name(thing)


def _stands_under_its_name(thing: type | types.FunctionType) -> bool:
    found: Any = sys.modules.get(thing.__module__)
    for part in thing.__qualname__.split("."):
        found = getattr(found, "__dict__", {}).get(part)
        found = found.__func__ if isinstance(found, staticmethod | classmethod) else found
    return found is thing


def whose_module(name: str) -> Whose:
    """The owner of a module."""
    return _whose_root(name.partition(".")[0])


@functools.cache
def _whose_root(root: str) -> Whose:
    if root in ("gradleak", "__main__", ""):
        return Whose.OWN
    if root in STATED:
        return Whose.STATED
    place = place_of(root)
    if root in sys.stdlib_module_names and (place is None or lies_with_python(place)):
        return Whose.STATED
    return Whose.INSTALLED if place is not None and lies_with_installed(place) else Whose.OWN


@functools.cache
def package_print(module: str) -> bytes:
    """A print of the package that a module belongs to: the files as the installer listed them; else that of its own file."""
    place = place_of(module)
    if place is None:
        return b""
    found = files_beside(place, module.partition(".")[0].lower())
    if found is None:
        return hashlib.sha256(place.read_bytes()).digest() if place.is_file() else b""
    return hashlib.sha256("\n".join(found).encode()).digest()


def file_print(module: str) -> bytes:
    """A print of the file of a compiled module of a user or another package; nothing for other modules."""
    place = place_of(module) if module and whose_module(module) is not Whose.STATED else None
    compiled = place is not None and place.suffix in COMPILED and place.is_file()
    return hashlib.sha256(place.read_bytes()).digest() if compiled and place is not None else b""


def names_in(code: types.CodeType) -> tuple[set[str], set[str]]:
    """The names that a code object may read, nested functions included, and its texts that may be names of attributes."""
    names, texts = set(code.co_names), set()
    for one in code.co_consts:
        if isinstance(one, str) and one.isidentifier():
            texts.add(one)
        elif isinstance(one, types.CodeType):
            inner = names_in(one)
            names |= inner[0]
            texts |= inner[1]
    return names, texts


def imported(function: types.FunctionType) -> dict[str, types.ModuleType]:
    """The modules of a user that a function imports when it runs; those that cannot be imported are left out."""
    package = str(function.__globals__.get("__package__") or "")
    found: dict[str, types.ModuleType] = {}
    for name in imports_in(function.__code__, package):
        try:
            if whose_module(name) is Whose.OWN:
                # It stays so for all further runs of this process, whether the function was called before or not.
                found[name] = importlib.import_module(name)
        except (ImportError, ValueError):
            continue
    return found


def attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object, in order of their names; what is computed when asked for is none of them."""
    kind = type(value)
    state = dict(getattr(value, "__dict__", None) or {})
    for base in kind.__mro__:
        if whose(base) is Whose.STATED:
            continue
        own = vars(base)
        for name in (slots,) if isinstance(slots := own.get("__slots__", ()), str) else slots:
            hidden = name.startswith("__") and not name.endswith("__")
            place = f"_{base.__name__.lstrip('_')}{name}" if hidden else name
            if place not in ("__dict__", "__weakref__") and hasattr(value, place):
                state[place] = getattr(value, place)
        for name in [name for name in state if isinstance(own.get(name), functools.cached_property)]:
            del state[name]
    return dict(sorted(state.items(), key=lambda pair: str(pair[0])))


def copied_from(value: Any) -> Any:
    """Recipe by which an object is copied: a name, or a function with its arguments and what is done with the result.

    Raises:
        Exception: of any kind, where it cannot be copied.
    """
    reduce = copyreg.dispatch_table.get(type(value))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: Any = value.__reduce_ex__(2) if reduce is None else reduce(value)
    return found if isinstance(found, str) else [list(one) if isinstance(one, Iterator) else one for one in found]


def tells_its_state(kind: type) -> bool:
    """True if a class has a way of its own to say what its objects are copied from."""
    ways = ("__reduce__", "__reduce_ex__", "__getstate__")
    return any(getattr(kind, way, None) is not getattr(object, way, None) for way in ways)

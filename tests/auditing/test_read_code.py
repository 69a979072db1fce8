"""What a digest sees of code and state, kind by kind, and what it says that it cannot see."""

from __future__ import annotations

import collections
import ctypes
import enum
import functools
import io
import operator
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradleak.auditing.fingerprint import fingerprint, read
from gradleak.auditing.whose_code import Whose, whose, whose_module

Pair = tuple[Any, Any]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[..., types.ModuleType]:
    """Maker of a module from source, under a name that imports find."""

    def make(source: str, name: str = "own_helpers") -> types.ModuleType:
        module = types.ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(source, f"{name}.py", "exec"), module.__dict__)
        return module

    return make


class Slotted:
    __slots__ = ("__scale",)

    def __init__(self, scale: float) -> None:
        self.__scale = scale


class Text(str):
    def act(self, x: float) -> float:
        return x


class Queue(collections.deque[int]):
    pass


class Weighted(torch.Tensor):
    pass


@dataclass
class Settings:
    a: int = 1


class Called(Settings):
    def __call__(self) -> int:
        return self.a


class Descriptor:
    def __init__(self, by: float) -> None:
        self.by = by

    def __get__(self, instance: object, owner: type) -> float:
        return self.by


class Cell:
    """An object that can hold itself in a set."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.near: set[Cell] = set()


def with_attribute(value: Any, **attributes: Any) -> Any:
    for name, one in attributes.items():
        setattr(value, name, one)
    return value


def ring(value: float) -> Cell:
    first, second = Cell(1.0), Cell(value)
    first.near, second.near = {second}, {first}
    return first


def kind(**members: Any) -> Any:
    return type("Made", (), members)


def traced(act: Callable[..., Any]) -> nn.Module:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return act(x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.fx.symbolic_trace(Net())


def parametrized(factor: float) -> nn.Module:
    class Scale(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * factor

    module = nn.Linear(2, 2)
    nn.init.ones_(module.weight)
    nn.init.ones_(module.bias)
    return nn.utils.parametrize.register_parametrization(module, "weight", Scale())


def hooked(hook: Callable[..., Any]) -> nn.Module:
    module = nn.Identity()
    module.register_forward_pre_hook(hook, with_kwargs=True)
    return module


def function(text: str, **names: Any) -> Any:
    """A function whose module nobody knows."""
    exec(text, names)
    return names["f"]


PAIRS: dict[str, Callable[[], Pair]] = {
    "attribute of a function": lambda: tuple(with_attribute(lambda: 1, scale=n) for n in (1, 2)),
    "closure over an object": lambda: tuple((lambda s: lambda: s.a)(Settings(n)) for n in (1, 2)),
    "lambda in a table": lambda: ({"f": [lambda x: x]}, {"f": [lambda x: -x]}),
    "callable instance": lambda: (Called(1), Called(2)),
    "functional": lambda: (lambda x: F.relu(x), lambda x: F.tanh(x)),
    "pooling": lambda: (F.max_pool2d, F.max_pool1d),
    "method of a tensor class": lambda: (torch.Tensor.relu, torch.Tensor.tanh),
    "operator of torch": lambda: (torch.ops.aten.relu, torch.ops.aten.tanh),
    "ufunc": lambda: (np.sin, np.cos),
    "method caller": lambda: (operator.methodcaller("relu"), operator.methodcaller("tanh")),
    "bound method of a tensor": lambda: (torch.ones(2).mul, torch.zeros(2).mul),
    "bound method of a table": lambda: ({"a": 1}.get, {"a": 2}.get),
    "keyword of a partial in a list": lambda: (
        [functools.partial(max, default=1)],
        [functools.partial(max, default=2)],
    ),
    "partial method": lambda: tuple(kind(f=functools.partialmethod(print, n)) for n in (1, 2)),
    "default factory": lambda: tuple(collections.defaultdict(one) for one in (lambda: 1.0, lambda: 2.0)),
    "mask": lambda: tuple(np.ma.masked_array([1.0, 2.0], mask=[False, n]) for n in (False, True)),
    "objects in an array": lambda: tuple(np.array([(Settings(n),)], dtype=[("x", object)]) for n in (1, 2)),
    "text of a class": lambda: ("a", Text("a")),
    "attribute of a text": lambda: tuple(with_attribute(Text("a"), scale=n) for n in (1, 2)),
    "hidden slot": lambda: (Slotted(1.0), Slotted(2.0)),
    "content of a queue": lambda: tuple(with_attribute(Queue([n]), label="q") for n in (1, 2)),
    "attribute of a queue": lambda: tuple(with_attribute(Queue([1]), label=n) for n in (1, 2)),
    "attribute beside fields": lambda: tuple(with_attribute(Settings(), scale=n) for n in (1, 2)),
    "attribute of a tensor": lambda: tuple(with_attribute(torch.ones(2), scale=n) for n in (1, 2)),
    "class of a tensor": lambda: (torch.ones(2), torch.ones(2).as_subclass(Weighted)),
    "whole number of many digits": lambda: (10**5000, 10**5000 + 1),
    "descriptor": lambda: tuple(kind(scale=Descriptor(n)) for n in (1.0, 2.0)),
    "property": lambda: tuple(kind(scale=property(one)) for one in (lambda self: 1, lambda self: 2)),
    "call of a class": lambda: (kind(__call__=torch.tanh)(), kind(__call__=torch.relu)()),
    "metaclass": lambda: tuple(type("M", (type,), {"__call__": f})("K", (), {}) for f in (lambda c: 1, lambda c: 2)),
    "nested class": lambda: tuple(kind(Inner=kind(f=one)) for one in (lambda self: 1, lambda self: 2)),
    "traced network": lambda: (traced(torch.tanh), traced(torch.relu)),
    "parametrization": lambda: (parametrized(1.0), parametrized(2.0)),
    "hook with keywords": lambda: tuple(hooked(one) for one in (lambda m, a, k: None, lambda m, a, k: (a, k))),
    "forward of one module": lambda: (
        with_attribute(nn.Identity(), forward=torch.tanh),
        with_attribute(nn.Identity(), forward=torch.relu),
    ),
    "set of objects": lambda: ({Text("a")}, {Text("b")}),
    "objects that hold each other in sets": lambda: (ring(1.0), ring(2.0)),
    "exception table": lambda: (
        function("def f(x):\n try:\n  return g(x)\n except ValueError:\n  return 0"),
        function("def f(x):\n try:\n  return g(x)\n except TypeError:\n  return 0"),
    ),
    "function of no module": lambda: (function("def f(x): return x"), function("def f(x): return 2 * x")),
    "global of no module": lambda: (function("def f(x): return x * g", g=1), function("def f(x): return x * g", g=2)),
    "default that is an object": lambda: tuple((lambda s: lambda x=s: x)(Settings(n)) for n in (1, 2)),
    "path": lambda: (PurePosixPath("a"), PurePosixPath("b")),
    "ellipsis": lambda: ((..., 1), (None, 1)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_what_differs_is_told_apart(name: str) -> None:
    one, other = PAIRS[name]()
    again = PAIRS[name]()[0]
    first, second = read(one), read(other)
    assert first.digest != second.digest
    assert read(one).digest == first.digest
    assert first.unread == second.unread == ()
    assert read(again).digest == first.digest, "equal things, made again"


SOURCES = {
    "module attribute": ("import own_helpers\ndef made(x): return own_helpers.f(x)", "def f(x): return x"),
    "module under another name": ("import own_helpers as h\ndef made(x): return h.f(x)", "def f(x): return x"),
    "import in the function": (
        "def made(x):\n    import own_helpers\n    return own_helpers.f(x)",
        "def f(x): return x",
    ),
    "name imported in the function": (
        "def made(x):\n    from own_helpers import f\n    return f(x)",
        "def f(x): return x",
    ),
    "attribute by a text": (
        "import own_helpers\ndef made(x): return getattr(own_helpers, 'f')(x)",
        "def f(x): return x",
    ),
    "global object": ("from own_helpers import act\ndef made(x): return act(x)", "class A:\n s = 'x'\nact = A()"),
    "module as a value": ("import own_helpers\nmade = [own_helpers]", "def f(x): return x"),
    "module within a module": (
        "import own_helpers\ndef made(y): return own_helpers.inner.f(y)",
        "import types\ninner = types.ModuleType('own_inner')\nexec('def f(y): return x', inner.__dict__)",
    ),
    "class attribute": ("import own_helpers\nclass Made(own_helpers.A): pass\nmade = Made()", "class A:\n s = 'x'"),
    "method of a nested class": (
        "import own_helpers\nmade = own_helpers.A()",
        "class A:\n class B:\n  def f(self): return 'x'",
    ),
    "member of an enumeration": (
        "import own_helpers\nmade = own_helpers.A.ONE",
        "import enum\nclass A(enum.Enum):\n ONE = 'x'\n def __call__(self): return 1",
    ),
    "method of an enumeration": (
        "import own_helpers\nmade = own_helpers.A.ONE",
        "import enum\nclass A(enum.Enum):\n ONE = 1\n def __call__(self): return 'x'",
    ),
    "derivative of one's own": (
        "import own_helpers\ndef made(x): return own_helpers.Double.apply(x)",
        "import torch\nclass Double(torch.autograd.Function):\n"
        " @staticmethod\n def forward(ctx, x): return 'x'\n @staticmethod\n def backward(ctx, g): return g",
    ),
    "cached function": (
        "import own_helpers\ndef made(x): return own_helpers.f()",
        "import functools\n@functools.cache\ndef f(): return 'x'",
    ),
    "dispatched function": (
        "import own_helpers\ndef made(x): return own_helpers.f(x)",
        "import functools\n@functools.singledispatch\ndef f(x): return 1\n@f.register\ndef g(x: int): return 'x'",
    ),
    "wrapped function": (
        "import own_helpers\ndef made(x): return own_helpers.f()",
        "import contextlib\n@contextlib.contextmanager\ndef f(): yield 'x'",
    ),
}


@pytest.mark.parametrize("name", SOURCES)
def test_code_that_is_read_through_a_module_counts(made: Callable[..., types.ModuleType], name: str) -> None:
    user, helpers = SOURCES[name]

    def print_of(helper: str) -> str:
        made(helper)
        found = read(made(user, "own_user").made)
        assert found.unread == ()
        return found.digest

    first = print_of(helpers)
    assert print_of(helpers) == first
    changed = helpers.replace("'x'", "'y'").replace("return x", "return -x")
    assert changed != helpers
    assert print_of(changed) != first


def test_a_class_attribute_that_changes_at_run_time_counts() -> None:
    one = kind(scale=1.0, lookup=Settings(1))
    before = fingerprint(one())
    one.scale = 2.0
    changed = fingerprint(one())
    assert changed != before
    one.lookup = Settings(2)
    assert fingerprint(one()) not in (before, changed)


def test_hooks_on_every_module_count() -> None:
    before = fingerprint(nn.Identity())
    handle = nn.modules.module.register_module_forward_hook(lambda module, inputs, output: output * 2)
    try:
        assert fingerprint(nn.Identity()) != before
    finally:
        handle.remove()
    assert fingerprint(nn.Identity()) == before


def test_what_is_computed_when_asked_for_changes_nothing() -> None:
    class Lazy:
        @functools.cached_property
        def found(self) -> float:
            return 1.0

    @functools.singledispatch
    def dispatched(x: object) -> int:
        return 1

    lazy, path = Lazy(), Path("a/b")
    before = [fingerprint(one) for one in (lazy, path, dispatched)]
    assert (lazy.found, str(path), dispatched(3), hash(path) != 0) == (1.0, "a/b", 1, True)
    assert [fingerprint(one) for one in (lazy, path, dispatched)] == before


def frames() -> Iterator[int]:
    yield 1


UNREAD: dict[str, tuple[Callable[[], Any], str]] = {
    "generator": (frames, r"loss\.act \(builtins\.generator\)"),
    "open file": (lambda: io.FileIO(__file__), r"loss\.act \(_io\.FileIO\)"),
    "function of ctypes": (lambda: ctypes.CDLL(None).abs, r"loss\.act \(ctypes\..*_FuncPtr\)"),
    "tensor without values": (lambda: torch.ones(2, device="meta"), r"loss\.act \(torch\.Tensor\)"),
    "function made of one's own": (lambda: np.frompyfunc(lambda x: x, 1, 1), r"loss\.act \(numpy\.ufunc\)"),
    "local of a thread": (threading.local, r"loss\.act \(_thread\._local\)"),
    "object that forbids it": (
        lambda: kind(__reduce_ex__=lambda self, protocol: operator.truediv(1, 0))(),
        r"loss\.act \(.*\.Made\)",
    ),
}


@pytest.mark.parametrize("name", UNREAD)
def test_what_cannot_be_read_is_named(name: str) -> None:
    make, expected = UNREAD[name]
    held = make()
    (found,) = read({"loss": with_attribute(Settings(), act=held)}).unread
    assert __import__("re").fullmatch(expected, found), found
    if isinstance(held, io.FileIO):
        held.close()


def test_locks_and_what_is_held_weakly_are_no_obstacle() -> None:
    import weakref

    held = Cell(1.0)
    for one in (threading.Lock(), threading.RLock(), weakref.ref(held), weakref.WeakSet([held])):
        assert read(one).unread == ()


def test_the_owner_of_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [whose(one) for one in (nn.Linear, torch.Tensor, Path, F.relu)] == [Whose.STATED] * 4
    assert whose_module("hypothesis") is Whose.INSTALLED
    assert whose(type("Linear", (nn.Linear,), {"__module__": "torch.nn.modules.linear"})) is Whose.OWN
    # A user's file that has the name of one of Python's own modules.
    (tmp_path / "this.py").write_text("def f(): return 1")
    monkeypatch.syspath_prepend(tmp_path)
    assert whose_module("this") is Whose.OWN


@pytest.mark.parametrize("listed", [True, False])
def test_a_package_that_an_installer_lists_elsewhere_is_installed(
    listed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As with `pip install --target`, and as a .pth file adds the packages of another environment.
    name = f"elsewhere_{listed}".lower()
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("def act(x):\n    return x\n", encoding="utf-8")
    (tmp_path / f"{name}-1.0.dist-info").mkdir()
    lines = f"{name}/__init__.py,sha256=0,9\n" if listed else "other/__init__.py,sha256=0,9\n"
    (tmp_path / f"{name}-1.0.dist-info" / "RECORD").write_text(lines, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert whose_module(name) is (Whose.INSTALLED if listed else Whose.OWN)


def test_another_release_of_an_installed_package_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    import hypothesis

    from gradleak.auditing import whose_code
    from gradleak.core import installed

    before = fingerprint(hypothesis.given)
    whose_code.package_print.cache_clear()
    listed = installed.listed
    monkeypatch.setattr(installed, "listed", lambda record: (*listed(record), "hypothesis/more.py,sha256=0,1"))
    assert fingerprint(hypothesis.given) != before
    whose_code.package_print.cache_clear()


class Level(enum.IntFlag):
    ONE = 1
    TWO = 2


def test_attributes_that_members_are_given_later_count() -> None:
    def member(weight: float) -> enum.Enum:
        made = enum.Enum("Made", {"ONE": 1}).ONE
        made.weight = weight
        return made

    assert fingerprint(member(1.0)) == fingerprint(member(1.0)) != fingerprint(member(2.0))


def test_flags_are_told_apart() -> None:
    assert len({fingerprint(one) for one in (Level.ONE, Level.TWO, Level.ONE | Level.TWO, Level(0))}) == 4

"""Walk over all objects: complete, bounded, and without running any code of theirs."""

from __future__ import annotations

import collections
import enum
import functools
import itertools
import sys
import types
import weakref
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gradleak.core import object_walk
from gradleak.core.installed import is_installed
from gradleak.core.object_walk import walk
from gradleak.results import UnsupportedError

SHELF: list[Any] = []


class Hostile:
    """Whoever asks for its attributes ends the process."""

    __slots__ = ("inside",)

    def __init__(self, inside: Any) -> None:
        object.__setattr__(self, "inside", inside)

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise SystemExit

    @property
    def __class__(self) -> Any:
        raise SystemExit

    def __getattribute__(self, name: str) -> Any:
        raise SystemExit

    def __eq__(self, other: object) -> bool:
        raise SystemExit

    def __hash__(self) -> int:
        raise SystemExit

    def __len__(self) -> int:
        raise SystemExit

    def __iter__(self) -> Any:
        raise SystemExit

    def __repr__(self) -> str:
        raise SystemExit


class HostileDict(dict):  # type: ignore[type-arg]
    """A dict whose methods end the process."""

    def __iter__(self) -> Any:
        raise SystemExit

    def items(self) -> Any:
        raise SystemExit

    def __getitem__(self, key: Any) -> Any:
        raise SystemExit


class HostileTensor(Tensor):
    """A tensor whose operations end the process."""

    @classmethod
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
        raise SystemExit


class Classed:
    """A class that holds something."""

    shelf: ClassVar[Any] = None


class Reading(nn.Module):
    """A module whose forward reaches a global variable by way of a method, and whose other method does not count."""

    def forward(self, x: Tensor) -> Tensor:
        return self.step(x)

    def step(self, x: Tensor) -> Tensor:
        return x + len(SHELF)

    def plotted(self) -> Any:
        return OTHER


OTHER = [torch.zeros(5)]


def places(root: Any, **options: Any) -> dict[str, Any]:
    """Objects by place."""
    return {str(place): found for place, found in walk([("root", root)], **options)}


def found_in(root: Any, target: Any) -> list[str]:
    """Places of one object."""
    return [place for place, found in places(root).items() if found is target]


SECRET = torch.ones(7)


def with_attribute(value: Any, held: Any) -> Any:
    value.kept = held
    return value


def importing(held: Any) -> Any:
    """A function that imports what it reads when it runs."""
    shelf = sys.modules["own_shelf"] = types.ModuleType("own_shelf")
    shelf.KEPT = held  # type: ignore[attr-defined]
    names: dict[str, Any] = {"__name__": "own_user"}
    exec("def f():\n    from own_shelf import KEPT\n    return KEPT", names)
    return names["f"]


@pytest.mark.parametrize(
    ("make", "place"),
    [
        (lambda s: [0, (1, {"a": s})], "root[1][1]['a']"),
        (lambda s: {(1, 2): s}, "root[...]"),
        (lambda s: {1: s}, "root[1]"),
        (lambda s: HostileDict(a=s), "root['a']"),
        (lambda s: Hostile([s]), "root.inside[0]"),
        (lambda s: collections.deque([s]), "root (in deque)"),
        (lambda s: collections.OrderedDict(a=s), "root['a']"),
        (lambda s: collections.defaultdict(list, a=[s]), "root['a'][0]"),
        (lambda s: functools.partial(print, s, end=s), "root.args[0]"),
        (lambda s: functools.lru_cache(lambda: s), "root.__wrapped__ (closure: s)"),
        (lambda s: lambda x=s: x, "root (defaults)[0]"),
        (lambda s: iter([s]), "root (in list_iterator)[0]"),
        (lambda s: itertools.chain([s]), "root (in chain) (in tuple_iterator)[0][0]"),
        (lambda s: np.array([s, None], dtype=object), "root[0]"),
        (lambda s: nn.ParameterDict({"a": nn.Parameter(torch.ones(1))}), None),
        (lambda s: property(lambda self: s), "root.fget (closure: s)"),
        (lambda s: frozenset([s]), "root (in frozenset)"),
        (lambda s: with_attribute(type("Named", (bytes,), {})(b"a"), s), "root.kept"),
        (lambda s: enum.Enum("Shelf", {"A": (s,)}).A, "root._value_[0]"),
        (lambda s: type("Made", (), {"__kept__": s})(), "root (class Made).__kept__"),
        (lambda s: type("Meta", (type,), {"kept": s})("Made", (), {}), "root (metaclass).kept"),
        (importing, "root (global: own_shelf.KEPT)"),
    ],
)
def test_whatever_holds_an_object_leads_to_it(make: Any, place: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "own_shelf", raising=False)
    if place is not None:
        assert place in found_in(make(SECRET), SECRET)
    else:
        assert "root.a" in places(make(SECRET))


def test_attributes_of_tensors_and_of_hostile_tensors_are_followed() -> None:
    tensor = torch.ones(2).as_subclass(HostileTensor)
    object.__setattr__(tensor, "kept", SECRET)
    assert found_in([tensor], SECRET) == ["root[0].kept"]


def test_classes_globals_and_weak_references_are_followed_unless_told() -> None:
    SHELF[:] = [SECRET]
    Classed.shelf = {"a": SECRET}
    held = Classed()
    assert found_in(Reading(), SECRET) == ["root (class Reading).step (global: SHELF)[0]"]
    assert found_in(held, SECRET) == ["root (class Classed).shelf['a']"]
    assert found_in([weakref.ref(held)], held) == ["root[0]()"]
    for one in (Reading(), held):
        assert SECRET not in [found for found in places(one, code=False).values() if found is SECRET]
    assert not found_in(Reading(), OTHER[0]), "no evaluation names this method"
    SHELF.clear()
    Classed.shelf = None


def test_circles_end_and_every_object_comes_once() -> None:
    circle: list[Any] = [SECRET, SECRET]
    circle.append(circle)
    model = nn.Linear(1, 1)
    model.itself = [model, circle]
    found = [id(one) for _, one in walk([("root", model), ("again", model)])]
    assert len(found) == len(set(found))


def test_what_is_beside_is_passed_by() -> None:
    inner = [SECRET]
    assert "root[0][0]" not in places([inner], beside=[id(inner)])


def test_too_many_objects_are_refused_by_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_walk, "MOST_OBJECTS", 50)
    with pytest.raises(UnsupportedError, match=r"expected at most 50 objects.*\(the last: root\.table\["):
        places(type("Holder", (), {"__init__": lambda self: setattr(self, "table", [[n] for n in range(99)])})())


def test_deep_structures_do_not_exhaust_the_stack() -> None:
    deep: Any = [SECRET]
    for _ in range(20_000):
        deep = [deep]
    (place,) = [str(place) for place, found in walk([("root", deep)]) if found is SECRET]
    assert place == f"root{'[0]' * 20_001}"


def test_code_of_packages_is_known() -> None:
    assert is_installed("torch.nn.functional")
    assert is_installed("collections")
    assert is_installed("gradleak.core")
    assert not is_installed("__main__")
    assert not is_installed(__name__)
    assert not is_installed("no_such_module_anywhere")

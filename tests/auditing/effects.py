"""What a plan may name, and must not call: each leaves a trace where it was called."""

from __future__ import annotations

from functools import partial
from typing import Any

CALLED: list[str] = []


class Trap:
    """A class of no kind that a plan wants."""

    def __init__(self, *_: Any, **__: Any) -> None:
        CALLED.append("Trap")

    @classmethod
    def from_anything(cls, **_: Any) -> Trap:
        CALLED.append("from_anything")
        return cls()


class Dialer:
    """An object that may be called."""

    def __call__(self, *_: Any, **__: Any) -> int:
        CALLED.append("Dialer")
        return 1


def silent(*_: Any, **__: Any):  # type: ignore[no-untyped-def]
    CALLED.append("silent")


def number(*_: Any, **__: Any) -> int:
    CALLED.append("number")
    return 3


def anything(*_: Any, **__: Any) -> Any:
    CALLED.append("anything")


def unreadable(*_: Any, **__: Any) -> NoSuchName:  # type: ignore[name-defined] # noqa: F821
    CALLED.append("unreadable")


made = Trap.from_anything
dialer = Dialer()
bound = partial(number, 1)
unnamed = lambda *_, **__: CALLED.append("unnamed")  # noqa: E731
not_callable = 3

NAMES = ("Trap", "dialer", "silent", "number", "anything", "unreadable", "made", "bound", "unnamed", "not_callable")

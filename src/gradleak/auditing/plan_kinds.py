"""Kinds of what a plan names: known from a class, or from what a function says it returns, before anything is called."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Sequence
from functools import partial
from types import NoneType, SimpleNamespace
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from torch import nn

from gradleak.auditing.catalog import Constructor
from gradleak.core import Batch
from gradleak.results import PlanError
from gradleak.results.phrases import either, shown, with_article

# What stands for what: a pair of inputs and targets is a batch.
_ALSO: dict[type, tuple[type, ...]] = {Batch: (tuple,)}
_PRINTED = {nn.Module: "torch.nn.Module", Batch: "Batch (or a pair of inputs and targets)"}


def made_by(constructor: Constructor) -> type | None:
    """The class of which a constructor makes objects; None for a plain function.

    Args:
        constructor: a class, one of its class methods, or a function.
    """
    if inspect.isclass(constructor):
        return constructor
    owner = getattr(constructor, "__self__", None)
    return owner if inspect.isclass(owner) else None


def makes(constructor: Constructor) -> tuple[type, ...]:
    """The classes of which a constructor says that it makes objects; none where it does not say so.

    A class says it itself, and so does a class method; a function by what it is annotated to return.

    Args:
        constructor: anything that may be called.
    """
    made = made_by(constructor)
    if made is not None:
        return (made,)
    if isinstance(constructor, partial):
        return makes(constructor.func)
    function = constructor if inspect.isroutine(constructor) else type(constructor).__call__
    function = inspect.unwrap(function) if inspect.isfunction(function) else function
    stated = getattr(function, "__annotations__", None)
    if not isinstance(stated, dict) or "return" not in stated:
        return ()
    alone = SimpleNamespace(__annotations__={"return": stated["return"]})
    try:
        hint = typing.get_type_hints(alone, getattr(function, "__globals__", {}), include_extras=True)["return"]
    except Exception:  # an annotation is an expression of the user's own, which may raise anything when it is read
        return ()
    return classes(hint)


def classes(hint: Any) -> tuple[type, ...]:
    """The classes among the alternatives of an annotation, without None.

    Args:
        hint: evaluated.
    """
    origin = get_origin(hint)
    if origin is Annotated:
        return classes(get_args(hint)[0])
    if origin in (Union, types.UnionType):
        return tuple(one for part in get_args(hint) for one in classes(part))
    if isinstance(hint, TypeVar):
        return classes(hint.__bound__)
    kind = origin or hint
    return (kind,) if inspect.isclass(kind) and kind not in (NoneType, Any, object) else ()


def fits(constructor: Constructor, wanted: Sequence[type]) -> bool:
    """True if a constructor says that all it makes is of one of the kinds.

    Args:
        constructor: anything that may be called.
        wanted: the kinds.
    """
    kinds = tuple(one for kind in wanted for one in (kind, *_ALSO.get(kind, ())) if _is_checkable(kind))
    made = makes(constructor)
    return bool(made) and all(issubclass(one, kinds) for one in made)


def check_kind(constructor: Any, wanted: Sequence[type], name: str, where: str) -> None:
    """Refuse what a plan is not to call here.

    Args:
        constructor: what the name stands for.
        wanted: the kinds of which it has to make an object.
        name: as the plan has it.
        where: what to call the place in messages.

    Raises:
        PlanError: if it makes something else, or does not say what it makes.
    """
    if not callable(constructor):
        raise PlanError(f"{where}: expected {name} to be a class or a function, got {shown(constructor)}")
    if fits(constructor, wanted):
        return
    if made_by(constructor) is not None:
        kinds = either([kind.__name__ for kind in wanted])
        raise PlanError(f"{where}: expected {name} to be a kind of {kinds}; nothing else is called")
    made = makes(constructor)
    says = f"says that it returns {_named(made)}" if made else "does not say what it returns"
    example = f"def {name.rpartition(':')[2]}(...) -> {_print(wanted[0])}:" if wanted else ""
    how = f"; write {example!r}, since nothing is called whose kind is not known" if example and not made else ""
    raise PlanError(f"{where}: expected {name} to return {_named(wanted)}, and it {says}{how}")


def _is_checkable(kind: type) -> bool:
    # isinstance and issubclass raise for protocols of types that were not made for it.
    return not getattr(kind, "_is_protocol", False) or getattr(kind, "_is_runtime_protocol", False)


def _named(kinds: Sequence[type]) -> str:
    return either([with_article(_print(kind)) for kind in kinds]) or "nothing that is known"


def _print(kind: type) -> str:
    return _PRINTED.get(kind, kind.__name__)

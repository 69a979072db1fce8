"""Meaning and kind of a name in a plan file: known from a class or a signature before anything is called."""

from __future__ import annotations

import importlib
import inspect
import os
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import NoneType, SimpleNamespace
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from torch import nn

from gradleak.attacks import Attack, Steps
from gradleak.attacks.inference import Classifier
from gradleak.auditing.catalog import Constructor, Entry
from gradleak.audits.base import unknown
from gradleak.core import Batch, Defense, ImageGenerator, Protocol
from gradleak.datasets.files import PACKAGED
from gradleak.results import PlanError
from gradleak.results.errors import either, shown, with_article

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


# Where a plan names what stands in each room, for whoever looked in another one.
PLACES: Mapping[str, str] = {
    "attacks": "a table [attacks.NAME]",
    "datasets": "the section [data]",
    "defenses": "the list defenses = [{ use = ... }] of a scenario",
    "audits": "a table [privacy.NAME]",
    "estimators": "the list estimators = [{ use = ... }] of a table [privacy.NAME]",
    "games": "a table [inference.NAME]",
    "generators": "generator = { use = ... } of [threat]",
    "measures": "a table [measures.NAME]",
    "layer measures": "the list measures = [{ use = ... }] of a table [layers.NAME]",
    "models": "the section [model]",
    "protocols": "protocol = { use = ... } of a scenario",
    "threats": "the section [threat]",
}
# What a key that does not exist was meant to be, by the class that it was given to.
MEANT: Mapping[tuple[str, str], str] = {
    ("DPSGD", "noise_multiplier"): (
        "write use = 'DPSGD.from_noise_multiplier' without noise_std and noise, or noise_std = noise_multiplier × "  # noqa: RUF001 - multiplication sign
        "clip_norm with noise = 'sum'"
    ),
}

# How a plan writes what stands for a kind of argument, for whoever wrote it without `use`.
EXAMPLES: Mapping[type, str] = {
    ImageGenerator: "'trained_generator', path = 'digits.safetensors'",
    Attack: "'GaussNewton'",
    Classifier: "'LogisticRegression'",
    Defense: "'GaussianNoise', std = 0.001",
    Protocol: "'FedSGD'",
    Steps: "'KrylovSteps'",
}

Rooms = Mapping[str, Mapping[str, Entry]]


def named(name: Any, room: str, rooms: Rooms, where: str) -> Constructor:
    """The constructor that a plan names.

    Args:
        name: what stands after `use =`: a name of the room, "Class.class_method" or "package.module:attribute".
        room: where it is looked for.
        rooms: the catalog.
        where: what to call the place in messages.

    Raises:
        PlanError: if there is no such thing, with the nearest name, or the room in which it stands.
    """
    if not isinstance(name, str):
        raise PlanError(f"{where}: expected a name after 'use', got {shown(name)}")
    if ":" in name:
        module, _, attribute = name.partition(":")
        try:
            found: Constructor = getattr(importlib.import_module(module), attribute)
        except (Exception, SystemExit) as error:  # a module of a user's own may raise anything, or end the program
            said = " ".join(str(error).split())[:300]
            told = (
                said
                if isinstance(error, ImportError | AttributeError | ValueError)
                else f"{type(error).__name__}: {said}"
            )
            raise PlanError(
                f"{where}: cannot import {shown(name)} ({told}); expected 'package.module:attribute', importable from "
                "where the command is run"
            ) from error
        return found
    if name in rooms[room]:
        return rooms[room][name].constructor
    owner, _, method = name.partition(".")
    if owner in rooms[room]:
        makers = class_methods(rooms[room][owner].constructor)
        if method in makers:
            made: Constructor = getattr(rooms[room][owner].constructor, method)
            return made
        raise PlanError(f"{where}: {unknown('class method', method, makers)}")
    elsewhere = next((other for other in PLACES if other != room and name in rooms[other]), None)
    if elsewhere is not None:
        raise PlanError(
            f"{where}: {name} is {_one_of(elsewhere)}, not {_one_of(room)}; it stands in {PLACES[elsewhere]}"
        )
    raise PlanError(f"{where}: {unknown(room, name, rooms[room])}, or 'package.module:attribute'")


def class_methods(constructor: Constructor) -> list[str]:
    """The public class methods of a class that make an object of it; none for a function.

    Args:
        constructor: of the catalog.
    """
    if not inspect.isclass(constructor):
        return []
    return [name for name, _ in inspect.getmembers(constructor, inspect.ismethod) if name.startswith("from_")]


def type_hints(constructor: Constructor) -> Mapping[str, Any]:
    """The annotations of a constructor's arguments by name; none where they cannot be read.

    Args:
        constructor: a class, a function, or a partial of one.
    """
    if isinstance(constructor, partial):
        constructor = constructor.func
    # A class first: hints of inherited fields are names in the modules of those that state them.
    targets = [constructor, constructor.__init__] if inspect.isclass(constructor) else [constructor]
    hints: dict[str, Any] = {}
    for target in targets:
        with suppress(NameError, TypeError):
            hints |= typing.get_type_hints(target, include_extras=True)
    return hints


def filled_in(names: Iterable[str], types: Mapping[str, Any]) -> list[str]:
    """The arguments that a plan draws from its own seed: `seed`, and `generator` where it is one of random numbers.

    Generators of images, and files of them, are written in the plan. A `generator` of another type, or without one, is one
    of random numbers.

    Args:
        names: of the arguments.
        types: their annotations by name.
    """
    written = {ImageGenerator, str, Path} & set(_alternatives(types.get("generator")))
    return [name for name in names if name == "seed" or (name == "generator" and not written)]


def beside(constructor: Constructor, table: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The arguments of a generator or a data set, files taken from the folder of the plan as the weights of `[model]` are.

    Files are arguments whose annotation takes a path; "package:file" is one of an installed package and stays.

    Args:
        constructor: that takes them.
        table: of the plan.
        folder: of the plan.
    """
    hints = type_hints(constructor)
    return {
        key: str(folder / value)
        if isinstance(value, str) and _takes_path(hints.get(key)) and not PACKAGED.fullmatch(value)
        else value
        for key, value in table.items()
    }


def _takes_path(hint: Any) -> bool:
    kinds = [get_origin(kind) or kind for kind in _alternatives(hint)]
    return any(inspect.isclass(kind) and issubclass(kind, os.PathLike) for kind in kinds)


def meant(constructor: Constructor, keys: Iterable[str], where: str) -> None:
    """Refuse a key that does not exist where it is known what it was meant to be.

    Args:
        constructor: to which the keys are given.
        keys: of the table.
        where: what to call the table in messages.

    Raises:
        PlanError: saying what to write.
    """
    for key in keys:
        hint = MEANT.get((getattr(constructor, "__name__", ""), key))
        if hint is not None:
            raise PlanError(f"{where}: unknown key {key!r}; {hint}")


def without_use(hint: Any, value: Any, where: str) -> None:
    """Refuse a table or a text where something of the catalog has to be named with `use`.

    Args:
        hint: the annotation of the argument.
        value: what the plan has for it, not a table with `use`.
        where: what to call it in messages.

    Raises:
        PlanError: with a line that could be written.
    """
    kinds = _alternatives(hint)
    base = next((kind for kind in kinds if inspect.isclass(kind) and issubclass(kind, tuple(EXAMPLES))), None)
    plain = isinstance(value, str) and any(inspect.isclass(kind) and issubclass(kind, str) for kind in kinds)
    if base is None or plain or not isinstance(value, Mapping | str):
        return
    example = next(text for kind, text in EXAMPLES.items() if issubclass(base, kind))
    got = (
        f"the text {shown(value)}" if isinstance(value, str) else f"a table with {', '.join(value) or 'nothing in it'}"
    )
    raise PlanError(f"{where}: expected a table with a key 'use' such as {{ use = {example} }}, got {got}")


def missing(names: Iterable[str], types: Mapping[str, Any]) -> str:
    """The arguments that a constructor needs too, each with its choices where it has some.

    Args:
        names: of the arguments.
        types: their annotations by name.
    """
    return ", ".join(f"{name}{_choices(types.get(name))}" for name in names)


def _alternatives(hint: Any) -> list[Any]:
    """The annotation and what it is a choice of, without what is said about each."""
    plain = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return [plain, *get_args(plain)]


def _choices(hint: Any) -> str:
    kinds = _alternatives(hint)
    choices = [item.value for kind in kinds if inspect.isclass(kind) and issubclass(kind, StrEnum) for item in kind]
    return f" ({' or '.join(repr(choice) for choice in choices)})" if choices else ""


def _one_of(room: str) -> str:
    word = room.removesuffix("s")
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"

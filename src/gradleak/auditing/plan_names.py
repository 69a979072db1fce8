"""Meaning of a name in a plan file: an entry of the catalog, one of its class methods, or an import."""

from __future__ import annotations

import importlib
import inspect
import typing
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from gradleak.attacks import Attack, Steps
from gradleak.attacks.inference import Classifier
from gradleak.auditing.catalog import Constructor, Entry
from gradleak.audits.base import unknown
from gradleak.core import Defense, ImageGenerator, Protocol
from gradleak.results import PlanError
from gradleak.results.phrases import shown

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


def beside(table: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A generator's arguments, its files taken from the folder of the plan as the weights of `[model]` are.

    Args:
        table: of the plan.
        folder: of the plan.
    """
    return {
        key: str(folder / value) if key in ("path", "weights") and isinstance(value, str) else value
        for key, value in table.items()
    }


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

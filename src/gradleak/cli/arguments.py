"""The arguments of a dataclass for `gradleak explain`: inherited ones too, each with its default and its meaning."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterable
from enum import Enum
from functools import cache
from typing import Annotated, Any, get_origin

from gradleak.results import fields
from gradleak.results.settings import check_of

WIDTH = 120
_SECTIONS = ("Attributes:", "Args:")


def arguments(kind: type) -> str:
    """The lines of all fields that the constructor of a dataclass takes, in its order; "" where it takes none.

    A meaning stands in the docstring of the class that states the field, or of the nearest one below it.

    Args:
        kind: a dataclass.
    """
    told = _meanings(kind)
    lines = []
    for entry in dataclasses.fields(kind):
        if not entry.init:
            continue
        head = f"    {entry.name}: {_type(entry.type)}{_default(entry)}"
        lines.append(head)
        if entry.name in told:
            indent = " " * 8
            lines.append(textwrap.fill(told[entry.name], WIDTH, initial_indent=indent, subsequent_indent=indent))
    return "\n".join(["Arguments:", *lines]) if lines else ""


def without_attributes(text: str) -> str:
    """A docstring without its section on attributes.

    Args:
        text: the docstring, its indentation removed.
    """
    return _parts(text)[0]


def _meanings(kind: type) -> dict[str, str]:
    """Meanings that the docstrings of a class and of those it inherits from give of their fields."""
    told: dict[str, str] = {}
    for base in kind.__mro__:
        own = base.__dict__.get("__doc__")
        for name, meaning in _entries(inspect.cleandoc(own) if isinstance(own, str) else ""):
            told.setdefault(name, meaning)
    return told


def _entries(text: str) -> Iterable[tuple[str, str]]:
    _, section = _parts(text)
    # One entry begins at each line of the first indentation; deeper lines go on with it.
    for entry in re.split(r"\n(?=    \S)", section):
        name, colon, meaning = entry.strip().partition(":")
        # Some entries speak of several fields at once.
        for each in name.split(",") if colon else ():
            yield each.strip(" `"), " ".join(meaning.split())


def _parts(text: str) -> tuple[str, str]:
    """The text without its sections on arguments, and the entries of these."""
    rest: list[str] = []
    entries: list[str] = []
    inside = False
    for line in text.split("\n"):
        if line in _SECTIONS:
            inside = True
        elif inside and (line.startswith(" ") or not line):
            entries.append(line)
        else:
            inside = False
            rest.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(rest)).strip(), "\n".join(entries).strip("\n")


def _type(stated: Any) -> str:
    """An annotation in print, with what a type of settings takes in words: "whole number of at least 1" for `Count`."""
    text = stated if isinstance(stated, str) else getattr(stated, "__name__", str(stated))
    return re.sub(r"\w+", lambda word: _settings_types().get(word[0], word[0]), text)


@cache
def _settings_types() -> dict[str, str]:
    """The types of `gradleak.results.fields` by name, in words."""
    aliases = {name: hint for name, hint in vars(fields).items() if get_origin(hint) is Annotated}
    return {name: check_of(hint).words.removeprefix("a ") for name, hint in aliases.items()}


def _default(entry: dataclasses.Field[Any]) -> str:
    if entry.default is not dataclasses.MISSING:
        value = entry.default
    elif entry.default_factory is not dataclasses.MISSING:
        value = entry.default_factory()
    else:
        return ", required"
    return f" = {_printed(value)}"


def _printed(value: Any) -> str:
    if isinstance(value, tuple | list):
        inside = ", ".join(_printed(part) for part in value)
        return f"[{inside}]"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        shown = (entry.name for entry in dataclasses.fields(value) if entry.repr)
        inside = ", ".join(f"{name}={_printed(getattr(value, name))}" for name in shown)
        return f"{type(value).__name__}({inside})"
    return repr(value.value if isinstance(value, Enum) else value)

"""Finding and configuring studies from the command line."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Sequence
from typing import Any

from gradleak.results import InputError


def studies() -> dict[str, type]:
    """Every study by name."""
    import gradleak.studies
    from gradleak.studies import Study

    found = [getattr(gradleak.studies, name) for name in gradleak.studies.__all__]
    kinds = [kind for kind in found if isinstance(kind, type) and issubclass(kind, Study) and kind is not Study]
    return {kind.name: kind for kind in kinds}


def find_study(name: str) -> type:
    """The study of this name.

    Raises:
        InputError: naming the nearest.
    """
    known = studies()
    if name not in known:
        near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(f"study: nothing is called {name!r}{hint}; expected one of {', '.join(known)}")
    return known[name]


def settings(assignments: Sequence[str]) -> dict[str, Any]:
    """`key=value` texts as a table; a value is read as TOML, and as plain text where that fails.

    Raises:
        InputError: for a text without "=".
    """
    table: dict[str, Any] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--set: expected key=value, got {text!r}")
        try:
            table[key.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            table[key.strip()] = value
    return table

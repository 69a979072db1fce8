"""Games that differ in a size alone: what a plan gives lists of, and what such games are called."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

from gradleak.audits.base import typed
from gradleak.results import Count, PlanError
from gradleak.results.errors import shown

# What a plan may give a list of: one game for each, which differ in nothing else and make a line of a plot.
SWEPT: Mapping[str, str] = {"batch_size": "k = {}", "public_rows": "{} public rows"}
# So many games a table makes at most.
MOST = 100


def swept(name: str, spec: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The tables of the games that a table of a plan stands for, by name: one for each size where it gives a list of them.

    Args:
        name: of the table.
        spec: its keys and values.

    Raises:
        PlanError: for an empty list, or one with a size twice.
    """
    lists = {
        key: typed(list[Count], spec[key], f"inference.{name}.{key}")
        for key in SWEPT
        if isinstance(spec.get(key), list)
    }
    for key, sizes in lists.items():
        if not sizes or len(set(sizes)) < len(sizes):
            raise PlanError(
                f"inference.{name}, {key}: expected a number, or different ones in a list, got {shown(sizes)}"
            )
    if math.prod(map(len, lists.values())) > MOST:
        raise PlanError(f"inference.{name}: expected lists that make at most {MOST} games, got more")
    games: dict[str, Mapping[str, Any]] = {}
    for chosen in itertools.product(*lists.values()):
        changes = dict(zip(lists, chosen, strict=True))
        games[", ".join([name, *sizes_of(changes)])] = {**spec, **changes}
    return games


def sizes_of(game: Mapping[str, Any]) -> list[str]:
    """The sizes that a game has, in words.

    Args:
        game: its settings by name.
    """
    return [text.format(game[key]) for key, text in SWEPT.items() if key in game]

"""Scenarios that differ in numbers of a defense alone: a plan writes them as one, with lists in place of the numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gradleak.auditing.plan_names import type_hints
from gradleak.auditing.plan_reader import PlanReader
from gradleak.audits.base import typed
from gradleak.results import PlanError
from gradleak.results.errors import shown

# So many scenarios a table makes at most.
MOST = 100
_Place = tuple[int, str]


def swept(table: Mapping[str, Any], reader: PlanReader) -> Iterator[Mapping[str, Any]]:
    """The scenarios that a table of a plan stands for: one for each number where a defense has a list in place of a number.

    Names are made of the numbers: `dpsgd (noise_multiplier=0.3)`. With several lists every combination is a scenario.

    Args:
        table: of `[[scenarios]]`.
        reader: knows which arguments take a list of their own.

    Raises:
        PlanError: for an empty list, one with a number twice or with something else in it, and too many scenarios.
    """
    found = dict(lists(table, reader))
    if not found or "name" not in table:
        yield table
        return
    for (number, key), values in found.items():
        where = f"scenario {shown(table['name'])}, defenses[{number}].{key}"
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        if not values or len(numbers) < len(values) or len(set(numbers)) < len(numbers):
            raise PlanError(f"{where}: expected a number, or different ones in a list for a sweep, got {shown(values)}")
    if math.prod(map(len, found.values())) > MOST:
        raise PlanError(f"scenario {shown(table['name'])}: expected lists that make at most {MOST} scenarios, got more")
    keys = [key for _, key in found]
    for chosen in itertools.product(*found.values()):
        defenses = [dict(spec) if isinstance(spec, Mapping) else spec for spec in table["defenses"]]
        told = []
        for (number, key), value in zip(found, chosen, strict=True):
            defenses[number][key] = value
            label = key if keys.count(key) == 1 else f"{defenses[number]['use']}.{key}"
            told.append(f"{label}={printed(value)}")
        yield {**table, "name": f"{table['name']} ({', '.join(told)})", "defenses": defenses}


def lists(table: Mapping[str, Any], reader: PlanReader) -> Iterator[tuple[_Place, Sequence[Any]]]:
    """The lists in place of a number, by the defense and its argument; what is wrong in other ways the reader says.

    Args:
        table: of `[[scenarios]]`.
        reader: knows which arguments take a list of their own.
    """
    defenses = table.get("defenses")
    for number, spec in enumerate(defenses if isinstance(defenses, list) else []):
        if not isinstance(spec, Mapping) or not any(isinstance(value, list) for value in spec.values()):
            continue
        hints = type_hints(reader.named(spec, "defenses", f"scenario {shown(table.get('name'))}, defenses[{number}]"))
        for key, value in spec.items():
            if isinstance(value, list) and _takes(hints.get(key), 1) and not _takes(hints[key], value):
                yield (number, key), value


def _takes(hint: Any, value: Any) -> bool:
    if hint is None:
        return False
    try:
        typed(hint, value, "")
    except PlanError:
        return False
    return True


def printed(value: float) -> str:
    """A number as the name of a scenario has it, short where that loses nothing.

    Args:
        value: of a defense.
    """
    short = f"{value:g}"
    return short if float(short) == value else repr(value)

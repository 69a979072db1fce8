"""Values of a plan file held against the type hints of what they are arguments of."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from gradleak.results import PlanError


def table_of(value: Any, where: str) -> Mapping[str, Any]:
    """The value if it is a table.

    Raises:
        PlanError: naming the place.
    """
    if isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
        raise PlanError(f"{where}: expected one table of keys and values, got {len(value)}; write [...], not [[...]]")
    if not isinstance(value, Mapping):
        raise PlanError(f"{where}: expected a table of keys and values, got {value!r}")
    return value


def list_of(value: Any, where: str) -> list[Any]:
    """The value if it is a list.

    Raises:
        PlanError: naming the place.
    """
    if not isinstance(value, list):
        raise PlanError(f"{where}: expected a list, got {value!r}")
    return value


def tables_of(value: Any, where: str) -> list[Any]:
    """The value if it is a list, which one table alone is not.

    Raises:
        PlanError: naming the place, and how a list of tables is written.
    """
    if isinstance(value, Mapping):
        path = where.rpartition(", ")[2]
        key = path.rpartition(".")[2]
        how = f"[[{key}]] in place of [{key}]" if path == where == key else f"{key} = [{{ ... }}], or [[...]] for [...]"
        raise PlanError(f"{where}: expected a list of tables, got one table; write {how}")
    return list_of(value, where)


def chosen_scenarios(value: Any, where: str) -> list[str] | None:
    """The names of scenarios; None for all of them.

    Raises:
        PlanError: naming the place.
    """
    if value == "all":
        return None
    names: list[str] = typed(list[str], list_of(value, where), where)
    if not names or len(set(names)) < len(names):
        raise PlanError(f'{where}: expected "all" or a list of different names, got {value!r}')
    return names


def typed(hint: Any, value: Any, where: str) -> Any:
    """The value converted to the type `hint`: a tuple or a set from a list, an enumeration from its word, a float from an int.

    Numbers are never made from texts or truth values, and truth values from nothing else, however deep inside; keys of a
    table are texts in TOML, and become what the hint says. A hint that pydantic has no schema for converts nothing: the
    constructor checks the value itself.

    Raises:
        PlanError: in one line that names the place.
    """
    if isinstance(value, bool) and hint in (int, float):
        raise PlanError(f"{where}: expected {hint.__name__}, got {value!r}")
    if isinstance(value, str) and hint in (int, float, bool):
        raise PlanError(f"{where}: expected {hint.__name__}, got the text {value!r}")
    try:
        found = TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True)).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        raise PlanError(f"{where}: {first['msg']}, got {value!r}") from error
    except PydanticUserError:
        return value
    _same_kind(value, found, where)
    return found


def _same_kind(given: Any, made: Any, where: str) -> None:
    """Refuse numbers and truth values that were made from something else."""
    if isinstance(given, Mapping):
        inside = list(made.values()) if isinstance(made, Mapping) else [getattr(made, key, None) for key in given]
        for (key, before), after in zip(given.items(), inside, strict=False):
            _same_kind(before, after, f"{where}.{key}")
    elif isinstance(given, list) and isinstance(made, list | tuple):
        for place, (before, after) in enumerate(zip(given, made, strict=False)):
            _same_kind(before, after, f"{where}[{place}]")
    elif isinstance(given, list) and isinstance(made, set | frozenset):
        # Without an order: what is no number has to be a member as it stands, or the word of one.
        for place, before in enumerate(given):
            same = [one for one in made if one == before and isinstance(one, bool) == isinstance(before, bool)]
            _same_kind(before, same[0] if same else 0, f"{where}[{place}]")
    elif isinstance(made, bool) and not isinstance(given, bool):
        raise PlanError(f"{where}: expected bool, got {_text(given)}")
    elif isinstance(made, int | float) and not isinstance(made, bool | Enum) and isinstance(given, bool | str):
        raise PlanError(f"{where}: expected {type(made).__name__}, got {_text(given)}")


def _text(value: Any) -> str:
    return f"the text {value!r}" if isinstance(value, str) else repr(value)

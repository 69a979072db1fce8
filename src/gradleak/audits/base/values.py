"""Values of a plan file held against the type hints of what they are arguments of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradleak.results import PlanError
from gradleak.results.phrases import shown
from gradleak.results.settings import check_of


def table_of(value: Any, where: str) -> Mapping[str, Any]:
    """The value if it is a table.

    Raises:
        PlanError: naming the place.
    """
    if isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
        raise PlanError(f"{where}: expected one table of keys and values, got {len(value)}; write [...], not [[...]]")
    if not isinstance(value, Mapping):
        raise PlanError(f"{where}: expected a table of keys and values, got {shown(value)}")
    return value


def list_of(value: Any, where: str) -> list[Any]:
    """The value if it is a list.

    Raises:
        PlanError: naming the place.
    """
    if not isinstance(value, list):
        raise PlanError(f"{where}: expected a list, got {shown(value)}")
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


def check_name(name: str, what: str, *, reserved: Sequence[str] = ()) -> None:
    """Refuse names that records, pages and file names cannot carry.

    Args:
        name: of a scenario, an attack, a section.
        what: it names.
        reserved: names that have a meaning of their own.

    Raises:
        PlanError: saying what a name may be.
    """
    if not 0 < len(name) <= 100 or not name.isprintable() or "/" in name or name in reserved:
        others = f", other than {', '.join(reserved)}" if reserved else ""
        raise PlanError(f"{what} {shown(name)}: expected a name of 1 to 100 printable characters without '/'{others}")


def chosen_scenarios(value: Any, where: str) -> list[str] | None:
    """The names of scenarios; None for all of them.

    Raises:
        PlanError: naming the place.
    """
    if value == "all":
        return None
    names: list[str] = typed(list[str], list_of(value, where), where)
    if not names or len(set(names)) < len(names):
        raise PlanError(f'{where}: expected "all" or a list of different names, got {shown(value)}')
    return names


def typed(hint: Any, value: Any, where: str) -> Any:
    """The value as an argument of this annotation.

    A list makes a tuple or a set, a name a member, an int a float, and a table an object of a dataclass. Numbers are never
    made from texts or truth values.

    Raises:
        PlanError: in one line that names the place.
    """
    return check_of(hint)(value, where, PlanError, tables=True)

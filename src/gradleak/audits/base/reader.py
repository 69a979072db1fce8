"""The plan file as a room sees it: its reader, values held against type hints, and questions to the schema."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Generator
from torch.nn import Module

from gradleak.audits.base.site import Site
from gradleak.core import Batch
from gradleak.results import PlanError
from gradleak.results.errors import shown
from gradleak.results.settings import check_of


class Reader(Protocol):
    """Turns tables of a plan file into objects; errors name the place and the nearest valid key."""

    @property
    def folder(self) -> Path:
        """Folder in which relative paths start."""

    @property
    def seed(self) -> int:
        """Seed of the plan."""

    @property
    def site(self) -> Site:
        """Subject of the plan, as far as it is read before its audits: objective, batches, scenarios, threat."""

    def table(self, value: Any, where: str) -> Mapping[str, Any]:
        """The value if it is a table of keys and values."""

    def tables(self, value: Any, where: str) -> Sequence[Any]:
        """The value if it is a list of tables."""

    def typed(self, hint: Any, value: Any, where: str) -> Any:
        """The value converted to a type."""

    def keys(self, table: Mapping[str, Any], allowed: Sequence[str], where: str) -> None:
        """Refuse unknown keys, naming the nearest one."""

    def build(self, spec: Any, room: str, where: str, wanted: Sequence[type] = ()) -> Any:
        """The object that a table describes: `use` names the constructor, in a room of the catalog.

        What does not say that it makes one of the wanted kinds is refused, not called; by default those of the room.
        """

    def named(self, spec: Any, room: str, where: str) -> Callable[..., Any]:
        """The class or function that a table names by `use`, in a room of the catalog; nothing is made."""

    def call(self, constructor: Any, arguments: Mapping[str, Any], where: str) -> Any:
        """`constructor(**arguments)` after names and types were checked."""

    @property
    def private(self) -> Sequence[Batch]:
        """The batches of the client, of which public data keep none."""

    @property
    def mode(self) -> Any:
        """The mode of the plan's model, eval or train."""

    def new_model(self) -> Callable[[Generator], Module]:
        """A function (generator) -> the plan's model with weights drawn anew, which can be pickled."""

    def plan_loss(self) -> Any:
        """The plan's loss, by its name or imported."""

    def names(self, room: str) -> Sequence[str]:
        """Names that may stand for an entry in a room of the catalog."""

    def widened(self, room: str, by: str) -> Reader:
        """The same reader, for which a room of the catalog has what another one has, too."""

    def holding(self, private: Sequence[Batch]) -> Reader:
        """The same reader, for which these batches are private."""


Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
TEXTS: Schema = {"type": "array", "items": TEXT}
ALL_OR_NAMES: Schema = {"anyOf": [{"const": "all"}, {**TEXTS, "minItems": 1}]}


class Writer(Protocol):
    """Writes what a table may hold."""

    def table(self, properties: Mapping[str, Schema], *, required: Iterable[str] = ()) -> Schema:
        """A table with these keys and no other."""

    def named(self, inside: Schema) -> Schema:
        """Tables by names of the user."""

    def settings(
        self,
        owner: type,
        *,
        also: Mapping[str, Schema] | None = None,
        without: Iterable[str] = (),
        optional: bool = False,
    ) -> Schema:
        """A table with the settings of a class."""

    def choice(
        self, *rooms: str, also: Mapping[str, Schema] | None = None, without: Iterable[str] = (), first: int = 0
    ) -> Schema:
        """A table with `use`, which names an entry of these rooms of the catalog, and its arguments."""

    def value(self, hint: Any) -> Schema:
        """The values that an argument of this annotation may have in a plan."""


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

"""Reader of plan files as a room sees it: objects from tables, by names and type hints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Generator
from torch.nn import Module

from gradleak.audits.base.site import Site
from gradleak.core import Batch


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

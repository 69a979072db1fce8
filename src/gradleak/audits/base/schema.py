"""Questions that a room may ask the writer of the JSON Schema of plan files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

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

"""JSON Schema of tables in a plan file, from the annotations by which settings are checked."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from gradleak.auditing.catalog import ARGUMENTS, KINDS, Constructor, Entry
from gradleak.auditing.plan_names import class_methods, filled_in, fits, type_hints
from gradleak.audits.base import TEXT, Schema
from gradleak.results.settings import annotation, check_of

# What is imported may take any argument.
IMPORTED: Schema = {"type": "object", "required": ["use"], "properties": {"use": {"type": "string", "pattern": ":"}}}
# Of these no plan writes the fields.
_OPAQUE = (*KINDS["datasets"], *KINDS["generators"])


@dataclass(frozen=True, kw_only=True)
class SchemaWriter:
    """Writes what a table may hold, for what these rooms hold.

    Attributes:
        rooms: what a plan can name.
        definitions: what was written so far, by name; schemas refer to it.
    """

    rooms: Mapping[str, Mapping[str, Entry]]
    definitions: dict[str, Schema] = field(default_factory=dict)

    def table(self, properties: Mapping[str, Schema], *, required: Iterable[str] = ()) -> Schema:
        """A table with these keys and no other.

        Args:
            properties: what each key may hold.
            required: keys without which there is none.
        """
        found: Schema = {"type": "object", "properties": dict(properties), "additionalProperties": False}
        return found | ({"required": list(required)} if required else {})

    def named(self, inside: Schema) -> Schema:
        """Tables by names of the user.

        Args:
            inside: what each may hold.
        """
        return {"type": "object", "additionalProperties": inside}

    def settings(
        self,
        owner: type,
        *,
        also: Mapping[str, Schema] | None = None,
        without: Iterable[str] = (),
        optional: bool = False,
    ) -> Schema:
        """The table that one class of settings is made from.

        Args:
            owner: a dataclass.
            also: keys that the table holds besides its fields, or in their place.
            without: fields that the plan states elsewhere.
            optional: whether no key has to be there.
        """
        properties, required = self._arguments(owner, without=without)
        return self.table(properties | dict(also or {}), required=() if optional else required)

    def choice(
        self,
        *rooms: str,
        also: Mapping[str, Schema] | None = None,
        without: Iterable[str] = (),
        first: int = 0,
    ) -> Schema:
        """A table whose `use` names something of these rooms, or something that is imported, with its arguments.

        Args:
            rooms: where names are looked for.
            also: keys that the table holds besides the arguments, or in their place.
            without: arguments that the plan states elsewhere.
            first: how many arguments at the front the plan does not give.
        """
        entries = {name: entry.constructor for room in rooms for name, entry in self.rooms[room].items()}
        return self._choice(entries, also=dict(also or {}), without=tuple(without), first=first)

    def value(self, hint: Any) -> Schema:
        """Schema of an argument of this annotation in a plan.

        Args:
            hint: evaluated.
        """
        schema = self._without_kinds(check_of(hint).json_schema())
        return schema if isinstance(schema, dict) else {}

    def _choice(
        self, entries: Mapping[str, Constructor], *, also: Mapping[str, Schema], without: Sequence[str], first: int = 0
    ) -> Schema:
        makers = {
            f"{name}.{method}": getattr(made, method)
            for name, made in entries.items()
            for method in class_methods(made)
        }
        everything = {**entries, **makers}
        cases = []
        for name, constructor in everything.items():
            properties, required = self._arguments(constructor, without=without, first=first)
            body = self.table(
                {"use": {"const": name}, **properties, **also},
                required=("use", *(key for key in required if key not in also)),
            )
            is_it = {"required": ["use"], "properties": {"use": {"const": name}}}
            cases.append({"if": is_it, "then": self._defined(name, body)})
        use = {"anyOf": [{"enum": list(everything)}, {"type": "string", "pattern": ":"}]}
        return {"type": "object", "required": ["use"], "properties": {"use": use}, "allOf": cases}

    def _defined(self, name: str, body: Schema) -> Schema:
        """A reference to a definition: the same body is written once, another one of that name gets a number."""
        key, number = name, 2
        while self.definitions.setdefault(key, body) != body:
            key, number = f"{name}-{number}", number + 1
        return {"$ref": f"#/definitions/{key}"}

    def _arguments(
        self, constructor: Constructor, *, without: Iterable[str] = (), first: int = 0
    ) -> tuple[dict[str, Schema], list[str]]:
        """Schema of each argument, and names of those that have to be given."""
        parameters = list(inspect.signature(constructor).parameters.values())[first:]
        hints = type_hints(constructor)
        owned = {one.name for one in fields(constructor)} if is_dataclass(constructor) else set()
        drawn = filled_in([one.name for one in parameters], hints)
        properties, required = {}, []
        for one in parameters:
            if one.name in (*without, *drawn) or one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL):
                continue
            hint = annotation(constructor, one.name) if one.name in owned else hints.get(one.name, Any)  # type: ignore[arg-type]
            properties[one.name] = self.value(hint)
            if one.default is one.empty:
                required.append(one.name)
        return properties, required

    def _without_kinds(self, schema: Any) -> Any:
        """The schema with what makes an object in place of its class, and without null, which TOML does not have."""
        if isinstance(schema, list):
            return [self._without_kinds(one) for one in schema if one != {"type": "null"}]
        if not isinstance(schema, dict):
            return schema
        if "$comment" in schema:
            found = [self._making(_named_class(name)) for name in schema["$comment"].split(" | ")]
            return _any_of([one for several in found for one in several])
        inside = {key: self._without_kinds(one) for key, one in schema.items()}
        return inside["anyOf"][0] if list(inside) == ["anyOf"] and len(inside["anyOf"]) == 1 else inside

    def _making(self, kind: type) -> list[Schema]:
        """The tables that make an object of a class."""
        if issubclass(kind, Path):
            return [TEXT]
        entries = {
            name: entry.constructor
            for room in ARGUMENTS
            for name, entry in self.rooms[room].items()
            if fits(entry.constructor, (kind,))
        }
        tables = []
        if entries:
            key = f"any-{kind.__name__}"
            if key not in self.definitions:
                # Before it is written: a classifier may hold a classifier.
                self.definitions[key] = {}
                self.definitions[key] = self._choice(entries, also={}, without=())
            tables.append({"$ref": f"#/definitions/{key}"})
        if is_dataclass(kind) and not inspect.isabstract(kind) and kind not in _OPAQUE:
            plain = self.settings(kind)
            use: Schema = {"const": kind.__name__}
            tables.append(plain | {"properties": {"use": use} | plain["properties"]})
        return tables or [IMPORTED]


def _named_class(name: str) -> type:
    module, _, path = name.partition(":")
    found: Any = reduce(getattr, path.split("."), importlib.import_module(module))
    assert isinstance(found, type)
    return found


def _any_of(schemas: Sequence[Schema]) -> Schema:
    different = [one for place, one in enumerate(schemas) if one not in schemas[:place]]
    return different[0] if len(different) == 1 else {"anyOf": different}

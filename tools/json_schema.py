"""JSON Schema (draft 7) as far as the schemas of this package use it: what it says against a value."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

TYPES: Mapping[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
}
ENDS: Mapping[str, Callable[[float, float], bool]] = {
    "minimum": lambda value, end: value >= end,
    "maximum": lambda value, end: value <= end,
    "exclusiveMinimum": lambda value, end: value > end,
    "exclusiveMaximum": lambda value, end: value < end,
}
KNOWN = {*ENDS, "type", "properties", "required", "additionalProperties", "items", "minItems", "maxItems", "prefixItems", "anyOf",
         "allOf", "if", "then", "enum", "const", "pattern", "not", "$ref", "$schema", "title", "definitions"}  # fmt: skip


def faults(value: Any, schema: Any, whole: Mapping[str, Any], where: str = "plan") -> Iterator[str]:
    """Sentences on what the schema says against a value; a keyword that is not known is an AssertionError.

    Args:
        value: what was parsed.
        schema: that it is held against.
        whole: the schema with the definitions that it refers to.
        where: what to call the value.
    """
    if schema is True or schema is False:
        if not schema:
            yield f"{where}: nothing is allowed here"
        return
    assert set(schema) <= KNOWN, set(schema) - KNOWN
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/definitions/")
        yield from faults(value, whole["definitions"][name], whole, where)
    kinds = [schema["type"]] if isinstance(schema.get("type"), str) else schema.get("type", [])
    if kinds and not any(_is(value, kind) for kind in kinds):
        yield f"{where}: {value!r} is no {kinds}"
        return
    if "enum" in schema and not any(_same(value, one) for one in schema["enum"]):
        yield f"{where}: {value!r} is not one of {schema['enum']}"
    if "const" in schema and not _same(value, schema["const"]):
        yield f"{where}: {value!r} is not {schema['const']!r}"
    if "not" in schema and not list(faults(value, schema["not"], whole, where)):
        yield f"{where}: {value!r} is not allowed"
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        yield f"{where}: {value!r} does not match {schema['pattern']!r}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield from (
            f"{where}: {value} against {key} {schema[key]}"
            for key in ENDS
            if key in schema and not ENDS[key](value, schema[key])
        )
    if "anyOf" in schema and all(list(faults(value, one, whole, where)) for one in schema["anyOf"]):
        yield f"{where}: {value!r} is none of {len(schema['anyOf'])}"
    for one in schema.get("allOf", ()):
        if not list(faults(value, one["if"], whole, where)):
            yield from faults(value, one["then"], whole, where)
    if isinstance(value, dict):
        yield from (f"{where}: {key} is missing" for key in schema.get("required", ()) if key not in value)
        for key, inside in value.items():
            rule = schema.get("properties", {}).get(key, schema.get("additionalProperties", True))
            yield from faults(inside, rule, whole, f"{where}.{key}")
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            yield f"{where}: {len(value)} items"
        for place, inside in enumerate(value):
            rules = schema.get("prefixItems", [])
            yield from faults(
                inside, rules[place] if place < len(rules) else schema.get("items", True), whole, f"{where}[{place}]"
            )


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _same(value: Any, one: Any) -> bool:
    return value == one and isinstance(value, bool) == isinstance(one, bool)

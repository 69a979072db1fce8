"""Writer of TOML for damaged plans: takes what a reader of TOML gives, and whatever else fits into its grammar."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import date, datetime, time
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(content: Mapping[str, Any]) -> str:
    """The text of a document whose tables stand one below the other.

    Args:
        content: tables, lists, texts, numbers, truth values, dates and times; no None.
    """
    return "".join(_table(content, ()))


def _table(content: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    """Lines of a table: its own values first, since a heading ends it."""
    lines, below = [], []
    for key, value in content.items():
        inside = (*path, key)
        name = ".".join(map(_key, inside))
        if isinstance(value, Mapping) and value:
            below += [f"[{name}]\n", *_table(value, inside)]
        elif isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
            below += [line for one in value for line in (f"[[{name}]]\n", *_table(one, inside))]
        else:
            lines.append(f"{_key(key)} = {_value(value)}\n")
    return [*lines, *below]


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _text(text: str) -> str:
    # Halves of characters, which no file can hold, are left to the caller's encoding.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        sign = "-" if math.copysign(1, value) < 0 else ""
        return f"{sign}inf" if math.isinf(value) else "nan" if math.isnan(value) else repr(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(key)} = {_value(one)}' for key, one in value.items())} }}"
    return _text(value) if isinstance(value, str) else str(value)

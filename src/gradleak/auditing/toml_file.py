"""Reading of TOML files that anyone may have written: bounded in size, depth and numbers, and free of hidden characters."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradleak.results import PlanError
from gradleak.results.phrases import shown

# The largest plan of the examples has 4,000 bytes.
LARGEST = 2**20
DEEPEST = 20
# What a parser makes of a dotted key takes the square of its length in memory.
_LONG_KEY = re.compile(
    rf"""(?m)(?:^|[\[{{,])[ \t]*(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){{{DEEPEST},}}""",
)
_WHOLE = range(-(2**63), 2**64)


def read_toml(path: str | os.PathLike[str], what: str) -> dict[str, Any]:
    """The content of a TOML file.

    Args:
        path: the file.
        what: it is, for messages: "a plan file".

    Raises:
        PlanError: in one line, for a missing or large file, bad TOML, or tables within tables without end.
    """
    file = Path(path)
    if not _is_file(file):
        raise PlanError(f"{file}: expected {what} (TOML), got no such file")
    with file.open("rb") as opened:
        text = opened.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise PlanError(
            f"{file}: expected {what} of at most {LARGEST:,} bytes, got more; name data sets by their files"
        )
    try:
        decoded = text.decode("utf-8")
        if _LONG_KEY.search(decoded):
            raise PlanError(f"{file}: expected keys of at most {DEEPEST} parts, got a longer one")
        return tomllib.loads(decoded)
    except RecursionError as error:
        raise PlanError(f"{file}: expected lists and tables at most {DEEPEST} deep, got deeper ones") from error
    except ValueError as error:  # of TOML, of UTF-8, and of int() for a number of thousands of digits
        raise PlanError(f"{file}: not valid TOML: {' '.join(str(error).split())[:300]}") from error


def visible(text: str) -> bool:
    """True if a text holds nothing that a terminal or a page obeys in place of showing it: no control, no direction mark.

    Args:
        text: in which tabs and ends of lines may stand.
    """
    return text.isprintable() or not _HIDDEN.search(text)


# Controls but tab and ends of lines, and the marks that turn the direction of text.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


def _is_file(file: Path) -> bool:
    try:
        return file.is_file()
    except (OSError, ValueError):  # a name that is too long, or has a NUL
        return False


def check_values(content: Mapping[str, Any]) -> None:
    """Refuse what no key takes and no message can show, wherever it stands.

    Args:
        content: of a file, parsed.

    Raises:
        PlanError: for a whole number of more than 64 bits, a text or key with characters that cannot be seen, and tables
            within tables without end.
    """
    _check(content, "", DEEPEST)


def _check(value: Any, where: str, left: int) -> None:
    place = where or "plan"
    if left < 0:
        raise PlanError(f"{place[:100]}: expected lists and tables at most {DEEPEST} deep, got deeper ones")
    if isinstance(value, int) and value not in _WHOLE:
        raise PlanError(f"{place}: expected a whole number of at most 64 bits, got {shown(value)}")
    if isinstance(value, str) and not visible(value):
        raise PlanError(
            f"{place}: expected a text without control characters and marks of direction, got {shown(value)}"
        )
    if isinstance(value, Mapping):
        for key, inside in value.items():
            if not visible(key) or len(key) > 1000:
                raise PlanError(f"{place}: expected keys of printable characters, got {shown(key)}")
            _check(inside, f"{where}.{key}" if where else key, left - 1)
    elif isinstance(value, list):
        for number, inside in enumerate(value):
            _check(inside, f"{where}[{number}]", left - 1)

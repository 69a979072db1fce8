"""Members of enumerations by their names, as arguments and plan files give them."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from gradleak.results.errors import InputError

_Kind = TypeVar("_Kind", bound=StrEnum)


def member(name: str, kind: type[_Kind], value: object, *, hint: str = "") -> _Kind:
    """The member of an enumeration that is given itself or by its value.

    Args:
        name: of the field, for the message.
        kind: the enumeration.
        value: what a user gives.
        hint: what the message says after the names.

    Raises:
        InputError: naming the field and all members.

    Examples:
        >>> from enum import StrEnum
        >>> Side = StrEnum("Side", ["LEFT", "RIGHT"])
        >>> member("side", Side, "left")
        <Side.LEFT: 'left'>
    """
    if value not in tuple(kind):
        raise InputError(f"{name}: expected one of {', '.join(kind)}, got {value!r}{hint}")
    return kind(str(value))

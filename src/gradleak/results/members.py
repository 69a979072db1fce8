"""Members of enumerations by their names, as arguments and plan files give them."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar, cast

from gradleak.results.errors import InputError
from gradleak.results.fields import Member
from gradleak.results.phrases import shown

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
    try:
        return cast(_Kind, Member(kind).take(value))
    except ValueError as near:
        meant = f"; {near}" if str(near) else ""
        raise InputError(f"{name}: expected {Member(kind).words}, got {shown(value)}{meant}{hint}") from None

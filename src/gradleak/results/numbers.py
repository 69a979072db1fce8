"""Checks of numbers that a user gives: real, finite and in their range, never a truth value or a word."""

from __future__ import annotations

import math
from numbers import Integral, Real

from gradleak.results.errors import InputError


def check_positive(name: str, value: object) -> None:
    """Refuse what is no finite positive number.

    Raises:
        InputError: naming the field.

    Examples:
        >>> check_positive("std", 0.1)
    """
    if not 0.0 < _as_float(value) < math.inf:
        raise InputError(f"{name}: expected a finite positive number, got {value!r}")


def check_share(name: str, value: object) -> None:
    """Refuse what is no number between 0 and 1, the ends left out.

    Raises:
        InputError: naming the field.
    """
    if not 0.0 < _as_float(value) < 1.0:
        raise InputError(f"{name}: expected a number between 0 and 1, got {value!r}")


def check_not_negative(name: str, value: object) -> None:
    """Refuse what is no finite number of at least 0.

    Raises:
        InputError: naming the field.
    """
    if not 0.0 <= _as_float(value) < math.inf:
        raise InputError(f"{name}: expected a finite number of at least 0, got {value!r}")


def check_count(name: str, value: object, *, least: int = 1) -> None:
    """Refuse what is no whole number of at least `least`.

    Raises:
        InputError: naming the field.
    """
    if not _whole(value) or value < least:  # type: ignore[operator]
        raise InputError(
            f"{name}: expected at least {least}, got {value!r}{'' if _whole(value) else ', no whole number'}"
        )


def check_finite(name: str, value: object) -> None:
    """Refuse what is no finite number.

    Raises:
        InputError: naming the field.
    """
    if not math.isfinite(_as_float(value)):
        raise InputError(f"{name}: expected a finite number, got {value!r}")


def check_seed(name: str, value: object) -> None:
    """Refuse what `torch.Generator.manual_seed` does not take: no whole number, or one of more than 64 bits.

    Raises:
        InputError: naming the field.
    """
    if not _whole(value) or not -(2**63) <= int(value) < 2**64:  # type: ignore[call-overload]
        raise InputError(f"{name}: expected a whole number of at most 64 bits, got {value!r}")


def check_flag(name: str, value: object) -> None:
    """Refuse what is no truth value.

    Raises:
        InputError: naming the field.
    """
    if not isinstance(value, bool):
        raise InputError(f"{name}: expected True or False, got {value!r}")


def check_flags(owner: object, *names: str) -> None:
    """Refuse an object with a field of these names that is no truth value: text such as "false" would count as true.

    Raises:
        InputError: naming class and field.
    """
    for name in names:
        check_flag(f"{type(owner).__name__}.{name}", getattr(owner, name))


def is_number(value: object) -> bool:
    """Whether it is a real number, of Python's or numpy's, and no truth value."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _as_float(value: object) -> float:
    """The number as a float, infinite where it is too large for one; NaN for what is no number."""
    if not is_number(value):
        return math.nan
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return math.inf

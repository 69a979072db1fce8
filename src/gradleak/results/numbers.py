"""Checks of numbers that a user gives: real, finite and in their range, never a truth value or a word."""

from __future__ import annotations

import math
from numbers import Integral, Real

from gradleak.results.errors import InputError


def check_positive(name: str, value: object) -> None:
    """Refuse what is no finite positive number.

    Raises:
        InputError: naming the field.

    Example:
        >>> check_positive("std", 0.1)
    """
    if not is_number(value) or not 0.0 < float(value) < math.inf:  # type: ignore[arg-type]
        raise InputError(f"{name}: expected a finite positive number, got {value!r}")


def check_share(name: str, value: object) -> None:
    """Refuse what is no number between 0 and 1, the ends left out.

    Raises:
        InputError: naming the field.
    """
    if not is_number(value) or not 0.0 < float(value) < 1.0:  # type: ignore[arg-type]
        raise InputError(f"{name}: expected a number between 0 and 1, got {value!r}")


def check_not_negative(name: str, value: object) -> None:
    """Refuse what is no finite number of at least 0.

    Raises:
        InputError: naming the field.
    """
    if not is_number(value) or not 0.0 <= float(value) < math.inf:  # type: ignore[arg-type]
        raise InputError(f"{name}: expected a finite number of at least 0, got {value!r}")


def check_count(name: str, value: object, *, least: int = 1) -> None:
    """Refuse what is no whole number of at least `least`.

    Raises:
        InputError: naming the field.
    """
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise InputError(
            f"{name}: expected at least {least}, got {value!r}{'' if _whole(value) else ', no whole number'}"
        )


def is_number(value: object) -> bool:
    """Whether it is a real number, of Python's or numpy's, and no truth value."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)

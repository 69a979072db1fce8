"""Checks of numbers that a user gives to a function: real, finite and in their range, never a truth value or a word."""

from __future__ import annotations

from numbers import Real

from gradleak.results.errors import InputError
from gradleak.results.fields import SEED, Flag, Number, Whole

# Of what a name in a plan makes by itself, from sizes alone.
LARGEST = 2**28


def check_positive(name: str, value: object) -> None:
    """Refuse what is no finite positive number.

    Raises:
        InputError: naming the field.

    Examples:
        >>> check_positive("std", 0.1)
    """
    Number(0, excluded="low").check(name, value)


def check_share(name: str, value: object) -> None:
    """Refuse what is no number between 0 and 1, the ends left out.

    Raises:
        InputError: naming the field.
    """
    Number(0, 1, excluded="both").check(name, value)


def check_not_negative(name: str, value: object) -> None:
    """Refuse what is not a finite number of at least 0.

    Raises:
        InputError: naming the field.
    """
    Number(0).check(name, value)


def check_count(name: str, value: object, *, least: int = 1) -> None:
    """Refuse what is not a whole number of at least `least`.

    Raises:
        InputError: naming the field.
    """
    Whole(least).check(name, value)


def check_fits(what: str, numbers: int) -> None:
    """Refuse to make what holds more than 2²⁸ numbers, which take 1 GiB in single precision.

    Args:
        what: is made, for the message.
        numbers: how many it holds.

    Raises:
        InputError: naming it.

    Examples:
        >>> check_fits("images", 5000 * 28 * 28)
    """
    if numbers > LARGEST:
        raise InputError(
            f"{what}: expected at most {LARGEST:,} numbers (1 GiB), got {numbers:,}; make what is larger yourself"
        )


def check_finite(name: str, value: object) -> None:
    """Refuse what is not a finite number.

    Raises:
        InputError: naming the field.
    """
    Number().check(name, value)


def check_seed(name: str, value: object) -> None:
    """Refuse what `torch.Generator.manual_seed` does not take: no whole number, or one of more than 64 bits.

    Raises:
        InputError: naming the field.
    """
    SEED.check(name, value)


def check_flag(name: str, value: object) -> None:
    """Refuse what is no truth value.

    Raises:
        InputError: naming the field.
    """
    Flag().check(name, value)


def check_flags(owner: object, *names: str) -> None:
    """Refuse an object with a field of these names that is no truth value: text such as "false" would count as true.

    Raises:
        InputError: naming class and field.
    """
    for name in names:
        check_flag(f"{type(owner).__name__}.{name}", getattr(owner, name))


def is_number(value: object) -> bool:
    """True if it is a real number, of Python's or numpy's, and no truth value."""
    return isinstance(value, Real) and not isinstance(value, bool)

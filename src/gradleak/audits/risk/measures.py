"""Lists of measures without repeats."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def distinct(measures: Iterable[T]) -> list[T]:
    """The measures without repeats; those that hold tensors are told apart by identity."""
    kept: list[T] = []
    for measure in measures:
        if not any(_same(measure, other) for other in kept):
            kept.append(measure)
    return kept


def _same(first: object, second: object) -> bool:
    try:
        return first is second or bool(first == second)
    except RuntimeError:  # tensors of several entries do not compare to one truth value
        return False

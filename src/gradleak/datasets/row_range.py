"""Ranges of the rows that may be drawn: they keep the images of a generator apart from those that are audited."""

from __future__ import annotations

from gradleak.results import InputError, check_count


def row_range(*, count: int, first: int, last: int | None, available: int, source: str) -> slice:
    """The rows that may be drawn, checked.

    Args:
        count: how many are to be drawn of them.
        first: the first row.
        last: the row behind the last one; None for the end.
        available: how many rows there are.
        source: of what, for messages.

    Raises:
        InputError: naming `first`, `last` or `count`, if the rows are not there or fewer than `count`.
    """
    check_count("first", first, least=0)
    end = available if last is None else last
    check_count("last", end)
    check_count("count", count)
    # Small integers of numpy overflow where they are compared with, or subtracted from, those that they cannot hold.
    first, end = int(first), int(end)
    if not first < end <= available:
        raise InputError(f"first, last: expected rows of the {available:,} in {source}, got {first} to {end}")
    if int(count) > end - first:
        raise InputError(f"count: expected 1 to {end - first}, the rows from {first} to {end} of {source}, got {count}")
    return slice(first, end)

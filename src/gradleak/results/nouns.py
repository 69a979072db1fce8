"""Nouns for the numbers of an example, by the kind of its data."""

from __future__ import annotations

from collections.abc import Mapping

ENTRIES: Mapping[str, str] = {"image": "pixel", "tabular": "feature", "signal": "sample"}


def entry_noun(kind: str | None) -> str:
    """Noun for one number of an example: "pixel", "feature" or "sample"; "entry" for a kind that is not known.

    Args:
        kind: value of a `DomainKind`; None for data of no stated kind.

    Examples:
        >>> entry_noun("tabular")
        'feature'
    """
    return ENTRIES.get(kind or "", "entry")


def error_name(kind: str | None) -> str:
    """Name of the root mean squared error of a reconstruction, over entries scaled to [0, 1].

    The unit of such scores is `pixel_rmse` in every record, whatever the data are.

    Args:
        kind: value of a `DomainKind`; None for data of no stated kind.

    Examples:
        >>> error_name("tabular")
        'feature RMSE'
    """
    return f"{entry_noun(kind)} RMSE"


def entries_noun(kind: str | None) -> str:
    """The plural of `entry_noun`.

    Args:
        kind: value of a `DomainKind`; None for data of no stated kind.
    """
    noun = entry_noun(kind)
    return "entries" if noun == "entry" else f"{noun}s"

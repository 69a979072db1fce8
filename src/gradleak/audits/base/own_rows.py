"""Rows of an audit's own: what is compared of them when a run goes on."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from gradleak.core import Batch
from gradleak.data import Population

PROBED = 4


def held(rows: Any) -> dict[str, Any]:
    """All that a data set holds, without the code of its class: what private data are recognized by.

    Args:
        rows: a dataclass: a population, a table, a split, a batch.
    """
    return {one.name: getattr(rows, one.name) for one in fields(rows)}


def few(rows: Batch | Population) -> Batch:
    """The first rows, at which the behavior of a model is compared."""
    sensitive = None if rows.sensitive is None else rows.sensitive[:PROBED]
    return Batch(rows.inputs[:PROBED], rows.targets[:PROBED], rows.domain, sensitive)

"""Pieces of Markdown: text that shows as it is, numbers with their evidence, tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from gradleak.reporting.numerals import Quantity


def escape(value: Any) -> str:
    """Untrusted text as one line of Markdown that shows it as it is."""
    text = re.sub(r"\s+", " ", str(value))
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#!~])", r"\\\1", text)


def number(quantity: Quantity) -> str:
    """A number with its kind of evidence, escaped; a cell without a number has none."""
    tail = f" \\[{quantity.evidence.replace('_', ' ')}\\]" if quantity.evidence and quantity.value is not None else ""
    return escape(quantity.text) + tail


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """The lines of a table, and an empty one."""
    yield "| " + " | ".join(header) + " |"
    yield "|" + " --- |" * len(header)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


def reasons(numbers: Iterable[tuple[str, Quantity]]) -> Iterable[str]:
    """The lines below a table that say why cells have no number, each reason once, and an empty one after them."""
    absent = ((name, found) for name, found in numbers if found.value is None and found.note)
    lines = list(
        dict.fromkeys(f"- {escape(name)}, {escape(found.text)}: {escape(found.note)}" for name, found in absent)
    )
    yield from lines
    if lines:
        yield ""

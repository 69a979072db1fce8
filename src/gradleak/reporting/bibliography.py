"""The literature behind a run, from its run line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradleak.reporting.reading import mapping, sequence


@dataclass(frozen=True, kw_only=True)
class Reference:
    """One entry of the bibliography.

    Attributes:
        key: its BibTeX key.
        text: one printed line.
        bibtex: its BibTeX entry.
    """

    key: str
    text: str
    bibtex: str


def bibliography(run: Mapping[str, Any]) -> list[Reference]:
    """The references of a run, each once, sorted by their printed line.

    Args:
        run: the run line of a record, with `citations`: a list of {key, text, bibtex}.
    """
    found: dict[str, Reference] = {}
    for entry in map(mapping, sequence(run.get("citations"))):
        key, text = str(entry.get("key", "")), str(entry.get("text", ""))
        if text and key not in found:
            found[key] = Reference(key=key, text=text, bibtex=str(entry.get("bibtex", "")))
    return sorted(found.values(), key=lambda reference: reference.text)

"""Check of the declared range of images: one that is too wide makes errors look small."""

from __future__ import annotations

from collections.abc import Sequence

from gradleak.core import Batch
from gradleak.scoring import range_note


def range_notes(batches: Sequence[Batch]) -> list[str]:
    """Notes on the declared ranges of the batches of a plan, once each; all of one domain count together.

    Args:
        batches: of a plan; those without a domain do not count.
    """
    notes = (range_note(batch, batches) for domain, batch in {one.domain: one for one in batches}.items() if domain)
    return [note for note in notes if note]

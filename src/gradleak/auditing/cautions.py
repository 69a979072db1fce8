"""Cautions before the numbers of a plan: a range that is too wide, a model that lets nothing through."""

from __future__ import annotations

from gradleak.audits.base import Site
from gradleak.core import out_of_scale
from gradleak.scoring import range_note


def cautions(site: Site) -> list[str]:
    """Sentences on the declared ranges of the batches and on the numbers of the model, once each.

    Images of one domain count together; batches without a domain have no range.
    """
    notes = [
        f"mind the range: {range_note(batch, site.batches)}"
        for domain, batch in {one.domain: one for one in site.batches}.items()
        if domain and range_note(batch, site.batches)
    ]
    broken = dict.fromkeys(out_of_scale(site.objective, batch.inputs) for batch in site.batches)
    return notes + [f"mind the model: {note}" for note in broken if note]

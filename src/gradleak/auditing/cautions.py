"""Cautions before the numbers of a plan: a range that is too wide, a model that lets nothing through."""

from __future__ import annotations

from gradleak.auditing.plan import Plan
from gradleak.core import out_of_scale
from gradleak.scoring import range_note


def cautions(plan: Plan) -> list[str]:
    """Sentences on declared ranges, the numbers of the model, and code that a digest cannot see, once each.

    Images of one domain count together; batches without a domain have no range.
    """
    site = plan.site
    notes = [
        f"mind the range: {range_note(batch, site.batches)}"
        for domain, batch in {one.domain: one for one in site.batches}.items()
        if domain and range_note(batch, site.batches)
    ]
    broken = dict.fromkeys(out_of_scale(site.objective, batch.inputs) for batch in site.batches)
    notes += [f"mind the code: {one} cannot be read, so that a killed run begins anew" for one in plan.reading().unread]
    return notes + [f"mind the model: {note}" for note in broken if note]

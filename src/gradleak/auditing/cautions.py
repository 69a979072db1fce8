"""Cautions before the numbers of a plan: a range that is too wide, a model that lets nothing through."""

from __future__ import annotations

import torch

from gradleak.auditing.plan import Plan
from gradleak.core import Batch, out_of_scale
from gradleak.results import GradleakError
from gradleak.risk import check_server_model
from gradleak.risk.server_model import FEWEST_ROWS
from gradleak.scoring import range_note

# Rows of a plan on which its model is looked at.
_ROWS = 128


def cautions(plan: Plan) -> list[str]:
    """Sentences on declared ranges, targets, the numbers of the model, and code that a digest cannot see, once each.

    Images of one domain count together; batches without a domain have no range. Where a plan has 64 rows or more, its model
    is also checked for what a malicious server puts into one (`check_server_model`, on 128 of them).
    """
    site = plan.site
    notes = [
        f"mind the range: {range_note(batch, site.batches)}"
        for domain, batch in {one.domain: one for one in site.batches}.items()
        if domain and range_note(batch, site.batches)
    ]
    broken = dict.fromkeys(out_of_scale(site.objective, batch.inputs) for batch in site.batches)
    notes += [f"mind the code: {one} cannot be read, so that a killed run begins anew" for one in plan.reading().unread]
    if site.objective.loss_name == "masked_lm" and any(torch.equal(one.inputs, one.targets) for one in site.batches):
        notes.append(
            "mind the targets: every id is its own target, and none is masked, as no client trains; pass its labels"
        )
    return notes + [f"mind the model: {note}" for note in (*broken, _readable(plan)) if note]


def _readable(plan: Plan) -> str:
    """The advice on a model that makes single examples readable; "" for others, and where a plan has few rows."""
    site = plan.site
    # Of batches of one row each as many as that, of larger ones fewer.
    taken = [batch for batch, _ in zip(site.batches, range(_ROWS), strict=False)]
    if sum(batch.size for batch in taken) < FEWEST_ROWS:
        return ""
    try:
        inputs, targets = (torch.cat([getattr(one, part) for one in taken])[:_ROWS] for part in ("inputs", "targets"))
        return check_server_model(site.objective, Batch(inputs, targets, taken[0].domain)).advice
    except (GradleakError, RuntimeError):  # rows of several shapes, or outputs of several parts
        return ""

"""Lines that a user should read before a plan is carried out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradleak.auditing import Plan


def preview(plan: Plan) -> Iterator[str]:
    """Size and cost of a plan, what will be refused, what to mind.

    Args:
        plan: that passed its checks.
    """
    from gradleak.auditing import cautions, estimate
    from gradleak.auditing.plan import counted

    counts = ", ".join(counted(count, noun) for count, noun in plan.counted() if count)
    yield f"{plan.site.name}: {counts}, about {estimate(plan):,.0f} plain gradients"
    yield from plan.opening()
    yield from map(str, plan.refusals())
    yield from cautions(plan)

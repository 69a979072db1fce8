"""Lines that a user should read before a plan is carried out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradleak.auditing import Plan


def preview(plan: Plan) -> tuple[Sequence[str], Mapping[str, float]]:
    """Size and cost of a plan, what will be refused, what to mind; and the expected seconds of its tasks by headline.

    Args:
        plan: that passed its checks.
    """
    from gradleak.auditing import cautions, estimate
    from gradleak.auditing.duration import duration
    from gradleak.auditing.plan import counted

    counts = ", ".join(counted(count, noun) for count, noun in plan.counted() if count)
    expected = duration(plan)
    first = f"{plan.site.name}: {counts}, about {estimate(plan):,.0f} plain gradients, {expected}"
    return [first, *plan.opening(), *map(str, plan.refusals()), *cautions(plan)], expected.headlines

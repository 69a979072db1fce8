"""Lines that a user should read before a plan is carried out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from gradleak.auditing import Plan


# Trials for the expected time take seconds: too long beside a shorter budget.
_WORTH = 60.0


def preview(
    plan: Plan, device: torch.device | None = None, *, budget: float | None = None
) -> tuple[Sequence[str], Mapping[str, float]]:
    """Size and cost of a plan, what will be refused, what to mind; and the expected seconds of its tasks by headline.

    Args:
        plan: that passed its checks.
        device: where its tasks would compute.
        budget: seconds for the tasks. Under a minute nothing is timed, and no seconds are expected.
    """
    from gradleak.auditing import cautions, estimate
    from gradleak.auditing.duration import duration
    from gradleak.auditing.plan import counted

    counts = ", ".join(counted(count, noun) for count, noun in plan.counted() if count)
    expected = duration(plan, device) if budget is None or budget >= _WORTH else None
    limit = "" if budget is None else f"{'within' if expected is None else 'without'} the budget of {budget:g} s"
    told = " ".join(filter(None, (None if expected is None else str(expected), limit)))
    first = f"{plan.site.name}: {counts}, about {estimate(plan):,.0f} plain gradients, {told}"
    lines = [first, *plan.opening(), *map(str, plan.refusals()), *cautions(plan)]
    return lines, {} if expected is None else expected.headlines

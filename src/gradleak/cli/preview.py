"""Lines that a user should read before a plan is carried out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from gradleak.auditing import Plan


def preview(plan: Plan, device: torch.device | None = None) -> tuple[Sequence[str], Mapping[str, float]]:
    """Size and cost of a plan, what will be refused, what to mind; and the expected seconds of its tasks by headline.

    Args:
        plan: that passed its checks.
        device: where its tasks would compute.
    """
    from gradleak.auditing import cautions, estimate
    from gradleak.auditing.duration import duration
    from gradleak.auditing.plan import counted

    counts = ", ".join(counted(count, noun) for count, noun in plan.counted() if count)
    expected = duration(plan, device)
    first = f"{plan.site.name}: {counts}, about {estimate(plan):,.0f} plain gradients, {expected}"
    return [first, *plan.opening(), *map(str, plan.refusals()), *cautions(plan)], expected.headlines

"""The adversary that ignores the update: the baseline of every attack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from gradleak.attacks.attack import Attack, Monitor
from gradleak.core import Knowledge, Reconstruction, Update
from gradleak.results import Citation, Outcome


@dataclass(frozen=True, kw_only=True)
class Blind(Attack):
    """The mean public example where public data are known, else the middle of the domain's range; for every target.

    What it reaches is what anybody reaches without the update, so an attack has to be far better before its result says
    anything about the update.

    **Cost**: none.

    **Source**: none; a floor that papers often leave out.
    """

    name: ClassVar[str] = "blind"
    needs: ClassVar[tuple[str, ...]] = ("batch_size", "domain")
    citations: ClassVar[tuple[Citation, ...]] = ()
    summary: ClassVar[str] = "Ignores the update: the mean public example, or the middle of the domain."
    reads_update: ClassVar[bool] = False

    def estimate(self, knowledge: Knowledge) -> float:
        """Zero."""
        return 0.0

    def _recover(
        self, update: Update, knowledge: Knowledge, generator: torch.Generator, monitor: Monitor
    ) -> Reconstruction:
        domain, size = knowledge.domain, knowledge.batch_size
        assert domain is not None
        assert size is not None
        dtype = torch.float32 if knowledge.objective is None else knowledge.objective.dtype
        if knowledge.public is not None:
            domain.check(knowledge.public.inputs)
            answer, which = knowledge.public.inputs.to(dtype).mean(dim=0), "mean_public"
        else:
            low, high = domain.bounds(torch.zeros((), dtype=dtype))
            answer, which = (low + high) / 2, "midpoint"
        return Reconstruction(
            inputs=answer.expand(size, *domain.shape).clone(),
            targets=None,
            loss=None,
            outcome=Outcome.CONVERGED,
            note="the update was not looked at",
            details={"which": which},
        )

"""An attack that claims what it is told to."""

from __future__ import annotations

import torch

from gradleak.attacks import Attack
from gradleak.attacks.attack import Monitor
from gradleak.core import Knowledge, Reconstruction, Update
from gradleak.results import Outcome


class Stated(Attack):
    """Claims the middle of the domain plus what it was told to add, whatever the update is."""

    name = "stated"
    needs = ("domain",)
    summary = "Claims a stated image."

    def __init__(self, claims: torch.Tensor | None) -> None:
        self.claims = claims

    def estimate(self, knowledge: Knowledge) -> float:
        return 1.0

    def _recover(
        self, update: Update, knowledge: Knowledge, generator: torch.Generator, monitor: Monitor
    ) -> Reconstruction:
        if self.claims is None:
            return Reconstruction(
                inputs=None, targets=None, loss=None, outcome=Outcome.NOT_FINITE, note="nothing found"
            )
        return Reconstruction(inputs=self.claims.clone(), targets=None, loss=0.0, outcome=Outcome.CONVERGED)

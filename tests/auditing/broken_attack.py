"""An attack that fails in the middle, for tests of the executor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.attacks import Attack, Progress
from gradleak.core import Knowledge, Reconstruction, Update
from gradleak.results import Outcome


@dataclass(frozen=True, kw_only=True)
class Broken(Attack):
    """Raises."""

    name: ClassVar[str] = "broken"
    needs: ClassVar[tuple[str, ...]] = ("objective",)
    summary: ClassVar[str] = "fails."

    def estimate(self, knowledge: Knowledge) -> float:
        return 1.0

    def _recover(
        self, update: Update, knowledge: Knowledge, generator: torch.Generator, progress: Progress | None
    ) -> Reconstruction:
        raise ZeroDivisionError("on purpose")


@dataclass(frozen=True, kw_only=True)
class Lucky(Attack):
    """Ignores the update and claims a fixed picture; if `untold`, only where it is told of no defense, and else its half."""

    name: ClassVar[str] = "lucky"
    needs: ClassVar[tuple[str, ...]] = ("objective",)
    summary: ClassVar[str] = "claims a fixed picture."

    claim: Tensor
    untold: bool = False

    def estimate(self, knowledge: Knowledge) -> float:
        return 1.0

    def _recover(
        self, update: Update, knowledge: Knowledge, generator: torch.Generator, progress: Progress | None
    ) -> Reconstruction:
        told = self.untold and bool(knowledge.defenses)
        return Reconstruction(
            inputs=self.claim / 2 if told else self.claim, targets=None, loss=None, outcome=Outcome.CONVERGED
        )

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
    """Ignores the update and claims a fixed picture, or its half where `told_alone` or `untold_alone` asks for it."""

    name: ClassVar[str] = "lucky"
    needs: ClassVar[tuple[str, ...]] = ("objective",)
    summary: ClassVar[str] = "claims a fixed picture."

    claim: Tensor
    told_alone: bool = False
    untold_alone: bool = False

    def estimate(self, knowledge: Knowledge) -> float:
        return 1.0

    def _recover(
        self, update: Update, knowledge: Knowledge, generator: torch.Generator, progress: Progress | None
    ) -> Reconstruction:
        half = self.untold_alone if knowledge.defenses else self.told_alone
        return Reconstruction(
            inputs=self.claim / 2 if half else self.claim, targets=None, loss=None, outcome=Outcome.CONVERGED
        )

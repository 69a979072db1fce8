"""An attack that fails in the middle, for tests of the executor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from gradleak.attacks import Attack, Progress
from gradleak.core import Knowledge, Reconstruction, Update


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

"""A paper's attack as a composition with that paper's defaults."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch

from gradleak.attacks.attack import Attack
from gradleak.attacks.inversion.engine import Inversion
from gradleak.attacks.monitor import Monitor
from gradleak.core import Knowledge, Reconstruction, Update


class Preset(Attack):
    """An attack that is a preset of `Inversion`; authors write `compose` alone.

    Settings are checked by how they are annotated (`Iterations`, `Positive` ...), so that messages name them as the user wrote
    them, not the parts they end up in.
    """

    def __post_init__(self) -> None:
        """Hold the fields against their annotations, and compose once, which refuses what the parts refuse."""
        super().__post_init__()
        self.compose()

    @abstractmethod
    def compose(self) -> Inversion:
        """The composition that runs."""

    def estimate(self, knowledge: Knowledge) -> float:
        """The cost in plain gradients if no start stops early."""
        return self.compose().estimate(knowledge)

    def _check(self, knowledge: Knowledge) -> None:
        """As the composition."""
        self.compose()._check(knowledge)

    def _recover(
        self, update: Update, knowledge: Knowledge, generator: torch.Generator, monitor: Monitor
    ) -> Reconstruction:
        return self.compose()._recover(update, knowledge, generator, monitor)

    def _recover_many(
        self,
        updates: Sequence[Update],
        knowledge: Sequence[Knowledge],
        generators: Sequence[torch.Generator],
        monitor: Monitor,
    ) -> list[Reconstruction]:
        return self.compose()._recover_many(updates, knowledge, generators, monitor)

"""A paper's attack as a composition with that paper's defaults."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import ClassVar

import torch

from gradleak.attacks.attack import Attack
from gradleak.attacks.inversion.engine import Inversion
from gradleak.attacks.inversion.search_stage import MAX_ITERATIONS
from gradleak.attacks.monitor import Monitor
from gradleak.core import Knowledge, Reconstruction, Update
from gradleak.results import InputError, check_count, check_flag, check_not_negative, check_positive


class Preset(Attack):
    """An attack that is a preset of `Inversion`; authors write `compose` alone.

    Settings are checked by how they are annotated: `int` counts something, at least once, `float` is at least 0, and
    positive if its name ends in `_rate`, `bool` is True or False. Messages name them as the user wrote them, not the parts
    they end up in.

    Attributes:
        least: the smallest value of counts for which it is not 1.
    """

    least: ClassVar[Mapping[str, int]] = {}

    def __post_init__(self) -> None:
        """Check the numbers, and compose once, so that settings out of range are refused where they are made."""
        for field in fields(self):  # type: ignore[arg-type]
            value, name = getattr(self, field.name), f"{type(self).__name__}.{field.name}"
            kind = field.type.__name__ if isinstance(field.type, type) else str(field.type)
            if value is None and kind.endswith("| None"):
                continue
            if kind in ("int", "int | None"):
                check_count(name, value, least=self.least.get(field.name, 1))
                if value > MAX_ITERATIONS:
                    raise InputError(f"{name}: expected at most {MAX_ITERATIONS:,}, got {value!r}")
            elif kind == "bool":
                check_flag(name, value)
            elif kind in ("float", "float | None"):
                (check_positive if field.name.endswith("_rate") else check_not_negative)(name, value)
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

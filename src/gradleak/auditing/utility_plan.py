"""How the models of an audit are trained and judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gradleak.core import Release, describe
from gradleak.results import InputError, PlanError
from gradleak.training import Task, Training


@dataclass(frozen=True, kw_only=True, eq=False)
class UtilityPlan:
    """How the models of an audit are trained and judged.

    Attributes:
        task: rows and model.
        training: rounds and rates.
        seeds: how many trainings a scenario.
        learning_rates: to choose from for every scenario, on training rows held back; empty for that of the training.

    Raises:
        PlanError: for less than one seed.
    """

    task: Task
    training: Training
    seeds: int = 3
    learning_rates: Sequence[float] = ()

    def __post_init__(self) -> None:
        """Check the number of seeds."""
        if self.seeds < 1:
            raise PlanError(f"utility.seeds: expected a whole number of at least 1, got {self.seeds}")

    def check(self, releases: Mapping[str, Release]) -> None:
        """Refuse rows, model, training and releases that do not fit together.

        Args:
            releases: of the scenarios, by name.

        Raises:
            InputError: saying what does not.
        """
        self.training.smallest_share(self.task.train.size)
        self.task.start(torch.Generator().manual_seed(0))
        for name, release in releases.items():
            sizes = release.protocol.client_sizes
            if sizes is not None and self.training.batch_size != sum(sizes):
                given = self.training.batch_size or f"a Poisson sample of rate {self.training.sampling_rate:g}"
                raise InputError(
                    f"utility of scenario {name!r}: a release of {type(release.protocol).__name__} holds the {sum(sizes)} "
                    f"examples of all its clients ({', '.join(map(str, sizes))}), [utility] makes releases "
                    f"of {given}; write batch_size = {sum(sizes)} in [utility], or examples that add up to "
                    "its batch_size, or give this scenario a plan of its own without [utility]"
                )

    def estimate(self, scenarios: int) -> float:
        """The expected cost in plain gradients of a round's batch: a release costs about three."""
        trainings = scenarios * (self.seeds + len(self.learning_rates))
        return 3.0 * trainings * self.training.rounds * self.training.clients

    def resolved(self) -> dict[str, Any]:
        """What determines it, JSON-ready, without any data value."""
        return {
            "train_rows": self.task.train.size,
            "test_rows": self.task.test.size,
            "training": describe(self.training),
            "seeds": self.seeds,
            "learning_rates": list(self.learning_rates),
            "replacement": describe(self.task.replacement),
        }


__all__ = ["UtilityPlan"]

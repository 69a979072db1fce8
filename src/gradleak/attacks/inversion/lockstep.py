"""Lockstep runs of a search: iterates, best iterates, endings and what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from gradleak.attacks.attack import Monitor
from gradleak.attacks.inversion.evaluation import Evaluator, Rules
from gradleak.attacks.inversion.matching import Matching
from gradleak.attacks.inversion.optimizers import SearchStage
from gradleak.attacks.inversion.pooling import Pooling
from gradleak.attacks.inversion.priors import Prior
from gradleak.attacks.inversion.problem import Problem
from gradleak.results import Outcome

Saved = tuple[dict[str, Tensor], dict[str, Any]]
"""Tensors and facts of a state."""

MAX_RECOVERIES = 10
"""How often a start may return from non-finite numbers before it is given up."""


class Settings(Protocol):
    """The settings of an attack that its search reads; see `Inversion`."""

    @property
    def matching(self) -> Matching:
        """Distance of updates."""

    @property
    def priors(self) -> Sequence[Prior]:
        """Penalties on the guess."""

    @property
    def stages(self) -> Sequence[SearchStage]:
        """Stretches of the search."""

    @property
    def rounds(self) -> int:
        """Number of times that the stages are gone through."""

    @property
    def restarts(self) -> int:
        """Starts a target."""

    @property
    def patience(self) -> int | None:
        """Evaluations without progress after which a target stops."""

    @property
    def max_bytes(self) -> int:
        """Memory for updates in lockstep."""

    @property
    def compile(self) -> bool:
        """True if `torch.compile` is used where it pays."""

    @property
    def pooling(self) -> Pooling | None:
        """Pooling of rows of a table over starts; None claims the best start."""


class Lockstep:
    """The state of one lockstep run: rows are targets × starts, a target's starts side by side.

    A target is closed as soon as it is explained, has run out of patience, or has lost all of its starts: its rows stay
    where they are while the others go on, so that its result does not depend on them.

    Args:
        settings: what is searched and how.
        problems: the targets; they differ in target and label values alone.
        generators: one a target, for noise.
        monitor: progress and checkpoint.
    """

    def __init__(
        self,
        settings: Settings,
        problems: Sequence[Problem],
        generators: Sequence[torch.Generator],
        monitor: Monitor,
    ) -> None:
        self.settings = settings
        self.problems = problems
        self.problem = problems[0]
        self.generators = generators
        self.monitor = monitor
        self.low, self.high = self.problem.variables.bounds(self.problem.space)
        self.bounded = bool((self.low.isfinite() | self.high.isfinite()).any())
        self.matching = self.problem.likely(settings.matching)
        self.planned = settings.rounds * sum(stage.planned for stage in settings.stages)
        # The matching loss that round-off alone leaves.
        self.floor = [self.matching.at_round_off(problem.round_off) for problem in problems]
        self.endings: list[Outcome | None] = [None] * len(problems)
        self.spent = [0] * len(problems)
        self.passes = [0.0] * len(problems)
        self.history: list[Tensor] = []
        self.identity = ""
        self.consensus: Tensor | None = None

    def begin(self, start: Tensor) -> None:
        """Stand at the rows (s, n) that the first stage begins with."""
        rows, settings = len(start), self.settings
        rules = Rules(
            matching=self.matching, priors=settings.priors, max_bytes=settings.max_bytes, compile=settings.compile
        )
        self.evaluator = Evaluator(self.problems, rules, rows)
        self.best = start.clamp(self.low, self.high)
        self.best_loss = torch.full((rows,), torch.inf, dtype=start.dtype, device=start.device)
        # Where the next stage begins, and where one that is under way has been best.
        self.handed, self.handed_loss = self.best, self.best_loss
        self.reached, self.reached_loss = self.best, self.best_loss
        self.recoveries = torch.zeros(rows, dtype=torch.int64, device=start.device)
        self.restarts = torch.zeros_like(self.recoveries)
        self.shrink = torch.ones(rows, dtype=start.dtype, device=start.device)

    def keep(self, place: Tensor, matching: Tensor, finite: Tensor) -> Tensor:
        """Keep iterates that are better than all before; those better than all of this stage are returned, marked."""
        better = finite & (matching < self.best_loss)
        self.best = choose_rows(better, place, self.best)
        self.best_loss = torch.where(better, matching, self.best_loss)
        nearer = finite & (matching < self.reached_loss)
        self.reached = choose_rows(nearer, place, self.reached)
        self.reached_loss = torch.where(nearer, matching, self.reached_loss)
        return nearer

    def progress(self, reference: Tensor, stale: Tensor) -> tuple[Tensor, Tensor]:
        """The losses to be beaten, and for how many evaluations no start of a target has done so."""
        progress = self._any(self.reached_loss < reference * (1 - 1e-3))
        return torch.where(self._spread(progress), self.reached_loss, reference), torch.where(
            progress.cpu(), 0, stale + 1
        )

    def spend(self, matching: Tensor, passes: float) -> None:
        """Note the losses of one evaluation, and what it cost a start in plain gradients."""
        self.history.append(matching)
        self.passes = [n + passes * (ending is None) for n, ending in zip(self.passes, self.endings, strict=True)]
        self.spent = [n + (ending is None) for n, ending in zip(self.spent, self.endings, strict=True)]
        self.report()

    def close(self, stale: Tensor) -> None:
        """End the search of targets that are explained, have lost all starts, or made no progress for too long."""
        starts = self.settings.restarts
        best = self.best_loss.reshape(-1, starts).amin(dim=1).tolist()
        lost = (self.recoveries.reshape(-1, starts) > MAX_RECOVERIES).all(dim=1).tolist()
        patience = self.settings.patience
        for place, ending in enumerate(self.endings):
            if ending is not None:
                continue
            if best[place] <= self.floor[place]:
                self.endings[place] = Outcome.CONVERGED
            elif lost[place] or (patience is not None and int(stale[place]) >= patience):
                self.endings[place] = Outcome.PLATEAU

    def live(self) -> Tensor:
        """The rows whose target is still searched for."""
        running = torch.tensor([ending is None for ending in self.endings], device=self.best.device)
        return self._spread(running)

    def draw(self, entries: int) -> Tensor:
        """N(0, 1) for all rows (s, entries), each target's from its own generator."""
        shape = (self.settings.restarts, entries)
        rows = [
            torch.randn(shape, generator=generator, dtype=self.best.dtype, device=generator.device)
            for generator in self.generators
        ]
        return torch.cat(rows).to(self.best.device)

    def save(self, state: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Write a checkpoint: what is here, with the tensors and facts of the stage."""
        tensors = {
            **state,
            "best": self.best,
            "best_loss": self.best_loss,
            "handed": self.handed,
            "handed_loss": self.handed_loss,
            "reached": self.reached,
            "reached_loss": self.reached_loss,
            "recoveries": self.recoveries,
            "restarts": self.restarts,
            "shrink": self.shrink,
        }
        if self.history:
            tensors["history"] = torch.stack(self.history)
        if self.consensus is not None:
            tensors["consensus"] = self.consensus
        tensors |= {f"generator.{n}": generator.get_state() for n, generator in enumerate(self.generators)}
        endings = [None if ending is None else ending.label for ending in self.endings]
        counts = {"spent": self.spent, "passes": self.passes}
        self.monitor.save(tensors, {**facts, **counts, "endings": endings, "identity": self.identity})

    def report(self, *, force: bool = False) -> None:
        """Show progress, every tenth evaluation unless forced."""
        done = max(self.spent)
        if force or done % 10 == 1:
            best = self.best_loss[torch.isfinite(self.best_loss)]
            self.monitor(done, self.planned, float(best.min()) if len(best) else float("inf"))

    def _any(self, rows: Tensor) -> Tensor:
        """Mask of the targets of which any start is marked."""
        return rows.reshape(-1, self.settings.restarts).any(dim=1)

    def _spread(self, targets: Tensor) -> Tensor:
        """One value a target, for each of its rows."""
        return targets.repeat_interleave(self.settings.restarts)


def choose_rows(chosen: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """The rows of `one` (s, n) that are chosen (s,), those of `other` else.

    On a processor nothing is copied where all rows or none are, as almost always: behind a generator n is the number of
    its weights. Elsewhere looking would wait for the device.
    """
    if chosen.device.type == "cpu":
        if bool(chosen.all()):
            return one
        if other.shape == one.shape and not bool(chosen.any()):
            return other
    return torch.where(chosen[:, None], one, other)

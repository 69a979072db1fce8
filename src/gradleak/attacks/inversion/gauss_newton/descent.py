"""Descent by damped steps: the loop and the family of steps."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.attacks.inversion.gauss_newton.local_model import LocalModel, bounded_move, held_at_box
from gradleak.attacks.inversion.gauss_newton.residual_system import ResidualSystem
from gradleak.results import Outcome, Settings


class Steps(Settings, ABC):
    """Computation of the steps of `GaussNewton`; authors write these three.

    Attributes:
        rounds: at most so many solves for one bounded step.
        renewals: how often a start that is stuck may draw anew what the steps are computed from.
        side_by_side: whether several starts can be linearized in one call.
        needs_matrix: whether a matrix of n × n is held.
    """

    rounds: ClassVar[int] = 8
    renewals: ClassVar[int] = 0
    side_by_side: ClassVar[bool] = False
    needs_matrix: ClassVar[bool] = True

    @abstractmethod
    def linearize(self, system: ResidualSystem, points: Tensor, generator: torch.Generator) -> list[LocalModel]:
        """A model of the residual at each row of (s, n); random numbers, if any, from `generator`."""

    def again(self, system: ResidualSystem, point: Tensor, last: LocalModel, gain: float) -> LocalModel | None:
        """A model at the next point (n,) from what the last one holds, or None where it has to be made anew.

        Args:
            system: the residual.
            point: z, where the last step has led.
            last: the model of that step.
            gain: its gain ratio, the fall of the squared residual relative to the model's.
        """
        return None

    @abstractmethod
    def needed_bytes(self, entries: int, unknowns: int) -> int:
        """Bytes that a step holds, roughly, for P entries and n unknowns."""

    @abstractmethod
    def products(self, entries: int, unknowns: int) -> int:
        """Products with A or Aᵀ that a step takes at most."""


SHRINK = 1 / 3
"""The damping falls by no more than this factor a step."""

SMALLEST_DAMPING = 1e-15
"""Relative to D; below it nothing changes in float64."""

TRIALS = 40
"""Dampings tried in one step."""

STALL = (4, 0.95)
"""A start ends when its squared residual falls by less than this factor over so many steps."""

MAY_BE_ROUND_OFF = 1e-4
"""Relative squared residual above which slow progress is not looked at as round-off: `MOST_ROUND_OFF` squared."""

POLISH = 4
"""Steps with the last factor and fresh residuals, once the residual is at its floor."""


@dataclass(eq=False)
class Descent:
    """The state of one start. Losses are squared residuals relative to the update.

    A step is `open`ed with a model of the residual, then trials are `propose`d and `judge`d until one is taken or none
    helps, then it is `close`d. Whoever drives it evaluates the trials, of several starts together where that pays.

    Attributes:
        system: the residual.
        steps: how steps are computed.
        point: z, where the start is.
        damping: μ, relative to D.
        generator: of what the steps draw.
        growth: factor by which the damping rises next.
        gain: fall of the squared residual in the last step, relative to what its model said.
        outcome: None while it goes on.
    """

    system: ResidualSystem
    steps: Steps
    point: Tensor
    damping: float
    generator: torch.Generator
    growth: float = 2.0
    gain: float = 0.0
    loss: float = math.inf
    outcome: Outcome | None = None
    at_floor: bool = False
    stationary: bool = False
    taken: int = 0
    rejected: int = 0
    renewed: int = 0
    history: list[float] = field(default_factory=list)
    note: str = ""
    model: LocalModel | None = None
    best: Tensor | None = None
    _trial: Tensor | None = None
    _trials: int = 0
    _done: bool = True
    _checkpoint: int = 0

    def open(self, model: LocalModel) -> None:
        """Begin a step at the point that the model was made for."""
        self.model, self._done, self._trials = model, False, 0
        if not model.is_finite:
            self._not_finite()
            return
        self.taken += 1
        whole = float(model.residual.square().sum())
        if not self.history:
            self._record(whole)
        if not bool(model.weights.max() > 0):
            # Where the update is explained all the same, the rank says what that is worth.
            outcome = Outcome.CONVERGED if self.at_floor else Outcome.PLATEAU
            self._stop(outcome, "the derivative of the release is zero at this start (dead units): nothing to follow")
            return
        system = self.system
        free = ~held_at_box(self.point, model.slope, system.low, system.high)
        scaled = model.slope / model.weights.sqrt()
        # A minimum of part of the residual is not one of the whole: there the step itself finds out.
        self.stationary = model.is_whole and float(scaled[free].norm()) <= 1e-9 * math.sqrt(model.squared)
        if self.stationary:
            self._stuck()

    def next_model(self) -> LocalModel:
        """The model at the point, from the last one where that will do."""
        again = None
        if self.model is not None:
            again = self.steps.again(self.system, self.point, self.model, self.gain)
        return again or self.steps.linearize(self.system, self.point[None], self.generator)[0]

    def look(self) -> None:
        """Judge the start itself, where no step could be opened."""
        squared = float(self.system.residual(self.point).square().sum())
        if math.isfinite(squared):
            self._record(squared)
        else:
            self._not_finite()

    def propose(self) -> Tensor | None:
        """The next point to evaluate (n,), or None if the step is over."""
        system, model = self.system, self.model
        while not self._done:
            assert model is not None
            self._trials += 1
            if self._trials > TRIALS:
                self._stuck()
                return None
            move = bounded_move(model, self.point, system.low, system.high, self.damping, self.steps.rounds)
            if move is None:
                self._raise_damping()
                continue
            tiny = float(move.abs().max()) <= 1e-13 * float(self.point.abs().max() + 1)
            if tiny and self._trials > 1:
                self._stuck()
                return None
            self._trial = (self.point + move).clamp(system.low, system.high)
            return self._trial
        return None

    def judge(self, residual: Tensor) -> None:
        """Take the last proposal if the residual falls there, else raise the damping."""
        model, trial = self.model, self._trial
        assert model is not None
        assert trial is not None
        reached = model.measure(residual)
        if not (math.isfinite(reached) and reached < model.squared):
            self._raise_damping()
            return
        move = trial - self.point
        # Taken before anything else is computed, which may pass a limit: what was evaluated is not to be lost.
        self.point, self._done = trial, True
        self._record(float(residual.square().sum()))
        predicted = -float(move @ (2 * model.slope + model.curvature(move)))
        self.gain = (model.squared - reached) / predicted if predicted > 0 else 0.25
        self.damping *= max(SHRINK, 1 - (2 * min(self.gain, 1.0) - 1) ** 3)
        self.damping, self.growth = max(self.damping, SMALLEST_DAMPING), 2.0
        # Within a floor that is not tight there is still a way to go along a valley: on while steps help.
        settled = reached > (0.9 if self.system.noisy else 0.25) * model.squared or self.system.tight
        if self.at_floor and settled:
            self.outcome = Outcome.CONVERGED

    def close(self) -> None:
        """End the step: polish at the floor, and look whether it is worth going on."""
        system = self.system
        may_be_round_off = self._slow() and not system.noisy and self.loss <= MAY_BE_ROUND_OFF
        if self.outcome is None and may_be_round_off and self._at_round_off():
            self.outcome = Outcome.CONVERGED
        if self.outcome is Outcome.CONVERGED and not system.tight and not self.stationary:
            self._polish()
        if self.outcome is None and self._stalled():
            self._give_up("the residual stopped falling above its floor")

    def _stuck(self) -> None:
        """No step helps: at the floor, or a stationary point, or what the steps are computed from has to be renewed."""
        self._done = True
        self._give_up("")

    def _give_up(self, note: str) -> None:
        if self.model is not None and not self.model.is_whole:
            self._polish()
        if self._at_round_off():
            self.outcome = Outcome.CONVERGED
        elif self.renewed < self.steps.renewals:
            self.renewed += 1
            self._checkpoint = len(self.history)
        else:
            self._stop(Outcome.PLATEAU, note)

    def _at_round_off(self) -> bool:
        """True if the residual is at the floor, once that is measured where the start is."""
        system = self.system
        self.at_floor = system.explained(self.loss * system.scale**2)
        if not self.at_floor:
            system.raise_floor(self.point)
            self.at_floor = system.explained(self.loss * system.scale**2)
        return self.at_floor

    def _polish(self) -> None:
        """Steps of the whole residual with the last factor, while they help."""
        system, model = self.system, self.model
        if model is None or not model.is_solved:
            return
        best = system.residual(self.point)
        for _ in range(POLISH):
            trial = (self.point + model.correct(best)).clamp(system.low, system.high)
            residual = system.residual(trial)
            before, after = float(best.square().sum()), float(residual.square().sum())
            if not after < before:
                return
            self.point, best = trial, residual
            self._record(after)
            if after > 0.8 * before:
                return

    def _raise_damping(self) -> None:
        self.rejected += 1
        self.damping, self.growth = self.damping * self.growth, self.growth * 2

    def _slow(self) -> bool:
        """True if the last step fell far short of the quadratic convergence that a smooth problem has."""
        return len(self.history) > 2 and self.history[-1] > 0.5 * self.history[-2]

    def _stalled(self) -> bool:
        steps, factor = STALL
        recent = self.history[self._checkpoint :]
        return len(recent) > steps and recent[-1] > factor * recent[-1 - steps]

    def _record(self, squared: float) -> None:
        loss = squared / self.system.scale**2
        if self.best is None or loss <= self.loss:
            self.loss, self.best = loss, self.point
        self.history.append(loss)
        self.at_floor = self.system.explained(squared)

    def _stop(self, outcome: Outcome, note: str) -> None:
        self._done = True
        self.outcome = outcome
        self.note = self.note or note

    def _not_finite(self) -> None:
        outcome = Outcome.PLATEAU if self.history else Outcome.NOT_FINITE
        self._stop(outcome, "NaN or infinity in the release or its derivative")


def advance(runs: Sequence[Descent]) -> None:
    """One step of each start that goes on; starts of one system are linearized and evaluated together."""
    live = [run for run in runs if run.outcome is None]
    if not live:
        return
    first = live[0]
    if len(live) > 1:
        points = torch.stack([run.point for run in live])
        for run, model in zip(live, first.steps.linearize(first.system, points, first.generator), strict=True):
            run.open(model)
    else:
        first.point = first.system.refresh(first.point)
        first.open(first.next_model())
    pending = live
    while pending:
        proposals = [(run, trial) for run in pending if (trial := run.propose()) is not None]
        if not proposals:
            break
        residuals = first.system.residuals(torch.stack([trial for _, trial in proposals]))
        for (run, _), residual in zip(proposals, residuals, strict=True):
            run.judge(residual)
        pending = [run for run, _ in proposals]
    for run in live:
        run.close()

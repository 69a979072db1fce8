"""Levenberg-Marquardt on the residual of the update: the strongest attack on smooth networks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradleak.attacks.attack import Attack, Progress
from gradleak.attacks.inversion.inverting_gradients import InvertingGradients
from gradleak.attacks.inversion.problem import NEEDS, LabelPolicy, LabelSource, Problem
from gradleak.attacks.inversion.variables import Pixels, Start
from gradleak.core import Knowledge, Reconstruction, Update
from gradleak.linalg import dense_gram
from gradleak.operators import dense_jacobian
from gradleak.results import (
    LEVENBERG_MARQUARDT,
    ZHANG_2023,
    ZHAO_2020,
    Citation,
    InputError,
    Outcome,
    UnsupportedError,
)

PLAIN_GRADIENTS_PER_COLUMN = 0.5
"""One column of the Jacobian in a block of forward derivatives, as measured on the 28 by 28 LeNet."""

SHRINK = 1 / 3
"""The damping falls by no more than this factor a step."""

STALL = (4, 0.95)
"""A start ends when its squared residual falls by less than this factor over so many steps."""

MOST_ROUND_OFF = 1e-2
"""Largest relative residual that is ever put down to round-off: beyond it nothing was explained."""

ROUND_OFF_MARGIN = 4.0
"""By how much one measurement of round-off may fall short of the client's own."""

POLISH = 4
"""Chord steps with the last factor, once the residual is at its floor."""


@dataclass(frozen=True, kw_only=True)
class GaussNewton(Attack):
    """Inputs whose released mean is the update, by Levenberg–Marquardt in float64 with the dense Jacobian.

    With r(z) = g(z) − g* (divided by the noise's std where it is known and differs between entries) and A = ∂g/∂z, a
    step solves (AᵀA + μD) h = −Aᵀr over the entries that are not held at the box, D = diag(AᵀA); z + h is projected on
    the box and taken if ‖r‖ falls, and μ follows the gain ratio. g includes the defenses that are known, so A does too.
    Unknown labels are further unknowns (class logits). When the residual reaches its floor, a few chord steps with the
    last factor follow, which cost one plain gradient each.

    The floor is the round-off of the update (16 eps relative, or, where steps stop helping, what the release's own
    computation rounds at the guess, measured by repeating it in float32), or, for known Gaussian noise, the residual
    that noise leaves at the minimizer: ‖r‖² ≤ σ²(P − n)(1 + 4√(2/(P − n))). A further start follows only if the last
    one ended above the floor.

    Outcomes: `converged` where the residual is at the floor (the guess explains the update; it is the truth only if
    nothing else explains it as well); `not_identifiable` where the random start is already there; `plateau` at a
    stationary point above it (a local minimum, or noise that the adversary does not know), where no step helps, or
    where the residual stopped falling; else `budget_spent`.

    **Assumptions**: g is differentiable; quadratic convergence needs a smooth network and an identifiable input. On
    ReLU networks it finds the input once the pattern of active units is right, which from a random start it often
    is not: hence the warm start of the second one.

    **Cost**: a step takes n/2 + 2 plain gradients (n unknowns; half a plain gradient a column is the counting rule), a
    rejected trial one more; beside them the n×n Gram matrix and its factor, and 8·P·n bytes. On the 28×28 LeNet a step
    takes as long as 750 plain gradients, half of it linear algebra, and a digit five or six steps.

    **Source**: Moré 1978; gain-ratio update of μ: Nielsen 1999, "Damping parameter in Marquardt's method". Zhang et al.
    2023 assume an attacker that finds this minimizer. Labels: Zhao et al. 2020.

    Attributes:
        max_steps: Jacobians a start may take.
        starts: starts at most, the first uniform over the domain's range.
        warm_iterations: each further start begins where `InvertingGradients` is after so many iterations from a random
            start; 0 for a uniform start again.
        damping: initial μ, relative to D.
        box: whether inputs stay in the domain's range.
        labels: what is done about labels that are not disclosed.
        max_unknowns: refuse more unknowns than this.
        max_bytes: memory for a block of Jacobian columns, besides the Jacobian.
        max_jacobian_bytes: refuse a dense Jacobian larger than this.
    """

    name: ClassVar[str] = "gauss_newton"
    needs: ClassVar[tuple[str, ...]] = NEEDS
    citations: ClassVar[tuple[Citation, ...]] = (LEVENBERG_MARQUARDT, ZHANG_2023, ZHAO_2020)
    summary: ClassVar[str] = "Levenberg-Marquardt on the residual of the update, dense, in float64."

    max_steps: int = 30
    starts: int = 2
    warm_iterations: int = 500
    damping: float = 1e-4
    box: bool = True
    labels: LabelPolicy = LabelPolicy.RECOVER
    max_unknowns: int = 4096
    max_bytes: int = 2**30
    max_jacobian_bytes: int = 4 * 2**30

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.max_steps < 1 or self.starts < 1 or not self.damping > 0:
            raise InputError(
                "GaussNewton: expected max_steps and starts of at least 1 and a positive damping, got "
                f"{self.max_steps}, {self.starts} and {self.damping}"
            )
        if self.warm_iterations < 0 or min(self.max_unknowns, self.max_bytes, self.max_jacobian_bytes) < 1:
            raise InputError(
                "GaussNewton: expected warm_iterations of at least 0 and positive limits, got "
                f"warm_iterations={self.warm_iterations}, max_unknowns={self.max_unknowns}, max_bytes={self.max_bytes}, "
                f"max_jacobian_bytes={self.max_jacobian_bytes}"
            )

    def estimate(self, knowledge: Knowledge) -> float:
        """The cost in plain gradients of one start that takes all its steps."""
        knowledge.require(("domain", "batch_size"), asker="the cost of gauss_newton")
        assert knowledge.domain is not None
        assert knowledge.batch_size is not None
        unknowns = knowledge.domain.size * knowledge.batch_size
        return self.max_steps * (PLAIN_GRADIENTS_PER_COLUMN * unknowns + 2)

    def _recover(
        self, update: Update, knowledge: Knowledge, generator: torch.Generator, progress: Progress | None
    ) -> Reconstruction:
        pixels = Pixels(start=Start.UNIFORM, box=self.box)
        problem = Problem.pose(update, knowledge, pixels=pixels, policy=self.labels, dtype=torch.float64)
        system = _System(problem, self.max_bytes)
        needed = 8 * system.unknowns * problem.target.numel()
        if system.unknowns > self.max_unknowns or needed > self.max_jacobian_bytes:
            raise UnsupportedError(
                f"gauss_newton: expected at most max_unknowns={self.max_unknowns} unknowns and a dense Jacobian of "
                f"max_jacobian_bytes={self.max_jacobian_bytes / 2**30:.1f} GiB, got {system.unknowns} and "
                f"{needed / 2**30:.1f} GiB; use inverting_gradients, or raise the limit"
            )
        runs: list[_Run] = []
        for number in range(self.starts):
            if number > 0 and self.warm_iterations > 0:
                start = self._warm(system, update, knowledge, generator)
            else:
                start = problem.variables.initialize(problem.space, 1, generator)[0]
            run = _Run(system, start, self.damping)
            for step in range(self.max_steps):
                run.step()
                if progress is not None:
                    done = number * self.max_steps + step + 1
                    progress(done, self.starts * self.max_steps, run.loss)
                if run.outcome is not None:
                    break
            runs.append(run)
            if run.at_floor:
                break
        return _claim(system, runs)

    def _warm(self, system: _System, update: Update, knowledge: Knowledge, generator: torch.Generator) -> Tensor:
        """What signed Adam finds from a random start, as unknowns (n,)."""
        problem = system.problem
        adam = replace(InvertingGradients(iterations=self.warm_iterations).compose(), labels=self.labels)
        found = adam._recover(update, knowledge, generator, None)
        system.plain_gradients += found.plain_gradients
        if found.inputs is None or found.targets is None:
            return problem.variables.initialize(problem.space, 1, generator)[0]
        return problem.variables.encode(problem.space, found.inputs, found.targets)


class _System:
    """The whitened residual r(z), its floor, and the cost so far; the same for all starts."""

    def __init__(self, problem: Problem, max_bytes: int) -> None:
        self.problem = problem
        self.max_bytes = max_bytes
        self.low, self.high = problem.variables.bounds(problem.space)
        self.unknowns = int(self.low.numel())
        self.plain_gradients = 0.0
        std = problem.noise_std
        # Entries with less noise weigh more; without noise, or with entries free of it, all weigh the same.
        noisy = std is not None and bool((std > 0).all())
        self.weights: Tensor | None = 1 / std if std is not None and noisy else None
        target = problem.target if self.weights is None else problem.target * self.weights
        self.target = target
        self.scale = float(target.norm())
        free = max(1, problem.target.numel() - self.unknowns)
        statistical = math.sqrt(free * (1 + 4 * math.sqrt(2 / free))) if noisy else 0.0
        self.floor = max(problem.round_off * self.scale, statistical)
        self.tight = not noisy and problem.round_off < 1e-12
        self.measured = False

    def mean(self, flat: Tensor) -> Tensor:
        released = self.problem.mean(flat, self.problem.labels)
        return released if self.weights is None else released * self.weights

    def residual(self, flat: Tensor) -> Tensor:
        """The residual r (P,) at z (n,); one plain gradient."""
        self.plain_gradients += 1
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            return self.mean(flat) - self.target

    def raise_floor(self, flat: Tensor) -> None:
        """Raise the floor to the round-off of the release itself, measured at z (n,); three plain gradients, once.

        A saturated softmax makes the gradient a difference of nearly equal numbers, and its round-off far larger than
        eps. The same release in float32 shows by how much; round-off in float64 is smaller by the ratio of the eps.
        """
        if self.measured or self.weights is not None:
            return
        self.measured = True
        self.plain_gradients += 3
        single, double = torch.float32, torch.float64
        objective = self.problem.objective.to(single)
        low = replace(self.problem, objective=objective, space=replace(self.problem.space, dtype=single))
        labels = self.problem.labels
        if labels is not None and labels.is_floating_point():
            labels = labels.to(single)
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            rounded = low.mean(flat.to(single), labels).to(double)
            exact = self.problem.mean(flat.to(single).to(double), self.problem.labels)
        gap = float((rounded - exact).norm())
        share = torch.finfo(self.problem.update_dtype).eps / torch.finfo(single).eps
        if math.isfinite(gap):
            measured = min(ROUND_OFF_MARGIN * gap * share, MOST_ROUND_OFF * self.scale)
            self.floor = max(self.floor, measured)

    def linearize(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """The residual r (P,) and A (P, n) at z (n,)."""
        self.plain_gradients += 1 + PLAIN_GRADIENTS_PER_COLUMN * self.unknowns
        value, jacobian = dense_jacobian(self.mean, flat, max_bytes=self.max_bytes)
        return value - self.target, jacobian


@dataclass
class _Run:
    """One start. Losses are relative squared residuals."""

    system: _System
    point: Tensor
    damping: float
    growth: float = 2.0
    loss: float = math.inf
    outcome: Outcome | None = None
    at_floor: bool = False
    stationary: bool = False
    steps: int = 0
    rejected: int = 0
    history: list[float] = field(default_factory=list)
    note: str = ""

    def step(self) -> None:
        """Linearize, try dampings until the residual falls, polish at the floor."""
        system = self.system
        residual, jacobian = system.linearize(self.point)
        if not bool(torch.isfinite(residual).all()) or not bool(torch.isfinite(jacobian).all()):
            self._not_finite()
            return
        self.steps += 1
        squared = float(residual.square().sum())
        if not self.history:
            self._record(squared)
        gram, slope = dense_gram(jacobian), jacobian.T @ residual
        diagonal = gram.diagonal().clamp(min=float(gram.diagonal().max()) * 1e-12)
        if not bool(diagonal.max() > 0):
            self.outcome = Outcome.PLATEAU
            self.note = "the derivative of the release is zero at this start (dead units): nothing to follow"
            return
        held = ((self.point <= system.low) & (slope > 0)) | ((self.point >= system.high) & (slope < 0))
        free = (~held).nonzero()[:, 0]
        small = float((slope[free] / diagonal[free].sqrt()).norm()) if len(free) else 0.0
        self.stationary = small <= 1e-9 * math.sqrt(squared)
        if self.stationary:
            self._end(squared, Outcome.PLATEAU)
            return
        factor = self._descend(gram, slope, diagonal, free, squared)
        if factor is not None and self.at_floor and not system.tight:
            self._polish(jacobian, factor, free)
        if self.outcome is None and self._slow():
            system.raise_floor(self.point)
            self.at_floor = self.loss * system.scale**2 <= system.floor**2
            if self.at_floor:
                self.outcome = Outcome.CONVERGED
        if self.outcome is None and self._stalled():
            self._end(self.loss * system.scale**2, Outcome.PLATEAU)
            self.note = self.note or "the residual stopped falling above its floor"

    def _descend(self, gram: Tensor, slope: Tensor, diagonal: Tensor, free: Tensor, squared: float) -> Tensor | None:
        """Raise the damping until a step lowers the residual; the factor of that step."""
        system = self.system
        inner, right, weights = gram[free][:, free], slope[free], diagonal[free]
        for _ in range(40):
            factor, failed = torch.linalg.cholesky_ex(inner + torch.diag(self.damping * weights))
            if not bool(failed):
                move = -torch.cholesky_solve(right[:, None], factor)[:, 0]
                trial = self.point.clone()
                trial[free] = trial[free] + move
                trial = trial.clamp(system.low, system.high)
                taken = (trial - self.point)[free]
                predicted = -float(2 * right @ taken + taken @ (inner @ taken))
                reached = float(system.residual(trial).square().sum())
                if math.isfinite(reached) and reached < squared:
                    gain = (squared - reached) / predicted if predicted > 0 else 0.25
                    self.damping *= max(SHRINK, 1 - (2 * min(gain, 1.0) - 1) ** 3)
                    self.damping, self.growth = max(self.damping, 1e-15), 2.0
                    self.point = trial
                    self._record(reached)
                    settled = reached > 0.9 * squared or system.tight
                    if self.at_floor and (settled or system.weights is None):
                        self.outcome = Outcome.CONVERGED
                    return factor
                if float(taken.abs().max()) <= 1e-13 * float(self.point.abs().max() + 1):
                    break
            self.rejected += 1
            self.damping, self.growth = self.damping * self.growth, self.growth * 2
        self._end(squared, Outcome.PLATEAU)
        return None

    def _polish(self, jacobian: Tensor, factor: Tensor, free: Tensor) -> None:
        """Chord steps: the last factor with fresh residuals, while they help."""
        system = self.system
        best = system.residual(self.point)
        for _ in range(POLISH):
            move = -torch.cholesky_solve((jacobian.T @ best)[free][:, None], factor)[:, 0]
            trial = self.point.clone()
            trial[free] = trial[free] + move
            trial = trial.clamp(system.low, system.high)
            residual = system.residual(trial)
            before, after = float(best.square().sum()), float(residual.square().sum())
            if not after < before:
                return
            self.point, best = trial, residual
            self._record(after)
            if after > 0.8 * before:
                return

    def _slow(self) -> bool:
        """Whether the last step fell far short of the quadratic convergence that a smooth problem has."""
        return len(self.history) > 2 and self.history[-1] > 0.5 * self.history[-2]

    def _stalled(self) -> bool:
        steps, factor = STALL
        return len(self.history) > steps and self.history[-1] > factor * self.history[-1 - steps]

    def _record(self, squared: float) -> None:
        self.loss = squared / self.system.scale**2
        self.history.append(self.loss)
        self.at_floor = squared <= self.system.floor**2

    def _end(self, squared: float, otherwise: Outcome) -> None:
        self.at_floor = squared <= self.system.floor**2
        self.outcome = Outcome.CONVERGED if self.at_floor else otherwise

    def _not_finite(self) -> None:
        self.outcome = Outcome.NOT_FINITE if not self.history else Outcome.PLATEAU
        self.note = "NaN or infinity in the release or its derivative"


def _claim(system: _System, runs: Sequence[_Run]) -> Reconstruction:
    problem = system.problem
    chosen = min(range(len(runs)), key=lambda place: runs[place].loss)
    run = runs[chosen]
    outcome = run.outcome or (Outcome.CONVERGED if run.at_floor else Outcome.BUDGET_SPENT)
    details: dict[str, Any] = {
        **problem.facts(),
        "starts": len(runs),
        "chosen_start": chosen,
        "start_losses": [r.loss if math.isfinite(r.loss) else None for r in runs],
        "at_floor": run.at_floor,
        "floor": (system.floor / system.scale) ** 2,
        "stationary": run.stationary,
        "rejected_steps": run.rejected,
        "unknowns": system.unknowns,
    }
    if not math.isfinite(run.loss):
        return Reconstruction(
            inputs=None,
            targets=None,
            loss=None,
            outcome=Outcome.NOT_FINITE,
            iterations=run.steps,
            plain_gradients=system.plain_gradients,
            note=run.note or "the residual was never finite",
            details=details,
        )
    notes = [problem.note, run.note]
    if runs[0].history and runs[0].history[0] <= (system.floor / system.scale) ** 2:
        # The first start is random: when it fits, the update does not tell inputs apart.
        outcome = Outcome.NOT_IDENTIFIABLE
        notes.append("a random input already explains the update to within its noise or round-off")
    if outcome is not Outcome.CONVERGED and run.stationary:
        notes.append("a stationary point that does not explain the update: a local minimum, or noise not known")
    if outcome is Outcome.CONVERGED and problem.source is LabelSource.OPTIMIZED and problem.space.batch_size > 1:
        notes.append("the order of a batch is not identifiable")
    inputs, targets = problem.variables.decode(problem.space, run.point, problem.labels)
    return Reconstruction(
        inputs=inputs.clone(),
        targets=targets.clone(),
        loss=run.loss,
        outcome=outcome,
        iterations=run.steps,
        plain_gradients=system.plain_gradients,
        history=run.history,
        note="; ".join(note for note in notes if note),
        details={**details, "relative_residual": problem.relative_residual(run.point)},
    )

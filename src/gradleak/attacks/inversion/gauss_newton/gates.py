"""ReLU networks with the gates of uncertain units as unknowns of their own: a residual without jumps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gradleak.attacks.inversion.gauss_newton.residual_system import Cost, ResidualSystem
from gradleak.attacks.inversion.problem import Problem
from gradleak.core import Batch
from gradleak.core.objective import Tensors
from gradleak.operators.kernels import differentiable_kernels

FREE_SHARE = 0.25
"""Share of the units whose gates are free: those nearest to switching."""

SETTLED = 0.05
"""A gate this close to what its unit says may be given back to the unit."""

_PLAIN = frozenset({F.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_})


@dataclass(frozen=True, eq=False)
class _Unit:
    """One call of a rectifier: its input, and its slope where it is shut."""

    before: Tensor
    shut: float

    @property
    def value(self) -> Tensor:
        """Output of the rectifier."""
        return torch.where(self.before > 0, self.before, self.shut * self.before)


def _shut_slope(func: Any, args: Any, kwargs: Any) -> float | None:
    """The slope of a rectifier below zero, None for any other function."""
    if func in _PLAIN:
        return 0.0
    if func is F.leaky_relu:
        slope = kwargs.get("negative_slope", args[1] if len(args) > 1 else 0.01)
        return float(slope)
    return None


class _Recorder(TorchFunctionMode):
    """Keeps what goes into the rectifiers, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.units: list[_Unit] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function; rectifiers never in place."""
        kwargs = kwargs or {}
        shut = _shut_slope(func, args, kwargs)
        if shut is None:
            return func(*args, **kwargs)
        unit = _Unit(args[0] if args else kwargs["input"], shut)
        self.units.append(unit)
        return unit.value


class _Player(TorchFunctionMode):
    """Rectifiers as s·a + (ρ(a₀) − s·a₀), with a₀ from a recorder and given slopes s.

    a and a₀ are the same number, but a₀ is no function of the parameters that are differentiated. So the value is ρ(a),
    the derivative by the parameters has the slope s, and what depends on the input still does so through ρ.
    """

    def __init__(self, units: Sequence[_Unit], gates: Sequence[Tensor]) -> None:
        super().__init__()
        self._units = units
        self._gates = gates
        self._calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function, or the affine stand-in of a rectifier."""
        kwargs = kwargs or {}
        if _shut_slope(func, args, kwargs) is None:
            return func(*args, **kwargs)
        # Whatever evaluates the loss more than once starts over.
        place = self._calls % len(self._units)
        self._calls += 1
        before, unit = args[0] if args else kwargs["input"], self._units[place]
        slope = unit.shut + (1 - unit.shut) * self._gates[place]
        return slope * before + (unit.value - slope * unit.before)


class GateSystem(ResidualSystem):
    """The residual of a ReLU network with the slopes of its most uncertain units as further unknowns.

    The gradient of a ReLU network jumps where a unit switches: its slope (the gate m, 0 or 1) multiplies everything
    that is propagated back through it. Damped steps stop at those jumps. Here g(x, m) is the gradient with the forward
    pass of x and gates m ∈ [0, 1] in the backward pass, smooth in m and continuous in x, and it has the update as its
    value at the true x with the true gates. Both are searched together; the gates then end at 0 or 1 by themselves.

    Units far from switching keep the gate that x gives them. Which gates are free is decided anew before every step:
    those with the smallest |a| relative to the mean |a| of their layer, and those that are not settled yet.

    z holds the plain unknowns first, then the free gates.

    Args:
        problem: in float64, of a release that is a function of the plain gradient.
        max_bytes: memory for a block of derivatives.
        cost: where evaluations are counted.
        most_gates: how many may be free, beyond those that are not settled.
    """

    def __init__(self, problem: Problem, max_bytes: int, cost: Cost, most_gates: int) -> None:
        super().__init__(problem, max_bytes, cost)
        self.plain = self.unknowns
        self.most_gates = most_gates
        self._plain_low, self._plain_high = self.low, self.high
        units = self._units(problem.variables.encode(problem.space, *self._middle()))
        self.sizes = [unit.before.numel() for unit in units]
        self.shapes = [unit.before.shape for unit in units]
        self.free = torch.zeros(sum(self.sizes), dtype=torch.bool, device=problem.space.device)
        self.gates = torch.zeros(sum(self.sizes), dtype=torch.float64, device=problem.space.device)
        self._fresh = True

    @property
    def units(self) -> int:
        """Number of rectified units in the network for the batch."""
        return sum(self.sizes)

    def agrees(self, flat: Tensor) -> bool:
        """True if the network with the gates of its own units releases what it releases: the check of the method."""
        try:
            with torch.no_grad(), differentiable_kernels():
                inputs = flat[: self.plain]
                own = self._open(self._units(inputs))
                ours, theirs = self._released(inputs, own), self.problem.mean(inputs, self.problem.labels)
        except (RuntimeError, IndexError, ValueError):
            return False
        return bool((ours - theirs).norm() <= 1e-9 * theirs.norm())

    def restart(self) -> None:
        """Forget the gates of the start before."""
        self._fresh = True

    def plain_part(self, flat: Tensor) -> Tensor:
        """The plain unknowns, without the gates."""
        return flat[: self.plain]

    def refresh(self, flat: Tensor) -> Tensor:
        """The unknowns with the gates that are free from here on."""
        inputs = flat[: self.plain]
        self.cost.spend(releases=1)
        with torch.no_grad(), differentiable_kernels():
            units = self._units(inputs)
        own = self._open(units)
        gates = own.clone()
        if not self._fresh:
            gates[self.free] = flat[self.plain :]
        margin = torch.cat([(u.before / u.before.abs().mean().clamp(min=1e-300)).reshape(-1) for u in units]).abs()
        free = torch.zeros_like(self.free)
        free[margin.argsort(stable=True)[: self.most_gates]] = True
        if not self._fresh:
            free |= self.free & ((gates - own).abs() > SETTLED)
        self._fresh = False
        self.free, self.gates = free, torch.where(free, gates, own)
        count = int(free.sum())
        self.low = torch.cat([self._plain_low, self._plain_low.new_zeros(count)])
        self.high = torch.cat([self._plain_high, self._plain_high.new_ones(count)])
        return torch.cat([inputs, self.gates[free]])

    def guess(self, flat: Tensor) -> Batch:
        """Inputs and targets; gates are no part of them."""
        return super().guess(self.plain_part(flat))

    def raise_floor(self, flat: Tensor) -> None:
        """By the network without free gates."""
        super().raise_floor(self.plain_part(flat))

    def mean(self, flat: Tensor) -> Tensor:
        """The weighted release with free gates; pure."""
        inputs = flat[: self.plain]
        return self.weighed(self._released(inputs, self._all_gates(flat, self._units(inputs))))

    def loss(self, params: Tensors, flat: Tensor) -> Tensor:
        """The loss whose gradient by the parameters is released, with free gates."""
        inputs = flat[: self.plain]
        units = self._units(inputs)
        gates = self._all_gates(flat, units)
        return self._play(units, gates, lambda: self.problem.objective.loss(params, self.guess(inputs)))

    def _released(self, inputs: Tensor, gates: Tensor) -> Tensor:
        return self._play(self._units(inputs), gates, lambda: self.problem.mean(inputs, self.problem.labels))

    def _play(self, units: Sequence[_Unit], gates: Tensor, compute: Callable[[], Tensor]) -> Tensor:
        parts = [part.reshape(shape) for part, shape in zip(gates.split(self.sizes), self.shapes, strict=True)]
        with _Player(units, parts):
            return compute()

    def _units(self, inputs: Tensor) -> list[_Unit]:
        objective = self.problem.objective
        recorder = _Recorder()
        with recorder:
            # The loss, not the outputs alone: the player meets its calls too.
            objective.loss(objective.params, self.guess(inputs))
        return recorder.units

    def _all_gates(self, flat: Tensor, units: Sequence[_Unit]) -> Tensor:
        own = self._open(units)
        places = self.free.nonzero()[:, 0]
        return own.index_put((places,), flat[self.plain :])

    @staticmethod
    def _open(units: Sequence[_Unit]) -> Tensor:
        return torch.cat([(unit.before > 0).to(unit.before.dtype).reshape(-1) for unit in units])

    def _middle(self) -> tuple[Tensor, Tensor]:
        """A guess in the middle of the range: what the network calls does not depend on it."""
        space = self.problem.space
        like = torch.zeros((), dtype=space.dtype, device=space.device)
        low, high = space.domain.bounds(like)
        inputs = ((low + high) / 2).expand(space.domain.shape).expand(space.batch_size, *space.domain.shape)
        if self.problem.labels is not None:
            return inputs, self.problem.labels
        classes = space.classes or 1
        return inputs, torch.full((space.batch_size, classes), 1 / classes, dtype=space.dtype, device=space.device)


def gate_system(problem: Problem, max_bytes: int, cost: Cost, most_unknowns: int) -> GateSystem | None:
    """The system with gates, or None where there is nothing to gain or it does not apply.

    It needs rectifiers (ReLU or leaky ReLU) in the network, a release that is a function of the plain gradient at the
    shared parameters (no local steps, no defense of single examples), and a network that calls its rectifiers in the
    same order each time; whether it does is checked by comparing releases.

    Args:
        problem: in float64.
        max_bytes: memory for a block of derivatives.
        cost: where evaluations are counted.
        most_unknowns: of inputs, labels and gates together.
    """
    entries = problem.target.numel()
    plain = int(problem.variables.bounds(problem.space)[0].numel())
    # More unknowns than entries fit anything.
    room = min(most_unknowns, entries) - plain
    if problem.after_gradient is None or room < 1:
        return None
    try:
        system = GateSystem(problem, max_bytes, cost, 0)
    except (RuntimeError, NotImplementedError):
        return None
    if system.units == 0:
        return None
    system.most_gates = min(room, max(1, round(FREE_SHARE * system.units)))
    middle = problem.variables.encode(problem.space, *system._middle())
    cost.spend(releases=2)
    return system if system.agrees(middle) else None

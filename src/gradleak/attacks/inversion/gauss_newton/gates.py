"""Gates of ReLU networks at a solution, and the directions that the update does not show."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gradleak.attacks.inversion.gauss_newton.krylov_steps import KrylovModel
from gradleak.attacks.inversion.gauss_newton.local_model import LocalModel
from gradleak.attacks.inversion.gauss_newton.residual_system import Cost, ResidualSystem
from gradleak.attacks.inversion.problem import Problem
from gradleak.attacks.inversion.reading import LabelSource
from gradleak.core import Batch
from gradleak.core.objective import Tensors
from gradleak.linalg import dense_eigenvalues
from gradleak.operators.kernels import differentiable_kernels
from gradleak.results import Outcome

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

    keeps_form: ClassVar[bool] = False

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
        assert space.targets is not None
        return inputs, space.targets.middle(space.batch_size, like)


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


MOST_ALLOWED_RMSE = 0.05
"""Inputs that differ by more than this pixel RMSE and explain an update alike are other inputs."""

UNIFORM_VARIANCE = 12.0
"""One over the variance of a uniform number in [0, 1]."""

PROBES = 4
"""Random directions in which a null space without a matrix is looked for."""

PROBE_ITERATIONS = 200
"""Conjugate gradients for each of them."""

POWER_STEPS = 12
"""Products for the largest eigenvalue, which only sets the size of round-off."""


@dataclass(frozen=True, kw_only=True)
class Identifiability:
    """Number of directions of the input that the update leaves open, at the point where it is explained.

    Attributes:
        null_dimension: the number of directions that are not determined; a lower estimate where `resolved` is False.
        free: of so many entries strictly inside their range.
        threshold: eigenvalues of AᵀA up to it, relative to the largest, count as zero; None where none was computed.
        resolved: whether the whole spectrum was looked at.
        smallest: the smallest eigenvalue relative to the largest, or None.
        allowed_rmse: the pixel RMSE, to first order at the claim, by which an input may differ along the weakest
            direction and still explain the update to its floor, ‖floor‖/√(λmin · n); None where the spectrum was not
            looked at.
    """

    null_dimension: int
    free: int
    threshold: float | None
    resolved: bool
    smallest: float | None = None
    allowed_rmse: float | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """JSON-ready facts for the claim."""
        return {
            "null_dimension": self.null_dimension,
            "null_threshold": self.threshold,
            "smallest_eigenvalue": self.smallest,
            "rank_resolved": self.resolved,
            "allowed_rmse": self.allowed_rmse,
        }

    @property
    def open_rmse(self) -> float:
        """The pixel RMSE that the open directions alone allow, where what they hold is uniform over the range."""
        return math.sqrt(self.null_dimension / (UNIFORM_VARIANCE * max(1, self.free)))


def identifiability(
    system: ResidualSystem, model: LocalModel, point: Tensor, generator: torch.Generator
) -> Identifiability:
    """The null space of AᵀA over the input entries that are strictly inside their range.

    With every entry in units of its valid range, a direction counts as open where its eigenvalue λ is at most

        max(n · eps · λmax, 12 s²),

    the first term what rounding of the matrix leaves, the second where an error s of an entry of the update (that of
    the noise, or of round-off) leaves a direction less well known than the range itself does: 1/λ · s² ≥ 1/12, the
    variance of a uniform number. Unknown labels are eliminated first (Schur complement), so that what they hide
    counts, and the shift that a softmax does not see does not.

    Entries at the box are left out: the box may determine them. Without a matrix (Krylov steps) the number is the trace
    of τ(AᵀA + τ)⁻¹, τ the threshold, from a few random directions by conjugate gradients, which only ever underestimate
    it: `resolved` says whether they came to an end.

    **Cost**: the eigenvalues of an n × n matrix, 4n³/3 multiplications; or 800 products with AᵀA at most.
    """
    inside = (point > system.low) & (point < system.high)
    inside[system.inputs :] = False
    free = int(inside.sum())
    if free == 0:
        return Identifiability(null_dimension=0, free=0, threshold=None, resolved=True)
    spans = system.spans
    floor = UNIFORM_VARIANCE * system.entry_std**2
    gram = model.gram()
    if gram is None:
        return _by_probes(system, model, inside, spans, floor, generator)
    places = inside.nonzero()[:, 0]
    scales = spans[places]
    information = gram[places][:, places] * scales[:, None] * scales
    labels = torch.arange(system.inputs, len(point), device=point.device)
    if len(labels):
        beside = gram[labels][:, places] * scales
        own = gram[labels][:, labels]
        ridge = max(floor, float(own.diagonal().max()) * len(own) * torch.finfo(own.dtype).eps, 1e-300)
        own = own + ridge * torch.eye(len(own), dtype=own.dtype, device=own.device)
        information = information - beside.T @ torch.linalg.solve(own, beside)
    values = dense_eigenvalues((information + information.T) / 2)
    largest = float(values[-1])
    if not largest > 0:
        return Identifiability(null_dimension=free, free=free, threshold=None, resolved=True)
    threshold = max(free * torch.finfo(values.dtype).eps * largest, floor)
    return Identifiability(
        null_dimension=int((values <= threshold).sum()),
        free=free,
        threshold=threshold / largest,
        resolved=True,
        smallest=float(values[0]) / largest,
        allowed_rmse=system.floor / math.sqrt(max(float(values[0]), threshold) * free),
    )


def judged(found: Identifiability, noisy: bool) -> tuple[Outcome, str]:
    """Outcome of a residual at the floor, and a note."""
    if found.null_dimension > 0:
        least = "" if found.resolved else "at least "
        return Outcome.NOT_IDENTIFIABLE, (
            f"the update is explained, but {least}{found.null_dimension} of {found.free} directions of the input are "
            f"not determined by it; they alone allow a pixel RMSE of {found.open_rmse:.2g}"
        )
    if found.allowed_rmse is not None and found.allowed_rmse > MOST_ALLOWED_RMSE and not noisy:
        return Outcome.NOT_IDENTIFIABLE, (
            "the update is explained, but along the weakest direction inputs that differ by a pixel RMSE of "
            f"{found.allowed_rmse:.2g} explain it to its round-off as well"
        )
    if not found.resolved:
        return Outcome.BUDGET_SPENT, (
            "the update is explained; whether other inputs nearby explain it as well was not resolved without a matrix"
        )
    return Outcome.CONVERGED, ""


def order_note(problem: Problem) -> str:
    """Note on the order of a batch that the update does not tell; "" where the release depends on it."""
    size = problem.space.batch_size
    batches = problem.release.protocol.mini_batch_weights(size)
    if size == 1 or (batches is not None and len(batches) > 1):
        return ""
    if problem.source is not LabelSource.DISCLOSED or problem.labels is None:
        return "the order of a batch is not identifiable"
    if len(problem.labels.unique(dim=0)) < size:
        return "the order of examples with the same label is not identifiable"
    return ""


def _largest(model: KrylovModel, scale: Tensor, generator: torch.Generator) -> float:
    """The largest eigenvalue of S AᵀA S, S a diagonal scale (n,), to some per cent: the power method."""
    vector = scale * torch.randn(scale.numel(), generator=generator, device=generator.device, dtype=scale.dtype)
    largest = 0.0
    for _ in range(POWER_STEPS):
        norm = float(vector.norm())
        if not norm > 0:
            return 0.0
        image = scale * model.curvature(scale * vector / norm)
        largest, vector = float(image.norm()), image
    return largest


def _by_probes(
    system: ResidualSystem,
    model: LocalModel,
    inside: Tensor,
    spans: Tensor,
    floor: float,
    generator: torch.Generator,
) -> Identifiability:
    free = int(inside.sum())
    # Counting alone: more unknowns than entries that are not zero.
    counted = max(0, free - int(system.live_rows.sum()))
    if not isinstance(model, KrylovModel):
        return Identifiability(null_dimension=counted, free=free, threshold=None, resolved=False)
    scale = torch.ones_like(model.weights)
    scale[: system.inputs] = spans
    largest = _largest(model, scale * inside, generator)
    threshold = max(free * torch.finfo(scale.dtype).eps * largest, floor)
    found, resolved = 0.0, True
    for _ in range(PROBES):
        signs = torch.randint(0, 2, (free,), generator=generator, device=generator.device) * 2 - 1
        probe = signs.to(scale)
        solution = model.shifted(probe, threshold, scale, inside, PROBE_ITERATIONS, 1e-3)
        resolved &= solution.residual <= 2e-3
        found += threshold * float(probe @ solution.solution) / PROBES
    return Identifiability(
        null_dimension=max(counted, round(found)),
        free=free,
        threshold=threshold / largest if largest > 0 else None,
        resolved=resolved,
    )

"""A network taken apart from its head down: every layer's input from linear equations, with what it may be off."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gradleak.attacks.inversion.peel.activations import Activation
from gradleak.attacks.inversion.peel.network import Stage
from gradleak.attacks.inversion.peel.systems import (
    Equations,
    Estimate,
    Solution,
    System,
    output_equations,
    weight_equations,
)
from gradleak.results import UnsupportedError

# A unit is taken for active from so many standard deviations on, and in doubt from so many on; equations of outputs are asked
# too beyond such a condition.
SIGMAS, _DOUBT, _CONDITION = 5.0, 0.5, 1e6
# Round-off of an entry that was computed, not only rounded, in units beside the root mean square of its tensor.
_UNITS = 8.0
# Distance that noise and round-off leave: beside the noise's own, and in units of round-off.
_SLACK, _ROUND_OFF, _MOST_ROUND_OFF, _HALF_ROUND_OFF = 2.0, 64.0, 1e-2, 4.0
# Rounds of repairs of a layer's gates, and how much of the squares in variances one gate has to explain.
_REPAIRS, _CLEAR = 8, 9.0
INACTIVE = "no unit behind {} is active: nothing below it has a gradient"


@dataclass(frozen=True, kw_only=True)
class Shared:
    """An update by parameter name, and what its entries are off.

    Attributes:
        gradients: float64, at the scale of the plain gradient.
        stds: of the known noise by name; 0 without.
        eps: unit of round-off of the format in which the update came.
    """

    gradients: Mapping[str, Tensor]
    stds: Mapping[str, float]
    eps: float

    @property
    def noisy(self) -> bool:
        """True under known noise."""
        return any(std > 0 for std in self.stds.values())

    def std(self, name: str, relative: float = 0.0) -> float:
        """Error that an entry of this gradient may have, where what multiplies the unknown is off by a relative error."""
        size = float(self.gradients[name].square().mean().sqrt())
        if size == 0:
            # Of zeros alone nothing tells the round-off: that of the others.
            size = max(float(other.square().mean().sqrt()) for other in self.gradients.values())
        return max(math.hypot(self.stds.get(name, 0.0), math.hypot(_UNITS * self.eps, relative) * size), 1e-300)

    def distance(self, made: Mapping[str, Tensor]) -> float:
        """Distance of gradients by name from these, over the names that both have.

        Args:
            made: of a claim.
        """
        return math.sqrt(sum(float((made[name] - self.gradients[name]).square().sum()) for name in self._both(made)))

    def floor(self, made: Mapping[str, Tensor]) -> float:
        """Largest such distance that round-off or known noise accounts for.

        Estimates of one layer after the other leave more than noise alone, which a joint one would not: up to twice as much.
        In half formats 64 units of round-off would be a part of the update itself: there it is a hundredth, or 4 units.

        Args:
            made: of a claim.
        """
        names = self._both(made)
        entries = sum(self.gradients[name].numel() for name in names)
        square = sum(self.gradients[name].numel() * self.stds.get(name, 0.0) ** 2 for name in names)
        rounded = min(_ROUND_OFF * self.eps, max(_MOST_ROUND_OFF, _HALF_ROUND_OFF * self.eps)) * self.norm
        return _SLACK * math.sqrt(square * (1 + 4 * math.sqrt(2 / max(entries, 1)))) + rounded

    def _both(self, made: Mapping[str, Tensor]) -> list[str]:
        return [name for name in self.gradients if name in made]

    @property
    def norm(self) -> float:
        """Norm of the update."""
        return math.sqrt(sum(float(tensor.square().sum()) for tensor in self.gradients.values()))


@dataclass(frozen=True, kw_only=True, eq=False)
class Peeled:
    """Input of the first layer, or where the way to it ends.

    Attributes:
        solution: for the first stage, in pixels scaled to [0, 1] if it was reached; None otherwise.
        system: its equations.
        inactive: rows and offsets of units of the first stage that are not active: rows x ≤ offsets.
        layers: JSON-ready facts of each layer, the last one first.
        stopped: why the way ended, or empty.
    """

    solution: Solution | None = None
    system: System | None = None
    inactive: Equations | None = None
    layers: list[dict[str, Any]] = field(default_factory=list)
    stopped: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Behind:
    """Knowledge behind a layer, at the input of its activation.

    Attributes:
        known: inputs of the activation.
        told: mask of those that are known.
        gradient: with respect to them, for the gates that are taken.
        whole: the same, were every gate open.
        doubtful: mask of units whose gate is a guess.
    """

    known: Estimate
    told: Tensor
    gradient: Tensor
    whole: Tensor
    doubtful: Tensor

    def flipped(self, units: Tensor) -> Behind:
        """The other guess for units of this mask."""
        closed = self.gradient == 0
        return replace(self, gradient=torch.where(units, torch.where(closed, self.whole, 0.0), self.gradient))


def undetermined(name: str, solution: Solution) -> str:
    """Reason to stop at a layer whose input has open directions."""
    lacking = len(solution.values) - solution.rank
    return (
        f"the input of {name} is not determined: {solution.rows} equations leave {lacking} of {len(solution.values)} directions "
        "open, and what lies below it stays hidden"
    )


def peel(stages: Sequence[Stage], shared: Shared, delta: Tensor, relative: float, *, max_unknowns: int) -> Peeled:
    """The example behind the gradient of one, layer by layer.

    Args:
        stages: of the network, the first one's scale and shift from pixels in [0, 1].
        shared: the update.
        delta: gradient at the output of the last layer.
        relative: how far it is off, relative to its norm.
        max_unknowns: largest layer whose equations of outputs are written as a matrix.

    **Cost**: no gradient. A layer of n unknowns takes an eigendecomposition (n, n) where outputs are needed, once more for
    each round of repairs under noise.
    """
    behind: Behind | None = None
    layers: list[dict[str, Any]] = []
    for number in range(len(stages) - 1, -1, -1):
        layer = _Layer(stages[number], shared, relative, max_unknowns, first=number == 0)
        solved = layer.input(delta, behind)
        if isinstance(solved, str):
            return Peeled(layers=layers, stopped=solved)
        if behind is not None:
            solved, behind, repaired = layer.repaired(solved, behind)
            delta = layer.stage.back(behind.gradient)
        else:
            repaired = 0
        solution, system, inactive = solved
        layers.append(facts(layer.stage.weight, solution, behind, repaired))
        if number == 0:
            return Peeled(solution=solution, system=system, inactive=inactive, layers=layers)
        below = stages[number - 1]
        if not bool(torch.isfinite(solution.stds).all()):
            return Peeled(layers=layers, stopped=undetermined(layer.stage.weight, solution))
        behind = through(below.activation, layer.outputs(solution), layer.stage.below(delta))
        if not bool(behind.gradient.any()):
            return Peeled(layers=layers, stopped=INACTIVE.format(below.weight))
        delta = below.back(behind.gradient)
    raise AssertionError("a network has a first layer")


def looked_at(stages: Sequence[Stage], shared: Shared, delta: Tensor, example: Tensor, *, max_unknowns: int) -> Peeled:
    """The equations of every layer at an example that is known, its own values in place of what was solved above.

    No layer ends the way: what one lacks is seen apart from what others lack.

    Args:
        stages: of the network, the first one's scale and shift from pixels in [0, 1].
        shared: the example's gradient.
        delta: gradient at the output of the last layer.
        example: pixels in [0, 1] (*shape).
        max_unknowns: as for `peel`.

    Returns:
        The facts of the layers; where no unit of a layer is active they end there, and `stopped` says it.

    Raises:
        UnsupportedError: for a layer whose equations are too large, or that is not shared.

    **Cost**: no gradient; as `peel`.
    """
    given = [example]
    for stage in stages[:-1]:
        made = stage.output((given[-1].reshape(stage.shape) * stage.scale + stage.shift)[None])[0]
        given.append(made if stage.activation is None else stage.activation.value(made))
    behind: Behind | None = None
    layers: list[dict[str, Any]] = []
    for number in range(len(stages) - 1, -1, -1):
        layer = _Layer(stages[number], shared, 0.0, max_unknowns, first=number == 0)
        solved = layer.input(delta, behind)
        if isinstance(solved, str):
            raise UnsupportedError(solved)
        layers.append(facts(layer.stage.weight, solved[0], behind, 0))
        if number == 0:
            break
        values = given[number]
        rounded = torch.full_like(values, _UNITS * shared.eps * float(values.square().mean().sqrt()))
        behind = through(stages[number - 1].activation, Estimate(values=values, stds=rounded), layer.stage.below(delta))
        if not bool(behind.gradient.any()):
            return Peeled(layers=layers, stopped=INACTIVE.format(stages[number - 1].weight))
        delta = stages[number - 1].back(behind.gradient)
    return Peeled(layers=layers)


def through(bend: Activation | None, outputs: Estimate, delta: Tensor) -> Behind:
    """From the output of an activation to its input."""
    if bend is None:
        everywhere = torch.ones_like(outputs.values, dtype=torch.bool)
        return Behind(known=outputs, told=everywhere, gradient=delta, whole=delta, doubtful=~everywhere)
    told = bend.above(outputs.values, outputs.stds, SIGMAS)
    doubtful = bend.above(outputs.values, outputs.stds, _DOUBT) & ~told
    slope = bend.slope(outputs.values)
    values = torch.where(told, bend.inverse(outputs.values), 0.0)
    steep = slope.abs() > 0
    stds = torch.where(steep, outputs.stds / slope.abs().clamp(min=1e-300), math.inf)
    return Behind(
        known=Estimate(values=values, stds=stds),
        told=told & steep & torch.isfinite(values),
        gradient=torch.where(told, delta * slope, 0.0),
        whole=delta * slope,
        doubtful=doubtful,
    )


_Solved = tuple[Solution, System, Equations | None]


class _Layer:
    """One layer, whose input is solved for."""

    def __init__(self, stage: Stage, shared: Shared, relative: float, max_unknowns: int, *, first: bool) -> None:
        self.stage = stage
        self.shared = shared
        self.max_unknowns = max_unknowns
        self.first = first
        self.size = int(torch.Size(stage.shape).numel())
        self.gradient = shared.gradients.get(stage.weight)
        self.std = 1.0 if self.gradient is None else shared.std(stage.weight, relative)
        # A pixel RMSE of 0.1 is clearly recognizable; of what lies within, directions are open beyond their own size.
        self.most_open = 0.1 if first else None

    def outputs(self, solution: Solution) -> Estimate:
        """Output of the activation below, which the solution is the input of."""
        stage = self.stage
        values = (solution.values.reshape(stage.shape) - stage.shift) / stage.scale
        stds = solution.stds.reshape(stage.shape) / stage.scale.abs()
        return Estimate(values=values.reshape(stage.given), stds=stds.reshape(stage.given))

    def input(self, delta: Tensor, behind: Behind | None) -> _Solved | str:
        """The input for a gradient at the layer's output, or why it cannot be had."""
        stage, size = self.stage, self.size
        weights: list[Equations] = []
        if self.gradient is not None:
            weights = weight_equations(stage.layer, stage.shape, delta, self.gradient, self.std)
        if self.first:
            weights = in_pixels(weights, stage)
        alone = System(weights=weights, outputs=None)
        if weights and (behind is None or not self.shared.noisy or size > self.max_unknowns):
            solution = alone.solve(size, self.most_open)
            if behind is None or (solution.rank == size and solution.condition < _CONDITION):
                return solution, alone, None
        if behind is None:
            return f"the gradient of {stage.weight} is not shared"
        if size > self.max_unknowns:
            return (
                f"the gradient of {stage.weight} does not determine its input, and its {size} entries are more than "
                f"max_unknowns={self.max_unknowns} for a matrix of what lies above"
            )
        known = behind.known
        if not self.shared.noisy and bool(behind.told.any()):
            typical = known.stds[behind.told].square().mean().sqrt().clamp(min=1e-300)
            known = Estimate(values=known.values, stds=torch.full_like(known.stds, float(typical)))
        told, closed = output_equations(stage, known, behind.told)
        # Units in doubt may be on either side.
        closed = closed.part(~behind.doubtful.reshape(-1)[~behind.told.reshape(-1)])
        if self.first:
            told, closed = (_outputs_in_pixels(part, stage) for part in (told, closed))
        system = System(weights=weights, outputs=told)
        return system.solve(size, self.most_open), system, closed

    def repaired(self, solved: _Solved, behind: Behind) -> tuple[_Solved, Behind, int]:
        """The same after gates in doubt were turned where the weight's gradient says so, and their number.

        A wrong gate leaves δ · patch of the input in the gradient of its filter alone: what turning it would change of the
        residual tells it.
        """
        count = 0
        for _ in range(_REPAIRS):
            units = self._wrong(solved[0], behind)
            if units is None:
                break
            tried = behind.flipped(units)
            again = self.input(self.stage.back(tried.gradient), tried)
            if isinstance(again, str) or not again[0].misfit < solved[0].misfit:
                break
            solved, behind = again, tried
            count += int(units.sum())
        return solved, behind, count

    def _wrong(self, solution: Solution, behind: Behind) -> Tensor | None:
        """Mask of gates in doubt whose other side explains the gradient of the weight better, or None."""
        places = behind.doubtful.reshape(-1).nonzero()[:, 0]
        if self.gradient is None or not len(places):
            return None
        stage = self.stage
        value = solution.values.reshape(stage.shape)
        if self.first:
            value = value * stage.scale + stage.shift
        missed = self.gradient - stage.weight_gradient(value, stage.back(behind.gradient))
        least = _CLEAR * self.std**2
        gains = []
        for place in places.tolist():
            unit = torch.zeros(behind.doubtful.numel(), dtype=torch.bool, device=places.device)
            unit[place] = True
            turned = behind.flipped(unit.reshape(behind.doubtful.shape)).gradient - behind.gradient
            change = stage.weight_gradient(value, stage.back(turned))
            gains.append(float(2 * (missed * change).sum() - change.square().sum()))
        better = [place for place, gain in zip(places.tolist(), gains, strict=True) if gain > least]
        if not better:
            return None
        mask = torch.zeros(behind.doubtful.numel(), dtype=torch.bool, device=places.device)
        # Gains were measured one by one: the largest at once.
        best = max(gains)
        for place, gain in zip(places.tolist(), gains, strict=True):
            mask[place] = gain > max(least, best / 2)
        return mask.reshape(behind.doubtful.shape)


def in_pixels(weights: list[Equations], stage: Stage) -> list[Equations]:
    """Equations for x = scale · pixel + shift as equations for pixels; scale and shift are alike within a channel's pixels."""
    scale, shift = stage.scale.reshape(-1), stage.shift.reshape(-1)
    turned, place = [], 0
    for part in weights:
        pixels, channels = part.matrix.shape[1], part.right.shape[1]
        for channel in range(channels):
            span = slice(place, place + pixels)
            right = part.right[:, channel] - part.matrix @ shift[span]
            turned.append(Equations(matrix=part.matrix * scale[span], right=right[:, None]))
            place += pixels
    return turned


def _outputs_in_pixels(part: Equations, stage: Stage) -> Equations:
    scale, shift = stage.scale.reshape(-1), stage.shift.reshape(-1)
    return Equations(matrix=part.matrix * scale, right=part.right - (part.matrix @ shift)[:, None])


def facts(name: str, solution: Solution, behind: Behind | None, repaired: int) -> dict[str, Any]:
    """JSON-ready facts of a solved input: of the layer of this name, with the units behind it and how many were turned."""
    active = None if behind is None else float((behind.gradient != 0).double().mean())
    return {
        "layer": name,
        "unknowns": len(solution.values),
        "equations": solution.rows,
        "rank": solution.rank,
        "null": len(solution.values) - solution.rank,
        "condition": solution.condition if math.isfinite(solution.condition) else None,
        "misfit": solution.misfit,
        "active": active,
        "doubtful": 0 if behind is None else int(behind.doubtful.sum()),
        "turned": repaired,
    }

"""Two examples behind one gradient: the head's inputs as the rays of a cone, then both, layer by layer, in one system."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradleak.attacks.inversion.peel.network import Chain, Stage
from gradleak.attacks.inversion.peel.peeling import (
    INACTIVE,
    Behind,
    Peeled,
    Shared,
    facts,
    in_pixels,
    through,
    undetermined,
)
from gradleak.attacks.inversion.peel.systems import (
    Equations,
    Estimate,
    Solution,
    System,
    output_equations,
    weight_equations,
)

PAIR = 2
# Directions that are alike, a third singular value that is round-off, both relative and in units of it; units that a ray needs.
_UNITS, _ALIKE, _WITNESSES = 1e3, 1e-9, 2
# Width of an edge of the cone, beside that; condition from which on outputs are asked too.
_EDGE, _CONDITION = 100.0, 1e6


def read_pair(chain: Chain, shared: Shared) -> Tensor | str:
    """Gradients of two examples at the output of the head (2, *made), or why they cannot be had.

    ∂L/∂W = Σ δᵢ hᵢᵀ with hᵢ ≥ 0 behind a ReLU: its columns lie in the cone of δ₁ and δ₂, and a unit that is active for one
    example alone has a column along that example's δ. Where each example has several such units, their columns are alike, and
    the cone's two edges: then the directions of δ₁ and δ₂ are there, and their sizes from ∂L/∂b = δ₁ + δ₂.

    Args:
        chain: the network.
        shared: the update.
    """
    head = chain.stages[-1]
    weight, bias = shared.gradients.get(head.weight), shared.gradients.get(head.bias or "")
    if weight is None or bias is None:
        return "the gradients of the last layer's weight and bias are not both shared"
    if len(head.made) != 1 or len(chain.stages) < 2:
        return f"two examples are told apart behind a hidden layer, by a last layer of one position, got {head.made}"
    bend = chain.stages[-2].activation
    if bend is None or bend.flat_below != 0.0:
        return "two examples are told apart by units of a ReLU that are off for one of them, and none is before the last layer"
    left, sizes, right = torch.linalg.svd(weight, full_matrices=False)
    alike = max(_ALIKE, _UNITS * shared.eps)
    if shared.noisy:
        return "under noise no unit says that it is off for one of two examples"
    if len(sizes) < PAIR or float(sizes[1]) <= alike * float(sizes[0]):
        return (
            "the gradient of the last layer's weight has rank one: the two examples have gradients along one direction"
        )
    if len(sizes) > PAIR and float(sizes[PAIR]) > alike * float(sizes[0]):
        return "the gradient of the last layer's weight has a rank above two: these are not two examples"
    columns = (sizes[:PAIR, None] * right[:PAIR]).T
    long = columns.norm(dim=1)
    units = columns[long > 1e-4 * long.max()]
    middle = (units / units.norm(dim=1, keepdim=True)).mean(dim=0)
    along, across = units @ middle, units @ torch.stack([-middle[1], middle[0]])
    if bool((along <= 0).any()):
        return "the columns of the last layer's gradient lie in no cone"
    angles = torch.atan2(across, along)
    edges = []
    for side in (-1.0, 1.0):
        near = (side * angles).max() - side * angles
        same = near < _EDGE * alike
        if int(same.sum()) < _WITNESSES:
            return "too few units are active for one of the two examples alone: the rays of the last layer's cone are ambiguous"
        edges.append(units[same].sum(dim=0))
    rays = left[:, :PAIR] @ torch.stack([edge / edge.norm() for edge in edges], dim=1)
    scales = torch.linalg.lstsq(rays, bias[:, None]).solution[:, 0]
    if float((rays @ scales - bias).norm()) > math.sqrt(alike) * float(bias.norm()) or not bool((scales > 0).all()):
        return "the gradient of the last layer's bias is not a sum of the two rays"
    deltas: Tensor = (rays * scales).T
    return deltas


def peel_pair(stages: Sequence[Stage], shared: Shared, deltas: Tensor, *, max_unknowns: int) -> Peeled:
    """Both examples, layer by layer; arguments as of `peel`, with gradients (2, *made) at the head's output.

    Unknowns of a layer are (channels, 2, positions): the gradient of a weight is a sum over positions of both.

    **Cost**: an eigendecomposition of a matrix of twice the size that one example takes.
    """
    behind: list[Behind] = []
    layers: list[dict[str, Any]] = []
    gradients = list(deltas)
    for number in range(len(stages) - 1, -1, -1):
        stage, first = stages[number], number == 0
        solved = _input(stage, shared, gradients, behind, max_unknowns, first=first)
        if isinstance(solved, str):
            return Peeled(layers=layers, stopped=solved)
        solution, system, inactive = solved
        layers.append(_facts(stage, solution, behind))
        if first:
            return Peeled(solution=solution, system=system, inactive=inactive, layers=layers)
        if not bool(torch.isfinite(solution.stds).all()):
            return Peeled(layers=layers, stopped=undetermined(stage.weight, solution))
        below = stages[number - 1]
        behind = []
        for one in range(PAIR):
            values, stds = (_of(part, stage, one) for part in (solution.values, solution.stds))
            known = Estimate(
                values=((values - stage.shift) / stage.scale).reshape(stage.given),
                stds=(stds / stage.scale.abs()).reshape(stage.given),
            )
            behind.append(through(below.activation, known, stage.below(gradients[one])))
            if not bool(behind[one].gradient.any()):
                return Peeled(layers=layers, stopped=INACTIVE.format(below.weight))
        gradients = [below.back(one.gradient) for one in behind]
    raise AssertionError("a network has a first layer")


def _input(
    stage: Stage, shared: Shared, gradients: Sequence[Tensor], behind: Sequence[Behind], most: int, *, first: bool
) -> tuple[Solution, System, Equations | None] | str:
    gradient = shared.gradients.get(stage.weight)
    if gradient is None:
        return f"the gradient of {stage.weight} is not shared"
    size, most_open = PAIR * math.prod(stage.shape), 0.1 if first else None
    apart = [weight_rows(stage, one, gradient, shared.std(stage.weight)) for one in gradients]
    weights = [
        Equations(matrix=torch.cat([part.matrix for part in parts], dim=1), right=parts[0].right)
        for parts in zip(*apart, strict=True)
    ]
    if first:
        scale, shift = (_both(part, stage) for part in (stage.scale, stage.shift))
        weights = in_pixels(weights, replace(stage, scale=scale, shift=shift))
    alone = System(weights=weights, outputs=None)
    solution = alone.solve(size, most_open)
    if not behind or (solution.rank == size and solution.condition < _CONDITION):
        return solution, alone, None
    if size > most:
        return (
            f"the gradient of {stage.weight} does not determine its inputs, and their {size} entries are more than "
            f"max_unknowns={most} for a matrix of what lies above"
        )
    told, closed = zip(*(_outputs(stage, one, place, first=first) for place, one in enumerate(behind)), strict=True)
    system = System(weights=weights, outputs=_stacked(told))
    return system.solve(size, most_open), system, _stacked(closed)


def weight_rows(stage: Stage, delta: Tensor, gradient: Tensor, std: float) -> list[Equations]:
    """Equations that a weight's gradient is of the inputs, of which one example has this gradient at the layer's output.

    As `weight_equations`, for a linear layer with all rows apart: with two examples they are no multiples of each other.

    Args:
        stage: the layer.
        delta: gradient at its output.
        gradient: of its weight.
        std: of each entry.
    """
    if isinstance(stage.layer, torch.nn.Linear):
        return [Equations(matrix=delta.reshape(-1, 1) / std, right=gradient / std)]
    return weight_equations(stage.layer, stage.shape, delta, gradient, std)


def _outputs(stage: Stage, behind: Behind, place: int, *, first: bool) -> tuple[Equations, Equations]:
    """Equations of one example's known outputs among the unknowns of both, and rows of its units that are off."""
    typical = behind.known.stds[behind.told].square().mean().sqrt().clamp(min=1e-300)
    known = Estimate(values=behind.known.values, stds=torch.full_like(behind.known.stds, float(typical)))
    told, closed = output_equations(stage, known, behind.told)
    found = []
    for part in (told, closed):
        matrix, right = part.matrix, part.right
        if first:
            right = right - (matrix @ stage.shift.reshape(-1))[:, None]
            matrix = matrix * stage.scale.reshape(-1)
        rows = matrix.reshape(len(matrix), stage.shape[0], 1, -1)
        wide = rows.new_zeros(len(matrix), stage.shape[0], PAIR, rows.shape[-1])
        wide[:, :, place] = rows[:, :, 0]
        found.append(Equations(matrix=wide.reshape(len(matrix), -1), right=right))
    return found[0], found[1]


def _both(part: Tensor, stage: Stage) -> Tensor:
    """A number an entry of one example for the unknowns of both."""
    rows = part.reshape(stage.shape[0], 1, -1)
    return rows.expand(-1, PAIR, -1)


def _of(part: Tensor, stage: Stage, one: int) -> Tensor:
    """One example's share of the unknowns."""
    return part.reshape(stage.shape[0], PAIR, -1)[:, one].reshape(stage.shape)


def _stacked(parts: Sequence[Equations]) -> Equations:
    return Equations(matrix=torch.cat([part.matrix for part in parts]), right=torch.cat([part.right for part in parts]))


def _facts(stage: Stage, solution: Solution, behind: Sequence[Behind]) -> dict[str, Any]:
    told = facts(stage.weight, solution, None, 0)
    active = [float((one.gradient != 0).double().mean()) for one in behind]
    doubtful = sum(int(one.doubtful.sum()) for one in behind)
    return told | {"active": sum(active) / len(active) if active else None, "doubtful": doubtful}

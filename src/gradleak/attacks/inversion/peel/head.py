"""The gradient at the output of the last layer: that of its bias, or what a weight's gradient and the loss leave."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
import torch
from torch import Tensor, nn

from gradleak.attacks.inversion.peel.network import Chain
from gradleak.attacks.inversion.peel.peeling import Shared
from gradleak.core import Objective
from gradleak.results import InputError, UnsupportedError

# Sizes of a head's input that are looked at, beside the one at which outputs are about 1.
_SIZES = torch.logspace(-6, 6, 1201, dtype=torch.float64)
# What equations of the loss may miss, relative, beside round-off or noise.
_MISSED, _SLACK = 1e-6, 50.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Head:
    """A gradient at the output of the last layer.

    Attributes:
        delta: of the layer's shape.
        relative: how far it is off, relative to its norm.
        targets: with which the loss has this gradient; None where no target was needed.
    """

    delta: Tensor
    relative: float
    targets: Tensor | None = None


def read_heads(chain: Chain, shared: Shared, objective: Objective, targets: Tensor | None) -> list[Head] | str:
    """The gradients at the head's output that explain its gradients, or why there is none.

    With a shared bias its gradient is the one. Without, ∂L/∂W = δ hᵀ has rank one and leaves the size of h open, which the
    loss tells: with h = s v, ∂L/∂W v = c, the gradient of the loss at the output s W v is c / s. That is an equation a class
    for one number s; where several s, or several labels, solve them, all are given.

    Args:
        chain: the network.
        shared: the update.
        objective: in float64.
        targets: if they are known; otherwise every class is tried.
    """
    head = chain.stages[-1]
    bias, weight = shared.gradients.get(head.bias or ""), shared.gradients.get(head.weight)
    if weight is None or not bool(weight.any()):
        return (
            f"the gradient of the last layer's weight, {head.weight}, is {'not shared' if weight is None else 'zero'}"
        )
    if math.prod(head.made) != head.made[0]:
        return f"the last layer, {head.weight}, has outputs at several positions, of shape {head.made}"
    if bias is not None and head.bias is not None:
        norm = float(bias.norm())
        if norm == 0:
            return "the gradient of the last layer's bias is zero"
        return [Head(delta=bias.reshape(head.made), relative=shared.std(head.bias) * math.sqrt(bias.numel()) / norm)]
    lacking = "the gradient of the last layer's bias is not shared"
    if not isinstance(head.layer, nn.Linear):
        return f"{lacking}, and {head.weight} is no linear layer"
    tries = _Sizes(chain, objective, weight, shared.std(head.weight))
    found = []
    for tried in [targets] if targets is not None else _classes(head.made[0], weight.device):
        try:
            found += tries.heads(tried)
        except (InputError, UnsupportedError, RuntimeError, TypeError, ValueError, IndexError):
            # Of a loss that takes no classes.
            return f"{lacking}, {head.weight} leaves a size open, and no target is known"
    if not found:
        return f"{lacking}, and no size of the input of {head.weight} explains the loss"
    return sorted(found, key=lambda one: one.relative)


def _classes(count: int, device: torch.device) -> Iterator[Tensor]:
    for label in range(count):
        yield torch.tensor([label], device=device)


class _Sizes:
    """Sizes of the head's input that solve its equations."""

    def __init__(self, chain: Chain, objective: Objective, weight: Tensor, std: float) -> None:
        self.chain, self.objective = chain, objective
        left, sizes, right = torch.linalg.svd(weight, full_matrices=False)
        self.along, self.rows = right[0], left[:, 0] * sizes[0]
        layer = chain.stages[-1].layer
        self.slope = layer.weight @ self.along
        self.offset = torch.zeros_like(self.slope) if layer.bias is None else layer.bias
        self.error = std * math.sqrt(len(self.rows)) / float(sizes[0])

    def heads(self, targets: Tensor) -> list[Head]:
        """Every size, of either sign, at which the loss with these targets has the gradient that was shared."""

        def loss(output: Tensor) -> Tensor:
            return self.objective.loss_of_outputs(self.chain.tail(output[None]), targets)

        gradient = torch.func.grad(loss)

        def missed(size: Tensor) -> Tensor:
            """Difference s · ∂L(s W v) − c over the norm of c."""
            made: Tensor = (size * gradient(size * self.slope + self.offset) - self.rows) / self.rows.norm()
            return made

        unit = self.rows / self.rows.norm()
        scale = 1 / max(float(self.slope.norm()), 1e-300)
        found = []
        for sign in (1.0, -1.0):
            sizes = (sign * scale * _SIZES).to(self.rows)
            along = torch.func.vmap(missed)(sizes) @ unit
            turns = ((along[:-1] == 0) | (along[1:] * along[:-1] < 0)).nonzero()[:, 0].tolist()
            for place in turns:
                found.append(self._head(missed, unit, float(sizes[place]), float(sizes[place + 1]), targets))
        return [head for head in found if head is not None]

    def _head(
        self, missed: Callable[[Tensor], Tensor], unit: Tensor, low: float, high: float, targets: Tensor
    ) -> Head | None:
        def along(size: Any) -> float:
            return float(missed(torch.full_like(unit[0], float(size))) @ unit)

        size = scipy.optimize.brentq(along, low, high, xtol=1e-300, rtol=4 * np.finfo(float).eps, maxiter=200)
        at = torch.full_like(unit[0], size)
        slope = size * float(torch.func.jvp(missed, (at,), (torch.ones_like(at),))[1] @ unit)
        if slope == 0:
            return None
        error = self.error * (2 + abs(slope - 1)) / abs(slope)
        if float(missed(at).norm()) > max(_MISSED, _SLACK * (error * abs(slope) + self.error)):
            return None
        # The size is off for all entries alike, which counts for as much as all of them apart.
        return Head(delta=self.rows / size, relative=error * math.sqrt(len(self.rows)), targets=targets)

"""Linear equations for the input of one layer, from the gradient of its weight and from the output that is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.attacks.inversion.peel.network import Stage, Weighted

# The Gram matrix squares the condition: below this share of its largest eigenvalue, one in double precision is round-off.
_LEAST_EIGENVALUE = 1e-13
_REFINEMENTS = 4
# An entry is determined as long as no more of its square lies in what is open.
_LOOSE = 1e-12


@dataclass(frozen=True, kw_only=True, eq=False)
class Estimate:
    """Numbers with what they may be off.

    Attributes:
        values: of any shape.
        stds: standard deviation of each.
    """

    values: Tensor
    stds: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Equations:
    """Equations M x = b, each divided by the standard deviation of its right side.

    Attributes:
        matrix: (m, n).
        right: (m, k) for k unknown vectors that share the matrix.
    """

    matrix: Tensor
    right: Tensor

    def part(self, mask: Tensor) -> Equations:
        """The equations where the mask (m,) is true."""
        return Equations(matrix=self.matrix[mask], right=self.right[mask])


@dataclass(frozen=True, kw_only=True, eq=False)
class Solution:
    """Least-squares solution of least norm, and what the equations leave open.

    Attributes:
        values: (n, k).
        stds: (n,), times the misfit where the equations contradict each other more than they may; infinite for an entry that
            is not determined.
        open: orthonormal basis of what the equations do not determine, (n, n − rank).
        rank: number of directions that are determined.
        condition: largest over smallest singular value of these.
        rows: number of equations.
        misfit: root mean square of the residuals in standard deviations, by degree of freedom; about 1 where all is as assumed.
        volume: logarithm of the product of the standard deviations of all determined directions.
        error: root mean square of what determined directions are off, by entry.
    """

    values: Tensor
    stds: Tensor
    open: Tensor
    rank: int
    condition: float
    rows: int
    misfit: float
    volume: float
    error: float = 0.0


def weight_equations(
    layer: Weighted, shape: tuple[int, ...], delta: Tensor, gradient: Tensor, std: float
) -> list[Equations]:
    """The equations that the gradient of a weight is of the layer's input, one system a group of channels that share it.

    ∂L/∂W[o, i, k] = Σ_p δ[o, p] x[i, p·stride + k]: for one input channel the same matrix for all channels of a group.

    Args:
        layer: whose weight it is.
        shape: of one input.
        delta: gradient at the layer's output.
        gradient: of the weight.
        std: of each of its entries.

    Returns:
        Systems for the channels in order, right sides (m, channels of the group).
    """
    if isinstance(layer, nn.Linear):
        # One example at one place: every row is δ_o x, and all of them together are one equation an entry.
        norm = float(delta.norm())
        along = (delta.reshape(1, -1) @ gradient / norm).T / std
        scaled = torch.full((len(along),), norm / std, dtype=along.dtype, device=along.device)
        return [Equations(matrix=torch.diag(scaled), right=along)]
    flat = nn.Conv2d if len(shape) == 3 else nn.Conv1d
    assert isinstance(layer, flat)
    unfolded = _patches(layer, shape)
    outputs = delta.reshape(layer.groups, delta.shape[0] // layer.groups, -1)
    weights = gradient.reshape(layer.groups, -1, *gradient.shape[1:2], unfolded.shape[1])
    systems = []
    for group in range(layer.groups):
        matrix = torch.einsum("nkl,ol->okn", unfolded, outputs[group]).reshape(-1, unfolded.shape[0])
        right = weights[group].permute(0, 2, 1).reshape(matrix.shape[0], -1)
        systems.append(Equations(matrix=matrix / std, right=right / std))
    return systems


def _patches(layer: nn.Conv1d | nn.Conv2d, shape: tuple[int, ...]) -> Tensor:
    """Patches of each unit image of one channel: (pixels, kernel entries, places)."""
    wide = len(shape) == 3
    # A signal is an image of one row.
    size = shape[1:] if wide else (1, shape[1])
    pad = layer.padding
    kernel, stride, dilation = (
        tuple(value) if wide else (1, value[0]) for value in (layer.kernel_size, layer.stride, layer.dilation)
    )
    images = torch.eye(math.prod(size), dtype=torch.float64, device=layer.weight.device).reshape(-1, 1, *size)
    padding = (0, 0)
    if pad == "same":
        total = [gap * (width - 1) for gap, width in zip(dilation, kernel, strict=True)]
        images = F.pad(images, [total[1] // 2, total[1] - total[1] // 2, total[0] // 2, total[0] - total[0] // 2])
    elif not isinstance(pad, str):
        padding = (pad[0], pad[-1]) if wide else (0, pad[0])
    return F.unfold(images, kernel, dilation=dilation, padding=padding, stride=stride)


def output_equations(stage: Stage, known: Estimate, mask: Tensor) -> tuple[Equations, Equations]:
    """The equations that known inputs of the activation are of the layer's input, and those of the unknown ones.

    Args:
        stage: the layer and what follows it.
        known: inputs of the activation.
        mask: which of them are known.

    Returns:
        Equations where the mask is true, divided by their stds; and rows and offsets where it is false, as they are.
    """
    matrix, zero = stage.columns()
    told = mask.reshape(-1)
    stds = known.stds.reshape(-1)[told]
    right = known.values.reshape(-1)[told] - zero[told]
    return (
        Equations(matrix=matrix[told] / stds[:, None], right=(right / stds)[:, None]),
        Equations(matrix=matrix[~told], right=-zero[~told][:, None]),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class System:
    """All equations for one input of a layer.

    Attributes:
        weights: from the gradient of the weight, one system a group; its vectors are channels of the input.
        outputs: from the known output, of the whole input; None where it is not looked at.
    """

    weights: Sequence[Equations]
    outputs: Equations | None

    @property
    def rows(self) -> int:
        """Number of equations."""
        return sum(part.right.numel() for part in (*self.weights, *([self.outputs] if self.outputs else [])))

    def solve(self, size: int, most_open: float | None) -> Solution:
        """The solution of least norm.

        Args:
            size: of the input, n.
            most_open: a direction whose standard deviation is larger is left open; None for the root mean square of the
                solution.

        **Cost**: an eigendecomposition of a matrix (n, n), or (pixels, pixels) where the output is not looked at.
        """
        if self.outputs is None:
            return self._by_group(most_open)
        found = _least_squares(self.gram(size), self._adjoint, most_open)
        return self._judged([found], found.values[:, 0])

    def gram(self, size: int) -> Tensor:
        """MᵀM of all equations, (n, n).

        Args:
            size: of the input, n.
        """
        parts = (*self.weights, *([self.outputs] if self.outputs else []))
        gram = parts[0].matrix.new_zeros(size, size)
        place = 0
        for part in self.weights:
            small = part.matrix.T @ part.matrix
            for _ in range(part.right.shape[1]):
                gram[place : place + len(small), place : place + len(small)] += small
                place += len(small)
        return gram if self.outputs is None else gram + self.outputs.matrix.T @ self.outputs.matrix

    def _by_group(self, most_open: float | None) -> Solution:
        """Each group by itself: its channels share one matrix."""
        parts: list[_Part] = []
        for part in self.weights:

            def adjoint(x: Tensor, part: Equations = part) -> Tensor:
                return part.matrix.T @ (part.right - part.matrix @ x)

            parts.append(_least_squares(part.matrix.T @ part.matrix, adjoint, most_open, part.right.shape[1]))
        return self._judged(parts, torch.cat([one.values.T.reshape(-1) for one in parts]))

    def _judged(self, parts: Sequence[_Part], values: Tensor) -> Solution:
        columns = [one.values.shape[1] for one in parts]
        rank = sum(one.rank * count for one, count in zip(parts, columns, strict=True))
        misfit = math.sqrt(self.squares(values) / max(self.rows - rank, 1))
        stds = torch.cat([one.stds.repeat(count) for one, count in zip(parts, columns, strict=True)])
        return Solution(
            values=values,
            stds=stds * max(misfit, 1.0),
            open=torch.block_diag(*(one.open for one, count in zip(parts, columns, strict=True) for _ in range(count))),
            rank=rank,
            condition=max(one.condition for one in parts),
            rows=self.rows,
            misfit=misfit,
            volume=sum(one.volume * count for one, count in zip(parts, columns, strict=True)),
            error=max(misfit, 1.0)
            * math.sqrt(sum(one.variance * count for one, count in zip(parts, columns, strict=True)) / len(values)),
        )

    def squares(self, values: Tensor) -> float:
        """Sum of squares of the residuals at an input (n,), in standard deviations."""
        return sum(float(rest.square().sum()) for _, rest in self._rests(values))

    def _rests(self, values: Tensor) -> list[tuple[Equations, Tensor]]:
        rests, place = [], 0
        for part in self.weights:
            count = part.matrix.shape[1] * part.right.shape[1]
            x = values[place : place + count].reshape(part.right.shape[1], -1).T
            rests.append((part, part.right - part.matrix @ x))
            place += count
        if self.outputs is not None:
            rests.append((self.outputs, self.outputs.right - self.outputs.matrix @ values[:, None]))
        return rests

    def _adjoint(self, values: Tensor) -> Tensor:
        """Mᵀ (b − M x) for x (n, 1)."""
        pulled = [part.matrix.T @ rest for part, rest in self._rests(values[:, 0])]
        if self.outputs is None:
            return torch.cat([one.T.reshape(-1) for one in pulled])[:, None]
        weights = [one.T.reshape(-1) for one in pulled[:-1]]
        total = pulled[-1][:, 0]
        return (total + torch.cat(weights) if weights else total)[:, None]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Part:
    """Solution of equations that share a matrix: values (n, k), the rest as in `Solution`, the sum of all variances."""

    values: Tensor
    stds: Tensor
    open: Tensor
    rank: int
    condition: float
    volume: float
    variance: float


def _least_squares(
    gram: Tensor, adjoint: Callable[[Tensor], Tensor], most_open: float | None, columns: int = 1
) -> _Part:
    roots, vectors = torch.linalg.eigh(gram)
    top = float(roots[-1])
    solution = gram.new_zeros(len(gram), columns)
    kept = roots > max(_LEAST_EIGENVALUE * top, 0.0)
    for _ in range(2):
        basis, values = vectors[:, kept], roots[kept][:, None]
        solution = torch.zeros_like(solution)
        for _ in range(_REFINEMENTS):
            solution = solution + basis @ ((basis.T @ adjoint(solution)) / values)
        limit = most_open if most_open is not None else float(solution.square().mean().sqrt())
        again = kept & (roots * limit**2 > 1)
        if limit == 0 or bool((again == kept).all()):
            break
        kept = again
    basis, values, unknown = vectors[:, kept], roots[kept], vectors[:, ~kept]
    rank = int(kept.sum())
    stds = (basis.square() / values).sum(dim=1).sqrt()
    return _Part(
        values=solution,
        stds=torch.where(unknown.square().sum(dim=1) > _LOOSE, math.inf, stds),
        open=unknown,
        rank=rank,
        condition=math.sqrt(top / float(values[0])) if rank else math.inf,
        volume=-0.5 * float(values.log().sum()),
        variance=float((1 / values).sum()),
    )

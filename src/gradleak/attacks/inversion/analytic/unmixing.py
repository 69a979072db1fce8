"""The span of a mixture, and its most independent directions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# Power steps of the range finder, and directions beyond those expected.
_POWERS, _MORE = 2, 8
_ITERATIONS, _STILL = 500, 1e-10
# E[log cosh] of a standard normal number.
_NORMAL = 0.37456720749
_LEAST = 1e-12


@dataclass(frozen=True, kw_only=True, eq=False)
class Span:
    """Factors of a matrix of low rank, G = L V.

    Attributes:
        left: L (m, r).
        right: V (r, n), orthonormal rows.
        condition: largest over smallest singular value of what is kept.
    """

    left: Tensor
    right: Tensor
    condition: float

    @property
    def rank(self) -> int:
        """The number of directions, r."""
        return len(self.right)

    @classmethod
    def of(cls, matrix: Tensor, most: int, eps: float, std: float = 0.0) -> Span:
        """The strongest directions of a matrix, at least one.

        Args:
            matrix: G (m, n), float64.
            most: r at most.
            eps: relative round-off below which a direction is none.
            std: of noise on each entry.

        **Cost**: products of G with r + 8 vectors, six times; a fixed generator draws them.
        """
        count = min(most + _MORE, *matrix.shape)
        stream = torch.Generator().manual_seed(0)
        drawn = torch.randn(matrix.shape[1], count, generator=stream, dtype=torch.float64).to(matrix.device)
        basis = torch.linalg.qr(matrix @ drawn)[0]
        for _ in range(_POWERS):
            basis = torch.linalg.qr(matrix @ torch.linalg.qr(matrix.T @ basis)[0])[0]
        _, values, right = torch.linalg.svd(basis.T @ matrix, full_matrices=False)
        floor = max(eps * float(values[0]), std * (math.sqrt(matrix.shape[0]) + math.sqrt(matrix.shape[1])))
        rank = min(max(int((values > floor).sum()), 1), most)
        right = right[:rank]
        return cls(left=matrix @ right.T, right=right, condition=float(values[0] / values[rank - 1]))


def independent(samples: Tensor, starts: int, generator: torch.Generator) -> Tensor:
    """A matrix M (r, r) such that the rows of M · samples are as far from Gaussian as can be, uncorrelated, of variance 1.

    FastICA (Hyvärinen 1999) with log cosh, symmetric decorrelation, and several random starts.

    Args:
        samples: (r, n).
        starts: how many; the one with the largest sum of squared negentropies counts.
        generator: draws the starts.

    **Cost**: some hundred products (r, n) × (n, r) at most a start.
    """
    count, length = samples.shape
    centered = samples - samples.mean(dim=1, keepdim=True)
    roots, vectors = torch.linalg.eigh(centered @ centered.T / length)
    roots = roots.clamp(min=_LEAST * float(roots[-1].clamp(min=torch.finfo(roots.dtype).tiny)))
    whitening = vectors @ torch.diag(roots.rsqrt()) @ vectors.T
    white = whitening @ centered
    best, found = -1.0, torch.eye(count, dtype=samples.dtype, device=samples.device)
    for _ in range(starts):
        drawn = torch.randn(count, count, generator=generator, dtype=torch.float64).to(samples.device)
        turned = torch.linalg.qr(drawn)[0]
        for _ in range(_ITERATIONS):
            bent = torch.tanh(turned @ white)
            moved = bent @ white.T / length - (1 - bent.square()).mean(dim=1, keepdim=True) * turned
            left, _, right = torch.linalg.svd(moved)
            moved = left @ right
            still = 1 - float((moved * turned).sum(dim=1).abs().min())
            turned = moved
            if still < _STILL:
                break
        sources = turned @ white
        contrast = float((torch.log(torch.cosh(sources.clamp(-300, 300))).mean(dim=1) - _NORMAL).square().sum())
        if contrast > best:
            best, found = contrast, turned
    unmixing: Tensor = found @ whitening
    return unmixing

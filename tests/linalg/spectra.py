"""Matrices with known spectra."""

from __future__ import annotations

import torch
from torch import Tensor


def symmetric(values: Tensor | list[float], seed: int = 0) -> Tensor:
    """A dense matrix with these eigenvalues, in a random basis."""
    values = torch.as_tensor(values, dtype=torch.float64)
    return rotation(values.numel(), seed) * values @ rotation(values.numel(), seed).T


def factor(values: Tensor | list[float], rows: int, seed: int = 0) -> Tensor:
    """A (rows, n) with these singular values."""
    values = torch.as_tensor(values, dtype=torch.float64)
    size = values.numel()
    return rotation(rows, seed + 1)[:, :size] * values @ rotation(size, seed).T


def rotation(size: int, seed: int) -> Tensor:
    drawn = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    basis: Tensor = torch.linalg.qr(drawn)[0]
    return basis


def vector(size: int, seed: int = 5) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

"""Products that ought to be equal: of a block and of single vectors, of A and of its adjoint."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from gradleak.core import derive_generator
from gradleak.core.process import ONE_CALL

# What a model says that has no rule for a derivative.
REFUSALS = (RuntimeError, NotImplementedError, ValueError, UserWarning)


def drawn_rows(rows: int, size: int, like: Tensor, *, seed: int = 0) -> Tensor:
    """Standard normal rows (rows, size), the same every time, where and in the dtype that a tensor is.

    They are of a stream of their own: inputs that a user draws with the same seed would be the direction itself, along
    which a normalization changes nothing.
    """
    generator = derive_generator(seed, "rows of a probe")
    return torch.randn(rows, size, generator=generator, dtype=like.dtype).to(like.device)


def same_product(block: Tensor, alone: Tensor) -> bool:
    """True if a vector's product from a block is the product of the vector alone, but for round-off; NaN equals NaN.

    Torch's rule for a block can be another one than that for a vector, and wrong: of the double backward of a group
    normalization without a scale it is, where the number of examples is that of the channels.
    """
    eps = torch.finfo(alone.dtype).eps
    largest = float(alone.abs().nan_to_num().max()) if alone.numel() else 0.0
    return torch.allclose(block, alone, rtol=eps**0.5, atol=eps**0.6 * largest, equal_nan=True)


def are_adjoint(tangent: Tensor, pushed: Tensor, cotangent: Tensor, pulled: Tensor) -> bool:
    """True if ⟨u, A t⟩ = ⟨Aᵀu, t⟩ for drawn t and u, to the root of the precision.

    u has to be drawn, too: with A t in its place, rows that A t leaves at zero are not tried.
    """
    # Not by `norm`, which loses three digits over ten million entries in float32.
    size = float((pushed * pushed).sum()) ** 0.5 + float((pulled * pulled).sum()) ** 0.5
    distance = abs(float((cotangent * pushed).sum()) - float((pulled * tangent).sum()))
    return bool(distance <= size * torch.finfo(pushed.dtype).eps ** 0.5)


@contextmanager
def batching_rules_only() -> Iterator[None]:
    """An operation without a batching rule is an error, not a slow loop inside of torch with a warning."""
    with ONE_CALL, warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*performance drop", category=UserWarning)
        yield

"""Is it the bound that is claimed? Vectors of any length and direction, fed to a defense directly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from gradleak.core import ExampleDefense, UpdateDefense

Shapes = Mapping[str, Tensor]
# Of the claimed bound: short ones pass as they are, and a real gradient may be of any length.
FACTORS = (0.5, 1.01, 30.0, 1e3, 1e6)


def longest(defense: ExampleDefense | UpdateDefense, shapes: Shapes, bound: float, generator: torch.Generator) -> float:
    """The largest L2 norm, over all tensors, of what a defense makes of vectors from half to 1e6 times its bound.

    Directions: all entries at random, one tensor alone, one entry alone, and entries whose sizes differ by orders of
    magnitude. It is a search, so too small where a longer one exists. What is not finite counts as infinite.

    Args:
        defense: of single examples, or of the update.
        shapes: of the parameters, by name.
        bound: that is claimed, positive.
        generator: source of the directions.

    **Cost**: some thirty times what the defense costs for one gradient, for each tensor of the model a few more.
    """
    norms = [
        float(norm)
        for row in _directions(shapes, generator)
        for norm in _norms(defense, row, [factor * bound for factor in FACTORS])
    ]
    return max(norm if norm == norm else float("inf") for norm in norms)


def long_rows(shapes: Shapes, bound: float, examples: int) -> dict[str, Tensor]:
    """Made-up gradients of so many examples, one a row, from ten to a hundred times as long as a bound.

    Args:
        shapes: of the parameters, by name.
        bound: an L2 norm over all tensors, positive.
        examples: how many.
    """
    random = torch.Generator().manual_seed(1)
    rows = {
        name: torch.randn((examples, *tensor.shape), generator=random, dtype=torch.float64).to(tensor.device)
        for name, tensor in shapes.items()
    }
    squares = torch.stack([tensor.reshape(examples, -1).square().sum(dim=1) for tensor in rows.values()]).sum(dim=0)
    factor = bound * torch.logspace(1, 2, examples, dtype=torch.float64).to(squares) / squares.sqrt()
    return {name: tensor * factor.reshape(-1, *[1] * (tensor.dim() - 1)) for name, tensor in rows.items()}


def _norms(defense: ExampleDefense | UpdateDefense, row: Shapes, lengths: list[float]) -> Tensor:
    size = torch.stack([tensor.square().sum() for tensor in row.values()]).sum().sqrt()
    if isinstance(defense, ExampleDefense):
        scale = torch.tensor(lengths, dtype=torch.float64).to(size) / size
        rows = {name: scale.reshape(-1, *[1] * tensor.dim()) * tensor for name, tensor in row.items()}
        made = [tensor.reshape(len(lengths), -1).square().sum(dim=1) for tensor in defense.mean(rows).values()]
        return torch.stack(made).sum(dim=0).sqrt()
    return torch.stack(
        [
            torch.stack(
                [
                    made.square().sum()
                    for made in defense.mean({n: t * (length / size) for n, t in row.items()}).values()
                ]
            )
            .sum()
            .sqrt()
            for length in lengths
        ]
    )


def _directions(shapes: Shapes, generator: torch.Generator) -> Iterator[dict[str, Tensor]]:
    def drawn() -> dict[str, Tensor]:
        return {
            name: torch.randn(tensor.shape, generator=generator, dtype=torch.float64, device=generator.device).to(
                tensor.device
            )
            for name, tensor in shapes.items()
        }

    whole = drawn()
    yield whole
    spread = drawn()
    yield {name: tensor * (4 * spread[name]).exp() for name, tensor in whole.items()}
    for name in shapes:
        yield {other: tensor if other == name else torch.zeros_like(tensor) for other, tensor in whole.items()}
    first = next(iter(shapes))
    single = {name: torch.zeros_like(tensor) for name, tensor in whole.items()}
    single[first].reshape(-1)[:1] = 1.0
    yield single

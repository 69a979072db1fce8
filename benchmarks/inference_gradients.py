"""Gradients of 5,000 batches of 16 rows, pooled, against a loop of plain autograd over the same batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.measure import Row, ratio
from gradleak.core import Batch, Objective, Release
from gradleak.models import mlp
from gradleak.protocols import FedSGD
from gradleak.training import BatchReleases

ROWS, TRIALS, EXAMPLES = 5000, 5000, 16
# As many batches go through the loop; its time is proportional to their number.
LOOPED = 250


def pooled(updates: Tensor, kernel: int) -> Tensor:
    return F.max_pool1d(updates[:, None], kernel)[:, 0]


def looped(model: nn.Module, rows: Batch, batches: Tensor, kernel: int) -> Tensor:
    """Forward, backward and pooling, batch by batch, as one writes it in plain torch."""
    parameters = list(model.parameters())
    made = []
    for places in batches:
        loss = F.cross_entropy(model(rows.inputs[places]), rows.targets[places])
        gradient = torch.autograd.grad(loss, parameters)
        made.append(pooled(torch.cat([tensor.reshape(-1) for tensor in gradient])[None], kernel))
    return torch.cat(made)


def at_once(model: nn.Module, rows: Batch, batches: Tensor, kernel: int) -> Tensor:
    """The same by `BatchReleases`, the choice of its route included, as one round of a game does it."""
    releases = BatchReleases(Objective.from_module(model), Release(FedSGD()), rows)
    chunks = releases.chunks(batches, torch.Generator().manual_seed(0))
    return torch.cat([pooled(chunk, kernel) for chunk in chunks])


def setting(features: int, hidden: Sequence[int], classes: int) -> tuple[nn.Module, Batch, Tensor]:
    generator = torch.Generator().manual_seed(0)
    rows = Batch(torch.randn(ROWS, features, generator=generator), torch.randint(classes, (ROWS,), generator=generator))
    batches = torch.randint(ROWS, (TRIALS, EXAMPLES), generator=generator)
    return mlp(features=features, hidden=hidden, classes=classes, generator=generator), rows, batches


def run() -> Iterator[Row]:
    settings: list[tuple[str, tuple[nn.Module, Batch, Tensor], int, float]] = [
        ("Adult's 65-32-16-2 net, kernel 3", setting(65, (32, 16), 2), 3, 1 / 15),
        ("988-64-64-4 (67,716 parameters), kernel 10", setting(988, (64, 64), 4), 10, 1 / 2),
    ]
    for name, (model, rows, batches), kernel, aim in settings:
        few = batches[:LOOPED]
        torch.testing.assert_close(at_once(model, rows, few, kernel), looped(model, rows, few, kernel))

        def fast(
            model: nn.Module = model, rows: Batch = rows, batches: Tensor = batches, kernel: int = kernel
        ) -> Tensor:
            return at_once(model, rows, batches, kernel)

        def slow(model: nn.Module = model, rows: Batch = rows, few: Tensor = few, kernel: int = kernel) -> Tensor:
            return looped(model, rows, few, kernel)

        of_a_part: Callable[[], Tensor] = slow
        share = ratio(fast, of_a_part, 3) * LOOPED / TRIALS
        yield Row(name=name, ratio=share, aim=aim, unit="of a loop over the batches")

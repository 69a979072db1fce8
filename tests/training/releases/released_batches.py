"""Rows, models and batches of tests of released updates, and the same updates one release after another."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from gradleak.core import Batch, ExampleDefense, Guarantee, Objective, Release
from gradleak.defenses import (
    SensitiveClassifier,
)
from gradleak.training import BatchReleases

ROWS, FEATURES, CLASSES = 12, 6, 3


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows(*, shape: tuple[int, ...] = (FEATURES,), targets: Tensor | None = None) -> Batch:
    inputs = torch.randn(ROWS, *shape, generator=generator(1), dtype=torch.float64)
    labels = torch.arange(ROWS) % CLASSES if targets is None else targets
    return Batch(inputs, labels, sensitive=torch.arange(ROWS) % 2)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES)).double()


def objective(model: nn.Module | None = None, **settings: object) -> Objective:
    return Objective.from_module((model or net()).double(), **settings)  # type: ignore[arg-type]


def batches(examples: int = 4, count: int = 7) -> Tensor:
    index = torch.randint(ROWS, (count, examples), generator=generator(2))
    index[0] = index[0, 0]  # one row again and again
    return index


def one_by_one(loss: Objective, release: Release, given: Batch, index: Tensor, seed: int = 3) -> Tensor:
    drawn = generator(seed)
    return torch.stack(
        [
            loss.flatten(
                release(loss, Batch(given.inputs[i], given.targets[i], given.domain, given.sensitive[i]), drawn).tensors  # type: ignore[index]
            )
            for i in index
        ]
    )


def at_once(releases: BatchReleases, index: Tensor, seed: int = 3) -> Tensor:
    return torch.cat(list(releases.chunks(index, generator(seed))))


def by_autograd(model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], given: Batch, index: Tensor) -> Tensor:
    made = []
    for places in index:
        value = loss(model(given.inputs[places]), given.targets[places])
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        made.append(torch.cat([g.reshape(-1) for g in torch.autograd.grad(value, parameters)]))
    return torch.stack(made)


def size() -> int:
    return sum(parameter.numel() for parameter in net().parameters())


def classifier() -> SensitiveClassifier:
    made = SensitiveClassifier(torch.zeros(size()), torch.ones(size()), hidden=4, classes=2, generator=generator(5))
    return made.double().requires_grad_(False)


class Halved(ExampleDefense):
    """One of examples that no fast way is made for, with an average of its own."""

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC
    closes: ClassVar[bool] = True

    def mean(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor / 2 for name, tensor in gradients.items()}

    def average(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.median(dim=0).values for name, tensor in gradients.items()}


def named(value: object) -> str:
    """A test id: as it prints, without the addresses of objects, which differ between processes."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))

"""A small setting for tests of defenses: a tanh network, a batch, and gradients of single examples by plain autograd."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.core import Batch, Domain, Objective
from gradleak.models import initialize_default

FEATURES, CLASSES = 6, 3


def network(seed: int = 0) -> nn.Sequential:
    layers = [nn.utils.skip_init(nn.Linear, FEATURES, 8), nn.Tanh(), nn.utils.skip_init(nn.Linear, 8, CLASSES)]
    model = nn.Sequential(*layers).double()
    initialize_default(model, generator=torch.Generator().manual_seed(seed))
    return model


def objective(seed: int = 0) -> Objective:
    return Objective.from_module(network(seed))


def batch(examples: int = 4, seed: int = 1) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    inputs = 2 * torch.randn(examples, FEATURES, generator=generator, dtype=torch.float64)
    targets = torch.randint(CLASSES, (examples,), generator=generator)
    return Batch(inputs, targets, Domain(shape=(FEATURES,), low=-10, high=10, kind="tabular"))


def gradients(data: Batch, seed: int = 0) -> Tensor:
    """One flat gradient an example, (b, P), by a loop of plain autograd."""
    model = network(seed)
    rows = []
    for inputs, target in zip(data.inputs, data.targets, strict=True):
        loss = F.cross_entropy(model(inputs[None]), target[None])
        rows.append(torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, list(model.parameters()))]))
    return torch.stack(rows)


def generator(seed: int = 7) -> torch.Generator:
    return torch.Generator().manual_seed(seed)

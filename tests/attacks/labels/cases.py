"""Small settings for label attacks: a release of one batch with given labels, and what the server knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from gradleak.core import Batch, Defense, Domain, DomainKind, HonestButCurious, Knowledge, Objective, Release, Update
from gradleak.core.protocol import Protocol
from gradleak.models import mlp
from gradleak.protocols import FedSGD

ROW = Domain(shape=(12,), kind=DomainKind.TABULAR)
Loss = str | Callable[..., Tensor]


def net(classes: int = 10, *, bias: bool = True, activation: str = "relu", seed: int = 0) -> nn.Sequential:
    """An untrained network 12-32-16-classes."""
    generator = torch.Generator().manual_seed(seed)
    model = mlp(features=12, hidden=(32, 16), classes=classes, activation=activation, generator=generator)
    if not bias:
        last = nn.utils.skip_init(nn.Linear, 16, classes, bias=False)
        last.weight.data = model[-1].weight.data
        model[-1] = last
    return model


def constant_net(classes: int = 10, *, bias: bool = True) -> nn.Sequential:
    """A network whose logits are the same for every input, so that mean probabilities are known exactly."""
    model = net(classes, bias=bias)
    nn.init.zeros_(model[-1].weight)
    if bias:
        model[-1].bias.data = torch.linspace(-1, 1, classes)
    return model


def released(
    model: nn.Module,
    targets: Sequence[int] | Tensor,
    *,
    loss: Loss = "cross_entropy",
    believed: Loss | None = None,
    protocol: Protocol | None = None,
    defenses: Sequence[Defense] = (),
    threat: HonestButCurious | None = None,
    dtype: torch.dtype = torch.float32,
    mode: str = "eval",
    seed: int = 0,
) -> tuple[Update, Knowledge]:
    """One release of random rows with these labels; `believed` is the loss that the server takes the client to have."""
    generator = torch.Generator().manual_seed(seed)
    labels = targets if isinstance(targets, Tensor) else torch.tensor(targets)
    batch = Batch(torch.rand(len(labels), 12, generator=generator), labels, ROW).to(dtype)
    objective = Objective.from_module(model, loss=loss, mode=mode).to(dtype)
    release = Release(protocol or FedSGD(), defenses)
    update = release(objective, batch, generator)
    knowledge = (threat or HonestButCurious()).disclose(objective, release, batch)
    if believed is not None:
        knowledge = replace(knowledge, objective=Objective.from_module(model, loss=believed, mode=mode).to(dtype))
    return update, knowledge

"""A model, rows and releases for clients of any framework: one digit leaks, sixty-four or noise do not."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gradleak.attacks import GaussNewton
from gradleak.auditing import Gate
from gradleak.core import Batch, Release
from gradleak.datasets import scikit_digits
from gradleak.protocols import FedAvg

LEARNING_RATE = 0.1


def network() -> nn.Sequential:
    """A small sigmoid network for 8×8 digits."""
    generator = torch.Generator().manual_seed(4)
    made = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, 10))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return made


def rows(count: int) -> Batch:
    """The digits of a client."""
    digits = scikit_digits(count=count, seed=3)
    return Batch(digits.inputs, digits.targets, digits.domain)


def gate(on_leak: str, release: Release | None = None, log: str | None = None) -> Gate:
    """The gate of such a client, which takes one step of local training."""
    return Gate(
        model=network(),
        release=release or Release(FedAvg(learning_rate=LEARNING_RATE)),
        on_leak=on_leak,
        attacks={"gauss_newton": GaussNewton(max_steps=12, starts=1)},
        budget="60s",
        log=log,
    )


def trained(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """The weights after one step on all rows."""
    loss = nn.functional.cross_entropy(model(batch.inputs), batch.targets)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter -= LEARNING_RATE * gradient
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def rows_of_1() -> Batch:
    """The digit of the site that should not share its update."""
    return rows(1)


def rows_of_2() -> Batch:
    """The digits of the other site."""
    return rows(64)

"""Models and data that plan files of the tests name by import path."""

from __future__ import annotations

import torch
from torch import nn

from gradleak.models import initialize_default, mlp
from tests.operators.models import DetachedCube


def small_mlp(*, hidden: int = 24, generator: torch.Generator) -> nn.Module:
    """A tanh MLP for 8×8 digits, flattened first."""
    return nn.Sequential(
        nn.Flatten(), mlp(features=64, hidden=(hidden,), classes=10, activation="tanh", generator=generator)
    )


class Root(nn.Module):
    """√(x² summed) beside x: finite at zero, where it has no derivative."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (x**2).sum(dim=1, keepdim=True).sqrt()


def root_mlp(*, generator: torch.Generator) -> nn.Module:
    """A model whose derivative is not finite at an input of zeros."""
    return nn.Sequential(nn.Flatten(), Root(), small_mlp(generator=generator))


def without_numbers() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((2, 64), torch.nan), torch.tensor([0, 1])


def not_a_model() -> int:
    return 3


def failing_model() -> nn.Module:
    raise ValueError("disk on fire")


def careless_model() -> nn.Module:
    """Draws its weights from torch's global generator, as most models do."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def pair_data(*, count: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.rand((count, 1, 8, 8), generator=generator), torch.arange(count)


def rows_of_people(*, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Age, and two columns of one category."""
    people = torch.tensor([[38.0, 1.0, 0.0], [61.0, 0.0, 1.0], [17.0, 0.0, 1.0]])
    return people[:count], torch.tensor([0, 1, 1])[:count]


def exploding_model(*, generator: torch.Generator) -> nn.Module:
    """Computes one gradient fine and fails on second derivatives."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), _Once())


class _Once(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _NoDoubleBackward.apply(x)


class _NoDoubleBackward(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: object, inputs: object, output: object) -> None:
        del ctx, inputs, output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


class _Cube(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return DetachedCube.apply(x)


def substitute_gradient_model(*, generator: torch.Generator) -> nn.Module:
    """A layer whose first derivative is right and whose second derivatives are silently wrong."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), _Cube(), nn.Linear(12, 10))
    initialize_default(model, generator=generator)
    return model


def relu_mlp(*, generator: torch.Generator) -> nn.Module:
    """A ReLU MLP for 8×8 digits: its gradients jump as the input moves."""
    return nn.Sequential(
        nn.Flatten(), mlp(features=64, hidden=(24,), classes=10, activation="relu", generator=generator)
    )


def tiny_gradients(*, generator: torch.Generator) -> nn.Module:
    """The tanh MLP with a loss head so small that float16 flushes most of the gradient of its first layer."""
    model = small_mlp(generator=generator)
    with torch.no_grad():
        model[1][-1].weight.mul_(2e-5)
    return model


def flat_data(*, count: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.rand((count, 64), generator=generator), torch.arange(count)

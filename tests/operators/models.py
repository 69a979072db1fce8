"""Small models with what users' models have, for the operators to survive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gradleak.core import Batch, Exposure, Objective, Release
from gradleak.protocols import FedSGD


def exposure_of(module: nn.Module, shape: tuple[int, ...], *, mode: str = "eval", examples: int = 2) -> Exposure:
    """Random examples and weights in float64, from explicit generators."""
    generator = torch.Generator().manual_seed(5)
    module = module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_(-0.6, 0.7, generator=generator)
    inputs = torch.randn(examples, *shape, generator=generator, dtype=torch.float64)
    objective = Objective.from_module(module, mode=mode, mask_seed=3)
    return Exposure(objective, Batch(inputs, torch.arange(examples) % 2), Release(FedSGD()))


def differences(exposure: Exposure, step: float = 1e-5) -> Tensor:
    """A (P, d) by central differences of the released mean."""
    x = exposure.inputs
    steps = step * torch.eye(x.numel(), dtype=x.dtype)
    return torch.stack([(exposure.mean(x + s) - exposure.mean(x - s)) / (2 * step) for s in steps], dim=1)


class Then(nn.Module):
    """A function of a tensor as a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def between(function: Callable[[Tensor], Tensor]) -> nn.Module:
    """A function between two linear layers, 4 features."""
    return nn.Sequential(nn.Linear(4, 4), Then(function), nn.Linear(4, 2))


class Sequence(nn.Module):
    """A layer on (b, t, f) whose last step is classified."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.layer, nn.MultiheadAttention):
            mixed = self.layer(x, x, x, need_weights=False)[0]
        else:
            mixed = self.layer(x)
            mixed = mixed[0] if isinstance(mixed, tuple) else mixed
        return self.head(mixed[:, -1])


class Fused(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])[:, 0]


class WrittenOut(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x @ x.transpose(1, 2) / x.shape[-1] ** 0.5).softmax(-1) @ x


class Residual(nn.Module):
    """A residual block with in-place operations, or its out-of-place twin."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1)
        self.norm, self.relu = nn.BatchNorm2d(2), nn.ReLU(inplace=in_place)
        self.head = nn.Linear(2 * 9, 2)
        self.in_place = in_place

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm(self.second(self.relu(self.first(x))))
        if self.in_place:
            out += x
        else:
            out = out + x
        return self.head(self.relu(out).flatten(1))


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool | None) -> None:
        super().__init__()
        self.inner, self.head = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 2)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        if self.reentrant is None:
            return self.head(self.inner(x))
        return self.head(checkpoint(self.inner, x, use_reentrant=self.reentrant))


class Tied(nn.Module):
    """An embedding of soft tokens whose matrix is the head too, a frozen layer and a layer without use."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.partly = nn.Linear(4, 4)
        self.partly.weight.requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.head = nn.Linear(4, 2, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        soft = x.softmax(-1) @ self.embedding.weight
        return self.head(self.partly(self.frozen(soft.tanh())).tanh())


class Cube(torch.autograd.Function):
    """x³ in the form without `setup_context`, whose backward is differentiable."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * 3 * x**2


class DetachedCube(torch.autograd.Function):
    """x³ whose backward hides from autograd how it depends on x: every second derivative is silently wrong."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * 3 * x.detach() ** 2


class StraightThrough(torch.autograd.Function):
    """A smooth step with the gradient of the identity: the "gradient" is that of no loss."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return (3 * x).sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.clone()

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return tangent.clone()


class Twisted(torch.autograd.Function):
    """a·b with the gradient of no function for a: the second derivative is not symmetric."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return a * b

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return grad * b**2, grad * a


class TwistedScale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.ones(4)), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(Twisted.apply(self.weight.expand(x.shape), x))


class Extractor(nn.Module):
    """A classifier on features that are computed without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = nn.Linear(4, 5), nn.Linear(5, 2)
        self.features.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            features = self.features(x).tanh()
        return self.head(features)


class Counting(nn.Module):
    """A layer that changes its input in place, and tensors that it keeps as plain attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.seen, self.kept = torch.zeros(4).double(), {"last": torch.zeros(4).double()}

    def forward(self, x: Tensor) -> Tensor:
        x -= 0.1
        self.seen += 1.0
        self.kept["last"] += x.mean(dim=0)
        return self.linear((x + self.kept["last"]).sin() * self.seen)


class Temperature(nn.Module):
    """A classifier with a scalar parameter, one without entries, and a layer without outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.nothing = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.empty(0))
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear((x * self.scale).tanh())


def own_slope(x: Tensor) -> Tensor:
    """The derivative of a function, taken inside of the model."""
    slope: Tensor = torch.func.grad(lambda y: (y.sin() * y).sum())(x)
    return slope


class NumpyNoise(nn.Module):
    """A layer that draws from a generator of its own, so that no two evaluations agree."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(0)

    def forward(self, x: Tensor) -> Tensor:
        return x * float(self.rng.uniform(0.5, 1.5))


class TorchNoise(nn.Module):
    """A layer that draws from torch's global generator."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rand_like(x)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradleak.core import Batch, Exposure, Objective, Release
from gradleak.defenses import Clip, GaussianNoise
from gradleak.operators import GradientJacobian, Linearization, Route
from gradleak.operators.ghost_gram import GhostDerivative, ghost_derivative
from gradleak.protocols import FedSGD

CLASSES = 5


def _exposure(model: nn.Module, *shape: int, release: Release | None = None, **options: Any) -> Exposure:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.rand(*shape, generator=generator, dtype=torch.float64)
    targets = torch.arange(shape[0]) % CLASSES
    objective = Objective.from_module(model.double(), **options)
    return Exposure(objective, Batch(inputs, targets), release or Release(FedSGD()))


def _ghost(exposure: Exposure, **options: float) -> GhostDerivative | None:
    return ghost_derivative(Linearization.of(exposure), smallest=0, **options)  # type: ignore[arg-type]


def _dense(exposure: Exposure) -> Tensor:
    """AᵀA by double backward: neither the ghost route nor a JVP."""
    matrix = GradientJacobian(exposure, route=Route.DOUBLE_VJP_LOOP).dense()
    return matrix.T @ matrix


def _mlp(*, bias: bool = True) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(12, 40, bias=bias), nn.Tanh(), nn.Linear(40, 40, bias=bias), nn.ReLU(inplace=True),
        nn.Linear(40, CLASSES, bias=bias),
    )  # fmt: skip


class _Tokens(nn.Module):
    """A linear layer at every token, then the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.last = nn.Linear(20, 60), nn.Linear(60, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.tanh(self.each(x)).mean(1))
        return out


class _Twice(nn.Module):
    """One linear layer applied twice: its contributions add up."""

    def __init__(self) -> None:
        super().__init__()
        self.turn, self.last = nn.Linear(40, 40), nn.Linear(40, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.tanh(self.turn(torch.tanh(self.turn(x)))))
        return out


class _Frozen(nn.Module):
    """The first weight is frozen, its bias is not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(12, 30), nn.Linear(30, 50), nn.Linear(50, CLASSES)
        self.first.weight.requires_grad_(False)
        self.last.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.sigmoid(self.second(torch.tanh(self.first(x)))))
        return out


class _Convolution(nn.Module):
    """A convolution before two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, padding=1)
        self.first, self.last = nn.Linear(48, 40), nn.Linear(40, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.tanh(self.first(torch.sigmoid(self.conv(x)).flatten(1))))
        return out


class _Convolutions(nn.Module):
    """Strides, dilation, sides of two lengths, one weight twice, and groups, whose weight keeps its rows of A."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Conv2d(2, 4, (3, 5), stride=(1, 2), padding=(1, 2))
        self.apart = nn.Conv2d(4, 4, 3, dilation=2, padding=2, bias=False)
        self.grouped = nn.Conv2d(4, 4, 3, padding="same", groups=2)
        self.last = nn.Linear(4 * 9 * 4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.wide(x))
        hidden = torch.relu_(self.apart(torch.sigmoid(self.apart(hidden))) + hidden)
        out: Tensor = self.last(torch.sigmoid(self.grouped(hidden)).flatten(1))
        return out


class _Large(nn.Module):
    """A convolution of an image too large for a matrix, and pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 3, 3, stride=2), nn.Conv2d(3, 6, 2)
        self.last = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.avg_pool2d(torch.tanh(self.first(x)), 2)
        out: Tensor = self.last(torch.tanh(self.second(hidden)).mean((2, 3)))
        return out


class _Encoder(nn.Module):
    """A transformer layer: attention by other kernels than in training, linear layers at every token."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 96, activation="gelu", batch_first=True, dropout=0.0)
        self.last = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.layer(x).mean(1))
        return out


def _normalized() -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, 60), nn.BatchNorm1d(60), nn.Tanh(), nn.Linear(60, CLASSES))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], dict[str, str], tuple[str, ...]]] = {
    "mlp": (_mlp, (1, 12), {}, ("0.weight", "2.weight", "4.weight")),
    "several examples": (_mlp, (3, 12), {}, ("0.weight", "2.weight", "4.weight")),
    "no bias": (lambda: _mlp(bias=False), (2, 12), {}, ("0.weight", "2.weight", "4.weight")),
    "convolution": (_Convolution, (2, 1, 4, 4), {}, ("conv.weight", "first.weight", "last.weight")),
    "convolutions": (_Convolutions, (1, 2, 9, 7), {}, ("wide.weight", "apart.weight", "last.weight")),
    "large images": (_Large, (2, 1, 12, 12), {}, ("first.weight", "second.weight", "last.weight")),
    "tokens": (_Tokens, (2, 3, 20), {}, ("each.weight", "last.weight")),
    "applied twice": (_Twice, (2, 40), {}, ("turn.weight", "last.weight")),
    "frozen": (_Frozen, (1, 12), {}, ("second.weight", "last.weight")),
    "fused attention": (_Encoder, (1, 3, 16), {}, ("layer.linear1.weight", "layer.linear2.weight", "last.weight")),
    "batch statistics": (_normalized, (3, 12), {"mode": "train"}, ("0.weight", "3.weight")),
}


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_plain_route(name: str) -> None:
    build, shape, options, layers = CASES[name]
    exposure = _exposure(build(), *shape, **options)
    found = _ghost(exposure, largest_share=100.0)
    assert found is not None
    assert found.layers == layers
    want = _dense(exposure)
    gram, columns = found.gram(), found.columns()
    assert gram is not None
    assert columns is not None
    torch.testing.assert_close(gram, want, rtol=0, atol=1e-13 * float(want.abs().max()))
    assert torch.equal(gram, gram.T)
    matrix = GradientJacobian(exposure, route=Route.DOUBLE_VJP_LOOP).dense()
    torch.testing.assert_close(columns.T, matrix, rtol=0, atol=1e-13 * float(matrix.abs().max()))


def test_many_positions_keep_the_rows_of_the_weight() -> None:
    # 40 tokens: 40 (20 + 60 + 40) numbers a direction where the weight has 1200.
    assert _ghost(_exposure(_Tokens(), 1, 40, 20)) is None


class _Tied(nn.Module):
    """The first weight enters once more, transposed, as in an autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(30, 60), nn.Linear(30, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        back = torch.tanh(self.first(x)) @ self.first.weight
        out: Tensor = self.last(torch.tanh(back))
        return out


def test_a_weight_that_is_used_elsewhere_falls_back() -> None:
    assert _ghost(_exposure(_Tied(), 1, 30)) is None


class _Hidden(torch.autograd.Function):
    """A product with a weight that no torch function shows."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return x @ weight

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return grads[0] @ weight.T, x.T @ grads[0]

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        raise NotImplementedError("none")


class _Behind(_Tied):
    def forward(self, x: Tensor) -> Tensor:
        back = _Hidden.apply(torch.tanh(self.first(x)), self.first.weight)
        out: Tensor = self.last(torch.tanh(back))
        return out


def test_a_use_that_cannot_be_seen_is_caught_by_the_check() -> None:
    assert _ghost(_exposure(_Behind(), 1, 30)) is None


def test_a_defense_that_changes_the_mean_falls_back_and_noise_does_not() -> None:
    model = _mlp()
    assert _ghost(_exposure(model, 1, 12, release=Release(FedSGD(), [Clip(0.01)]))) is None
    noisy = _exposure(model, 1, 12, release=Release(FedSGD(), [GaussianNoise(std=0.1)]))
    plain = _exposure(model, 1, 12)
    found, other = _ghost(noisy), _ghost(plain)
    assert found is not None
    assert other is not None
    gram = found.gram()
    assert gram is not None
    assert torch.equal(gram, other.gram())


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.last = nn.LSTM(12, 8, batch_first=True), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.cell(x)[0][:, -1])
        return out


@pytest.mark.parametrize(
    ("model", "shape"), [(_Recurrent(), (1, 3, 12)), (nn.Sequential(nn.Flatten(), nn.Conv1d(1, 2, 3)), (1, 8))]
)
def test_models_without_cheaper_linear_layers_fall_back(model: nn.Module, shape: tuple[int, ...]) -> None:
    assert _ghost(_exposure(model, *shape, loss=lambda outputs, _: (outputs**2).mean())) is None


def test_small_problems_and_small_budgets_fall_back() -> None:
    exposure = _exposure(_mlp(), 1, 12)
    assert ghost_derivative(Linearization.of(exposure)) is None
    assert _ghost(exposure, max_bytes=10_000) is None


def test_the_operator_takes_it_by_itself_and_names_it() -> None:
    exposure = _exposure(nn.Sequential(nn.Linear(100, 120), nn.Tanh(), nn.Linear(120, CLASSES)), 1, 100)
    operator, plain = GradientJacobian(exposure), GradientJacobian(exposure, route=Route.JVP_VMAP)
    want = plain.gram()
    torch.testing.assert_close(operator.gram(), want, rtol=0, atol=1e-10 * float(want.abs().max()))
    assert operator.route == "ghost(reverse_over_reverse(vmap)), 2 linear layers"
    assert plain.route == "jvp(vmap)"
    assert operator.matvecs == 100
    held = GradientJacobian(exposure)
    held.dense()
    held.gram()
    assert held.route == operator.route


def test_the_model_is_left_alone() -> None:
    exposure = _exposure(_mlp(), 2, 12)
    before = {name: tensor.clone() for name, tensor in exposure.objective.params.items()}
    inputs = exposure.batch.inputs.clone()
    assert _ghost(exposure) is not None
    assert torch.equal(exposure.batch.inputs, inputs)
    assert all(torch.equal(exposure.objective.params[name], tensor) for name, tensor in before.items())

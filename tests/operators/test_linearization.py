from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.core import Batch, Exposure, Objective, Release
from gradleak.operators import Linearization, Route, dense_jacobian
from gradleak.protocols import FedSGD
from gradleak.results import UnsupportedError


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _quiet_module(build: type[nn.Module], *args: Any, **kwargs: Any) -> nn.Module:
    """A module whose parameters are drawn from an explicit generator."""
    with torch.device("meta"):
        module = build(*args, **kwargs)
    module.to_empty(device="cpu").double()
    generator = _generator(5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_(-0.5, 0.5, generator=generator)
    return module


def _smooth(x: Tensor) -> Tensor:
    return torch.cat([x.sin() * x.sum(), x.outer(x).reshape(-1).tanh()])


POINT = torch.randn(6, generator=_generator(), dtype=torch.float64)


def _reference(function: Any, point: Tensor) -> Tensor:
    """Row by row with plain reverse mode."""
    x = point.clone().requires_grad_()
    out = function(x)
    return torch.stack([torch.autograd.grad(entry, x, retain_graph=True)[0] for entry in out])


@pytest.mark.parametrize("chunk", [None, 1, 4, 5, 100])
def test_dense_jacobian_agrees_with_plain_reverse_mode(chunk: int | None) -> None:
    value, jacobian = dense_jacobian(_smooth, POINT, chunk=chunk)
    torch.testing.assert_close(value, _smooth(POINT))
    torch.testing.assert_close(jacobian, _reference(_smooth, POINT), rtol=1e-12, atol=1e-13)
    assert jacobian.shape == (42, 6)
    assert jacobian.T.is_contiguous()
    assert not jacobian.requires_grad


def test_a_small_budget_makes_small_blocks() -> None:
    assert Linearization(_smooth, POINT, max_bytes=1).chunk == 1
    assert Linearization(_smooth, POINT).chunk == 64


@pytest.mark.parametrize("route", [route for route in Route if not route.is_mixed])
@pytest.mark.parametrize("rows", [0, 1, 3, 17])
def test_every_route_gives_the_same_products(route: Route, rows: int) -> None:
    jacobian = _reference(_smooth, POINT)
    at = Linearization(_smooth, POINT, route=route, chunk=5)
    tangents = torch.randn(rows, 6, generator=_generator(1), dtype=torch.float64)
    cotangents = torch.randn(rows, 42, generator=_generator(2), dtype=torch.float64)
    torch.testing.assert_close(at.push(tangents), tangents @ jacobian.T, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(at.pull(cotangents), cotangents @ jacobian, rtol=1e-12, atol=1e-12)
    assert at.route is route


class _WithoutVmap(torch.autograd.Function):
    """exp, with a forward derivative but no batching rule."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * ctx.saved_tensors[0]

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return tangent * ctx.saved_tensors[0]


class _WithoutForward(torch.autograd.Function):
    """exp, with a batching rule but no forward derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * ctx.saved_tensors[0]


@pytest.mark.parametrize(("layer", "route"), [(_WithoutVmap, Route.JVP_LOOP), (_WithoutForward, Route.DOUBLE_VJP_VMAP)])
def test_a_layer_without_a_rule_falls_back_to_the_same_value(
    layer: type[torch.autograd.Function], route: Route
) -> None:
    def with_layer(x: Tensor) -> Tensor:
        return layer.apply(x) * x.sum()

    at = Linearization(with_layer, POINT)
    expected = _reference(lambda x: x.exp() * x.sum(), POINT)
    torch.testing.assert_close(at.push(torch.eye(6, dtype=torch.float64)), expected.T, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(at.pull(torch.eye(6, dtype=torch.float64)), expected, rtol=1e-12, atol=1e-13)
    assert at.route is route


class _Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer = kind(3, 4, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


class _Attention(nn.Module):
    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(3, 12)
        self.head = nn.Linear(4, 2)
        self.fused = fused

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).split(4, dim=-1)
        if self.fused:
            mixed = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        else:
            mixed = (q @ k.transpose(1, 2) / 2).softmax(-1) @ v
        return self.head(mixed.mean(1))


def _exposure(module: nn.Module) -> Exposure:
    inputs = torch.randn(2, 5, 3, generator=_generator(8), dtype=torch.float64)
    return Exposure(Objective.from_module(module), Batch(inputs, torch.tensor([0, 1])), Release(FedSGD()))


def _central_differences(exposure: Exposure, step: float = 1e-5) -> Tensor:
    x = exposure.inputs
    steps = step * torch.eye(x.numel(), dtype=x.dtype)
    return torch.stack([(exposure.mean(x + s) - exposure.mean(x - s)) / (2 * step) for s in steps], dim=1)


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_recurrent_layers_have_a_route(kind: type[nn.RNNBase]) -> None:
    exposure = _exposure(_quiet_module(_Recurrent, kind))
    _, jacobian = dense_jacobian(exposure.mean, exposure.inputs)
    torch.testing.assert_close(jacobian, _central_differences(exposure), rtol=1e-5, atol=1e-8)


def test_fused_attention_equals_the_written_out_one_and_flags_are_restored() -> None:
    flags = [
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.mem_efficient_sdp_enabled(),
        torch.backends.cuda.math_sdp_enabled(),
    ]
    fused, plain = (_exposure(_quiet_module(_Attention, fused=fused)) for fused in (True, False))
    at = Linearization(fused.mean, fused.inputs)
    identity = torch.eye(30, dtype=torch.float64)
    expected = dense_jacobian(plain.mean, plain.inputs)[1]
    torch.testing.assert_close(at.push(identity).T, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(
        at.pull(expected.T @ expected @ expected.T), expected.T @ expected @ expected.T @ expected
    )
    assert flags == [
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.mem_efficient_sdp_enabled(),
        torch.backends.cuda.math_sdp_enabled(),
    ]


class _Trained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stack = nn.Sequential(
            nn.Flatten(), nn.Linear(15, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.4), nn.Linear(8, 2)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.stack(x)


def test_train_mode_with_dropout_and_batch_norm() -> None:
    module = _quiet_module(_Trained)
    module.stack[2].reset_running_stats()
    exposure = replace(_exposure(module), objective=Objective.from_module(module, mode="train", mask_seed=3))
    _, jacobian = dense_jacobian(exposure.mean, exposure.inputs)
    torch.testing.assert_close(jacobian, _central_differences(exposure), rtol=1e-5, atol=1e-7)


def test_no_route_is_one_clear_error() -> None:
    class Opaque(torch.autograd.Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x.exp()

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            raise NotImplementedError("opaque layer")

    with pytest.raises(UnsupportedError, match=r"none of the routes to work \(jvp\(vmap\): .*opaque layer"):
        Linearization(Opaque.apply, POINT).push(torch.eye(6, dtype=torch.float64))


def test_an_error_of_the_function_itself_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        Linearization(lambda x: x * (1 // 0), POINT)

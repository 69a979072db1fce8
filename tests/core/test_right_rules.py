"""Rules of torch that are wrong, and the equal functions that stand in their place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.operators.models import differences
from torch import Tensor, nn
from torch.func import grad, jvp, vmap
from torch.nn.utils.parametrizations import weight_norm

from gradleak.core import Batch, Exposure, Objective, Release
from gradleak.core.evaluation import ALWAYS, BY_EXAMPLE
from gradleak.defenses import ClipPerExample
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedAvg, FedSGD

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch, on its first jvp

MENDED = "torch has mended this rule: take it out of gradleak.core.evaluation and of docs/explanation/risk-measures.md"
ROW = torch.tensor([[1.0, 2.0, 4.0]], dtype=torch.float64)
ONE = torch.ones(1, dtype=torch.float64)


def _drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    "loss",
    [
        lambda row, w: F.layer_norm(row, (3,), w.expand(3))[0],
        lambda row, w: F.instance_norm(row[None, None], weight=w)[0, 0, 0],
        lambda row, w: F.batch_norm(row[None, None], None, None, w, None, True)[0, 0, 0],
    ],
    ids=["layer_norm", "instance_norm", "batch_norm"],
)
def test_torch_differentiates_gradients_of_a_scale_under_vmap_wrongly(loss: Callable[..., Tensor]) -> None:
    def by_scale(row: Tensor) -> Tensor:
        return grad(lambda w: loss(row, w))(ONE)

    # What is normalized does not change when a constant is added.
    shift = torch.ones_like(ROW)
    assert jvp(by_scale, (ROW[0],), (shift[0],))[1].abs().max() < 1e-12
    wrong = float(jvp(vmap(by_scale), (ROW,), (shift,))[1].abs().max())
    assert wrong == pytest.approx(1 / float(ROW.std(correction=0)), rel=1e-4), MENDED

    with BY_EXAMPLE.within(loss):
        assert jvp(vmap(by_scale), (ROW,), (shift,))[1].abs().max() < 1e-12


def test_torch_differentiates_a_fused_weight_norm_twice_wrongly() -> None:
    def first(v: Tensor) -> Tensor:
        return torch._weight_norm(v, torch.ones_like(v[:, :1]), 0)[0, 0]

    def along(v: Tensor) -> tuple[Tensor, Tensor]:
        (slope,) = torch.autograd.grad(first(v), v, create_graph=True)
        return slope.detach(), torch.autograd.grad((slope * v.detach()).sum(), v)[0]

    # v/‖v‖ is the same along v, so that its gradient shrinks like 1/‖v‖ there.
    v = torch.tensor([[3.0, 4.0]], dtype=torch.float64, requires_grad=True)
    slope, change = along(v)
    torch.testing.assert_close(slope, torch.tensor([[0.128, -0.096]]).double())
    assert not torch.allclose(change, -slope, atol=1e-3), MENDED
    with ALWAYS.within(first):
        torch.testing.assert_close(along(v)[1], -slope)


def test_torch_differentiates_a_group_norm_twice_wrongly_for_a_block() -> None:
    """No exchange: `gradleak.operators` holds blocks of products against single ones."""
    x = _drawn(2, 2, 3).requires_grad_()
    (gradient,) = torch.autograd.grad(F.group_norm(x, 1).sin().sum(), x, create_graph=True)
    first = torch.zeros_like(x)
    first[0, 0, 0] = 1.0
    (alone,) = torch.autograd.grad(gradient, x, first, retain_graph=True)
    (block,) = torch.autograd.grad(gradient, x, first[None], is_grads_batched=True)
    # What is done to the first example leaves the second alone.
    assert not bool(alone[1].any())
    assert bool(block[0, 1].any()), "torch has mended this rule: take it out of docs/explanation/risk-measures.md"


CALLS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "layer_norm": lambda x, w, b: F.layer_norm(x, (4, 5), w.expand(4, 5), b.expand(4, 5), 1e-3),
    "layer_norm, bias alone": lambda x, w, b: F.layer_norm(x, [5], bias=b),
    "layer_norm, neither": lambda x, w, b: F.layer_norm(x, (5,)),
    "torch.layer_norm": lambda x, w, b: torch.layer_norm(x, (5,), w, b),
    "native_layer_norm": lambda x, w, b: torch.native_layer_norm(x, (5,), w, None, 1e-5)[0],
    "instance_norm": lambda x, w, b: F.instance_norm(x, weight=w[:4], bias=b[:4]),
    "instance_norm, tracked": lambda x, w, b: F.instance_norm(x, b[:4], w[:4], w[:4], b[:4], use_input_stats=False),
    "torch.instance_norm": lambda x, w, b: torch.instance_norm(x, w[:4], None, None, None, True, 0.1, 1e-5, False),
    "batch_norm": lambda x, w, b: F.batch_norm(x, None, None, w[:4], b[:4], True),
    "torch.batch_norm": lambda x, w, b: torch.batch_norm(x, w[:4], b[:4], b[:4], w[:4], False, 0.1, 1e-5, False),
    "weight_norm": lambda x, w, b: torch._weight_norm(x, x[:, :1, :1].exp()),
    "weight_norm, last": lambda x, w, b: torch._weight_norm(x[0], w[None].exp(), 1),
}


@pytest.mark.parametrize("name", CALLS)
def test_values_are_those_of_the_function(name: str) -> None:
    x, w, b = _drawn(3, 4, 5), _drawn(5, seed=1).exp(), _drawn(5, seed=2)
    with BY_EXAMPLE.within(nn.Identity()), ALWAYS.within(nn.Identity()):
        found = CALLS[name](x, w, b)
    torch.testing.assert_close(found, CALLS[name](x, w, b), rtol=1e-13, atol=1e-13)


def object_of(name: str) -> nn.Module:
    """A fresh owner."""
    return nn.Identity()


def test_an_owner_without_such_a_function_is_left_alone_from_the_second_time_on() -> None:
    plain, normed = nn.Linear(2, 2), nn.LayerNorm(2)
    x = torch.ones(1, 2)
    for owner, stays in ((plain, False), (normed, True)):
        for _ in range(2):
            with BY_EXAMPLE.within(owner):
                owner(x)
        with BY_EXAMPLE.within(owner):
            assert bool(torch.overrides._get_current_function_mode_stack()) is stays


def test_an_error_says_nothing_of_what_an_owner_calls() -> None:
    owner = nn.LayerNorm(2)
    with pytest.raises(RuntimeError), BY_EXAMPLE.within(owner):
        nn.Linear(3, 3)(torch.ones(1, 2))
    with BY_EXAMPLE.within(owner):
        assert torch.overrides._get_current_function_mode_stack()


@pytest.mark.parametrize("layer", [nn.LayerNorm(4), nn.InstanceNorm1d(4, affine=True)], ids=lambda x: type(x).__name__)
def test_attention_under_clipped_examples_has_the_derivative_that_differences_say(layer: nn.Module) -> None:
    """Once it was off by a third, λmin by a factor of two."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix, self.norm, self.head = nn.MultiheadAttention(4, 2, batch_first=True), layer, nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            mixed = x + self.mix(x, x, x, need_weights=False)[0]
            normed = self.norm(mixed if isinstance(layer, nn.LayerNorm) else mixed.transpose(1, 2))
            return self.head((normed if isinstance(layer, nn.LayerNorm) else normed.transpose(1, 2)).tanh().mean(1))

    model = Attention().double()
    with torch.no_grad():
        for place, parameter in enumerate(model.parameters()):
            parameter.copy_(_drawn(*parameter.shape, seed=place))
    batch = Batch(_drawn(3, 3, 4), torch.tensor([0, 2, 1]))
    exposure = Exposure(Objective.from_module(model), batch, Release(FedSGD(), [ClipPerExample(0.3)]))
    want = differences(exposure)
    torch.testing.assert_close(GradientJacobian(exposure).dense(), want, rtol=1e-6, atol=1e-8)


def test_local_steps_on_normalized_weights_have_the_derivative_that_differences_say() -> None:
    model = nn.Sequential(weight_norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 3)).double()
    with torch.no_grad():
        for place, parameter in enumerate(model.parameters()):
            parameter.copy_(_drawn(*parameter.shape, seed=place))
    batch = Batch(_drawn(2, 4), torch.tensor([0, 2]))
    exposure = Exposure(Objective.from_module(model), batch, Release(FedAvg(learning_rate=0.5, epochs=3)))
    torch.testing.assert_close(GradientJacobian(exposure).dense(), differences(exposure), rtol=1e-6, atol=1e-8)

"""The check of a derivative that an operator carries, and what it blames."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.operators.models import (
    DetachedCube,
    NumpyNoise,
    StraightThrough,
    Then,
    TwistedScale,
    between,
    differences,
    exposure_of,
)
from torch import Tensor, nn

from gradleak.core import Exposure, Release
from gradleak.defenses import Clip, GaussianNoise, Sign
from gradleak.operators import (
    AdjointRoute,
    DerivativeCheck,
    GradientJacobian,
    check_derivative,
    example_operators,
)
from gradleak.operators import derivative_check as room
from gradleak.protocols import FedSGD
from gradleak.results import Outcome


class DetachedScale(torch.autograd.Function):
    """w·x whose gradient of w hides how it depends on x."""

    generate_vmap_rule = True

    @staticmethod
    def forward(w: Tensor, x: Tensor) -> Tensor:
        return w * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        w, x = ctx.saved_tensors
        return grad * x.detach(), grad * w


class Scaled(nn.Module):
    """A scale whose own gradient has a wrong derivative: a share of P as small as it is asked for."""

    def __init__(self, size: int = 4) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return DetachedScale.apply(self.weight.expand(x.shape), x)


class Nested(nn.Module):
    """Two layers deep, with a second argument."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(4, 4), nn.Sequential(nn.Tanh(), Then(function))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(self.first(x)))


def _check(exposure: Exposure, **asked: Any) -> DerivativeCheck:
    return check_derivative(exposure, generator=torch.Generator().manual_seed(0), **asked)


@pytest.mark.parametrize(
    ("build", "blamed"),
    [
        (lambda: between(DetachedCube.apply), "layer 1 (Then)"),
        (lambda: between(StraightThrough.apply), "layer 1 (Then)"),
        (lambda: Nested(DetachedCube.apply), "layer inner.1 (Then)"),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), Scaled(), nn.Linear(4, 2)), "layer 2 (Scaled)"),
        (
            lambda: nn.Sequential(nn.Linear(4, 4), Then(DetachedCube.apply), Scaled(), nn.Linear(4, 2)),
            "layer 1 (Then), layer 2 (Scaled)",
        ),
    ],
    ids=["detached", "straight", "nested", "with weights", "two"],
)
def test_the_layer_is_named(build: Callable[[], nn.Module], blamed: str) -> None:
    exposure = exposure_of(build(), (4,))
    hooks = [len(layer._forward_pre_hooks) for layer in exposure.objective._module.modules()]
    found = _check(exposure)
    assert found.outcome is Outcome.INCONSISTENT
    assert f"the second derivative of {blamed} is wrong" in found.note
    assert [len(layer._forward_pre_hooks) for layer in exposure.objective._module.modules()] == hooks


def test_a_loss_to_blame_leaves_the_model_named() -> None:
    right = exposure_of(between(torch.tanh), (4,))

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(DetachedCube.apply(outputs), targets)

    exposure = replace(right, objective=type(right.objective).from_module(between(torch.tanh).double(), loss=loss))
    found = _check(exposure)
    assert found.outcome is Outcome.INCONSISTENT
    assert "the second derivative of the model is wrong" in found.note


def test_an_error_in_a_small_tensor_is_seen() -> None:
    """Over all tensors together it is far below the tolerance."""
    model = nn.Sequential(nn.Linear(4, 60), nn.Tanh(), nn.Linear(60, 4), Scaled(), nn.Linear(4, 2))
    exposure = exposure_of(model, (4,))
    with torch.no_grad():
        exposure.objective.params["4.weight"].mul_(1e-3)
    found = _check(exposure)
    assert found.outcome is Outcome.INCONSISTENT
    assert "the rows of 3.weight" in found.note or (found.error or 0.0) > 1e-3


def test_an_error_below_the_tolerance_is_right_but_not_exact() -> None:
    class Nearly(torch.autograd.Function):
        """x³ with a second derivative that is off by 1e-4 of itself."""

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return grad * 3 * (x * (1 - 1e-4) + x.detach() * 1e-4) ** 2

    found = _check(exposure_of(between(Nearly.apply), (4,)))
    assert (found.outcome, found.exact, found.refusal) == (Outcome.CONVERGED, False, "")
    assert "agree with differences of values to" in found.note
    assert _check(exposure_of(between(Nearly.apply), (4,)), tolerance=1e-6).outcome is Outcome.INCONSISTENT


def test_products_in_single_precision_are_held_against_double_precision() -> None:
    """A release of nearly equal large numbers leaves no digits of a derivative in float32."""
    smooth = exposure_of(between(torch.tanh), (4,))
    assert _check(smooth, dtype=torch.float32).exact

    def cancels(x: Tensor) -> Tensor:
        return (x * 1e4 + 1e10) - 1e10 + (1e4 * x).cos()

    found = _check(exposure_of(between(lambda x: cancels(x) / 1e4), (4,)), dtype=torch.float32)
    assert found.outcome is Outcome.INCONSISTENT
    assert "torch.float32 is not precise enough for this derivative: take dtype=torch.float64" in found.note
    assert _check(exposure_of(between(lambda x: cancels(x) / 1e4), (4,))).exact


def test_an_operator_is_checked_once_and_shares_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Exposure] = []

    def counted(exposure: Exposure, **rest: Any) -> DerivativeCheck:
        made.append(exposure)
        return check_derivative(exposure, **rest)

    monkeypatch.setattr("gradleak.operators.gradient_jacobian.check_derivative", counted)
    exposure = exposure_of(between(torch.tanh), (4,), examples=3)
    operator = GradientJacobian(exposure)
    assert operator.shared_check is None
    assert operator.check.exact
    assert operator.check is operator.check
    assert operator.at(operator.exposure.inputs + 1.0).check.exact
    assert GradientJacobian(exposure, check=operator.shared_check).check.exact
    assert len(made) == 1
    for one in example_operators(exposure):
        assert one.check.exact
    assert len(made) == 2


def test_a_check_of_another_release_can_be_given_and_is_believed() -> None:
    exposure = exposure_of(between(torch.tanh), (4,))
    told = DerivativeCheck(outcome=Outcome.INCONSISTENT, error=0.5, note="as was found elsewhere")
    assert GradientJacobian(exposure, check=told).check.refusal == "as was found elsewhere (relative error 0.5)"


@pytest.mark.parametrize("hold", [False, True], ids=["products", "held"])
def test_a_derivative_that_is_infinite_at_the_truth_is_told_apart(*, hold: bool) -> None:
    exposure = exposure_of(between(lambda x: x), (4,))
    root = replace(exposure_of(nn.Sequential(Then(lambda x: x.abs().sqrt()), nn.Linear(4, 2)), (4,)))
    dark = root.batch.inputs.clone()
    dark[0, 1] = 0.0
    at_zero = replace(root, batch=root.batch.with_inputs(dark))
    operator = GradientJacobian(at_zero)
    if hold:
        operator.hold(operator.matmat(torch.eye(operator.shape[1]).double()))
    assert operator.check.outcome is Outcome.NOT_FINITE
    assert "infinite or NaN at the private batch" in operator.check.refusal
    assert operator.shared_check is not None
    assert operator.shared_check.exact  # beside the truth it is right
    assert GradientJacobian(exposure).check.exact


def _at_zeros(function: Callable[[Tensor], Tensor]) -> Exposure:
    """Two entries of the input are zero, as black pixels are, before a function of them."""
    exposure = exposure_of(nn.Sequential(Then(function), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)), (4,))
    inputs = exposure.batch.inputs.clone()
    inputs[0, 1:3] = 0.0
    return replace(exposure, batch=exposure.batch.with_inputs(inputs))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("hold", [False, True], ids=["products", "held"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.relu() - (-x).relu(),
        lambda x: x * x.sign() * x.sign(),
        lambda x: x.clamp(min=0) + x.clamp(max=0),
    ],
    ids=["kinks that cancel", "sign", "clamped"],
)
def test_a_derivative_that_is_wrong_at_the_truth_alone_is_found(
    function: Callable[[Tensor], Tensor], *, hold: bool, dtype: torch.dtype
) -> None:
    """All three are x, with a slope of 1 at zero, where autograd says 0, 0 and 2."""
    operator = GradientJacobian(_at_zeros(function), dtype=dtype)
    if hold:
        operator.hold(operator.matmat(torch.eye(operator.shape[1], dtype=dtype)))
    assert operator.check.outcome is Outcome.INCONSISTENT
    assert "is wrong at the private batch, though right beside it" in operator.check.refusal
    assert operator.shared_check is not None
    assert operator.shared_check.exact
    # One example of zeros among others, with the check of the first one.
    outcomes = [one.check.outcome for one in example_operators(_at_zeros(function))]
    assert outcomes == [Outcome.INCONSISTENT, Outcome.CONVERGED]


@pytest.mark.parametrize("function", [torch.relu, torch.abs, lambda x: x * x.abs(), torch.sin, lambda x: x.cumprod(-1)])
def test_a_kink_at_the_truth_is_not_called_wrong(function: Callable[[Tensor], Tensor]) -> None:
    assert GradientJacobian(_at_zeros(function)).check.exact


def test_a_release_that_hardly_changes_is_not_held_against_round_off() -> None:
    """Differences of small steps were zero or noise, and agreed with each other."""
    exposure = exposure_of(nn.Sequential(Then(lambda x: 1.0 + 1e-7 * x.sin()), nn.Linear(4, 2)), (4,), examples=1)
    assert _check(exposure).outcome is Outcome.CONVERGED
    constant = exposure_of(nn.Sequential(Then(lambda x: 1.0 + 1e-13 * x.sin()), nn.Linear(4, 2)), (4,), examples=1)
    assert _check(constant).outcome is Outcome.NOT_INFORMATIVE


def test_a_direction_in_which_nothing_changes_holds_round_off_alone() -> None:
    """A layer that divides by the size of its input has no slope along the input."""
    first = exposure_of(nn.Sequential(nn.RMSNorm(6, eps=0.0), nn.Linear(6, 3)), (6,), examples=1)
    right = DerivativeCheck(outcome=Outcome.CONVERGED, exact=True)
    for seed in range(20):
        inputs = torch.randn(1, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        exposure = replace(first, batch=first.batch.with_inputs(inputs))
        operator = GradientJacobian(exposure)
        along = exposure.inputs
        product = operator.matmat(along[:, None])[:, 0]
        assert float(product.norm()) < 1e-14
        assert room.check_at_truth(exposure, operator.value, along, product, right) == right
        assert not room.check_at_truth(exposure, operator.value, along, product + 1e-6, right).exact


def test_a_product_that_only_tests_is_not_in_the_record() -> None:
    operator = GradientJacobian(exposure_of(between(torch.tanh), (4,)))
    route = operator.route
    assert operator.check.exact
    assert operator.route == route
    assert operator.matvecs == 0


def test_flat_and_random_releases_are_never_exact() -> None:
    smooth = exposure_of(between(torch.tanh), (4,))
    flat = GradientJacobian(replace(smooth, release=Release(FedSGD(), [Sign()])))
    assert (flat.check.outcome, flat.check.exact, flat.check.refusal) == (Outcome.NOT_INFORMATIVE, False, "")
    random = exposure_of(nn.Sequential(nn.Linear(4, 4), NumpyNoise(), nn.Linear(4, 2)), (4,))
    assert GradientJacobian(random).check.outcome is Outcome.UNSUPPORTED
    noisy = replace(smooth, release=Release(FedSGD(), [Clip(0.1), GaussianNoise(std=1.0)]))
    assert GradientJacobian(noisy).check.exact


class Padded(nn.Module):
    """An embedding whose row of the padding token is used and never learned: its gradient is zero by decree."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(5, 4, padding_idx=0), nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x * self.table(torch.tensor([1, 0, 3]))).tanh().flatten(1))


@pytest.mark.parametrize("columns", [1, 6])
@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (Padded(), (3, 4)),
        (TwistedScale(), (4,)),
        (nn.Sequential(nn.GroupNorm(1, 2, affine=False), nn.Flatten(), nn.Linear(6, 2)), (2, 3)),
    ],
    ids=["padding", "gradient of no loss", "group normalization"],
)
def test_products_are_right_in_any_order_and_by_any_route(
    module: nn.Module, shape: tuple[int, ...], columns: int
) -> None:
    """Products with Aᵀ first once let an asymmetric graph through; blocks of a group normalization were wrong."""
    exposure = exposure_of(module, shape)
    want = differences(exposure)
    generator = torch.Generator().manual_seed(1)
    left = torch.randn(len(want), columns, generator=generator, dtype=torch.float64)
    right = torch.randn(want.shape[1], columns, generator=generator, dtype=torch.float64)
    operator = GradientJacobian(exposure)
    for _ in range(2):
        torch.testing.assert_close(operator.adjoint_matmat(left), want.T @ left, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(operator.matmat(right), want @ right, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(operator.normal(right), want.T @ (want @ right), rtol=1e-6, atol=1e-7)
    tight = GradientJacobian(exposure, max_bytes=2000)  # no graph is kept
    torch.testing.assert_close(tight.adjoint_matmat(left), want.T @ left, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(operator.gram(), want.T @ want, rtol=1e-6, atol=1e-7)


def test_a_row_that_no_gradient_reaches_keeps_forward_over_reverse_away() -> None:
    exposure = exposure_of(Padded(), (3, 4))
    with pytest.raises(room.UnsupportedError, match="forward over reverse"):
        GradientJacobian(exposure, adjoint=AdjointRoute.FORWARD_OVER_REVERSE).adjoint_matmat(
            torch.ones(exposure.objective.size, 1).double()
        )

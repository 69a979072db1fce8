"""The mixed derivative of the loss, forward over reverse, and what each needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from tests.operators.models import Sequence, between, exposure_of
from tests.oracles import load_oracle
from torch import Tensor, nn

from gradleak.core import Exposure, Objective, Release
from gradleak.defenses import Clip, ClipPerExample, GaussianNoise, Prune
from gradleak.models import resnet8
from gradleak.operators import AdjointRoute, GradientJacobian, Linearization, Route
from gradleak.operators.mixed_derivative import MixedDerivative
from gradleak.protocols import FedAvg, FedSGD
from gradleak.results import Outcome, UnsupportedError


@pytest.fixture(scope="module")
def small() -> Exposure:
    return exposure_of(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), (6,), examples=3)


def _block(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows), dtype=torch.float64)


DEFENSES = {
    "none": [],
    "clip": [Clip(0.1)],
    "prune and clip": [Prune(0.6), Clip(0.1)],
    "noise": [GaussianNoise(std=1e-3)],
}


@pytest.mark.parametrize("defenses", DEFENSES.values(), ids=DEFENSES)
@pytest.mark.parametrize("count", [1, 3, 20])
def test_the_symmetric_route_goes_through_the_defenses(small: Exposure, defenses: list[object], count: int) -> None:
    exposure = replace(small, release=Release(FedSGD(), defenses))
    operator = GradientJacobian(exposure, chunk=8)
    want = GradientJacobian(exposure, route=Route.JVP_LOOP).dense()
    rows, columns = operator.shape
    right, left = _block(columns, count), _block(rows, count)
    torch.testing.assert_close(operator.matmat(right), want @ right, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(operator.adjoint_matmat(left), want.T @ left, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(operator.normal(right), want.T @ (want @ right), rtol=1e-10, atol=1e-13)
    assert operator.route.startswith("reverse_over_reverse")
    forward = GradientJacobian(exposure, adjoint=AdjointRoute.FORWARD_OVER_REVERSE)
    torch.testing.assert_close(forward.adjoint_matmat(left), want.T @ left, rtol=1e-10, atol=1e-13)
    assert forward.route == "forward_over_reverse"


@pytest.mark.parametrize(
    "release",
    [Release(FedAvg(learning_rate=0.1, epochs=2)), Release(FedSGD(), [ClipPerExample(0.1)])],
    ids=["fedavg", "per example"],
)
def test_other_releases_have_no_mixed_derivative(small: Exposure, release: Release) -> None:
    exposure = replace(small, release=release)
    assert release.after_gradient is None
    assert MixedDerivative.of(exposure) is None
    operator = GradientJacobian(exposure)
    operator.dense()
    assert operator.route == "jvp(vmap)"
    with pytest.raises(UnsupportedError, match="forward over reverse: expected a release"):
        GradientJacobian(exposure, adjoint=AdjointRoute.FORWARD_OVER_REVERSE).adjoint_matmat(operator.value[:, None])


def test_a_protocol_that_claims_to_share_the_gradient_and_does_not_is_found_out(small: Exposure) -> None:
    class Doubled(FedSGD):
        shares_gradient: ClassVar[bool] = True

        def mean(self, objective: Objective, params: Mapping[str, Tensor], *rest: object) -> dict[str, Tensor]:
            return {name: 2 * tensor for name, tensor in super().mean(objective, params, *rest).items()}  # type: ignore[arg-type]

    operator = GradientJacobian(replace(small, release=Release(Doubled())))
    torch.testing.assert_close(operator.dense(), 2 * GradientJacobian(small).dense())
    assert operator.route == "jvp(vmap)"


def test_a_graph_above_the_budget_is_not_kept_and_the_values_are_equal(small: Exposure) -> None:
    mixed = MixedDerivative.of(small)
    assert mixed is not None
    roomy, tight = (GradientJacobian(small, max_bytes=budget) for budget in (2**30, mixed.needed_bytes - 1))
    left, right = _block(small.objective.size, 5), _block(18, 5)
    torch.testing.assert_close(tight.adjoint_matmat(left), roomy.adjoint_matmat(left), rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(tight.matmat(right), roomy.matmat(right), rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(tight.normal(right), roomy.normal(right), rtol=1e-10, atol=1e-13)
    assert tight.route == "forward_over_reverse, jvp(vmap)"
    assert roomy.route == "double_backward, reverse_over_reverse(vmap)"


def test_what_the_kept_graph_is_said_to_take_is_near_what_it_takes() -> None:
    exposure = exposure_of(resnet8(generator=torch.Generator().manual_seed(0)), (3, 16, 16), examples=1)
    mixed = MixedDerivative.of(exposure)
    assert mixed is not None
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        mixed.push(_block(1, 768), batched=False)
    # Above by what the gradient and one product take.
    assert 0.3 < sum(sizes.values()) / mixed.needed_bytes < 0.9


def test_reasons_are_kept_for_routes_that_do_not_work() -> None:
    exposure = exposure_of(Sequence(nn.LSTM(3, 4, batch_first=True), 4), (2, 3))
    at = Linearization(exposure.mean, exposure.inputs)
    at.push(_block(12, 12))
    assert at.routes_used == ("jvp(vmap)",)
    assert at.reasons == {}
    named = Linearization(exposure.mean, exposure.inputs, route=Route.REVERSE_OVER_REVERSE_LOOP)
    with pytest.raises(UnsupportedError, match="not a function of the plain gradient"):
        named.push(_block(12, 12))
    assert list(named.reasons) == [Route.REVERSE_OVER_REVERSE_LOOP]


def test_a_loss_without_input_has_a_zero_derivative() -> None:
    operator = GradientJacobian(exposure_of(between(lambda x: 0.0 * x.detach()), (4,)))
    assert not bool(operator.dense().any())
    assert operator.largest_eigenvalue(certify=False).outcome is Outcome.NOT_INFORMATIVE


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_single_vector_finds_the_largest_eigenvalue(shared: Path, dtype: torch.dtype) -> None:
    for name in ("lenet_sigmoid_uniform", "lenet_relu_default", "mlp_tanh_batch4"):
        oracle = load_oracle(shared, name)
        operator = GradientJacobian(oracle.exposure, dtype=dtype)
        found = operator.largest_eigenvalue(tolerance=1e-4, certify=False)
        assert float(found.values[0]) == pytest.approx(oracle.values["gram_eigenvalue_max"], rel=1e-4)
        assert found.outcome is Outcome.CONVERGED
        certified = GradientJacobian(oracle.exposure, dtype=dtype).largest_eigenvalue(tolerance=1e-4)
        assert found.matvecs < certified.matvecs


def test_a_resnet_has_the_same_largest_eigenvalue_by_a_dense_matrix() -> None:
    for activation in ("relu", "tanh"):
        model = resnet8(activation=activation, channels=1, generator=torch.Generator().manual_seed(0))
        exposure = exposure_of(model, (1, 8, 8), examples=1)
        want = torch.linalg.eigvalsh(GradientJacobian(exposure, route=Route.JVP_VMAP).gram())[-1]
        found = GradientJacobian(exposure).largest_eigenvalue(tolerance=1e-4, certify=False)
        assert float(found.values[0]) == pytest.approx(float(want), rel=1e-4)

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from tests.oracles import NAMES, Oracle, load_oracle
from torch import Tensor, nn

from gradleak.core import Batch, Exposure, Guarantee, Objective, Release, UpdateDefense
from gradleak.core.defense import Noise
from gradleak.defenses import Clip
from gradleak.operators import GradientJacobian, Route
from gradleak.protocols import FedSGD
from gradleak.results import InputError, Outcome, UnsupportedError


@pytest.fixture(scope="module")
def mlp(shared: Path) -> Oracle:
    return load_oracle(shared, "mlp_tanh_batch4")


class _Sign(UpdateDefense):
    """The sign of every entry: a map whose derivative is zero."""

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC

    def mean(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.sign() for name, tensor in update.items()}

    def noise(self, shapes: Mapping[str, Tensor]) -> Noise:
        return None

    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        return self.mean(update)


@pytest.mark.parametrize("name", NAMES)
def test_spectrum_of_the_reference_cases(shared: Path, name: str) -> None:
    oracle = load_oracle(shared, name)
    operator = GradientJacobian(oracle.exposure)
    top = operator.largest_eigenvalue(count=5)
    values = operator.gram_spectrum().numpy()
    want = oracle.values
    assert operator.shape == (want["parameters"], want["input_size"])
    assert values[-1] == pytest.approx(want["gram_eigenvalue_max"], rel=1e-6)
    assert values[0] == pytest.approx(want["gram_eigenvalue_min"], rel=1e-6)
    assert values.sum() == pytest.approx(want["gram_trace"], rel=1e-6)
    np.testing.assert_allclose(values[:-6:-1], want["gram_eigenvalues_top5"], rtol=1e-6)
    np.testing.assert_allclose(top.values, want["gram_eigenvalues_top5"], rtol=1e-6)
    assert top.outcome is Outcome.CONVERGED
    assert operator.rank == want["input_size"]
    assert float(operator.value.norm()) == pytest.approx(want["gradient_norm"], rel=1e-12)


def test_products_are_those_of_the_dense_matrix(mlp: Oracle) -> None:
    dense = GradientJacobian(mlp.exposure).dense()
    operator = GradientJacobian(mlp.exposure)
    for columns in (1, 3, 20):
        right = torch.randn(48, columns, generator=torch.Generator().manual_seed(columns), dtype=torch.float64)
        left = torch.randn(995, columns, generator=torch.Generator().manual_seed(columns), dtype=torch.float64)
        torch.testing.assert_close(operator.matmat(right), dense @ right)
        torch.testing.assert_close(operator.adjoint_matmat(left), dense.T @ left)
    assert operator.matvecs == 48


def test_columns_are_directional_derivatives_of_the_release(mlp: Oracle) -> None:
    exposure = mlp.exposure
    direction = torch.randn(48, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    step = 1e-6
    slope = (exposure.mean(exposure.inputs + step * direction) - exposure.mean(exposure.inputs - step * direction)) / (
        2 * step
    )
    product = GradientJacobian(exposure).matmat(direction[:, None])[:, 0]
    torch.testing.assert_close(product, slope, rtol=1e-6, atol=1e-9)


def test_clip_that_bites_has_the_analytic_derivative(mlp: Oracle) -> None:
    plain = GradientJacobian(mlp.exposure)
    norm = plain.value.norm()
    unit = plain.value / norm
    clipped = GradientJacobian(replace(mlp.exposure, release=Release(FedSGD(), [Clip(0.5)])))
    expected = 0.5 / norm * (plain.dense() - unit[:, None] * (unit @ plain.dense())[None])
    torch.testing.assert_close(clipped.dense(), expected, rtol=1e-10, atol=1e-14)
    idle = GradientJacobian(replace(mlp.exposure, release=Release(FedSGD(), [Clip(100.0)])))
    torch.testing.assert_close(idle.dense(), plain.dense(), rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("options", [{"max_bytes": 100_000}, {"max_bytes": 1}, {"chunk": 7}])
def test_memory_budgets_do_not_change_the_values(mlp: Oracle, options: dict[str, int]) -> None:
    """U62."""
    roomy, tight = GradientJacobian(mlp.exposure), GradientJacobian(mlp.exposure, **options)
    torch.testing.assert_close(tight.gram(), roomy.gram(), rtol=1e-11, atol=1e-15)
    torch.testing.assert_close(tight.gram_spectrum(), roomy.gram_spectrum(), rtol=1e-9, atol=0)
    assert torch.equal(tight.gram(), tight.gram().T)


def test_a_matrix_above_the_budget_is_never_held(mlp: Oracle) -> None:
    operator = GradientJacobian(mlp.exposure, max_bytes=100_000)
    assert not operator.fits
    with pytest.raises(UnsupportedError, match=r"needs 382080 bytes, the budget is max_bytes=100000"):
        operator.dense()


@pytest.mark.parametrize("route", list(Route))
def test_routes_agree_and_are_named(mlp: Oracle, route: Route) -> None:
    operator = GradientJacobian(mlp.exposure, route=route)
    torch.testing.assert_close(operator.gram(), GradientJacobian(mlp.exposure).gram(), rtol=1e-11, atol=1e-15)
    assert operator.route == route.value


def test_float32_models_are_computed_in_float64(mlp: Oracle) -> None:
    operator = GradientJacobian(mlp.exposure.to(torch.float32))
    assert operator.gram().dtype == torch.float64
    assert float(operator.gram_spectrum()[-1]) == pytest.approx(mlp.values["gram_eigenvalue_max"], rel=1e-5)


def test_a_zero_map_has_a_zero_spectrum_and_rank(mlp: Oracle) -> None:
    operator = GradientJacobian(replace(mlp.exposure, release=Release(FedSGD(), [_Sign()])))
    assert float(operator.gram_spectrum().abs().max()) == 0.0
    assert operator.rank == 0
    assert operator.largest_eigenvalue().outcome is Outcome.NOT_INFORMATIVE


def test_repeated_examples_lose_no_rank_but_dead_inputs_do() -> None:
    weight = torch.tensor([[1.0, -2.0, 0.0], [0.5, 1.0, 0.0]], dtype=torch.float64)
    model = nn.Linear(3, 2, bias=False, device="meta").to_empty(device="cpu").double()
    with torch.no_grad():
        model.weight.copy_(weight)
    frozen = nn.Sequential(model, _Scale())
    model.requires_grad_(False)
    exposure = Exposure(
        Objective.from_module(frozen, loss="mse"),
        Batch(torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64)),
        Release(FedSGD()),
    )
    operator = GradientJacobian(exposure)
    # The third input meets zero weights, and two outputs carry what is shared: rank 2 of 3.
    assert operator.shape == (2, 3)
    assert operator.rank == 2


def test_one_unknown(tmp_path: Path) -> None:
    exposure = _cube(torch.tensor([[2.0]], dtype=torch.float64))
    operator = GradientJacobian(exposure)
    # loss (w x)², w = 3: gradient 2 w x², its derivative 4 w x = 24.
    assert operator.dense().tolist() == [[pytest.approx(24.0)]]
    assert operator.gram_spectrum().tolist() == [pytest.approx(576.0)]
    assert operator.largest_eigenvalue().values.tolist() == [pytest.approx(576.0)]
    assert operator.largest_eigenvalue(count=3).values.numel() == 1
    assert operator.at(torch.tensor([1.0], dtype=torch.float64)).dense().tolist() == [[pytest.approx(12.0)]]


def test_a_repeated_top_eigenvalue_of_a_release() -> None:
    """U42: a symmetric release."""
    # Three unknowns that enter alike, three times the case above: A is diagonal with equal entries.
    model = _Scale(torch.full((3,), 3.0, dtype=torch.float64))
    exposure = Exposure(
        Objective.from_module(model, loss="mse"),
        Batch(torch.full((1, 3), 2.0, dtype=torch.float64), torch.zeros(1, 3, dtype=torch.float64)),
        Release(FedSGD()),
    )
    top = GradientJacobian(exposure).largest_eigenvalue()
    assert top.multiplicity == 3
    assert top.values.tolist() == [pytest.approx((24.0 / 3) ** 2)]


def test_infinite_release_is_refused() -> None:
    exposure = _cube(torch.tensor([[1e200]], dtype=torch.float64))
    with pytest.raises(InputError, match="expected a finite released mean"):
        GradientJacobian(exposure)


def test_infinite_derivative_is_refused() -> None:
    exposure = replace(_cube(torch.tensor([[0.0]], dtype=torch.float64)), release=Release(FedSGD(), [_Root()]))
    with pytest.raises(UnsupportedError, match="expected a finite derivative of the release"):
        GradientJacobian(exposure).gram()


def test_nonsense_options_are_refused(mlp: Oracle) -> None:
    for value in (0, -1, 1.5, "1", None, True, math.nan):
        with pytest.raises(InputError, match="max_bytes: expected a whole number of at least 1, got "):
            GradientJacobian(mlp.exposure, max_bytes=value)  # type: ignore[arg-type]
    for chunk in (0, 1.5, "1", True):
        with pytest.raises(InputError, match="chunk: expected a whole number of at least 1, got "):
            GradientJacobian(mlp.exposure, chunk=chunk)  # type: ignore[arg-type]
    for dtype in (torch.float16, torch.bfloat16, torch.int64, torch.complex128, None):
        with pytest.raises(InputError, match=r"dtype: expected torch\.float64 or torch\.float32, got "):
            GradientJacobian(mlp.exposure, dtype=dtype)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="GradientJacobian: expected an Exposure, got Objective"):
        GradientJacobian(mlp.exposure.objective)  # type: ignore[arg-type]


def test_the_exposure_is_left_alone(mlp: Oracle) -> None:
    exposure = mlp.exposure
    before = {name: tensor.clone() for name, tensor in exposure.objective.params.items()}
    inputs = exposure.batch.inputs.clone()
    GradientJacobian(exposure).gram_spectrum()
    assert torch.equal(exposure.batch.inputs, inputs)
    assert not exposure.batch.inputs.requires_grad
    assert all(torch.equal(exposure.objective.params[name], tensor) for name, tensor in before.items())


class _Scale(nn.Module):
    def __init__(self, weight: Tensor | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, dtype=torch.float64) if weight is None else weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x


class _Root(_Sign):
    def mean(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.abs().sqrt() for name, tensor in update.items()}


def _cube(inputs: Tensor) -> Exposure:
    model = _Scale(torch.tensor([3.0], dtype=torch.float64))
    return Exposure(
        Objective.from_module(model, loss="mse"),
        Batch(inputs, torch.zeros(1, 1, dtype=torch.float64)),
        Release(FedSGD()),
    )

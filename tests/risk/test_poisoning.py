from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.oracles import Oracle
from tests.risk.cases import diagonal, signed
from torch import Tensor, nn

from gradleak.core import Batch, Exposure, Objective, Release
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedSGD
from gradleak.results import InputError, Outcome
from gradleak.risk import one_layer_derivative, poisoning_amplification


def _tests(mlp: Oracle, count: int = 3) -> Batch:
    draw = torch.Generator().manual_seed(5)
    shape = (count, *mlp.exposure.batch.inputs.shape[1:])
    inputs = torch.rand(shape, generator=draw, dtype=torch.float64)
    return Batch(inputs, torch.arange(count) % 3, mlp.exposure.batch.domain)


def _loss_after(exposure: Exposure, inputs: Tensor, tests: Batch, rate: float) -> float:
    """The test loss after the step that the release of these inputs leads to."""
    objective = exposure.objective
    step = objective.unflatten(exposure.mean(inputs.reshape(-1)))
    moved = {name: tensor - rate * step[name] for name, tensor in objective.params.items()}
    return float(objective.loss(moved, tests))


def test_the_closed_form_of_a_diagonal_map() -> None:
    # g = 2 w x²/d with d = 2, A = diag(4 w x/d): g = (1, 8), A = diag(2, 8), at w = (1, 2), x = (1, 2).
    exposure = diagonal([1.0, 2.0], [1.0, 2.0])
    tests = Batch(torch.tensor([[1.0, 1.0]], dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64))
    found = poisoning_amplification(GradientJacobian(exposure), tests, learning_rate=0.1, radius=0.5)
    # After the step w = (0.9, 1.2), and v = 2 w x²/d there.
    assert found.test_gradient == pytest.approx(math.hypot(0.9, 1.2))
    assert found.spectral_norm == pytest.approx(8.0)
    assert found.amplification == pytest.approx(0.05 * math.hypot(2 * 0.9, 8 * 1.2))
    assert found.bound == pytest.approx(0.05 * 8 * math.hypot(0.9, 1.2))
    assert found.outcome is Outcome.CONVERGED


def test_it_is_the_rise_along_its_direction_and_no_other_rises_more(mlp: Oracle) -> None:
    exposure, tests, size = mlp.exposure, _tests(mlp), 1e-5
    found = poisoning_amplification(GradientJacobian(exposure), tests, learning_rate=0.5, radius=size)
    assert found.amplification is not None
    assert found.bound is not None
    assert found.direction is not None
    assert float(found.direction.norm()) == pytest.approx(size)
    inputs = exposure.batch.inputs

    def rise(change: Tensor) -> float:
        ahead, behind = (_loss_after(exposure, inputs + sign * change, tests, 0.5) for sign in (1, -1))
        return (ahead - behind) / 2

    assert rise(found.direction) == pytest.approx(found.amplification, rel=1e-5)
    draw = torch.Generator().manual_seed(0)
    for _ in range(10):
        other = torch.randn(inputs.shape, generator=draw, dtype=torch.float64)
        assert abs(rise(size * other / other.norm())) < found.amplification
    assert found.amplification <= found.bound


def test_what_has_no_derivative_has_no_amplification(mlp: Oracle) -> None:
    nothing = poisoning_amplification(GradientJacobian(signed(mlp.exposure)), _tests(mlp))
    assert nothing.outcome is Outcome.NOT_INFORMATIVE
    assert nothing.direction is None
    assert nothing.amplification == nothing.bound == 0.0
    with pytest.raises(InputError, match="radius: expected a finite positive number"):
        poisoning_amplification(GradientJacobian(mlp.exposure), _tests(mlp), radius=0.0)


ACTIVATIONS = [torch.sigmoid, torch.tanh, lambda a: a]


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=["sigmoid", "tanh", "identity"])
@pytest.mark.parametrize("size", [1, 2, 7])
def test_one_layer_is_what_the_operator_computes(activation: Callable[[Tensor], Tensor], size: int) -> None:
    draw = torch.Generator().manual_seed(size)
    inputs, weight = (torch.randn(size, generator=draw, dtype=torch.float64) for _ in range(2))

    class OneLayer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(weight.clone())

        def forward(self, x: Tensor) -> Tensor:
            return activation(x @ self.weight)[:, None]

    objective = Objective.from_module(OneLayer(), loss=lambda outputs, targets: ((outputs - targets) ** 2).sum() / 2)
    batch = Batch(inputs[None], torch.full((1, 1), 0.3, dtype=torch.float64))
    matrix = GradientJacobian(Exposure(objective, batch, Release(FedSGD()))).dense()
    found = one_layer_derivative(inputs, weight, 0.3, activation)
    torch.testing.assert_close(found.matrix, matrix, rtol=1e-10, atol=1e-12)
    want = torch.linalg.svdvals(matrix)
    torch.testing.assert_close(found.singular_values, want, rtol=1e-9, atol=1e-12)
    assert found.gaussian_error(0.1) == pytest.approx(0.01 * float((1 / want**2).sum()), rel=1e-7)


def test_a_network_that_fits_tells_nothing_and_one_that_nearly_does_little() -> None:
    inputs, weight = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([0.3, 0.1, 0.7])
    output = float(torch.sigmoid(inputs.double() @ weight.double()))
    fits = one_layer_derivative(inputs, weight, output)
    assert fits.residual == 0.0
    assert np.linalg.matrix_rank(fits.matrix.numpy()) == 1
    assert fits.gaussian_error(0.1) == math.inf
    errors = [one_layer_derivative(inputs, weight, output + gap).gaussian_error(0.1) for gap in (0.3, 0.03, 0.003)]
    assert errors == sorted(errors)
    assert errors[2] > 1000 * errors[0]


def test_one_layer_refuses_other_shapes() -> None:
    with pytest.raises(InputError, match=r"of one shape \(d,\), got \(2,\) and \(3,\)"):
        one_layer_derivative(torch.ones(2), torch.ones(3), 0.0)
    with pytest.raises(InputError, match="expected finite"):
        one_layer_derivative(torch.ones(2), torch.ones(2), math.inf)

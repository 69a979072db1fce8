"""λmax of AᵀA with bounds, and I²F with bounds, against the dense spectrum by numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from tests.risk.cases import color, signed
from torch import nn

from gradleak.core import Batch, Domain, Exposure, Objective, Release
from gradleak.defenses import Clip, GaussianNoise
from gradleak.linalg import GaussRadau
from gradleak.models import initialize_uniform, lenet_dlg
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedSGD
from gradleak.results import Evidence, InputError, Outcome
from gradleak.risk import InversionInfluence, LargestEigenvalue

RUNS = 120


@pytest.fixture(scope="module")
def lenet() -> GradientJacobian:
    """A of the LeNet of DLG on an image of 8x8, with A held."""
    generator = torch.Generator().manual_seed(0)
    model = initialize_uniform(lenet_dlg(size=8, channels=1), low=-0.5, high=0.5, generator=generator)
    image = torch.rand(1, 1, 8, 8, generator=generator)
    batch = Batch(image, torch.tensor([3]), Domain.image(channels=1, height=8, width=8))
    operator = GradientJacobian(Exposure(Objective.from_module(model), batch, Release(FedSGD())))
    operator.dense()
    return operator


def test_the_interval_holds_the_dense_value_as_often_as_it_says(lenet: GradientJacobian) -> None:
    largest = float(np.linalg.norm(lenet.dense().numpy(), 2) ** 2)
    missed = 0
    for seed in range(RUNS):
        measure = LargestEigenvalue(tolerance=0.3, max_steps=3, confidence=0.8, seed=seed)
        score = measure(lenet.exposure, operator=lenet)
        assert score.interval is not None
        assert score.value == score.interval[0] <= largest * (1 + 1e-12)
        assert score.evidence is Evidence.ESTIMATE
        missed += score.interval[1] < largest
    assert missed <= stats.binom.ppf(0.999, RUNS, 0.2)


def test_few_products_give_close_bounds(lenet: GradientJacobian) -> None:
    score = LargestEigenvalue()(lenet.exposure, operator=lenet)
    assert score.outcome is Outcome.CONVERGED
    assert score.interval is not None
    assert score.interval[1] <= 1.1 * score.interval[0]
    assert score.details["steps"] < 16
    assert "95%" in score.note


def test_layers_give_a_lower_bound(lenet: GradientJacobian) -> None:
    dense, objective = lenet.dense().numpy(), lenet.exposure.objective
    name = list(objective.params)[-2].rpartition(".")[0]
    score = LargestEigenvalue(layers=[name], tolerance=1e-9)(lenet.exposure, operator=lenet)
    rows = sum(tensor.numel() for key, tensor in objective.params.items() if key.startswith(f"{name}."))
    assert score.details["rows"] == rows
    assert score.value == pytest.approx(float(np.linalg.norm(dense[-rows:], 2) ** 2))
    assert score.value < float(np.linalg.norm(dense, 2) ** 2)
    assert score.evidence is Evidence.LOWER_BOUND
    assert score.interval is None


def test_layers_of_a_release_that_mixes_them_are_refused() -> None:
    exposure = color(torch.Generator().manual_seed(0))
    clipped = Exposure(exposure.objective, exposure.batch, Release(FedSGD(), [Clip(max_norm=1e-3)]))
    score = LargestEigenvalue(layers=["3"])(clipped)
    assert score.outcome is Outcome.UNSUPPORTED
    assert "mixes tensors" in score.note
    noisy = Exposure(exposure.objective, exposure.batch, Release(FedSGD(), [GaussianNoise(std=0.1)]))
    assert LargestEigenvalue(layers=["3"])(noisy).value == LargestEigenvalue(layers=["3"])(exposure).value
    with pytest.raises(InputError, match="is it"):
        LargestEigenvalue(layers=["head"])(exposure)


def test_nothing_that_depends_on_the_input_has_no_value() -> None:
    zero = LargestEigenvalue()(signed(color(torch.Generator().manual_seed(0))))
    assert zero.outcome is Outcome.NOT_INFORMATIVE
    assert zero.value is None
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).double()
    with torch.no_grad():
        model[1].bias.fill_(-100.0)  # dead units: the last bias alone is released, and is constant
    batch = Batch(torch.rand(1, 4, dtype=torch.float64), torch.tensor([1]))
    dead = Exposure(Objective.from_module(model), batch, Release(FedSGD()))
    assert LargestEigenvalue(layers=["3"])(dead).outcome is Outcome.NOT_INFORMATIVE


@pytest.mark.parametrize("unit", ["input", "pixel_rmse"])
def test_influence_lies_between_its_bounds(unit: str) -> None:
    exposure = color(torch.Generator().manual_seed(0))
    delta = 1e-3 * torch.randn(exposure.objective.size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    exact = InversionInfluence(epsilon=1e-3, unit=unit)(exposure, delta=delta).value
    score = InversionInfluence(epsilon=1e-3, unit=unit, solver=GaussRadau(tolerance=0.1))(exposure, delta=delta)
    assert exact is not None
    assert score.interval is not None
    assert score.interval[0] <= exact <= score.interval[1]
    assert score.evidence is Evidence.ESTIMATE
    assert "bounds" in score.note
    fine = InversionInfluence(epsilon=1e-3, unit=unit, solver=GaussRadau(tolerance=1e-9))(exposure, delta=delta)
    # The norm is known to 1e-9; the vector, whose entries pixels weigh, to about the root of it.
    assert fine.value == pytest.approx(exact, rel=1e-8 if unit == "input" else 1e-5)
    assert fine.evidence is Evidence.EXACT
    none = InversionInfluence(solver=GaussRadau(), unit=unit)(exposure, delta=delta)
    assert none.outcome is Outcome.UNSUPPORTED

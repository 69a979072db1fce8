from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from gradleak.core import Batch, Exposure, Objective, Release
from gradleak.defenses import ClipPerExample
from gradleak.protocols import FedSGD
from gradleak.results import InputError

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch, on its first jvp


def test_each_row_is_clipped_by_its_norm_over_all_tensors() -> None:
    rows = {
        "a": torch.tensor([[3.0, 0.0], [0.1, 0.0], [0.0, 0.0]], dtype=torch.float64),
        "b": torch.tensor([4.0, 0.2, 0.0], dtype=torch.float64),
    }
    found = ClipPerExample(1.0).mean(rows)
    assert found["a"].tolist() == [[pytest.approx(0.6), 0.0], [0.1, 0.0], [0.0, 0.0]]
    assert found["b"].tolist() == [pytest.approx(0.8), 0.2, 0.0]


def test_the_derivative_of_the_release_is_the_analytic_one() -> None:
    """Aᵢ -> (C/(b‖gᵢ‖))(I − ĝᵢĝᵢᵀ)Aᵢ for the columns of example i."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)).double()
    objective = Objective.from_module(model)
    inputs = torch.rand(2, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    batch = Batch(inputs, torch.tensor([1, 0]))
    found = torch.func.jacfwd(Exposure(objective, batch, Release(FedSGD(), [ClipPerExample(0.2)])).mean)(
        inputs.reshape(-1)
    )
    for place in range(2):
        alone = Exposure(objective, batch.example(place), Release(FedSGD()))
        g, a = alone.released_mean(), torch.func.jacfwd(alone.mean)(alone.inputs)
        assert float(g.norm()) > 0.2
        unit = g / g.norm()
        expected = 0.2 / (2 * g.norm()) * (a - torch.outer(unit, unit @ a))
        columns: Tensor = found[:, 4 * place : 4 * place + 4]
        torch.testing.assert_close(columns, expected, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("max_norm", [0.0, -1.0, float("inf"), "1.0", None])
def test_impossible_norms_are_refused(max_norm: Any) -> None:
    with pytest.raises(InputError, match=r"ClipPerExample.max_norm: expected a finite positive number, got"):
        ClipPerExample(max_norm)

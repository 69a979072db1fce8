from __future__ import annotations

import pytest
import torch
from torch import nn

from gradleak.core import Batch, Exposure, Objective, Release
from gradleak.defenses import ClipPerExample, GaussianNoise, Sign
from gradleak.protocols import FedAvg, FedSGD
from gradleak.results import Outcome
from gradleak.risk import GaussianReconstructionError, InversionInfluence, InversionInfluenceLowerBound

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch, on its first jvp


def test_the_signs() -> None:
    given = {"a": torch.tensor([[-2.0, 0.0], [1e-30, 5.0]], dtype=torch.float64), "b": torch.tensor(-1.0)}
    for found in (Sign().mean(given), Sign().draw(given, torch.Generator())):
        assert found["a"].tolist() == [[-1.0, 0.0], [1.0, 1.0]]
        assert found["a"].dtype == torch.float64
        assert found["b"].item() == -1.0
    assert Sign().noise(given) is None


@pytest.mark.parametrize(
    "release",
    [
        Release(FedSGD(), [Sign()]),
        Release(FedAvg(learning_rate=0.1, epochs=2), [Sign()]),
        Release(FedSGD(), [ClipPerExample(0.1), Sign(), GaussianNoise(std=0.1)]),
    ],
    ids=repr,
)
def test_closed_form_measures_say_that_they_say_nothing(release: Release) -> None:
    objective = Objective.from_module(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double())
    batch = Batch(
        torch.rand(2, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64), torch.tensor([0, 2])
    )
    exposure = Exposure(objective, batch, release)
    delta = torch.ones(objective.size, dtype=torch.float64)
    for measure in (
        InversionInfluence(),
        InversionInfluence(epsilon=1.0),
        InversionInfluenceLowerBound(),
        GaussianReconstructionError(std=0.1),
    ):
        score = measure(exposure, delta=delta)
        assert score.value is None
        assert score.outcome is Outcome.NOT_INFORMATIVE
        assert "no evidence of safety" in score.note

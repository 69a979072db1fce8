"""The papers' attacks: their settings, and that they find what they ought to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gradleak.attacks import DLG, LBFGS, Adam, CosineDistance, InvertingGradients, SquaredError, Start
from gradleak.core import Batch
from gradleak.models import linear_model
from gradleak.results import Outcome
from tests.attacks.setting import DIGIT, lenet, rows, setting, small_net


def _generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_settings_of_inverting_gradients() -> None:
    composed = InvertingGradients().compose()
    (stage,) = composed.stages
    assert isinstance(composed.matching, CosineDistance)
    assert stage.iterations == 4000
    assert stage.optimizer == Adam(learning_rate=0.1, signed=True, milestones=(3 / 8, 5 / 8, 7 / 8), decay=0.1)
    assert composed.variables.box
    assert [prior.weight for prior in composed.priors] == [1e-3]


def test_the_settings_of_dlg() -> None:
    composed = DLG().compose()
    (stage,) = composed.stages
    assert isinstance(composed.matching, SquaredError)
    assert stage.optimizer == LBFGS(learning_rate=1.0, history=100, inner_steps=20)
    assert stage.iterations == 300
    assert not composed.variables.box
    assert composed.variables.start is Start.NORMAL
    assert not composed.priors


def test_inverting_gradients_finds_any_image_behind_the_linear_model() -> None:
    for seed in range(3):
        # Noise is the worst case for a smoothness prior.
        image = torch.rand(1, 1, 28, 28, generator=_generator(seed))
        truth = Batch(image, torch.tensor([seed]), DIGIT)
        case = setting(linear_model(features=784, classes=10), truth, dtype=torch.float32)
        found = InvertingGradients(iterations=300)(case.update, case.knowledge, generator=_generator())
        assert found.targets.tolist() == [seed]
        # Far below the threshold of a leak, a pixel RMSE of 0.1, on which the positive control rests.
        assert case.error(found.inputs) < 5e-4
        assert case.error(found.inputs) < 0.01 * case.error(torch.full_like(image, 0.5))


def test_dlg_finds_a_row_and_its_label_together() -> None:
    case = setting(small_net("sigmoid"), rows(2))
    found = DLG(iterations=40, restarts=3)(case.update, case.knowledge, generator=_generator())
    assert found.details["labels"] == "optimized"
    assert int(found.targets.argmax()) == 2
    assert case.error(found.inputs) < 1e-6
    assert found.outcome in (Outcome.CONVERGED, Outcome.BUDGET_SPENT)


def test_dlg_without_a_line_search_may_diverge_and_still_returns_its_best() -> None:
    case = setting(small_net("sigmoid"), rows(2))
    for seed in range(4):
        found = DLG(iterations=5)(case.update, case.knowledge, generator=_generator(seed))
        assert torch.isfinite(found.inputs).all()
        assert found.loss == min(found.history)


def test_the_estimate_is_the_cost_of_a_full_run() -> None:
    case = setting(small_net(), rows(2))
    attack = InvertingGradients(iterations=20, restarts=2)
    found = attack(case.update, case.knowledge, generator=_generator())
    assert found.plain_gradients == attack.estimate(case.knowledge) == 3 * 2 * 21


@pytest.mark.parametrize(
    ("name", "activation", "share"),
    [("lenet_sigmoid_uniform", "sigmoid", 0.5), ("lenet_relu_default", "relu", 0.25)],
)
def test_inverting_gradients_finds_a_digit_far_better_than_blind(
    shared: Path, name: str, activation: str, share: float
) -> None:
    model, truth = lenet(shared, name, activation)
    case = setting(model, truth, dtype=torch.float32)
    found = InvertingGradients(iterations=150)(case.update, case.knowledge, generator=_generator())
    assert case.error(found.inputs) < share * case.error(torch.full((1, 1, 28, 28), 0.5))

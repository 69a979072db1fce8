"""An explained update is no found input where the update leaves directions open: the rank of the derivative."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from gradleak.attacks import DenseSteps, GaussNewton, KrylovSteps, SketchedSteps, Steps
from gradleak.attacks.inversion.gauss_newton.residual_system import Cost, ResidualSystem
from gradleak.attacks.inversion.problem import LabelPolicy, Problem
from gradleak.attacks.inversion.variables import Pixels
from gradleak.core import Batch, HonestButCurious, Reconstruction
from gradleak.defenses import GaussianNoise, Prune
from gradleak.models import linear_model
from gradleak.results import Outcome
from tests.attacks.setting import ROW, Setting, rows, setting, small_net

EACH = pytest.mark.parametrize("steps", [DenseSteps(), SketchedSteps(), KrylovSteps()], ids=repr)


def _generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _last_bias_only() -> Setting:
    net = small_net()
    net.requires_grad_(False)
    net[4].bias.requires_grad_(True)
    return setting(net, rows(1, seed=7), threat=HonestButCurious(targets=True))


def _rank(case: Setting, found: Reconstruction) -> int:
    """By numpy, over the entries inside their range."""
    problem = Problem.pose(
        case.update, case.knowledge, pixels=Pixels(), policy=LabelPolicy.RECOVER, dtype=torch.float64
    )
    system = ResidualSystem(problem, 2**30, Cost())
    flat = found.inputs.reshape(-1)
    matrix = torch.autograd.functional.jacobian(system.mean, flat)
    inside = (flat > 0) & (flat < 1)
    return int(np.linalg.matrix_rank(matrix[:, inside].numpy(), tol=1e-9))


@EACH
def test_the_last_bias_alone_explains_many_inputs(steps: Steps) -> None:
    case = _last_bias_only()
    found = GaussNewton(steps=steps)(case.update, case.knowledge, generator=_generator())
    assert found.details["at_floor"]
    assert case.error(found.inputs) > 1e-3
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    # Three probabilities that sum to 1 are two numbers.
    assert _rank(case, found) == 2
    free = int(((found.inputs > 0) & (found.inputs < 1)).sum())
    slack = 2 if isinstance(steps, KrylovSteps) else 0
    assert abs(found.details["null_dimension"] - (free - 2)) <= slack
    assert f"of {free} directions of the input are not determined" in found.note


@pytest.mark.parametrize(
    "steps", [DenseSteps(), SketchedSteps(), pytest.param(KrylovSteps(), marks=pytest.mark.slow)], ids=repr
)
def test_pruning_that_leaves_ten_entries_leaves_directions_open(steps: Steps) -> None:
    case = setting(small_net(), rows(2), defenses=[Prune(0.99)])
    found = GaussNewton(steps=steps, starts=4, warm_iterations=0)(case.update, case.knowledge, generator=_generator())
    assert found.outcome is not Outcome.CONVERGED
    if found.details["at_floor"]:
        assert found.outcome is Outcome.NOT_IDENTIFIABLE


def test_enough_entries_left_by_pruning_determine_the_input() -> None:
    case = setting(small_net(), rows(2), defenses=[Prune(0.9)])
    found = GaussNewton()(case.update, case.knowledge, generator=_generator())
    assert found.outcome is Outcome.CONVERGED
    assert found.details["null_dimension"] == 0
    assert _rank(case, found) == 12
    assert case.error(found.inputs) < 1e-20


@pytest.mark.parametrize("std", [1e-4, 1e-2, 1e-1])
def test_directions_that_noise_hides_count_as_open(std: float) -> None:
    """By the documented threshold, 12 s² per squared range, with numpy's eigenvalues of AᵀA/σ²."""
    truth = Batch(torch.rand(1, 12, generator=_generator(2)), torch.tensor([1]), ROW)
    scales = torch.logspace(0, -3, 12).repeat(1, 1)

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = linear_model(features=12, classes=3, generator=_generator())

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x * scales.to(x))

    case = setting(Scaled(), truth, defenses=[GaussianNoise(std=std)], threat=HonestButCurious(targets=True))
    found = GaussNewton(starts=1)(case.update, case.knowledge, generator=_generator())
    assert found.details["at_floor"]
    problem = Problem.pose(
        case.update, case.knowledge, pixels=Pixels(), policy=LabelPolicy.RECOVER, dtype=torch.float64
    )
    flat = found.inputs.reshape(-1)
    inside = (flat > 0) & (flat < 1)
    matrix = torch.autograd.functional.jacobian(lambda z: problem.mean(z, problem.labels), flat)[:, inside].numpy()
    values = np.linalg.eigvalsh(matrix.T @ matrix) / std**2
    if found.details.get("null_dimension") is not None:
        assert abs(found.details["null_dimension"] - int((values <= 12).sum())) <= 1
    assert (found.outcome is Outcome.CONVERGED) == (int((values <= 12).sum()) == 0)


def test_labels_that_are_unknowns_hide_no_directions_of_their_own() -> None:
    """A softmax does not see a shift of its logits; that is no doubt about the input."""
    mixed = Batch(rows(0).inputs, torch.tensor([[0.5, 0.3, 0.2]]), rows(0).domain)
    case = setting(small_net(), mixed)
    found = GaussNewton(starts=4, warm_iterations=50)(case.update, case.knowledge, generator=_generator())
    assert found.details["labels"] == "optimized"
    assert found.outcome is Outcome.CONVERGED
    assert found.details["null_dimension"] == 0


def test_a_rank_that_products_cannot_resolve_is_not_called_converged() -> None:
    # One step an inner solve, and two for the rank: far too few for twelve directions of very different size.
    truth = Batch(torch.rand(1, 12, generator=_generator(2)), torch.tensor([1]), ROW)
    case = setting(small_net(), truth)
    found = GaussNewton(steps=KrylovSteps(), max_steps=60)(case.update, case.knowledge, generator=_generator())
    assert found.details["rank_resolved"]
    assert found.outcome is Outcome.CONVERGED

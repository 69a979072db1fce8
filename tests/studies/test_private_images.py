"""What the studies of defenses share, against numpy, scipy and torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch.func import functional_call, grad, jacfwd

from gradleak.core import Batch, Domain, Exposure, Objective, Release, one_thread
from gradleak.datasets import mnist_digits
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedSGD
from gradleak.results import InputError
from studies.private_images import SmallNetwork, balanced, draw_images, isotropic, pixel_rmse, reach, trained
from studies.summaries import geometric_mean, median

LENET = SmallNetwork.SIGMOID_LENET


def test_shrunken_images_are_means_over_blocks(tiny_images: str) -> None:
    full = draw_images(tiny_images, count=3, seed=1)
    half = draw_images(tiny_images, count=3, seed=1, shrink=2)
    blocks = full.inputs.numpy().reshape(3, 3, 3, 2, 3, 2).mean(axis=(3, 5))
    assert half.inputs.numpy() == pytest.approx(blocks, abs=1e-6)
    assert torch.equal(half.targets, full.targets)
    assert half.domain == Domain.image(channels=3, height=3, width=3)
    with pytest.raises(InputError, match="divides"):
        draw_images(tiny_images, count=3, seed=1, shrink=4)


def test_balanced_takes_the_first_of_each_class() -> None:
    batch = Batch(torch.arange(6.0)[:, None], torch.tensor([1, 0, 1, 0, 1, 0]))
    chosen = balanced(batch, 2, (0, 1))
    assert chosen.inputs.flatten().tolist() == [1, 3, 0, 2]
    assert chosen.targets.tolist() == [0, 0, 1, 1]
    with pytest.raises(InputError, match="4 examples of class 0, got 3"):
        balanced(batch, 4, (0,))


def test_prediction_and_bound_are_those_of_numpy(tiny_images: str) -> None:
    batch = draw_images(tiny_images, count=1, seed=0)
    model = LENET.model(batch, torch.Generator().manual_seed(0)).double()
    example, label = batch.inputs.double(), batch.targets
    params = dict(model.named_parameters())

    def gradient(inputs: torch.Tensor) -> torch.Tensor:
        def loss(weights: dict[str, torch.Tensor]) -> torch.Tensor:
            outputs = functional_call(model, weights, (inputs,))
            return torch.nn.functional.cross_entropy(outputs, label)

        return torch.cat([piece.flatten() for piece in grad(loss)(params).values()])

    matrix = jacfwd(gradient)(example).detach().flatten(1).numpy()
    objective = Objective.from_module(model)
    operator = GradientJacobian(Exposure(objective, batch.to(torch.float64), Release(FedSGD())))
    perturbation = isotropic(objective, 1e-5, torch.Generator().manual_seed(1))
    assert float(perturbation.norm()) == pytest.approx(1e-5)
    found = reach(operator, perturbation)
    moved = np.linalg.lstsq(matrix, perturbation.numpy(), rcond=None)[0]
    root = np.sqrt(matrix.shape[1])
    assert found.predicted == pytest.approx(np.linalg.norm(moved) / root, rel=1e-5)
    bound = np.linalg.norm(matrix.T @ perturbation.numpy()) / np.linalg.norm(matrix, 2) ** 2
    assert found.bound == pytest.approx(bound / root, rel=1e-6)
    assert found.reached == pytest.approx(found.predicted, rel=1e-3)
    assert found.outcome == "converged"


def test_nothing_is_looked_for_beyond_the_range_of_pixels(tiny_images: str) -> None:
    batch = draw_images(tiny_images, count=1, seed=0).to(torch.float64)
    objective = LENET.objective(batch, seed=0).to(torch.float64)
    operator = GradientJacobian(Exposure(objective, batch, Release(FedSGD())))
    drawn = isotropic(objective, 10.0, torch.Generator().manual_seed(1))
    far, near = reach(operator, drawn), reach(operator, drawn * 1e-6, attack=False)
    assert far.predicted is not None
    assert far.predicted > 1
    assert (far.reached, far.outcome) == (None, "beyond linear")
    assert (near.reached, near.outcome) == (None, "not tried")
    assert near.predicted == pytest.approx(far.predicted * 1e-6)


def test_training_lowers_the_loss_and_leaves_the_start_alone() -> None:
    digits = mnist_digits(count=200)
    start = LENET.objective(digits, seed=0)
    before = {name: tensor.clone() for name, tensor in start.params.items()}
    end = trained(start, digits, steps=20, seed=0)
    with torch.no_grad():
        losses = [float(objective.loss(objective.params, digits)) for objective in (start, end)]
    assert losses[1] < 0.8 * losses[0]
    assert all(torch.equal(before[name], tensor) for name, tensor in start.params.items())
    assert trained(start, digits, steps=0, seed=0).params.keys() == start.params.keys()


def test_relu_network_has_relu_and_default_weights(tiny_images: str) -> None:
    batch = draw_images(tiny_images, count=1, seed=0)
    kinds = [type(layer).__name__ for layer in SmallNetwork.RELU_CONVNET.model(batch, torch.Generator())]
    assert kinds.count("Conv2d") == kinds.count("ReLU") == 3
    lenet = LENET.model(batch, torch.Generator())
    assert max(float(tensor.detach().abs().max()) for tensor in lenet.parameters()) <= 0.5


def test_means_medians_and_errors() -> None:
    values = [0.5, 2.0, 8.0, 3.0]
    mean, (low, high) = geometric_mean(values, seed=0)
    assert mean == pytest.approx(stats.gmean(values))
    assert low < mean < high
    assert median([3.0, None, 1.0]) == 2.0
    assert median([None]) is None
    example = Batch(torch.zeros(1, 1, 1, 2), torch.tensor([0]), Domain.image(channels=1, height=1, width=2, std=(0.5,)))
    assert pixel_rmse(torch.tensor([[[[3.0, 4.0]]]]), example) == pytest.approx(0.5 * np.sqrt(12.5))
    assert pixel_rmse(None, example) is None
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before

"""Color images behind the LeNet of the DLG paper: beyond 100 dB."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio

from gradleak.attacks import GaussNewton
from gradleak.core import Batch, Domain, HonestButCurious
from gradleak.models import initialize_uniform, lenet_dlg
from gradleak.results import Outcome
from tests.attacks.setting import setting


def _generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _psnr(found: torch.Tensor | None, truth: torch.Tensor) -> float:
    assert found is not None
    return float(peak_signal_noise_ratio(truth.double().numpy(), found.double().numpy(), data_range=1.0))


def _cifar(shared: Path, place: int) -> tuple[torch.Tensor, torch.Tensor]:
    with np.load(shared / "data" / "cifar10" / "cifar10_test_500.npz") as stored:
        chosen = stored["uniform"]
        image, label = stored["x"][chosen][place], stored["y"][chosen][place]
    return torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255, torch.tensor([int(label)])


@pytest.mark.parametrize("weights", ["default", "uniform"])
def test_a_small_color_image_is_found_beyond_100_db(weights: str) -> None:
    model = lenet_dlg(size=8, generator=_generator(2))
    if weights == "uniform":
        initialize_uniform(model, generator=_generator(2))
    image = torch.rand(1, 3, 8, 8, generator=_generator(3))
    case = setting(model, Batch(image, torch.tensor([3]), Domain.image(channels=3, height=8, width=8)))
    found = GaussNewton(starts=1)(case.update, case.knowledge, generator=_generator())
    assert found.outcome is Outcome.CONVERGED
    assert found.details["steps"] == {"use": "DenseSteps", "reuse": 40}
    assert _psnr(found.inputs, image) > 100


def test_a_batch_of_two_small_color_images_is_found_beyond_100_db() -> None:
    image = torch.rand(2, 3, 8, 8, generator=_generator(3))
    truth = Batch(image, torch.tensor([3, 7]), Domain.image(channels=3, height=8, width=8))
    case = setting(lenet_dlg(size=8, generator=_generator(2)), truth, threat=HonestButCurious(targets=True))
    found = GaussNewton(starts=1)(case.update, case.knowledge, generator=_generator())
    assert found.outcome is Outcome.CONVERGED
    assert _psnr(found.inputs, image) > 100


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("place", "weights"), [(0, "default"), (1, "uniform")])
def test_cifar_images_are_found_beyond_100_db(shared: Path, place: int, weights: str) -> None:
    image, label = _cifar(shared, place)
    model = lenet_dlg(generator=_generator(place))
    if weights == "uniform":
        initialize_uniform(model, generator=_generator(place))
    case = setting(model, Batch(image, label, Domain.image(channels=3, height=32, width=32)))
    found = GaussNewton(starts=1)(case.update, case.knowledge, generator=_generator(100 + place))
    assert found.outcome is Outcome.CONVERGED
    assert found.details["null_dimension"] == 0
    decibel = _psnr(found.inputs, image)
    assert decibel > 100
    assert math.isfinite(decibel)

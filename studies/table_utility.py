"""The utility column of the defense table: the network trained through a release, on images that are not attacked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradleak.audits.utility import measure_utility
from gradleak.core import Batch, Release, derive_generator
from gradleak.datasets import mnist_digits
from gradleak.results import GradleakError
from gradleak.training import Task, Training, split
from studies.private_images import SmallNetwork, draw_images

ROWS = 3000
TEST_ROWS = 1000
BATCH = 32
MOMENTUM = 0.9


@dataclass(frozen=True, kw_only=True)
class UtilitySettings:
    """Settings by which utility is measured.

    Attributes:
        images: npz file, or None for MNIST.
        shrink: as for the attacked images.
        private: how many images of the draw are attacked; they are left out.
        rounds: of training.
        rate: of the server.
        seed: of images, weights and training.
    """

    images: str | None
    shrink: int
    private: int
    rounds: int
    rate: float
    seed: int


def worth_with(network: SmallNetwork, release: Release, settings: UtilitySettings) -> str:
    """Test accuracy with its interval, as it is printed, or why there is none."""
    if settings.images is None:
        pool = mnist_digits(count=ROWS, seed=settings.seed)
    else:
        with np.load(settings.images, allow_pickle=False) as arrays:
            count = min(len(arrays["y"]), ROWS)
        pool = draw_images(settings.images, count=count, seed=settings.seed, shrink=settings.shrink)
    rows = Batch(pool.inputs[settings.private :], pool.targets[settings.private :], pool.domain)
    train, test = split(
        rows, test_rows=min(TEST_ROWS, rows.size // 3), generator=derive_generator(settings.seed, "split")
    )
    task = Task(
        name=network.value,
        train=train,
        test=test,
        make_model=lambda generator: network.model(train, generator),
    )
    training = Training(
        rounds=settings.rounds,
        learning_rate=settings.rate,
        batch_size=min(BATCH, train.size),
        momentum=MOMENTUM,
        probes=0,
    )
    try:
        found = measure_utility(task, release, training, seeds=(settings.seed,))
    except GradleakError as error:
        return f"refused: {error}"
    score = found.score
    if score.value is None:
        return f"none: {score.outcome.label}"
    interval = "" if score.interval is None else f" ({score.interval[0]:.2f} to {score.interval[1]:.2f})"
    return f"{score.value:.2f}{interval}" + ("" if found.credit else ", no better than blind")


__all__ = ["BATCH", "ROWS", "TEST_ROWS", "UtilitySettings", "worth_with"]

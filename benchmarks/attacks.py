"""One iteration of an attack on the 28x28 LeNet, a start: lockstep pays."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.measure import Row, plain_gradient, ratio
from gradleak.attacks import DLG, Attack, GaussNewton, InvertingGradients
from gradleak.core import Batch, Domain, HonestButCurious, Objective, Release
from gradleak.models import initialize_uniform, lenet_i2f
from gradleak.protocols import FedSGD

ITERATIONS = 3


def run() -> Iterator[Row]:
    generator = torch.Generator().manual_seed(0)
    model = initialize_uniform(lenet_i2f(), generator=generator)
    objective = Objective.from_module(model)
    image = torch.rand(1, 1, 28, 28, generator=generator)
    batch = Batch(image, torch.tensor([3]), Domain.image(channels=1, height=28, width=28))
    release = Release(FedSGD())
    update = release(objective, batch, generator)
    knowledge = HonestButCurious().disclose(objective, release, batch)
    plain = plain_gradient(objective, batch)

    def cost(attack: Attack) -> float:
        return ratio(lambda: attack(update, knowledge, generator=torch.Generator().manual_seed(1)), plain, 3)

    for starts in (1, 8, 64):
        long, short = (InvertingGradients(iterations=count, restarts=starts) for count in (2 * ITERATIONS, ITERATIONS))
        yield Row(
            name=f"InvertingGradients, iteration and start, {starts} starts",
            ratio=(cost(long) - cost(short)) / (ITERATIONS * starts),
            aim=1.5 if starts == 64 else None,
        )
    # 20 gradients an iteration.
    yield Row(
        name="DLG, inner step and start, 8 starts",
        ratio=(cost(DLG(iterations=2, restarts=8)) - cost(DLG(iterations=1, restarts=8))) / (20 * 8),
    )
    double = objective.to(torch.float64)
    plain = plain_gradient(double, batch)
    yield Row(
        name="GaussNewton, one step (float64)",
        ratio=cost(GaussNewton(max_steps=2, starts=1)) - cost(GaussNewton(max_steps=1, starts=1)),
    )

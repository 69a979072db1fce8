"""Images, networks and attackers that the studies of defenses share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.core import Batch, Domain, Mode, Objective, Update, derive_generator
from gradleak.datasets import image_file, mnist_digits
from gradleak.models import Activation, initialize_uniform, lenet_dlg, lenet_i2f
from gradleak.operators import GradientJacobian
from gradleak.results import InputError, Outcome
from gradleak.risk import InversionInfluence, InversionInfluenceLowerBound, perfect_attacker

BEYOND = 1.0
"""A predicted pixel RMSE from which on no minimizer is looked for: pixels lie in [0, 1]."""


class SmallNetwork(StrEnum):
    """Networks of these studies: sigmoids with weights uniform(−0.5, 0.5), or ReLU with torch's default weights."""

    SIGMOID_LENET = "lenet"
    RELU_CONVNET = "relu_convnet"

    def model(self, batch: Batch, generator: torch.Generator) -> nn.Sequential:
        """The network for such images: `lenet_i2f` for gray, `lenet_dlg` for color and, with ReLU, for the ReLU network."""
        channels, size = batch.inputs.shape[1], batch.inputs.shape[2]
        if self is SmallNetwork.RELU_CONVNET:
            return lenet_dlg(activation=Activation.RELU, channels=channels, size=size, generator=generator)
        model = lenet_i2f(size=size) if channels == 1 else lenet_dlg(size=size, channels=channels)
        return initialize_uniform(model, low=-0.5, high=0.5, generator=generator)

    def objective(self, batch: Batch, *, seed: int) -> Objective:
        """The network in eval mode, float32, its weights by seed and name."""
        return Objective.from_module(self.model(batch, derive_generator(seed, "weights", self.value)), mode=Mode.EVAL)


def draw_images(images: str | None, *, count: int, seed: int, only: str | None = None, shrink: int = 1) -> Batch:
    """MNIST digits, or the images of an npz file, by means over `shrink` × `shrink` pixels.

    Raises:
        InputError: where `shrink` does not divide their size.
    """
    if images is None:
        batch = mnist_digits(count=count, seed=seed)
    else:
        batch = image_file(path=Path(images), count=count, seed=seed, only=only)
    if shrink == 1:
        return batch
    if shrink < 1 or batch.inputs.shape[2] % shrink or batch.inputs.shape[3] % shrink:
        raise InputError(f"shrink: expected a number that divides {tuple(batch.inputs.shape[2:])}, got {shrink}")
    smaller = F.avg_pool2d(batch.inputs, shrink)
    channels, height, width = smaller.shape[1:]
    return Batch(smaller, batch.targets, Domain.image(channels=channels, height=height, width=width))


def balanced(batch: Batch, per_class: int, classes: Sequence[int]) -> Batch:
    """The first examples of each of these classes, class by class.

    Raises:
        InputError: where a class has fewer.
    """
    places: list[int] = []
    for label in classes:
        found = (batch.targets == label).nonzero().flatten().tolist()[:per_class]
        if len(found) < per_class:
            raise InputError(f"expected {per_class} examples of class {label}, got {len(found)}: draw more images")
        places += found
    chosen = torch.tensor(places)
    return batch.rows(chosen)


def trained(objective: Objective, rows: Batch, *, steps: int, seed: int, learning_rate: float = 3e-3) -> Objective:
    """The objective after so many Adam steps on batches of 64 of these rows."""
    generator = derive_generator(seed, "training")
    params = {name: tensor.detach().clone().requires_grad_() for name, tensor in objective.params.items()}
    optimizer = torch.optim.Adam(list(params.values()), lr=learning_rate)
    for _ in range(steps):
        places = torch.randint(rows.size, (64,), generator=generator)
        loss = objective.loss(params, Batch(rows.inputs[places], rows.targets[places]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return replace(objective, params={name: tensor.detach() for name, tensor in params.items()})


@dataclass(frozen=True, kw_only=True)
class Reach:
    """A perturbed release against the attacker of the I²F paper; pixel RMSE, None where there is no number.

    Attributes:
        predicted: exact I²F.
        bound: its lower bound.
        reached: by the perfect attacker; None also where the prediction is beyond `BEYOND`, or the budget ended first.
        outcome: of the perfect attacker, or "beyond linear".
    """

    predicted: float | None
    bound: float | None
    reached: float | None
    outcome: str


def reach(operator: GradientJacobian, perturbation: Tensor, *, attack: bool = True, max_steps: int = 4) -> Reach:
    """Effect of a perturbation (P,) of the release behind `operator` on an attacker without box and prior."""
    exposure = operator.exposure
    predicted = InversionInfluence(unit="pixel_rmse")(exposure, delta=perturbation, operator=operator).value
    bound = InversionInfluenceLowerBound(unit="pixel_rmse")(exposure, delta=perturbation, operator=operator).value
    if predicted is None or predicted >= BEYOND or not attack:
        return Reach(
            predicted=predicted, bound=bound, reached=None, outcome="not tried" if not attack else "beyond linear"
        )
    update = Update(
        tensors=exposure.objective.unflatten(operator.value + perturbation), kind=exposure.release.protocol.kind
    )
    found = perfect_attacker(exposure, update, operator=operator, max_steps=max_steps)
    at_end = found.outcome in (Outcome.CONVERGED, Outcome.PLATEAU)
    return Reach(
        predicted=predicted,
        bound=bound,
        reached=found.score.value if at_end else None,
        outcome=found.outcome.label,
    )


def pixel_rmse(claim: Tensor | None, example: Batch) -> float | None:
    """The root mean squared error of a claim against one example, in pixels; None without a claim."""
    if claim is None:
        return None
    assert example.domain is not None
    pixels, truth = example.domain.to_pixels(claim.double()), example.domain.to_pixels(example.inputs.double())
    return float((pixels - truth).square().mean().sqrt())


def isotropic(objective: Objective, norm: float, generator: torch.Generator) -> Tensor:
    """A perturbation (P,) of this norm in a direction that is uniform on the sphere; float64."""
    drawn = torch.randn(objective.size, generator=generator, dtype=torch.float64)
    length: Tensor = drawn.norm()
    return norm * drawn / length

"""Small settings that attacks are tested in: a release of one batch, and what the server knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from gradleak.core import (
    Batch,
    Defense,
    Domain,
    DomainKind,
    HonestButCurious,
    ImageGenerator,
    Knowledge,
    Objective,
    Protocol,
    Release,
    Update,
)
from gradleak.models import Activation, lenet_i2f, mlp
from gradleak.protocols import FedSGD

ROW = Domain(shape=(12,), kind=DomainKind.TABULAR)
DIGIT = Domain.image(channels=1, height=28, width=28)


@dataclass(frozen=True)
class Setting:
    """The truth is kept apart from what an attack gets."""

    truth: Batch
    update: Update
    knowledge: Knowledge

    def error(self, inputs: Tensor | None) -> float:
        """Mean squared error against the truth, in pixels scaled to [0, 1]."""
        assert inputs is not None
        assert self.truth.domain is not None
        to_pixels = self.truth.domain.to_pixels
        return float((to_pixels(inputs.double()) - to_pixels(self.truth.inputs.double())).square().mean())


def setting(
    model: nn.Module,
    truth: Batch,
    *,
    protocol: Protocol | None = None,
    defenses: Sequence[Defense] = (),
    threat: HonestButCurious | None = None,
    loss: str = "cross_entropy",
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> Setting:
    """One release of `truth`."""
    objective = Objective.from_module(model, loss=loss).to(dtype)
    release = Release(protocol or FedSGD(), defenses)
    truth = truth.to(dtype)
    update = release(objective, truth, torch.Generator().manual_seed(seed))
    knowledge = (threat or HonestButCurious()).disclose(objective, release, truth)
    return Setting(truth, update, knowledge)


def rows(*targets: int, seed: int = 0) -> Batch:
    """Random table rows in [0, 1] with these labels."""
    generator = torch.Generator().manual_seed(seed)
    return Batch(torch.rand(len(targets), 12, generator=generator), torch.tensor(targets), ROW)


def small_net(activation: Activation | str = "tanh", seed: int = 0) -> nn.Sequential:
    """The MLP 12-32-16-3 of the oracles, with other weights."""
    generator = torch.Generator().manual_seed(seed)
    return mlp(features=12, hidden=(32, 16), classes=3, activation=activation, generator=generator)


def small_generator(seed: int = 0) -> ImageGenerator:
    """A decoder of table rows from three latent entries; the MLP 3-8-12 of this seed, behind a sigmoid."""
    generator = torch.Generator().manual_seed(seed)
    decoder = mlp(features=3, hidden=(8,), classes=12, activation="tanh", generator=generator)
    return ImageGenerator(
        module=nn.Sequential(decoder, nn.Sigmoid()), latent_shape=(3,), domain=ROW, source="never trained"
    )


def lenet(shared: Path, name: str, activation: str) -> tuple[nn.Sequential, Batch]:
    """A LeNet of the oracles and its digit."""
    stored = load_file(shared / "oracles" / f"{name}.safetensors")
    model = lenet_i2f(activation=activation).double()
    prefix = "model."
    model.load_state_dict({key.removeprefix(prefix): t for key, t in stored.items() if key.startswith(prefix)})
    return model, Batch(stored["x"].reshape(1, 1, 28, 28), stored["y"].reshape(-1).long(), DIGIT)

"""Rows with a private attribute and the networks that are trained on them, for the study of latent information by layer."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradleak.core import Domain, Mode, Objective, derive_generator
from gradleak.data import Population
from gradleak.datasets import adult_population, mnist_digits, sentences
from gradleak.models import lenet5, mlp, text_classifier
from gradleak.results import InputError
from studies.datasets import speech_digits
from studies.datasets.planted import PlantedProperty, plant
from studies.networks import alexnet_small
from studies.private_images import trained

SIZE = 28
# The larger part of few rows is judged.
_MOST_TRAINING = 0.4
_STEP_ROWS = 64


class LatentData(StrEnum):
    """Data that a model is trained on, and the attribute that shall stay private."""

    SPEECH = "speech"
    """Log-mel images of spoken digits; whether the accent is that of the USA."""
    THICKNESS = "thickness"
    """MNIST digits; thin or thick strokes, planted by a seed."""
    TINT = "tint"
    """MNIST digits; a cool or a warm cast, planted by a seed."""
    ADULT = "adult"
    """Adult census, income; gender, whose column is left out."""
    TEXT = "text"
    """Sentences, their label; fewer than eight words or not."""


class LatentNetwork(StrEnum):
    """Network that is trained."""

    LENET5 = "lenet5"
    ALEXNET_SMALL = "alexnet_small"
    MLP = "mlp"
    TEXT_CLASSIFIER = "text_classifier"

    @property
    def first_dense(self) -> str | None:
        """The first fully connected layer behind others; None where all of them are fully connected."""
        return None if self is LatentNetwork.MLP else "fc1"


IMAGE_NETWORKS = (LatentNetwork.LENET5, LatentNetwork.ALEXNET_SMALL)
# An attribute in the inputs themselves, or one that goes along with them.
WORDS: Mapping[LatentData, str] = {
    LatentData.SPEECH: "speech: accent",
    LatentData.THICKNESS: "MNIST: thickness",
    LatentData.TINT: "MNIST: tint",
    LatentData.ADULT: "Adult: gender",
    LatentData.TEXT: "text: length",
}


@dataclass(frozen=True, kw_only=True)
class Files:
    """Places of the data that no package carries.

    Attributes:
        speech: npz as `speech_digits` takes it.
        text: labeled sentences as `sentences` takes them.
        public_text: of which the vocabulary is made.
    """

    speech: str | None = None
    text: str | None = None
    public_text: str | None = None

    def missing(self, data: LatentData) -> str:
        """Settings that would have to name a file before these data can be read, or ""."""
        needed: dict[LatentData, tuple[str, ...]] = {
            LatentData.SPEECH: ("speech",),
            LatentData.TEXT: ("text", "public_text"),
        }
        return ", ".join(name for name in needed.get(data, ()) if getattr(self, name) is None)


def population(data: LatentData, files: Files, *, seed: int) -> Population:
    """All rows, with an attribute of two values; planted attributes by the seed.

    Raises:
        InputError: for a missing or unfit file.
        UnsupportedError: for a package that is not installed.
    """
    missing = files.missing(data)
    if missing:
        raise InputError(f"{data.value}: expected the file that {missing} names, got none")
    match data:
        case LatentData.SPEECH:
            return _speech(Path(str(files.speech)))
        case LatentData.THICKNESS:
            return _planted(PlantedProperty.THICKNESS, seed)
        case LatentData.TINT:
            return _planted(PlantedProperty.TINT, seed)
        case LatentData.ADULT:
            return adult_population()
        case LatentData.TEXT:
            with warnings.catch_warnings():
                # Cut sentences are told by the count of words in the file, which is the attribute.
                warnings.simplefilter("ignore", UserWarning)
                return sentences(Path(str(files.text)), public_text=Path(str(files.public_text)))


def networks_for(data: LatentData, images: tuple[LatentNetwork, ...]) -> tuple[LatentNetwork, ...]:
    """The networks that these data are put before.

    Args:
        data: see `LatentData`.
        images: the networks that are wanted for images.
    """
    match data:
        case LatentData.ADULT:
            return (LatentNetwork.MLP,)
        case LatentData.TEXT:
            return (LatentNetwork.TEXT_CLASSIFIER,)
        case _:
            return images


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """Rows that the model learned from, and further ones whose gradients are looked at.

    Attributes:
        population: all rows.
        training: places of the rows for training.
        judged: places of the others, in random order.
    """

    population: Population
    training: Tensor
    judged: Tensor

    @classmethod
    def of(cls, drawn: Population, *, training: int, seed: int) -> Parts:
        """A random split; at most two in five rows are for training."""
        order = torch.randperm(drawn.size, generator=derive_generator(seed, "split"))
        count = max(1, min(training, int(_MOST_TRAINING * drawn.size)))
        return cls(population=drawn, training=order[:count], judged=order[count:])

    def batches(self, *, size: int, most: int) -> tuple[Tensor, Tensor]:
        """Batches of judged rows with one value of the attribute, as many of each value, no row in two of them.

        `batches_of_one_value` puts a row into several batches, which then are not independent.

        Args:
            size: k, rows of a batch.
            most: batches, at most.

        Returns:
            Places (n, k) and values (n,) in turn, both int64; n = 0 where a value has fewer than k rows.
        """
        values = self.population.sensitive[self.judged]
        having = [self.judged[values == value] for value in (0, 1)]
        count = min(most // 2, *(len(own) // size for own in having))
        stacked = [own[: count * size].reshape(count, size) for own in having]
        return torch.stack(stacked, dim=1).reshape(2 * count, size), torch.arange(2).repeat(count)


def objective(network: LatentNetwork, drawn: Population, *, seed: int) -> Objective:
    """The network at its first weights."""
    generator = derive_generator(seed, "weights", network.value)
    classes = int(drawn.targets.max()) + 1
    return Objective.from_module(_model(network, drawn, classes, generator), mode=Mode.EVAL)


def after_epochs(start: Objective, parts: Parts, *, epochs: int, seed: int) -> Objective:
    """The objective after so many epochs of Adam on batches of 64 of the training rows, drawn with replacement."""
    rows = parts.population.rows(parts.training)
    steps = -(-epochs * rows.size // _STEP_ROWS)
    return trained(start, rows, steps=steps, seed=seed, learning_rate=1e-3) if epochs else start


def _model(network: LatentNetwork, drawn: Population, classes: int, generator: torch.Generator) -> nn.Sequential:
    shape = tuple(drawn.inputs.shape[1:])
    match network:
        case LatentNetwork.LENET5:
            return lenet5(classes=classes, channels=shape[0], size=shape[1], generator=generator)
        case LatentNetwork.ALEXNET_SMALL:
            return alexnet_small(classes=classes, channels=shape[0], size=shape[1], generator=generator)
        case LatentNetwork.MLP:
            return mlp(features=shape[0], hidden=(64, 32, 16), classes=classes, generator=generator)
        case LatentNetwork.TEXT_CLASSIFIER:
            return text_classifier(classes=classes, words=shape[1], length=shape[0], generator=generator)


def _speech(file: Path) -> Population:
    drawn = speech_digits(file, features="image")
    accent = next((place for place, value in enumerate(drawn.values) if value.startswith("USA")), None)
    if accent is None:
        raise InputError(f"{file}: expected an accent whose name begins with USA, got {', '.join(drawn.values)}")
    images = functional.interpolate(
        drawn.inputs, size=(SIZE, SIZE), mode="bilinear", align_corners=False, antialias=True
    )
    return replace(
        drawn,
        inputs=images,
        sensitive=(drawn.sensitive == accent).long(),
        values=("other accents", drawn.values[accent]),
        domain=Domain.image(channels=1, height=SIZE, width=SIZE),
    )


def _planted(planted: PlantedProperty, seed: int) -> Population:
    digits = mnist_digits(count=5000, seed=seed, size=SIZE)
    codes = torch.randint(2, (digits.size,), generator=derive_generator(seed, "planted", planted.value))
    images = plant(digits.inputs, codes, planted)
    return Population(
        name=f"MNIST: {planted.value}",
        inputs=images,
        targets=digits.targets,
        sensitive=codes,
        values=planted.values,
        domain=Domain.image(channels=images.shape[1], height=SIZE, width=SIZE),
        holds_sensitive=True,
    )


__all__ = [
    "IMAGE_NETWORKS",
    "WORDS",
    "Files",
    "LatentData",
    "LatentNetwork",
    "Parts",
    "after_epochs",
    "networks_for",
    "objective",
    "population",
]

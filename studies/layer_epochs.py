"""Leakage over the epochs of a training: of an attribute layer by layer, and of images under several conditions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from typing import ClassVar

import torch
from torch import nn

from gradleak.attacks import LogisticRegression, PrincipalComponents
from gradleak.core import (
    Batch,
    Defense,
    Exposure,
    Mode,
    Objective,
    Release,
    derive_generator,
    derive_seed,
    describe,
    one_thread,
)
from gradleak.datasets import mnist_digits
from gradleak.defenses import GaussianNoise
from gradleak.models import Activation, lenet5, mlp
from gradleak.protocols import FedSGD
from gradleak.results import MO_2021, Citation, check_count
from gradleak.risk import LatentInformation, NeighborInformation, Sensitivity, SubspaceDistance, mean_sensitivity
from gradleak.risk.layer_measure import coordinates
from gradleak.training import layer_gradients
from studies.datasets import cifar100
from studies.influence_cells import Numbers, Pictures, accuracy, interval_of, snapshots
from studies.layer_epoch_findings import (
    ATTRIBUTE,
    DISTANCE,
    INPUTS,
    LABEL,
    SENSITIVITY,
    Readings,
    V,
    conclude_latent,
    conclude_original,
    latent_figure,
    latent_findings,
    latent_table,
    original_figure,
    original_findings,
    original_table,
)  # fmt: skip
from studies.layer_latent_cells import FOREST, LOGISTIC, Reading, pooled, unit
from studies.layer_latent_data import Files, LatentData, Parts, population
from studies.layer_original_attacks import LayerInversion
from studies.store import Store, content_of
from studies.study import Say, Study, StudyResult
from studies.summaries import shown, shown_with


class CurveNetwork(StrEnum):
    """Network that is trained: LeNet5, or eight fully connected layers with tanh, after the one of figure 3."""

    LENET5 = "lenet5"
    DEEP_MLP = "deep_mlp"

    def objective(self, shape: tuple[int, ...], classes: int, *, seed: int, activation: Activation) -> Objective:
        """At its first weights, which are torch's."""
        generator = derive_generator(seed, "weights", self.value)
        model: nn.Module
        if self is CurveNetwork.LENET5:
            model = lenet5(
                classes=classes, channels=shape[0], size=shape[1], activation=activation, generator=generator
            )
        else:
            features = shape[0] * shape[1] * shape[2]
            layers = mlp(
                features=features,
                hidden=(64, 48, 32, 32, 24, 24, 16),
                classes=classes,
                activation=Activation.TANH,
                generator=generator,
            )
            model = nn.Sequential(nn.Flatten(), layers)
        return Objective.from_module(model, mode=Mode.EVAL)


@dataclass(frozen=True, kw_only=True)
class OriginalCondition:
    """Setting in which images are looked for; one thing differs from the first.

    Attributes:
        name: what differs.
        attack: the inversion.
        activation: of LeNet5.
        color: CIFAR-100 in place of digits.
        held_out: whether the targets are not among the images that are trained on.
        noise: std on every entry of the gradient, known to the attacker: what is told at a fixed scale.
    """

    name: str
    attack: LayerInversion = LayerInversion.INVERTING_GRADIENTS
    activation: Activation = Activation.RELU
    color: bool = False
    held_out: bool = False
    noise: float = 0.0


ORIGINAL = (
    OriginalCondition(name="base"),
    OriginalCondition(name="noise of 1e-3", noise=1e-3),
    OriginalCondition(name="targets not trained on", held_out=True),
    OriginalCondition(name="tanh", activation=Activation.TANH),
    OriginalCondition(name="attack: DLG", attack=LayerInversion.DLG),
    OriginalCondition(name="CIFAR-100", color=True),
)


@dataclass(frozen=True, kw_only=True)
class LayerEpochs(Study):
    """Mutual information, V-information and measures of every layer over epochs, and what makes images leak less.

    Latent: gradients of one digit each, half of them with the attribute (planted strokes), at each epoch: mutual information
    with inputs, label and attribute by neighbors, V-information of a forest and of logistic regression, sensitivity and
    subspace distance. Over layers, R of the last two with V is taken at every epoch.

    Original: V-information of target images (`TargetInformation`, label disclosed) by inversion, at each epoch, in the setting
    of `layer_influences` and with one thing changed at a time. A drop is V at the start less its smallest value later.

    Curves are LOESS over log₂(1 + epoch).

    **Source**: Mo et al. 2021, figures 3 and 10, sections 4.1 and 6.4. Deviations: as `layer_influences`; plain SGD at 0.1
    on batches of 64 of 1,000 images.

    Attributes:
        leakages: "latent", "original" or both.
        networks: for the latent part.
        originals: names of conditions of the original part; empty for all.
        images: file of CIFAR-100 for its condition, or None to leave that out.
        epochs: where 0 is the start.
        gradients: of the latent part.
        examples: of the sensitivity.
        targets: images that are looked for.
        iterations: of the inversion; DLG has a tenth of them, with 20 inner steps each.
        training_images: that are trained on.
        learning_rate: of the training.
        seed: of everything.
        cells: file that keeps what was computed.
    """

    name: ClassVar[str] = "layer_epochs"
    source: ClassVar[str] = "figures 3 and 10"
    citations: ClassVar[tuple[Citation, ...]] = (MO_2021,)

    leakages: Sequence[str] = ("latent", "original")
    networks: Sequence[CurveNetwork] = tuple(CurveNetwork)
    originals: Sequence[str] = ()
    images: str | None = None
    epochs: Sequence[int] = (0, 1, 2, 5, 10, 20, 50)
    gradients: int = 240
    examples: int = 8
    targets: int = 6
    iterations: int = 150
    training_images: int = 1000
    learning_rate: float = 0.1
    seed: int = 0
    cells: str | None = None

    def __post_init__(self) -> None:
        """Check the counts."""
        for name, least in (
            ("gradients", 20),
            ("examples", 2),
            ("targets", 2),
            ("iterations", 10),
            ("training_images", 1),
        ):
            check_count(f"LayerEpochs.{name}", getattr(self, name), least=least)

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; some 15 minutes of one core."""
        latent: dict[str, dict[int, Readings]] = {}
        original: dict[str, dict[int, Numbers]] = {}
        with Store(self.cells) as store, one_thread():
            if "latent" in self.leakages:
                for network in map(CurveNetwork, self.networks):
                    latent[network.value] = self._latent(network, store, say)
            if "original" in self.leakages:
                for condition in ORIGINAL:
                    if (condition.color and self.images is None) or (
                        self.originals and condition.name not in self.originals
                    ):
                        continue
                    original[condition.name] = self._original(condition, store, say)
        return StudyResult(
            study=self.name,
            settings={name: value for name, value in describe(self).items() if name != "cells"},
            findings=[*latent_findings(latent), *original_findings(original)],
            conclusion=[*conclude_latent(latent), *conclude_original(original)],
            details={
                "latent": {
                    network: {str(epoch): {name: {layer: asdict(one) for layer, one in row.items()} for name, row in cell.items()}
                              for epoch, cell in curve.items()}
                    for network, curve in latent.items()
                },
                "original": {name: {str(epoch): cell for epoch, cell in curve.items()} for name, curve in original.items()},
            },
            tables=[*(latent_table(network, curve) for network, curve in latent.items()), *original_table(original)],
            figures={f"layer-epochs-{name.replace('_', '-')}": latent_figure(name, curve) for name, curve in latent.items()}
            | ({"layer-epochs-images": original_figure(original)} if original else {}),
        )  # fmt: skip

    def _latent(self, network: CurveNetwork, store: Store, say: Say) -> dict[int, Readings]:
        drawn = population(LatentData.THICKNESS, Files(), seed=self.seed)
        parts = Parts.of(drawn, training=self.training_images, seed=self.seed)
        start = network.objective(tuple(drawn.inputs.shape[1:]), 10, seed=self.seed, activation=Activation.RELU)
        key = {
            "study": self.name,
            "network": network.value,
            "content": content_of([drawn.rows(parts.training), drawn.rows(parts.judged)]),
            "sizes": [self.gradients, self.examples, list(self.epochs), self.learning_rate],
            "seed": self.seed,
        }
        trained = _Training(start, drawn.rows(parts.training), self.epochs, self.learning_rate, self.seed)
        found = {}
        for epoch in self.epochs:
            measure = partial(_measured, trained, epoch, parts, self)
            found[epoch] = store.kept({**key, "epoch": epoch}, Readings, measure)
            best = max(found[epoch][V[FOREST]].items(), key=lambda one: one[1].value or 0.0)
            say(f"{network.value}, epoch {epoch}: most by the forest from {best[0]}, {best[1].text()}")
        return found

    def _original(self, condition: OriginalCondition, store: Store, say: Say) -> dict[int, Numbers]:
        own = derive_seed(self.seed, "images") % 2**31
        count = self.training_images + self.targets
        if condition.color:
            drawn = cifar100(path=str(self.images), count=min(count, 300), seed=own)
        else:
            drawn = mnist_digits(count=count, seed=own)
        targets = drawn.rows(slice(self.targets))
        rows = drawn.rows(slice(self.targets if condition.held_out else 0, drawn.size))
        attack = condition.attack.attack(
            iterations=max(1, self.iterations // 10) if condition.attack is LayerInversion.DLG else self.iterations,
            total_variation=1e-2,
            starts=1,
        )
        pictures = Pictures(targets=targets, others=rows, attack=attack, seed=derive_seed(self.seed, "pictures"))
        network = CurveNetwork.LENET5
        classes = 100 if condition.color else 10
        start = network.objective(
            tuple(drawn.inputs.shape[1:]), classes, seed=self.seed, activation=condition.activation
        )
        trained = _Training(start, rows, self.epochs, self.learning_rate, self.seed)
        key = {
            "study": self.name,
            "condition": {name: value for name, value in asdict(condition).items() if name != "name"},
            "content": content_of([targets, rows]),
            "attack": describe(attack),
            "sizes": [list(self.epochs), self.learning_rate],
            "seed": self.seed,
        }
        found = {}
        for epoch in self.epochs:
            look_for = partial(_inverted, trained, epoch, pictures, condition, self.examples)
            found[epoch] = store.kept({**key, "epoch": epoch}, Numbers, look_for)
            value = shown_with(found[epoch]["value"], interval_of(found[epoch], "value"), ".1f")
            say(f"{condition.name}, epoch {epoch}: {value} nats, gradient norm {shown(found[epoch]['norm'])}")
        return found


class _Training:
    """A model along its training, which happens when it is first asked for."""

    def __init__(self, start: Objective, rows: Batch, epochs: Sequence[int], rate: float, seed: int) -> None:
        self.rows = rows
        self._make = partial(snapshots, start, rows, epochs, learning_rate=rate, seed=seed)
        self._models: dict[int, Objective] = {}

    def after(self, epoch: int) -> Objective:
        """The model after so many epochs."""
        if not self._models:
            self._models = self._make()
        return self._models[epoch]


def _measured(trained: _Training, epoch: int, parts: Parts, study: LayerEpochs) -> Readings:
    """Every measure of every layer at one epoch."""
    model, seed = trained.after(epoch), study.seed
    places, attribute = parts.batches(size=1, most=study.gradients)
    every = parts.population.rows(torch.arange(parts.population.size))
    matrices = layer_gradients(
        model, every, release=Release(FedSGD()), generator=derive_generator(seed, "release"), batches=places,
        max_bytes=2**31,
    ).matrices  # fmt: skip
    turned = {layer: coordinates(matrix) for layer, matrix in matrices.items()}
    shown_to = parts.population.rows(places[:, 0])
    neighbors, attackers = NeighborInformation(), derive_seed(seed, "attackers") % 2**31
    logistic = LatentInformation(
        classifier=LogisticRegression(), features=PrincipalComponents(count=50), seed=attackers
    )
    exposed = parts.population.rows(places[: study.examples, 0])
    found = {
        INPUTS: neighbors(turned, shown_to.inputs.flatten(1).double()),
        LABEL: neighbors(turned, shown_to.targets),
        ATTRIBUTE: neighbors(turned, attribute),
        V[FOREST]: LatentInformation(seed=attackers)(
            {layer: pooled(matrix, 4096) for layer, matrix in matrices.items()}, attribute
        ).scores,
        V[LOGISTIC]: logistic({layer: unit(rows) for layer, rows in turned.items()}, attribute).scores,
        SENSITIVITY: mean_sensitivity(
            Exposure(model, exposed, Release(FedSGD())), Sensitivity(by="layer", dense_limit=0, samples=8, seed=seed)
        ),
        DISTANCE: SubspaceDistance(dimension=8, columns=min(50, len(attribute) // 2), permutations=19)(
            turned, attribute
        ),
    }
    return {name: {layer: Reading.of(score) for layer, score in scores.items()} for name, scores in found.items()}


def _inverted(
    trained: _Training, epoch: int, pictures: Pictures, condition: OriginalCondition, examples: int
) -> Numbers:
    model = trained.after(epoch)
    defenses: Sequence[Defense] = (GaussianNoise(std=condition.noise),) if condition.noise else ()
    found = pictures.inverted(pictures.mixed(model, 0, defenses))
    return found | pictures.reacting(model, products=examples) | {"accuracy": accuracy(model, trained.rows)}


__all__ = ["CurveNetwork", "LayerEpochs", "OriginalCondition"]

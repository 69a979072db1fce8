"""Claims of one inversion from sets of layers, and closed-form measures of the same sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from gradleak.attacks import Attack, Blind
from gradleak.attacks.attack import Monitor
from gradleak.core import (
    Batch,
    Domain,
    Exposure,
    HonestButCurious,
    Knowledge,
    Mode,
    Objective,
    Reconstruction,
    Release,
    Update,
    derive_generator,
    derive_seed,
    describe,
)
from gradleak.models import Activation, initialize_uniform, lenet5, lenet_dlg, lenet_i2f
from gradleak.protocols import FedSGD
from gradleak.results import InputError
from gradleak.risk import (
    Consecutive,
    JacobianNorm,
    LinearizedPosteriorError,
    OriginalInformation,
    Sensitivity,
    VisibleLayers,
    each_example,
    measure_visible,
)
from gradleak.risk.layer_exposure import layer_groups
from studies.networks import alexnet_small, vgg9
from studies.store import Store, content_of

EVERYTHING = "everything"
ATTACK, SWAPPED, BLIND = "attack", "gradient of another image", "blind"
POSTERIOR = "posterior_error"
_BYTES = 2**30


class LayerNetwork(StrEnum):
    """The image networks of Mo et al. 2021 with torch's default weights, and one that inversions see through.

    STRIDED_LENET is the LeNet of the inversion papers (`lenet_i2f` for gray images, `lenet_dlg` for color): strides in
    place of pooling, weights uniform(−0.5, 0.5). It is smooth where the activation is; a maximum over pixels is not.
    """

    LENET5 = "lenet5"
    ALEXNET_SMALL = "alexnet_small"
    VGG9 = "vgg9"
    STRIDED_LENET = "strided_lenet"

    def model(
        self, batch: Batch, classes: int, generator: torch.Generator, activation: Activation = Activation.RELU
    ) -> nn.Sequential:
        """The network for such images."""
        channels, size = batch.inputs.shape[1], batch.inputs.shape[2]
        if self is LayerNetwork.STRIDED_LENET:
            if channels == 1:
                strided = lenet_i2f(activation=activation, size=size, classes=classes, generator=generator)
            else:
                strided = lenet_dlg(
                    activation=activation, channels=channels, size=size, classes=classes, generator=generator
                )
            return initialize_uniform(strided, low=-0.5, high=0.5, generator=generator)
        builds = {LayerNetwork.LENET5: lenet5, LayerNetwork.ALEXNET_SMALL: alexnet_small, LayerNetwork.VGG9: vgg9}
        return builds[self](classes=classes, channels=channels, size=size, activation=activation, generator=generator)

    def objective(self, batch: Batch, classes: int, seed: int, activation: Activation = Activation.RELU) -> Objective:
        """The network in eval mode, float32, its weights by seed and name."""
        model = self.model(batch, classes, derive_generator(seed, "weights", self.value), activation)
        return Objective.from_module(model, mode=Mode.EVAL)


PAPER_NETWORKS = (LayerNetwork.LENET5, LayerNetwork.ALEXNET_SMALL, LayerNetwork.VGG9)


def shrunk(batch: Batch, side: int) -> Batch:
    """Square images by means over blocks of pixels; the batch itself where they have this side.

    Raises:
        InputError: where `side` does not divide their own.
    """
    channels, own = batch.inputs.shape[1], batch.inputs.shape[2]
    if side == own:
        return batch
    if side < 1 or own % side:
        raise InputError(f"side: expected a number that divides {own}, got {side}")
    smaller = F.avg_pool2d(batch.inputs, own // side)
    return Batch(smaller, batch.targets, Domain.image(channels=channels, height=side, width=side))


def layer_sets(objective: Objective, counts: Sequence[int]) -> dict[str, tuple[str, ...]]:
    """Sets of so many layers that follow one another, by name, the small sets first."""
    found: dict[str, tuple[str, ...]] = {}
    for count in counts:
        found |= layer_groups(list(objective.params), Consecutive(count=count))
    return found


@dataclass(frozen=True, kw_only=True)
class Swapped(Attack):
    """Claims of an attack handed round: each example gets what was made of the gradient of the next one.

    A null control: the claims are images of the same kind, and know nothing of the example that they are scored against.

    Attributes:
        attack: whose claims.
    """

    name: ClassVar[str] = "swapped"
    needs: ClassVar[tuple[str, ...]] = ()
    summary: ClassVar[str] = "claims from the gradients of other examples"

    attack: Attack

    def estimate(self, knowledge: Knowledge) -> float:
        """As the attack."""
        return self.attack.estimate(knowledge)

    def _check(self, knowledge: Knowledge) -> None:
        """As the attack."""
        knowledge.require(self.attack.needs, asker=f"the attack {self.attack.name}")
        self.attack._check(knowledge)

    def _recover(
        self, update: Update, knowledge: Knowledge, generator: torch.Generator, monitor: Monitor
    ) -> Reconstruction:
        return self._recover_many([update], [knowledge], [generator], monitor)[0]

    def _recover_many(
        self,
        updates: Sequence[Update],
        knowledge: Sequence[Knowledge],
        generators: Sequence[torch.Generator],
        monitor: Monitor,
    ) -> list[Reconstruction]:
        found = self.attack._recover_many(updates, knowledge, generators, monitor)
        return [*found[1:], found[0]]


@dataclass(frozen=True, kw_only=True)
class Claims:
    """Claims of an attack on the images of a block, from one set of layers.

    Attributes:
        nats: of each image; 0 where nothing was claimed.
        ssim: of each image, or None.
        note: outcome and note where there is no claim at all.
    """

    nats: Sequence[float]
    ssim: Sequence[float | None]
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """A linearized posterior error.

    Attributes:
        value: or None.
        note: why there is none, or "".
    """

    value: float | None
    note: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Workbench:
    """One network with its images, and the cells that were computed of it.

    Attributes:
        network: its name.
        objective: float32.
        images: one batch.
        groups: the sets of layers by name.
        store: of cells.
        identity: settings that decide the objective, for keys.
        block: images that are attacked in lockstep.
        seed: of attacks.
    """

    network: str
    objective: Objective
    images: Batch
    groups: Mapping[str, tuple[str, ...]]
    store: Store
    identity: Mapping[str, Any]
    block: int
    seed: int

    @property
    def blocks(self) -> list[range]:
        """Places of images that go side by side; none is alone, since controls swap their claims."""
        count = self.images.size
        starts = [start for start in range(0, count, self.block) if start == 0 or count - start > 1]
        return [range(start, end) for start, end in zip(starts, [*starts[1:], count], strict=True)]

    def claims(self, label: str, control: str, attack: Attack) -> Claims:
        """Claims of an attack on all images from one set of layers, block by block."""
        parts = [self._claims(label, control, attack, block) for block in self.blocks]
        return Claims(
            nats=[value for part in parts for value in part.nats],
            ssim=[value for part in parts for value in part.ssim],
            note=next((part.note for part in parts if part.note), ""),
        )

    def _claims(self, label: str, control: str, attack: Attack, block: range) -> Claims:
        runs = {ATTACK: attack, SWAPPED: Swapped(attack=attack), BLIND: Blind()}[control]
        members = self.members(label)
        exposures = [Exposure(self.objective, self.images.example(place), Release(FedSGD())) for place in block]
        key = self._key([one.batch for one in exposures], members) | {
            "what": "claims",
            "attack": describe(runs),
            "first": block.start,
            "seed": self.seed,
        }
        seed = derive_seed(self.seed, "block", str(block.start)) % 2**31
        return self.store.kept(key, Claims, lambda: self._computed(label, runs, exposures, seed))

    def _computed(self, label: str, runs: Attack, exposures: Sequence[Exposure], seed: int) -> Claims:
        measure = OriginalInformation(attack=runs, threat_model=HonestButCurious(targets=True), seed=seed)
        profile = measure(exposures, visible={label: VisibleLayers(names=self.members(label))})
        score = profile.scores[label]
        if score.value is None or profile.rows is None:
            return Claims(
                nats=[0.0] * len(exposures),
                ssim=[None] * len(exposures),
                note=f"{label}: {score.outcome.label}, {score.note}",
            )
        return Claims(
            nats=profile.rows.values[label].tolist(),
            ssim=[value for release in score.details["per_example"] for value in release],
        )

    def members(self, label: str) -> tuple[str, ...]:
        """The tensors of a set."""
        return tuple(self.objective.params) if label == EVERYTHING else self.groups[label]

    def entries(self, label: str) -> int:
        """Number of entries that a set has."""
        return sum(self.objective.params[name].numel() for name in self.members(label))

    def sensitivity(self, norm: JacobianNorm, place: int, samples: int) -> dict[str, float | None]:
        """‖A_l‖ of one image by set of layers; Frobenius norms from so many random products."""
        example = self.images.example(place)
        measure = Sensitivity(norm=norm, by=self.groups, dense_limit=0, samples=samples, seed=self.seed)
        key = self._key([example], ()) | {
            "what": "sensitivity",
            "norm": norm.value,
            "groups": {name: list(members) for name, members in self.groups.items()},
            # Only Frobenius norms are sampled.
            "samples": samples if norm is JacobianNorm.FROBENIUS else 0,
            "seed": self.seed if norm is JacobianNorm.FROBENIUS else 0,
        }

        def compute() -> dict[str, float | None]:
            score = each_example(measure, Exposure(self.objective, example, Release(FedSGD())), max_bytes=_BYTES)[0]
            values = score.details.get("values", {})
            return {name: values.get(name) for name in self.groups}

        return self.store.kept(key, dict[str, float | None], compute)

    def posterior(self, label: str, place: int, *, noise_std: float, prior_std: float, most: int) -> Posterior:
        """The linearized posterior error (pixel RMSE) of one image from a set; none where A has more than `most` entries."""
        example = self.images.example(place)
        size = self.entries(label) * example.inputs.numel()
        if size > most:
            return Posterior(value=None, note=f"A has {size:,} entries, more than {most:,}")
        measure = LinearizedPosteriorError(noise_std=noise_std, prior_std=prior_std, unit="pixel_rmse")
        members = self.members(label)
        key = self._key([example], members) | {"what": "posterior", "measure": describe(measure)}

        def compute() -> Posterior:
            exposure = Exposure(self.objective.to(torch.float64), example.to(torch.float64), Release(FedSGD()))
            score = measure_visible(exposure, {label: VisibleLayers(names=members)}, measure).scores[label]
            return Posterior(
                value=score.value, note="" if score.value is not None else f"{score.outcome.label}: {score.note}"
            )

        return self.store.kept(key, Posterior, compute)

    def _key(self, examples: Sequence[Batch], members: Sequence[str]) -> dict[str, Any]:
        return {
            "network": self.network,
            "identity": dict(self.identity),
            "content": content_of(examples),
            "tensors": list(members),
        }


__all__ = [
    "ATTACK",
    "BLIND",
    "EVERYTHING",
    "PAPER_NETWORKS",
    "POSTERIOR",
    "SWAPPED",
    "Claims",
    "LayerNetwork",
    "Posterior",
    "Swapped",
    "Workbench",
    "layer_sets",
    "shrunk",
]

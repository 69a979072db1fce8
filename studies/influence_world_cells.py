"""Settings of the study of I²F against real attacks: which there are, what is predicted there, and what attacks reach."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from gradleak.attacks import DGL, GS, Attack, GaussNewton, InvertingGradients
from gradleak.core import Batch, Exposure, HonestButCurious, Mode, Objective, Reconstruction, Release, derive_generator
from gradleak.datasets import image_file, mnist_digits
from gradleak.defenses import GaussianNoise
from gradleak.linalg import ConjugateGradient
from gradleak.models import initialize_uniform, lenet_i2f, linear_model, resnet
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedSGD
from gradleak.results import InputError, UnsupportedError
from gradleak.risk import (
    GaussianReconstructionError,
    InversionInfluence,
    InversionInfluenceLowerBound,
    InversionInfluenceNumerator,
)
from gradleak.scoring import ssim, st_lpips
from studies.influence_cells import accuracy
from studies.private_images import pixel_rmse, trained
from studies.store import Store, content_of

# Of the digits: the first half is attacked, the second is trained on.
_HALF = 2500
T = TypeVar("T")
_TOLERANCE = 1e-3
_PIXEL = "pixel_rmse"


class WorldNetwork(StrEnum):
    """Networks: LeNet with uniform(−0.5, 0.5) weights as in the paper, the others with torch's default weights.

    RESNET34 stands for what is deeper than the paper's ResNet-18 and still runs on one core.
    """

    LINEAR = "linear"
    LENET = "lenet"
    RESNET18 = "resnet18"
    RESNET34 = "resnet34"

    @property
    def deep(self) -> bool:
        """True for networks whose spectrum is out of reach: I²F by conjugate gradients at ε > 0, in float32."""
        return self in (WorldNetwork.RESNET18, WorldNetwork.RESNET34)

    def model(self, channels: int, size: int, generator: torch.Generator) -> nn.Module:
        """The network for such images."""
        match self:
            case WorldNetwork.LINEAR:
                return linear_model(features=channels * size**2, classes=10, generator=generator)
            case WorldNetwork.LENET:
                lenet = lenet_i2f(channels=channels, size=size)
                return initialize_uniform(lenet, low=-0.5, high=0.5, generator=generator)
            case WorldNetwork.RESNET18:
                return resnet(depth=18, channels=channels, generator=generator)
            case WorldNetwork.RESNET34:
                return resnet(depth=34, channels=channels, generator=generator)


class WorldData(StrEnum):
    """Data: digits of MNIST, or the color images of a file."""

    MNIST = "mnist"
    CIFAR10 = "cifar10"


class WorldAttack(StrEnum):
    """Attacks, all told the label as the paper's are; `GaussNewton` without the box, since I²F knows of none."""

    DGL = "dgl"
    GS = "gs"
    INVERTING_GRADIENTS = "inverting_gradients"
    GAUSS_NEWTON = "gauss_newton"

    def attack(self, iterations: int) -> Attack:
        """The attack; `GaussNewton` has a sixtieth as many steps, at least eight."""
        match self:
            case WorldAttack.DGL:
                return DGL(iterations=iterations)
            case WorldAttack.GS:
                # Running statistics of an untrained network are 0 and 1 and say nothing of images.
                return GS(iterations=iterations, batch_norm=0.0)
            case WorldAttack.INVERTING_GRADIENTS:
                return InvertingGradients(iterations=iterations)
            case WorldAttack.GAUSS_NEWTON:
                return GaussNewton(starts=1, max_steps=max(8, iterations // 60), box=False)


@dataclass(frozen=True, kw_only=True)
class WorldSetting:
    """A network with its data, epoch and attack, over levels of noise; each level is a cell.

    Attributes:
        network: which.
        data: which.
        attack: which.
        epoch: of training before the gradient is taken.
        variances: of the noise on every entry, rising.
        images: how many.
        iterations: of the attack.
    """

    network: WorldNetwork
    data: WorldData
    attack: WorldAttack
    epoch: int = 0
    variances: tuple[float, ...]
    images: int
    iterations: int

    @property
    def title(self) -> str:
        """The setting in a few words."""
        trained = f", epoch {self.epoch}" if self.epoch else ""
        return f"{self.network.value}, {self.data.value}, {self.attack.value}{trained}"

    @property
    def place(self) -> tuple[WorldNetwork, WorldData, int]:
        """Network, data and epoch: all that predictions depend on."""
        return self.network, self.data, self.epoch


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """Predictions for one image under one draw of noise of std 1; all are proportional to the std.

    Attributes:
        eigenvalue_max: λmax of AᵀA.
        gradient_norm: of the gradient.
        nominal: ‖Aᵀz‖, the paper's I_nom.
        bounds: the lower bound by ε, pixel RMSE.
        influences: I²F by ε, pixel RMSE; None where conjugate gradients did not arrive.
        expected: √(Σ 1/λ / d), the root mean square of I²F over draws; None without a spectrum.
        label: of the image.
    """

    eigenvalue_max: float
    gradient_norm: float
    nominal: float
    bounds: dict[str, float]
    influences: dict[str, float | None]
    expected: float | None
    label: int


@dataclass(frozen=True, kw_only=True)
class Reached:
    """An attack's claim about one image.

    Attributes:
        image: its number.
        rmse: of pixels; None without a claim.
        ssim: of pixels.
        st_lpips: None where it is not installed or defined.
        outcome: of the attack.
    """

    image: int
    rmse: float | None
    ssim: float | None
    st_lpips: float | None
    outcome: str


@dataclass(frozen=True, kw_only=True)
class World:
    """Images, networks and attacks of the study.

    Attributes:
        cifar: npz file with color images (arrays x, y), or None where that part is left out.
        only: name of a boolean array in that file that selects images.
        pool: color images that are drawn, of which the first of each class are attacked.
        epsilons: ε > 0 as shares of the median λmax over the images; 0 is taken too where there is a spectrum.
        seed: of everything.
        store: of cells.
        compute: False for what the store has alone.
    """

    cifar: str | None
    only: str | None
    pool: int
    epsilons: tuple[float, ...]
    seed: int
    store: Store
    compute: bool = True

    def kept(self, key: dict[str, Any], kind: type[T], compute: Callable[[], T]) -> T | None:
        """The cell of a key; None where it is not there and nothing is computed."""
        return self.store.kept(key, kind, compute) if self.compute else self.store.get(key, kind)

    def images(self, data: WorldData, count: int, *, size: int) -> Batch:
        """The first image of every class, then the second of every class and so on."""
        if data is WorldData.MNIST:
            pool = mnist_digits(count=_HALF, last=_HALF, seed=self.seed, size=size)
        elif self.cifar is None:
            raise InputError("cifar: expected an npz file with images, got None")
        else:
            pool = image_file(path=Path(self.cifar), count=self.pool, seed=self.seed, only=self.only)
        turns: Counter[int] = Counter()
        order = []
        for place, label in enumerate(pool.targets.tolist()):
            order.append((turns[label], label, place))
            turns[label] += 1
        chosen = torch.tensor([place for *_, place in sorted(order)[:count]], dtype=torch.long)
        return pool.rows(chosen)

    def epsilon_names(self, network: WorldNetwork) -> list[str]:
        """The ε of a network by name, the first one that which the figures are drawn for."""
        shares = sorted(self.epsilons)
        return [f"{share:g}" for share in shares] if network.deep else ["0", *(f"{share:g}" for share in shares)]

    def setup(self, network: WorldNetwork, data: WorldData, epochs: Sequence[int]) -> Setup:
        """The network on these data."""
        return Setup(world=self, network=network, data=data, epochs=tuple(sorted({*epochs})))


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A network on data, with the epochs of its training that are asked for."""

    world: World
    network: WorldNetwork
    data: WorldData
    epochs: tuple[int, ...]

    @cached_property
    def size(self) -> int:
        """Height of the images; digits have 32 pixels for ResNets, which halve their maps three times."""
        if self.data is WorldData.MNIST:
            return 32 if self.network.deep else 28
        return self.world.images(self.data, 1, size=0).inputs.shape[-1]

    @cached_property
    def objectives(self) -> dict[int, Objective]:
        """The objective by epoch of Adam on batches of 64 of other digits."""
        channels = 1 if self.data is WorldData.MNIST else 3
        generator = derive_generator(self.world.seed, "weights", self.network.value)
        model = self.network.model(channels, self.size, generator)
        start = Objective.from_module(model, mode=Mode.EVAL)
        if self.epochs == (0,):
            return {0: start}
        if self.data is not WorldData.MNIST:
            raise UnsupportedError("epochs: only networks on digits are trained here, there are too few color images")
        # The half of the digits of which none is attacked.
        rows = mnist_digits(count=_HALF, first=_HALF, seed=self.world.seed, size=self.size)
        steps = math.ceil(_HALF / 64)
        return {epoch: trained(start, rows, steps=steps * epoch, seed=self.world.seed) for epoch in self.epochs}

    def accuracies(self) -> dict[int, float]:
        """Accuracy on the first half of the digits by epoch; nothing for color images."""
        if self.data is not WorldData.MNIST:
            return {}
        key = self.key("accuracies", 0, []) | {"epochs": list(self.epochs)}
        return self.world.kept(key, dict[int, float], self._accuracies) or {}

    def _accuracies(self) -> dict[int, float]:
        half = mnist_digits(count=_HALF, last=_HALF, seed=self.world.seed, size=self.size)
        return {epoch: accuracy(one, half) for epoch, one in self.objectives.items()}

    def examples(self, count: int) -> list[Batch]:
        """The first images, one a batch."""
        batch = self.world.images(self.data, count, size=self.size)
        return [batch.example(index) for index in range(count)]

    def noise(self, image: int) -> Tensor:
        """The draw of noise (P,) of std 1 for an image: levels scale it, so that they differ in nothing else."""
        generator = derive_generator(self.world.seed, "noise", self.data.value, str(image))
        return torch.randn(self.objectives[self.epochs[0]].size, generator=generator)

    def key(self, what: str, epoch: int, examples: Sequence[Batch]) -> dict[str, Any]:
        """All that a cell depends on besides its own settings."""
        return {
            "what": what,
            "network": self.network.value,
            "data": self.data.value,
            "content": content_of(examples),
            "epoch": epoch,
            "seed": self.world.seed,
        }

    def predictions(self, epoch: int, count: int) -> list[Predictions]:
        """Predictions for the first images at an epoch; nothing where some are not there and nothing is computed.

        ε is a share of the median λmax over the images, one number for all of them, as in the paper.
        """
        examples = self.examples(count)
        tops = [
            self.world.kept(
                self.key("eigenvalue_max", epoch, [example]) | {"image": image},
                float,
                partial(self._largest, epoch, example),
            )
            for image, example in enumerate(examples)
        ]
        if any(top is None for top in tops):
            return []
        middle = float(torch.tensor(tops, dtype=torch.float64).median())
        rest = {"epsilons": list(self.world.epsilons), "median": middle}
        found = [
            self.world.kept(
                self.key("predictions", epoch, [example]) | {"image": image} | rest,
                Predictions,
                partial(self._predict, epoch, example, image, middle),
            )
            for image, example in enumerate(examples)
        ]
        return [one for one in found if one is not None] if None not in found else []

    def _operator(self, epoch: int, example: Batch) -> GradientJacobian:
        dtype = torch.float32 if self.network.deep else torch.float64
        exposure = Exposure(self.objectives[epoch], example, Release(FedSGD()))
        return GradientJacobian(exposure, dtype=dtype)

    def _largest(self, epoch: int, example: Batch) -> float:
        operator = self._operator(epoch, example)
        if not self.network.deep:
            return float(operator.largest_eigenvalue(tolerance=1e-6).values[0])
        return float(operator.largest_eigenvalue(tolerance=_TOLERANCE, certify=False).values[0])

    def _predict(self, epoch: int, example: Batch, image: int, middle: float) -> Predictions:
        operator = self._operator(epoch, example)
        noise = self.noise(image)
        deep = self.network.deep
        if not deep:
            operator.gram_spectrum()
        exposure = operator.exposure
        nominal = InversionInfluenceNumerator()(exposure, delta=noise, operator=operator).value
        assert nominal is not None
        bound = InversionInfluenceLowerBound(unit=_PIXEL, tolerance=_TOLERANCE)
        first = bound(exposure, delta=noise, operator=operator)
        assert first.value is not None
        largest = first.details["eigenvalue_max"]
        solver = ConjugateGradient(tolerance=_TOLERANCE) if deep else None
        bounds, influences = {}, {}
        for name in self.world.epsilon_names(self.network):
            epsilon = float(name) * middle
            # The same quotient with ε beside λmax, which has not to be computed again.
            bounds[name] = first.value * largest / (largest + epsilon)
            measure = InversionInfluence(unit=_PIXEL, epsilon=epsilon, solver=solver)
            influences[name] = measure(exposure, delta=noise, operator=operator).value
        expected = None
        if not deep:
            expected = GaussianReconstructionError(std=1.0, unit=_PIXEL)(exposure, operator=operator).value
        return Predictions(
            eigenvalue_max=largest,
            gradient_norm=float(operator.value.norm()),
            nominal=nominal,
            bounds=bounds,
            influences=influences,
            expected=expected,
            label=int(example.targets[0]),
        )

    def reached(self, setting: WorldSetting, variance: float) -> list[Reached]:
        """Errors of the attack on the images of a setting at one level of noise."""
        examples = self.examples(setting.images)
        alone = self.network.deep or setting.attack is WorldAttack.GAUSS_NEWTON
        groups = [[image] for image in range(len(examples))] if alone else [list(range(len(examples)))]
        found: list[Reached] = []
        for group in groups:
            key = self.key("reached", setting.epoch, [examples[image] for image in group]) | {
                "attack": setting.attack.value,
                "iterations": setting.iterations,
                "variance": variance,
                "images": group,
            }
            attack = partial(self._attack, setting, variance, examples, group)
            found += self.world.kept(key, list[Reached], attack) or []
        return found

    def _attack(
        self, setting: WorldSetting, variance: float, examples: Sequence[Batch], group: Sequence[int]
    ) -> list[Reached]:
        objective, std = self.objectives[setting.epoch], math.sqrt(variance)
        release, plain = Release(FedSGD(), [GaussianNoise(std=std)]), Release(FedSGD())
        updates, facts, generators = [], [], []
        for image in group:
            clean = plain(objective, examples[image], torch.Generator())
            noisy = objective.flatten(clean.tensors) + std * self.noise(image)
            updates.append(replace(clean, tensors=objective.unflatten(noisy)))
            facts.append(HonestButCurious(targets=True).disclose(objective, release, examples[image]))
            generators.append(derive_generator(self.world.seed, "attack", str(image)))
        claims = setting.attack.attack(setting.iterations).many(updates, facts, generators=generators)
        return [scored(image, claim, examples[image]) for image, claim in zip(group, claims, strict=True)]


def scored(image: int, claim: Reconstruction, example: Batch) -> Reached:
    """A claim's pixel errors: RMSE and SSIM as claimed, ST-LPIPS of the pixels clamped to their range."""
    if claim.inputs is None:
        return Reached(image=image, rmse=None, ssim=None, st_lpips=None, outcome=claim.outcome.label)
    domain = example.declared_domain()
    pixels, truth = domain.to_pixels(claim.inputs.double()), domain.to_pixels(example.inputs.double())
    return Reached(
        image=image,
        rmse=pixel_rmse(claim.inputs, example),
        ssim=_if_defined(ssim, pixels, truth),
        st_lpips=_if_defined(st_lpips, pixels.clamp(0, 1), truth),
        outcome=claim.outcome.label,
    )


def _if_defined(distance: Callable[[Tensor, Tensor], Tensor], pixels: Tensor, truth: Tensor) -> float | None:
    try:
        return float(distance(pixels, truth))
    except UnsupportedError:
        return None


def rows_of(
    setting: WorldSetting, variance: float, predicted: Sequence[Predictions], reached: Sequence[Reached], entries: int
) -> list[dict[str, Any]]:
    """Rows of one cell, an image each: predictions at this level of noise beside what was reached.

    All are over √d, as RMSE is, so that their ratios are those of the norms.
    """
    std = math.sqrt(variance)
    rows = []
    for one in reached:
        at = predicted[one.image]
        first = next(iter(at.bounds))
        influences = {name: None if value is None else std * value for name, value in at.influences.items()}
        bounds = {name: std * value for name, value in at.bounds.items()}
        rows.append(
            {
                "setting": setting.title,
                "network": setting.network.value,
                "data": setting.data.value,
                "attack": setting.attack.value,
                "epoch": setting.epoch,
                "variance": variance,
                "label": at.label,
                "eigenvalue_max": at.eigenvalue_max,
                "gradient_norm": at.gradient_norm,
                "nominal": std * at.nominal / math.sqrt(entries),
                "bound": bounds[first],
                "influence": influences[first],
                "bounds": bounds,
                "influences": influences,
                "expected": None if at.expected is None else std * at.expected,
                **asdict(one),
            }
        )
    return rows


__all__ = [
    "Predictions",
    "Reached",
    "Setup",
    "World",
    "WorldAttack",
    "WorldData",
    "WorldNetwork",
    "WorldSetting",
    "rows_of",
    "scored",
]

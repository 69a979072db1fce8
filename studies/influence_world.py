"""Study: I²F, its bound and its numerator against real attacks, by network, data, attack, noise, ε and epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Any, ClassVar

from gradleak.core import describe, one_thread
from gradleak.results import ZHANG_2023, Citation, InputError
from studies.influence_world_cells import (
    Setup,
    World,
    WorldAttack,
    WorldData,
    WorldNetwork,
    WorldSetting,
    rows_of,
)
from studies.influence_world_figures import figures
from studies.influence_world_tables import conclusions, findings, tables
from studies.store import Store
from studies.study import Say, Study, StudyResult

MOST_CELLS = 60


class WorldAxis(StrEnum):
    """Parts of the plan, each of which varies one thing around a base.

    BASE is DGL on an untrained LeNet and MNIST; ATTACK, DATA, NETWORK and EPOCH vary that thing; the levels of noise and of
    ε are within each. PANELS are the paper's figure 2: DGL and GS, MNIST and CIFAR-10, linear and ResNet-18.
    """

    BASE = "base"
    ATTACK = "attack"
    DATA = "data"
    EPOCH = "epoch"
    NETWORK = "network"
    PANELS = "panels"


@dataclass(frozen=True, kw_only=True)
class InfluenceInTheWorld(Study):
    """Errors of DGL, GS, `InvertingGradients` and `GaussNewton` against I²F, its lower bound and I_nom.

    One thing is varied at a time around a base: DGL on an untrained LeNet (sigmoid, weights uniform(−0.5, 0.5)) and MNIST.
    Every image has one draw of Gaussian noise, which the levels scale. All attackers are told the label; `GaussNewton` runs
    without the box. ε is a share of the median λmax over the images; 0 is the base where there is a spectrum, and ResNets
    have the smallest share, by conjugate gradients. Errors are of pixels in [0, 1]: RMSE, SSIM and ST-LPIPS. Rank
    correlations are over everything and within a level of noise (their mean over levels), with bootstraps over images.

    **Source**: Zhang et al. 2023, figures 1, 2, 15, 17, 18 and 19. Deviations: fewer images and iterations (they state
    neither here; their scripts ask for 24,000); ReLU networks in eval mode without BatchNorm priors, since running statistics of
    an untrained network say nothing; ST-LPIPS for LPIPS; epochs on LeNet alone.

    Attributes:
        cifar: npz file with CIFAR-10 images (arrays x, y); without it these cells are left out.
        only: name of a boolean array in that file that selects images.
        pool: color images that are drawn, of which the first of each class are attacked.
        axes: parts of the plan.
        variances: of the noise on every entry, for small networks.
        deep_variances: for ResNets.
        linear_variances: for linear networks, whose gradient is larger.
        images: of small networks on digits; half as many for `GaussNewton`.
        color_images: of small networks on color images.
        deep_images: of ResNets on digits; half as many for ResNet-34.
        deep_color_images: of ResNet-18 on color images, where ten are one a class.
        iterations: of attacks on small networks.
        deep_iterations: of attacks on ResNets.
        epochs: of the axis of epochs.
        epoch_variance: of the noise there, as in the paper.
        epsilons: ε > 0, as shares of the median λmax.
        seed: of images, weights, training, noise and starts.
        cells: file that keeps every cell as soon as it is there, to go on from.
        compute: False to print the plan and tabulate what `cells` has.
    """

    name: ClassVar[str] = "influence_in_the_world"
    source: ClassVar[str] = "figures 1, 2, 15, 17, 18 and 19"
    citations: ClassVar[tuple[Citation, ...]] = (ZHANG_2023,)

    cifar: str | None = None
    only: str | None = None
    pool: int = 100
    axes: Sequence[WorldAxis] = tuple(WorldAxis)
    variances: Sequence[float] = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3)
    deep_variances: Sequence[float] = (1e-7, 1e-5)
    linear_variances: Sequence[float] = (1e-5, 1e-4, 1e-3)
    images: int = 12
    color_images: int = 5
    deep_images: int = 4
    deep_color_images: int = 10
    iterations: int = 500
    deep_iterations: int = 60
    epochs: Sequence[int] = (1, 3, 10, 30)
    epoch_variance: float = 1e-3
    epsilons: Sequence[float] = (1e-3, 1e-2, 1e-1, 1.0)
    seed: int = 0
    cells: str | None = None
    compute: bool = True

    def plan(self) -> list[WorldSetting]:
        """The settings, each with its levels of noise: together at most 60 cells.

        Raises:
            InputError: where there are more.
        """
        chosen = {WorldAxis(axis) for axis in self.axes}
        found: dict[tuple[Any, ...], WorldSetting] = {}
        for axis, setting in self._planned():
            if axis in chosen and (self.cifar is not None or setting.data is WorldData.MNIST):
                found.setdefault((setting.place, setting.attack), setting)
        cells = sum(len(setting.variances) for setting in found.values())
        if cells > MOST_CELLS:
            raise InputError(
                f"influence_in_the_world: expected at most {MOST_CELLS} cells, got {cells}: fewer variances"
            )
        return list(found.values())

    def _planned(self) -> Iterator[tuple[WorldAxis, WorldSetting]]:
        lenet, mnist, dgl = WorldNetwork.LENET, WorldData.MNIST, WorldAttack.DGL
        yield WorldAxis.BASE, self._setting(lenet, mnist, dgl)
        for attack in WorldAttack:
            yield WorldAxis.ATTACK, self._setting(lenet, mnist, attack)
        yield WorldAxis.DATA, self._setting(lenet, WorldData.CIFAR10, dgl)
        for epoch in self.epochs:
            for attack in (dgl, WorldAttack.GS):
                yield WorldAxis.EPOCH, self._setting(lenet, mnist, attack, epoch)
        for network in (WorldNetwork.LINEAR, WorldNetwork.RESNET18, WorldNetwork.RESNET34):
            yield WorldAxis.NETWORK, self._setting(network, mnist, dgl)
        for network, data, attack in (
            (WorldNetwork.RESNET18, mnist, dgl),
            (WorldNetwork.RESNET18, mnist, WorldAttack.GS),
            (WorldNetwork.RESNET18, WorldData.CIFAR10, WorldAttack.GS),
            (WorldNetwork.LINEAR, WorldData.CIFAR10, WorldAttack.GS),
        ):
            yield WorldAxis.PANELS, self._setting(network, data, attack)

    def _setting(self, network: WorldNetwork, data: WorldData, attack: WorldAttack, epoch: int = 0) -> WorldSetting:
        images = self.images if data is WorldData.MNIST else self.color_images
        images = images // 2 if attack is WorldAttack.GAUSS_NEWTON else images
        variances = self.variances
        if network is WorldNetwork.LINEAR:
            variances = self.linear_variances
        if network.deep:
            variances = self.deep_variances
            images = self.deep_images if data is WorldData.MNIST else self.deep_color_images
            images = images if network is WorldNetwork.RESNET18 else max(1, images // 2)
        return WorldSetting(
            network=network,
            data=data,
            attack=attack,
            epoch=epoch,
            variances=(self.epoch_variance,) if epoch else tuple(sorted(variances)),
            images=images,
            iterations=self.deep_iterations if network.deep else self.iterations,
        )

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; about half an hour of one core, half of it for ResNets."""
        plan = self.plan()
        cells = sum(len(setting.variances) for setting in plan)
        for setting in plan:
            levels = ", ".join(f"{variance:g}" for variance in setting.variances)
            say(f"{setting.title}: {setting.images} images, {setting.iterations} iterations, variances {levels}")
        say(f"{cells} cells")
        rows: list[dict[str, Any]] = []
        accuracies: dict[int, float] = {}
        with Store(self.cells) as store, one_thread():
            world = World(
                cifar=self.cifar,
                only=self.only,
                pool=self.pool,
                epsilons=tuple(self.epsilons),
                seed=self.seed,
                store=store,
                compute=self.compute,
            )
            for setup, settings in self._setups(world, plan):
                for setting in settings:
                    mine = self._rows(setup, setting)
                    rows += mine
                    say(f"{setting.title}: {len(mine)} rows")
                if any(row["epoch"] for row in rows) and len(setup.epochs) > 1:
                    accuracies |= setup.accuracies()
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=findings(rows, seed=self.seed),
            conclusion=conclusions(rows, planned=cells),
            details={
                "plan": [describe(setting) for setting in plan],
                "accuracies": {str(epoch): value for epoch, value in accuracies.items()},
                "rows": rows,
            },
            tables=tables(rows, accuracies, seed=self.seed),
            figures=figures(rows),
        )

    def _setups(self, world: World, plan: Sequence[WorldSetting]) -> Iterator[tuple[Setup, list[WorldSetting]]]:
        """Settings by network and data, in the order of the plan but ResNets last, so that each is trained once."""

        def kind(setting: WorldSetting) -> tuple[WorldNetwork, WorldData]:
            return setting.network, setting.data

        order = sorted(dict.fromkeys(map(kind, plan)), key=lambda pair: pair[0].deep)
        for (network, data), group in groupby(sorted(plan, key=lambda one: order.index(kind(one))), kind):
            settings = list(group)
            yield world.setup(network, data, [0, *(setting.epoch for setting in settings)]), settings

    def _rows(self, setup: Setup, setting: WorldSetting) -> list[dict[str, Any]]:
        predicted = setup.predictions(setting.epoch, setting.images)
        if not predicted:
            return []
        entries = setup.examples(1)[0].inputs.numel()
        return [
            row
            for variance in setting.variances
            for row in rows_of(setting, variance, predicted, setup.reached(setting, variance), entries)
        ]


__all__ = ["MOST_CELLS", "InfluenceInTheWorld", "WorldAxis"]

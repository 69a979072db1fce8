"""Study: success of attacks, network by network, at equal budgets."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from gradleak.attacks import (
    DGL,
    DLG,
    GS,
    IDLG,
    Attack,
    BatchNormInversion,
    Blind,
    Checkpoint,
    GaussNewton,
    GradInversion,
    InvertingGradients,
    KrylovSteps,
)
from gradleak.core import (
    Batch,
    HonestButCurious,
    Knowledge,
    Objective,
    Reconstruction,
    Release,
    Update,
    derive_generator,
    describe,
    one_thread,
    running_statistics,
)
from gradleak.datasets import image_file, mnist_digits
from gradleak.models import initialize_uniform, lenet_dlg, lenet_i2f, resnet18
from gradleak.protocols import FedSGD
from gradleak.results import GEIPING_2020, YIN_2021, ZHANG_2023, ZHAO_2020, ZHU_2019, Citation, UnsupportedError
from gradleak.scoring import score_images
from studies.attack_lines import BASELINE, Line, Row, blind_lines, conclude
from studies.networks import convnet
from studies.store import Store, content_of
from studies.study import Say, Study, StudyResult, Table

TIMED_GRADIENTS = 11
"""Plain gradients timed before an attack, and as many after it."""


class TableNetwork(StrEnum):
    """Networks of the table; their weights are random."""

    LENET = "lenet"
    CONVNET = "convnet"
    RESNET18 = "resnet18"


_WEIGHTS = {TableNetwork.LENET: "uniform(-0.5, 0.5)", TableNetwork.CONVNET: "default", TableNetwork.RESNET18: "default"}


class Entrant(StrEnum):
    """Attacks of the table.

    GS_BATCH_NORM is `GS` with running BatchNorm statistics and GS the same without. IDLG_RESTARTING is `IDLG` where a
    start that has not improved for 20 steps goes back to its best iterate. GAUSS_NEWTON_PRODUCTS is `GaussNewton` with
    steps of at most 30 iterations of conjugate gradients, where a dense one may count more than the budget, and
    GAUSS_NEWTON_FREE has its own limits in place of the budget.
    """

    BLIND = "blind"
    DGL = "dgl"
    GS = "gs"
    GS_BATCH_NORM = "gs_batch_norm"
    DLG = "dlg"
    IDLG = "idlg"
    IDLG_RESTARTING = "idlg_restarting"
    INVERTING_GRADIENTS = "inverting_gradients"
    GRAD_INVERSION = "grad_inversion"
    BATCH_NORM_INVERSION = "batch_norm_inversion"
    GAUSS_NEWTON = "gauss_newton"
    GAUSS_NEWTON_PRODUCTS = "gauss_newton_products"
    GAUSS_NEWTON_FREE = "gauss_newton_free"

    @property
    def given_labels(self) -> bool:
        """True if the paper gives the attack the label; the others have to recover or optimize it."""
        return self in (Entrant.DGL, Entrant.GS, Entrant.GS_BATCH_NORM)

    @property
    def reads_batch_norm(self) -> bool:
        """True if it is the same as another entrant, or no attack, on a network without BatchNorm layers."""
        return self in (Entrant.GS_BATCH_NORM, Entrant.BATCH_NORM_INVERSION)

    @property
    def alone(self) -> bool:
        """True if it takes one image after the other on every network."""
        return self in (Entrant.GAUSS_NEWTON, Entrant.GAUSS_NEWTON_PRODUCTS, Entrant.GAUSS_NEWTON_FREE)

    def attack(self, iterations: int, starts: int) -> Attack:
        """The attack with so many iterations (for GAUSS_NEWTON_PRODUCTS plain gradients); only `GradInversion` has `starts`."""
        match self:
            case Entrant.BLIND:
                return Blind()
            case Entrant.DGL:
                return DGL(iterations=iterations)
            case Entrant.GS:
                return GS(iterations=iterations, batch_norm=0.0)
            case Entrant.GS_BATCH_NORM:
                return GS(iterations=iterations)
            case Entrant.DLG:
                return DLG(iterations=iterations)
            case Entrant.IDLG:
                return IDLG(iterations=iterations)
            case Entrant.IDLG_RESTARTING:
                return IDLG(iterations=iterations, restart_after=20)
            case Entrant.INVERTING_GRADIENTS:
                return InvertingGradients(iterations=iterations)
            case Entrant.GRAD_INVERSION:
                return GradInversion(iterations=iterations, restarts=starts)
            case Entrant.BATCH_NORM_INVERSION:
                return BatchNormInversion(iterations=iterations)
            case Entrant.GAUSS_NEWTON:
                return GaussNewton(max_steps=iterations, starts=1)
            case Entrant.GAUSS_NEWTON_PRODUCTS:
                steps = KrylovSteps(iterations=30)
                return GaussNewton(steps=steps, starts=20, max_plain_gradients=float(iterations))
            case Entrant.GAUSS_NEWTON_FREE:
                return GaussNewton()


@dataclass(frozen=True, kw_only=True)
class AttackTable(Study):
    """A table attack × network of median PSNR, SSIM, MSE, exact hits and plain gradients spent, on single images.

    Every attack has one update, the undefended gradient of one image in eval mode, and the same budget in plain
    gradients; how many iterations that buys follows from the attack's own `estimate`. Images of a small network are
    attacked in lockstep, those of ResNet-18 and by `GaussNewton` one after the other. Labels are given to the attacks
    whose paper gives them and recovered or optimized by the others. LeNet (`lenet_i2f` for digits, `lenet_dlg` for color)
    has sigmoids and weights uniform(−0.5, 0.5), as in the DLG paper; the others have ReLU and torch's default weights.

    Medians are of each quantity by itself (of an even count the mean of the two middle values, so that the median
    PSNR is not that of the median MSE); the interval of the median is free of assumptions on the distribution (order
    statistics). Counted costs follow the attack's rule; measured ones are processor time on one thread over the
    median of 22 plain gradients in the attack's dtype, around the attack, in the same process.

    **Source**: the attacks are those of Zhu et al. 2019, Zhao et al. 2020, Geiping et al. 2020, Yin et al. 2021, Huang et
    al. 2021 and Zhang et al. 2023; no paper has this table. Deviation: budgets far below the papers' 4,800 to 24,000
    iterations, and a ConvNet of a width that a CPU can carry (64 in Geiping et al.).

    Attributes:
        images: npz file with CIFAR-10 images (arrays x, y), or None for MNIST digits.
        only: name of a boolean array in that file that selects images.
        count: images for LeNet and the ConvNet.
        deep_count: images for ResNet-18.
        budget: plain gradients a target for LeNet and the ConvNet.
        deep_iterations: gradients of the matching loss a target for ResNet-18.
        networks: which networks.
        attacks: which attacks.
        width: of the ConvNet. Below 16 its gradient in eval mode hardly depends on the image.
        starts: of `GradInversion` on LeNet and the ConvNet, out of the same budget; ResNet-18 gets one.
        seed: of images, weights and starts.
        weights: seed of the weights, where it is another: a second network on the same images.
        cells: file that keeps every line as soon as its attack ends, with states of long attacks beside it; a killed
            study goes on there. Lines of other settings in it are left alone. It has to go when the code changes.
        compute: False to tabulate what `cells` has and compute nothing.
    """

    name: ClassVar[str] = "attack_table"
    source: ClassVar[str] = "attacks of five papers on equal terms"
    citations: ClassVar[tuple[Citation, ...]] = (ZHU_2019, ZHAO_2020, GEIPING_2020, YIN_2021, ZHANG_2023)

    images: str | None = None
    only: str | None = None
    count: int = 10
    deep_count: int = 3
    budget: int = 4000
    deep_iterations: int = 2000
    networks: Sequence[TableNetwork] = (TableNetwork.LENET, TableNetwork.CONVNET)
    attacks: Sequence[Entrant] = tuple(Entrant)
    width: int = 16
    starts: int = 4
    seed: int = 0
    weights: int | None = None
    cells: str | None = None
    compute: bool = True

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; half an hour of one core for ten images without ResNet-18, which takes hours."""
        rows: list[Row] = []
        with Store(self.cells) as store, one_thread():
            for network in map(TableNetwork, self.networks):
                setting = self._setting(network)
                rows.append(Row(network.value, BASELINE, "-", blind_lines(setting.examples)))
                for entrant in map(Entrant, self.attacks):
                    if entrant.reads_batch_norm and not running_statistics(setting.objective):
                        continue
                    row = self._row(setting, entrant, store)
                    if row is not None:
                        rows.append(row)
                        say(row.sentence())
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=[row.finding() for row in rows],
            conclusion=conclude(rows),
            details={row.title: [asdict(line) for line in row.lines] for row in rows},
            tables=[Table(title="Attack by network", columns=Row.columns, rows=[row.cells() for row in rows])],
        )

    def _setting(self, network: TableNetwork) -> _Setting:
        deep = network is TableNetwork.RESNET18
        count = self.deep_count if deep else self.count
        if self.images is None:
            # ResNet-18 halves its maps three times.
            batch = mnist_digits(count=count, seed=self.seed, size=32 if deep else 28)
        else:
            batch = image_file(path=Path(self.images), count=count, seed=self.seed, only=self.only)
        model = self._model(network, batch)
        return _Setting(
            network=network,
            objective=Objective.from_module(model),
            examples=[batch.example(index) for index in range(count)],
            budget=3.0 * (self.deep_iterations + 1) if deep else float(self.budget),
            starts=1 if deep else self.starts,
            together=not deep,
        )

    def _model(self, network: TableNetwork, batch: Batch) -> nn.Module:
        channels, size = batch.inputs.shape[1], batch.inputs.shape[2]
        generator = derive_generator(self.seed if self.weights is None else self.weights, "weights", network.value)
        if network is TableNetwork.CONVNET:
            return convnet(channels=channels, size=size, width=self.width, generator=generator)
        if network is TableNetwork.RESNET18:
            return resnet18(channels=channels, generator=generator)
        lenet = lenet_i2f(size=size) if channels == 1 else lenet_dlg(size=size, channels=channels)
        return initialize_uniform(lenet, low=-0.5, high=0.5, generator=generator)

    def _row(self, setting: _Setting, entrant: Entrant, store: Store) -> Row | None:
        """All images of one attack, in groups; None where nothing is stored and nothing may be computed."""
        every = range(len(setting.examples))
        together = setting.together and not entrant.alone
        groups = [list(every)] if together else [[image] for image in every]
        knowledge = HonestButCurious(targets=entrant.given_labels).disclose(
            setting.objective, Release(FedSGD()), setting.examples[0]
        )
        attack = _within(entrant, setting, knowledge)
        lines: list[Line] = []
        for group in groups:
            key = self._key(setting, attack, entrant, group)
            kept = store.get(key, list[Line])
            if kept is None and self.compute:
                kept = self._attack(setting, attack, entrant, group, store.checkpoint(key))
                store.add(key, list[Line], kept)
            lines += kept or []
        title = entrant.value
        if lines and lines[0].counted > 1.001 * setting.budget:
            title += " (beyond the budget)"
        return Row(setting.network.value, title, lines[0].labels, lines) if lines else None

    def _key(self, setting: _Setting, attack: Attack, entrant: Entrant, group: Sequence[int]) -> dict[str, Any]:
        """All that a group of lines depends on, besides the code."""
        return {
            "data": "mnist" if self.images is None else Path(self.images).name,
            "content": content_of([setting.examples[image] for image in group]),
            "only": self.only,
            "network": setting.network.value,
            "width": self.width if setting.network is TableNetwork.CONVNET else None,
            "weights": _WEIGHTS[setting.network],
            "attack": describe(attack),
            "given_labels": entrant.given_labels,
            "seed": self.seed,
            "images": list(group),
            **({} if self.weights is None else {"weights_seed": self.weights}),
        }

    def _attack(
        self,
        setting: _Setting,
        attack: Attack,
        entrant: Entrant,
        group: Sequence[int],
        checkpoint: Checkpoint | None,
    ) -> list[Line]:
        release, threat = Release(FedSGD()), HonestButCurious(targets=entrant.given_labels)
        examples = [setting.examples[image] for image in group]
        updates = [release(setting.objective, example, self._generator("release", 0)) for example in examples]
        facts = [threat.disclose(setting.objective, release, example) for example in examples]
        generators = [self._generator("attack", image) for image in group]
        fresh = checkpoint is None or not checkpoint.path.exists()
        dtype = torch.float64 if entrant.alone else setting.objective.dtype
        watch = _Watch(setting.objective.to(dtype), examples[0].to(dtype))
        try:
            found = watch(lambda: _many(attack, updates, facts, generators, checkpoint))
        except UnsupportedError as error:
            refused = Line(
                image=0, mse=None, ssim=None, exact=False, outcome="unsupported", labels="-", iterations=0,
                counted=0.0, measured=None, note=str(error),
            )  # fmt: skip
            return [Line(**{**asdict(refused), "image": image}) for image in group]
        measured = watch.ratio / len(group) if fresh else None
        return [
            _line(image, claim, example, measured) for image, claim, example in zip(group, found, examples, strict=True)
        ]

    def _generator(self, purpose: str, image: int) -> torch.Generator:
        return derive_generator(self.seed, purpose, str(image))


@dataclass(frozen=True, kw_only=True)
class _Setting:
    """One network with its images."""

    network: TableNetwork
    objective: Objective
    examples: Sequence[Batch]
    budget: float
    starts: int
    together: bool


class _Watch:
    """Processor time of a call, in plain gradients of the same process."""

    def __init__(self, objective: Objective, example: Batch) -> None:
        self._objective, self._example = objective, example
        self.ratio = math.nan

    def __call__(self, call: Callable[[], list[Reconstruction]]) -> list[Reconstruction]:
        plain = [self._gradient() for _ in range(TIMED_GRADIENTS)]
        begin = time.process_time()
        found = call()
        spent = time.process_time() - begin
        plain += [self._gradient() for _ in range(TIMED_GRADIENTS)]
        self.ratio = spent / statistics.median(plain)
        return found

    def _gradient(self) -> float:
        begin = time.process_time()
        params = {name: tensor.detach().requires_grad_() for name, tensor in self._objective.params.items()}
        torch.autograd.grad(self._objective.loss(params, self._example), list(params.values()))
        return time.process_time() - begin


def _many(
    attack: Attack,
    updates: Sequence[Update],
    knowledge: Sequence[Knowledge],
    generators: Sequence[torch.Generator],
    checkpoint: Checkpoint | None,
) -> list[Reconstruction]:
    return attack.many(updates, knowledge, generators=generators, checkpoint=checkpoint)


def _within(entrant: Entrant, setting: _Setting, knowledge: Knowledge) -> Attack:
    """The attack with as many iterations as the budget buys by its own estimate, at least one."""
    if entrant is Entrant.GAUSS_NEWTON_PRODUCTS:
        return entrant.attack(math.floor(setting.budget), setting.starts)
    first, second = (entrant.attack(n, setting.starts).estimate(knowledge) for n in (1, 2))
    if second == first:
        return entrant.attack(1, setting.starts)
    return entrant.attack(1 + max(0, math.floor((setting.budget - first) / (second - first))), setting.starts)


def _line(image: int, claim: Reconstruction, example: Batch, measured: float | None) -> Line:
    values = {score.name: score.value for score in score_images(claim, example)}
    return Line(
        image=image,
        mse=values["mse"],
        ssim=values["ssim"],
        exact=values["exact_hits"] == 1.0,
        outcome=claim.outcome.label,
        labels=str(claim.details.get("labels", "-")),
        iterations=claim.iterations,
        counted=claim.plain_gradients,
        measured=measured,
        note=claim.note if claim.inputs is None else "",
    )


__all__ = ["AttackTable", "Entrant", "TableNetwork"]

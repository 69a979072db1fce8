"""Vulnerability proxies of images and what attacks make of their gradients, a network and an attack a cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial

import torch
from torch import nn

from gradleak.attacks import (
    LBFGS,
    Adam,
    CosineDistance,
    Inversion,
    Matching,
    Optimizer,
    Pixels,
    SearchStage,
    SquaredError,
    StepDecay,
    TotalVariation,
)
from gradleak.core import (
    Batch,
    Exposure,
    HonestButCurious,
    Objective,
    Reconstruction,
    Release,
    derive_generator,
)
from gradleak.core.process import in_processes
from gradleak.models import Activation, initialize_uniform, lenet_i2f, mlp, resnet8
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedSGD
from gradleak.risk import (
    GaussianReconstructionError,
    GradientNorm,
    LinearizedPosteriorError,
    Measure,
    Vulnerability,
    VulnerabilityFusion,
)
from gradleak.scoring import score_images, score_perceptual
from studies.private_images import trained
from studies.store import Store, content_of

Column = list[float | None]
L2, COSINE = "l2", "cosine"
MATCHINGS: Mapping[str, Matching] = {L2: SquaredError(), COSINE: CosineDistance()}
# LOSS is the attack's own final loss; RELATIVE is the MSE over that of the best constant a channel.
MSE, PSNR, SSIM, ST_LPIPS, LOSS, RELATIVE = "mse", "psnr", "ssim", "st_lpips", "final loss", "relative mse"
QUALITIES = (MSE, PSNR, SSIM, ST_LPIPS, LOSS, RELATIVE)
# A of the small ResNet on 32×32 color images takes 1.9 GiB.
_MAX_BYTES = 3 * 2**30


class Architecture(StrEnum):
    """Networks of the studies of LAVP, small enough for a whole spectrum an image."""

    LENET = "lenet"
    MLP = "mlp"
    RESNET = "resnet"


class FirstWeights(StrEnum):
    """Weights before any training: the network's own (LeNet uniform, else torch's), uniform(−0.5, 0.5), or torch's."""

    OWN = "own"
    UNIFORM = "uniform"
    TORCH = "torch"


class Descent(StrEnum):
    """Optimizer of the attack: Adam, Adam on signs with three decays (Geiping et al. 2020), or L-BFGS."""

    ADAM = "adam"
    SIGNED = "signed"
    LBFGS = "lbfgs"

    def stage(self, iterations: int) -> SearchStage:
        """The search; an iteration of L-BFGS is one of its inner steps, 20 of which the house counts as one."""
        optimizers: Mapping[Descent, Optimizer] = {
            Descent.ADAM: Adam(learning_rate=0.1),
            Descent.SIGNED: Adam(learning_rate=0.1, signed=True, schedule=StepDecay()),
            Descent.LBFGS: LBFGS(),
        }
        count = max(1, iterations // 20) if self is Descent.LBFGS else iterations
        return SearchStage(optimizer=optimizers[self], iterations=count)


@dataclass(frozen=True, kw_only=True)
class Client:
    """Network that releases the gradients.

    Attributes:
        network: which.
        activation: of it; None for its own (ReLU for the ResNet, else sigmoids).
        weights: the first ones.
        training_steps: Adam steps on other images before the release.
        width: channels of the first stage of the ResNet.
    """

    network: Architecture = Architecture.LENET
    activation: Activation | None = None
    weights: FirstWeights = FirstWeights.OWN
    training_steps: int = 0
    width: int = 16

    def objective(self, images: Batch, others: Batch | None, *, seed: int) -> Objective:
        """The network in eval mode, float32; weights by seed and name, trained on `others` where steps are asked for."""
        channels, size = images.inputs.shape[1], images.inputs.shape[2]
        generator = derive_generator(seed, "weights", self.network.value)
        own = Activation.RELU if self.network is Architecture.RESNET else Activation.SIGMOID
        activation = self.activation or own
        model: nn.Module
        uniform = self.weights is FirstWeights.UNIFORM
        if self.network is Architecture.LENET:
            model = lenet_i2f(activation=activation, channels=channels, size=size, generator=generator)
            uniform = uniform or self.weights is FirstWeights.OWN
        elif self.network is Architecture.MLP:
            layers = mlp(
                features=channels * size * size,
                hidden=(128, 64),
                classes=10,
                activation=activation,
                generator=generator,
            )
            model = nn.Sequential(nn.Flatten(), layers)
        else:
            model = resnet8(channels=channels, classes=10, width=self.width, activation=activation, generator=generator)
        if uniform:
            initialize_uniform(model, low=-0.5, high=0.5, generator=generator)
        objective = Objective.from_module(model)
        if self.training_steps and others is not None:
            return trained(objective, others, steps=self.training_steps, seed=seed)
        return objective


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """Attack on each image's gradient, labels disclosed, box.

    Attributes:
        descent: its optimizer.
        iterations: of it.
        total_variation: weight of the prior.
        start: which of several draws of starts.
    """

    descent: Descent = Descent.ADAM
    iterations: int = 500
    total_variation: float = 0.0
    start: int = 0

    def attack(self, matching: Matching) -> Inversion:
        """The attack with this loss."""
        return Inversion(
            matching=matching,
            variables=Pixels(box=True),
            priors=(TotalVariation(weight=self.total_variation),) if self.total_variation else (),
            stages=(self.descent.stage(self.iterations),),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Images:
    """Images whose gradients are released, and others to train on.

    Attributes:
        batch: the former.
        others: the latter, or None.
    """

    batch: Batch
    others: Batch | None = None


@dataclass(frozen=True, kw_only=True)
class LAVPCell:
    """One network and one attack.

    Attributes:
        proxies: by name, a number an image.
        qualities: by loss of the attack and name, a number an image.
        contrast: the mean squared error of the best constant a channel, of each image.
    """

    proxies: dict[str, Column]
    qualities: dict[str, dict[str, Column]]
    contrast: list[float]


def cell_of(
    client: Client, attempt: Attempt, images: Images, store: Store, *, seed: int, jobs: int, largest: int
) -> LAVPCell:
    """The cell, whose proxies are computed once for all attacks.

    Args:
        client: who releases.
        attempt: the attack.
        images: the truth.
        store: of proxies and qualities.
        seed: of weights and starts.
        jobs: worker processes for the spectra.
        largest: inputs of more entries have no minima, fusion and errors, since these need the whole spectrum.
    """
    batch = images.batch
    objective = client.objective(batch, images.others, seed=seed)
    key = {
        "study": "lavp",
        "client": asdict(client),
        "content": content_of([batch]),
        "others": content_of([images.others]) if client.training_steps and images.others is not None else "",
        "seed": seed,
    }
    whole = batch.inputs[0].numel() <= largest
    proxies = store.kept(
        {**key, "part": "proxies", "whole": whole},
        dict[str, Column],
        lambda: proxies_of(objective, batch, jobs=jobs, whole=whole),
    )
    qualities = {
        name: store.kept(
            {**key, "part": "qualities", "attempt": asdict(attempt), "loss": name},
            dict[str, Column],
            partial(qualities_of, objective, batch, attempt, matching, seed=seed),
        )
        for name, matching in MATCHINGS.items()
    }
    return LAVPCell(proxies=proxies, qualities=qualities, contrast=contrast_of(batch))


def proxies_of(objective: Objective, batch: Batch, *, jobs: int, whole: bool = True) -> dict[str, Column]:
    """The proxies of every image at the truth, in float64, by name."""
    exact = objective.to(torch.float64)
    examples = [batch.example(index).to(torch.float64) for index in range(batch.size)]
    rows = list(in_processes([partial(_proxies_of, exact, example, whole) for example in examples], jobs=jobs))
    return {name: [row[name] for row in rows] for name in rows[0]}


def _proxies_of(objective: Objective, example: Batch, whole: bool) -> dict[str, float | None]:
    exposure = Exposure(objective, example, Release(FedSGD()))
    operator = GradientJacobian(exposure, max_bytes=_MAX_BYTES)
    limit = {} if whole else {"dense_limit": 0}
    measures: dict[str, Measure] = {
        "lavp_l2_max": Vulnerability(matching="l2", eigenvalue="max", **limit),
        "lavp_cosine_max": Vulnerability(matching="cosine", eigenvalue="max", **limit),
        "gradient_norm": GradientNorm(),
    }
    if whole:
        measures |= {
            "lavp_l2_min": Vulnerability(matching="l2", eigenvalue="min"),
            "lavp_cosine_min": Vulnerability(matching="cosine", eigenvalue="min"),
            "lavp_fusion": VulnerabilityFusion(),
            "expected_i2f": GaussianReconstructionError(std=1.0),
            "posterior_error": LinearizedPosteriorError(noise_std=1e-3, prior_std=0.3),
        }
    return {name: measure(exposure, operator=operator).value for name, measure in measures.items()}


def qualities_of(
    objective: Objective, batch: Batch, attempt: Attempt, matching: Matching, *, seed: int
) -> dict[str, Column]:
    """Scores of the claims, all images in lockstep, by name."""
    release, threat = Release(FedSGD()), HonestButCurious(targets=True)
    examples = [batch.example(index) for index in range(batch.size)]
    # The first draw of starts has no name, so that it is that of earlier runs.
    draw = (str(attempt.start),) if attempt.start else ()
    generators = [derive_generator(seed, "attack", str(index), *draw) for index in range(batch.size)]
    updates = [release(objective, example, generator) for example, generator in zip(examples, generators, strict=True)]
    found = attempt.attack(matching).many(
        updates, [threat.disclose(objective, release, example) for example in examples], generators=generators
    )
    rows = [_scored(claim, example) for claim, example in zip(found, examples, strict=True)]
    columns: dict[str, Column] = {name: [row[name] for row in rows] for name in rows[0]}
    columns[RELATIVE] = [
        None if error is None or not own else error / own
        for error, own in zip(columns[MSE], contrast_of(batch), strict=True)
    ]
    return columns


def _scored(claim: Reconstruction, example: Batch) -> dict[str, float | None]:
    scores = {score.name: score.value for score in score_images(claim, example)}
    return {name: scores[name] for name in (MSE, PSNR, SSIM)} | {
        ST_LPIPS: score_perceptual(claim, example).value,
        LOSS: claim.loss,
    }


def contrast_of(batch: Batch) -> list[float]:
    """The mean squared error, in pixels, of the best constant a channel: what an image's own contrast makes of any error."""
    assert batch.domain is not None
    pixels = batch.domain.to_pixels(batch.inputs.double())
    gap = pixels - pixels.mean(dim=(2, 3), keepdim=True)
    values: list[float] = gap.square().mean(dim=(1, 2, 3)).tolist()
    return values


__all__ = [
    "COSINE",
    "L2",
    "LOSS",
    "MATCHINGS",
    "MSE",
    "PSNR",
    "QUALITIES",
    "RELATIVE",
    "SSIM",
    "ST_LPIPS",
    "Architecture",
    "Attempt",
    "Client",
    "Descent",
    "FirstWeights",
    "Images",
    "LAVPCell",
    "cell_of",
    "contrast_of",
    "proxies_of",
    "qualities_of",
]

"""Does LAVP foresee how well an attack rebuilds an image?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from scipy import stats
from torch import nn

from gradleak.attacks import Adam, CosineDistance, Inversion, Matching, Pixels, SearchStage, SquaredError
from gradleak.core import Batch, Exposure, HonestButCurious, Objective, Release, derive_generator, describe
from gradleak.core.process import in_processes
from gradleak.datasets import image_file, mnist_digits
from gradleak.models import initialize_uniform, lenet_i2f, mlp, resnet8
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedSGD
from gradleak.results import HONG_2024, Citation, Score
from gradleak.risk import (
    GaussianReconstructionError,
    GradientNorm,
    LinearizedPosteriorError,
    Measure,
    Vulnerability,
    VulnerabilityFusion,
)
from gradleak.scoring import score_images
from studies.study import Finding, Say, Study, StudyResult

QUALITIES = ("mse", "psnr", "ssim")
# A of the small ResNet on 32×32 color images takes 1.9 GiB.
MAX_BYTES = 3 * 2**30
PAPER = {
    "gradient_norm": "0.35 and -0.28 (MSE, by model)",
    "lavp_l2_max": "absolute value mostly above 0.5",
    "lavp_cosine_max": "absolute value about 0.8 for cosine",
    "lavp_cosine_min": "absolute value about 0.8 for cosine",
}


class Architecture(StrEnum):
    """Networks of the study, small enough for a whole spectrum an image."""

    LENET = "lenet"
    MLP = "mlp"
    RESNET = "resnet"


@dataclass(frozen=True, kw_only=True)
class LAVPQuality(Study):
    """Spearman correlation of vulnerability proxies with reconstruction quality, within each architecture.

    For every image the closed-form proxies are computed at the truth, an attack of each loss runs on the undefended
    gradient (labels disclosed, no prior, box), and the correlation over images is taken; intervals are percentile
    bootstraps over images. The average over architectures stands beside.

    **Source**: Hong et al. 2024, tables 1 and 2, there on LeNet, ResNet and others with trained and untrained weights;
    deviation: small untrained networks, so that the smallest eigenvalue is exact.

    Attributes:
        images: npz file with CIFAR-10 images (arrays x, y), or None for MNIST digits.
        only: name of a boolean array in that file that selects images.
        count: images.
        iterations: Adam steps of each attack, all images in lockstep.
        architectures: which networks.
        resnet_width: channels of the first stage of the ResNet; its whole spectrum at 3×32×32 takes minutes an image
            at 16.
        seed: of images, weights and starts.
        jobs: worker processes for the spectra.
        resamples: bootstrap resamples.
    """

    name: ClassVar[str] = "lavp_quality"
    source: ClassVar[str] = "tables 1 and 2"
    citations: ClassVar[tuple[Citation, ...]] = (HONG_2024,)

    images: str | None = None
    only: str | None = None
    count: int = 30
    iterations: int = 500
    architectures: Sequence[Architecture] = tuple(Architecture)
    resnet_width: int = 16
    seed: int = 0
    jobs: int = 2
    resamples: int = 2000

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; minutes for MNIST, tens of minutes for 32×32 color images on two cores."""
        batch = self._batch()
        findings: list[Finding] = []
        raw: dict[str, Any] = {}
        for architecture in map(Architecture, self.architectures):
            objective = self._objective(architecture, batch)
            proxies = self._proxies(objective, batch)
            say(f"{architecture.value}: proxies of {batch.size} images")
            qualities = {}
            for matching in (SquaredError(), CosineDistance()):
                loss = "l2" if isinstance(matching, SquaredError) else "cosine"
                qualities[loss] = self._qualities(objective, batch, matching)
                say(f"{architecture.value}: {loss} attack, median MSE {_median(qualities[loss]['mse']):.2g}")
            raw[architecture.value] = {"proxies": proxies, "qualities": qualities}
        for loss in ("l2", "cosine"):
            for proxy in next(iter(raw.values()))["proxies"]:
                findings += self._findings(proxy, loss, raw)
        return StudyResult(
            study=self.name, settings=describe(self), findings=findings, conclusion=_conclude(findings), details=raw
        )

    def _batch(self) -> Batch:
        if self.images is None:
            return mnist_digits(count=self.count, seed=self.seed)
        return image_file(path=Path(self.images), count=self.count, seed=self.seed, only=self.only)

    def _objective(self, architecture: Architecture, batch: Batch) -> Objective:
        channels, size = batch.inputs.shape[1], batch.inputs.shape[2]
        generator = derive_generator(self.seed, "weights", architecture.value)
        model: nn.Module
        if architecture is Architecture.LENET:
            model = lenet_i2f(activation="sigmoid", channels=channels, size=size)
            initialize_uniform(model, low=-0.5, high=0.5, generator=generator)
        elif architecture is Architecture.MLP:
            features = channels * size * size
            layers = mlp(features=features, hidden=(128, 64), classes=10, activation="sigmoid", generator=generator)
            model = nn.Sequential(nn.Flatten(), layers)
        else:
            model = resnet8(channels=channels, classes=10, width=self.resnet_width, generator=generator)
        return Objective.from_module(model)

    def _proxies(self, objective: Objective, batch: Batch) -> dict[str, list[float | None]]:
        exact = objective.to(torch.float64)
        examples = [batch.example(index).to(torch.float64) for index in range(batch.size)]
        rows = list(in_processes([partial(_proxies_of, exact, example) for example in examples], jobs=self.jobs))
        return {name: [row[name] for row in rows] for name in rows[0]}

    def _qualities(self, objective: Objective, batch: Batch, matching: Matching) -> dict[str, list[float | None]]:
        stage = SearchStage(optimizer=Adam(learning_rate=0.1), iterations=self.iterations)
        attack = Inversion(matching=matching, variables=Pixels(box=True), stages=(stage,))
        release = Release(FedSGD())
        examples = [batch.example(index) for index in range(batch.size)]
        threat = HonestButCurious(targets=True)
        generators = [derive_generator(self.seed, "attack", str(index)) for index in range(batch.size)]
        updates = [
            release(objective, example, generator) for example, generator in zip(examples, generators, strict=True)
        ]
        found = attack.many(
            updates, [threat.disclose(objective, release, example) for example in examples], generators=generators
        )
        scored = [score_images(claim, example) for claim, example in zip(found, examples, strict=True)]
        return {name: [_value(scores, name) for scores in scored] for name in QUALITIES}

    def _findings(self, proxy: str, loss: str, raw: Mapping[str, Any]) -> list[Finding]:
        rows = []
        for quality in QUALITIES:
            by_model = {}
            for architecture, numbers in raw.items():
                pair = _paired(numbers["proxies"][proxy], numbers["qualities"][loss][quality])
                by_model[architecture] = pair
            values = {name: _spearman(pair) for name, pair in by_model.items()}
            known = [value for value in values.values() if value is not None]
            mean = float(np.mean(known)) if known else None
            rows.append(
                Finding(
                    quantity=f"{loss} attack: Spearman of {proxy} with {quality}, mean over architectures",
                    ours=mean,
                    paper=PAPER.get(proxy, "") if quality == "mse" else "",
                    interval=self._interval(list(by_model.values())) if known else None,
                    n=sum(len(pair) for pair in by_model.values()),
                    note=", ".join(f"{name} {'-' if v is None else format(v, '.2f')}" for name, v in values.items()),
                )
            )
        return rows

    def _interval(self, pairs: Sequence[np.ndarray]) -> tuple[float, float]:
        """Percentile bootstrap over images, within each architecture, of the mean correlation."""
        random = np.random.default_rng(self.seed)
        means = []
        for _ in range(self.resamples):
            values = [_spearman(pair[random.integers(0, len(pair), len(pair))]) for pair in pairs if len(pair) > 2]
            known = [value for value in values if value is not None]
            if known:
                means.append(np.mean(known))
        low, high = np.percentile(means, [2.5, 97.5])
        return float(low), float(high)


def _proxies_of(objective: Objective, example: Batch) -> dict[str, float | None]:
    exposure = Exposure(objective, example, Release(FedSGD()))
    operator = GradientJacobian(exposure, max_bytes=MAX_BYTES)
    measures: dict[str, Measure] = {
        "lavp_l2_max": Vulnerability(matching="l2", eigenvalue="max"),
        "lavp_l2_min": Vulnerability(matching="l2", eigenvalue="min"),
        "lavp_cosine_max": Vulnerability(matching="cosine", eigenvalue="max"),
        "lavp_cosine_min": Vulnerability(matching="cosine", eigenvalue="min"),
        "lavp_fusion": VulnerabilityFusion(),
        "gradient_norm": GradientNorm(),
        "expected_i2f": GaussianReconstructionError(std=1.0),
        "posterior_error": LinearizedPosteriorError(noise_std=1e-3, prior_std=0.3),
    }
    return {name: measure(exposure, operator=operator).value for name, measure in measures.items()}


def _value(scores: Sequence[Score], name: str) -> float | None:
    return next(score.value for score in scores if score.name == name)


def _median(values: Sequence[float | None]) -> float:
    return float(np.median([value for value in values if value is not None]))


def _paired(first: Sequence[float | None], second: Sequence[float | None]) -> np.ndarray:
    """The pairs in which both values are known and finite, (n, 2)."""
    rows = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    pairs = np.array(rows, dtype=float).reshape(-1, 2)
    known: np.ndarray = pairs[np.isfinite(pairs).all(axis=1)]
    return known


def _spearman(pairs: np.ndarray) -> float | None:
    if len(pairs) < 3 or len(set(pairs[:, 0])) < 2 or len(set(pairs[:, 1])) < 2:
        return None
    return float(stats.spearmanr(pairs[:, 0], pairs[:, 1])[0])


def _conclude(findings: Sequence[Finding]) -> list[str]:
    """One sentence a proxy: its sign with MSE under both attacks, and whether the interval excludes 0."""
    lines = []
    for finding in findings:
        if "with mse" not in finding.quantity or finding.ours is None or finding.interval is None:
            continue
        low, high = finding.interval
        clear = "clearly" if low > 0 or high < 0 else "not clearly"
        sign = "positive" if finding.ours > 0 else "negative"
        what = finding.quantity.removesuffix(", mean over architectures")
        lines.append(f"{what}: {sign} ({finding.ours:.2f}), {clear} different from 0.")
    return lines


__all__ = ["Architecture", "LAVPQuality"]

"""Study: cost of the average gradient approximation in quality, and its savings, against unrolled local steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import numpy as np
import torch

from gradleak.attacks import InvertingGradients, LocalTraining
from gradleak.core import Batch, HonestButCurious, Objective, Release, derive_generator, describe, one_thread
from gradleak.datasets import image_file, mnist_digits
from gradleak.models import Activation, lenet_dlg
from gradleak.protocols import FedAvg, FedSGD
from gradleak.results import FANG_2024, GEIPING_2020, Citation
from gradleak.scoring import blind_baseline, score_images
from studies.generator_figures import quality_over
from studies.label_batches import different_labels
from studies.study import Finding, Say, Study, StudyResult
from studies.summaries import resampled

UNROLLED, AVERAGE = LocalTraining.UNROLLED, LocalTraining.AVERAGE_GRADIENT
TIMED_ITERATIONS = 20
TIMED_REPEATS = 3


@dataclass(frozen=True, kw_only=True)
class FedAvgQuality(Study):
    """Quality and cost of inverting a FedAvg delta with all local steps unrolled, and by the average gradient (AGA).

    Batches without repeated labels go through T full-batch local steps; `InvertingGradients` (cosine, signed Adam,
    total variation) attacks the delta both ways from the same starts, labels disclosed, and a third time unrolled with
    as many plain gradients as AGA spends. Claims are paired one to one with the truth; medians run over all images,
    intervals are percentile bootstraps over them. Costs are counted by the attack's rule and measured: processor time of
    one iteration of one start over that of one plain gradient, in this process, on one thread.

    **Source**: Fang et al. 2024, section "Average gradient approximation" and figure 7 (IG+FA against IG+AGA, CIFAR-10,
    batch 8, up to 8 local steps, ResNet-18; the learning rate is not given). Deviations: a small network with smooth
    activations, untrained, so that the attack gets somewhere within the budget; several learning rates.

    Attributes:
        images: npz file with CIFAR-10 images (arrays x, y), or None for MNIST digits.
        only: name of a boolean array in that file that selects images.
        pool: images that batches are drawn from.
        batches: number of batches.
        batch_size: images a batch, all of different classes.
        steps: numbers of local steps T.
        learning_rates: local learning rates η.
        iterations: of the attack.
        total_variation: weight of the prior.
        activation: of `lenet_dlg`.
        seed: of images, weights and starts.
        resamples: bootstrap resamples.
    """

    name: ClassVar[str] = "fed_avg_quality"
    source: ClassVar[str] = "figure 7"
    citations: ClassVar[tuple[Citation, ...]] = (FANG_2024, GEIPING_2020)

    images: str | None = None
    only: str | None = None
    pool: int = 200
    batches: int = 4
    batch_size: int = 8
    steps: Sequence[int] = (1, 2, 4, 8)
    learning_rates: Sequence[float] = (0.01, 0.1)
    iterations: int = 1000
    total_variation: float = 1e-3
    activation: Activation = Activation.TANH
    seed: int = 0
    resamples: int = 2000

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; about 20 minutes of one core for MNIST and half an hour for 32×32 color images."""
        batches = self._batches()
        objective = self._objective(batches[0])
        rows: list[dict[str, Any]] = []
        with one_thread():
            costs = {steps: self._costs(objective, batches[0], steps) for steps in self.steps}
            for steps, cost in costs.items():
                say(
                    f"T = {steps}: {cost['unrolled']:.2f} and {cost['average_gradient']:.2f} plain gradients an iteration"
                )
            for rate in self.learning_rates:
                for steps in self.steps:
                    for way in self._ways(steps):
                        row = self._attack(objective, batches, rate, steps, way)
                        rows.append(row)
                        say(f"η = {rate:g}, T = {steps}, {row['way']}: median PSNR {row['psnr']:.1f} dB")
        blind = self._blind(batches)
        findings = [blind, *(self._quality(row) for row in rows)]
        findings += [_saving(steps, cost) for steps, cost in costs.items()]
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=findings,
            conclusion=_conclude(rows, costs, blind.ours or 0.0),
            details={"rows": rows, "costs": costs},
            figures=_figures(rows),
        )

    def _batches(self) -> list[Batch]:
        """Batches of images of different classes, in the order of the pool."""
        if self.images is None:
            pool = mnist_digits(count=self.pool, seed=self.seed)
        else:
            pool = image_file(path=Path(self.images), count=self.pool, seed=self.seed, only=self.only)
        return different_labels(pool, batches=self.batches, size=self.batch_size, asker=self.name)

    def _objective(self, batch: Batch) -> Objective:
        channels, size = batch.inputs.shape[1:3]
        generator = derive_generator(self.seed, "weights")
        return Objective.from_module(
            lenet_dlg(activation=self.activation, channels=channels, size=size, generator=generator)
        )

    def _ways(self, steps: int) -> list[tuple[str, InvertingGradients]]:
        """The attack read both ways, and unrolled at the price of the other; one alone where T = 1 makes them one."""
        attack = InvertingGradients(iterations=self.iterations, total_variation=self.total_variation)
        average = ("average gradient", replace(attack, local_training=AVERAGE))
        if steps == 1:
            return [("unrolled", attack), average]
        cheap = replace(attack, iterations=max(1, self.iterations // steps))
        return [("unrolled", attack), average, ("unrolled at the cost of the average gradient", cheap)]

    def _attack(
        self,
        objective: Objective,
        batches: Sequence[Batch],
        rate: float,
        steps: int,
        way: tuple[str, InvertingGradients],
    ) -> dict[str, Any]:
        name, attack = way
        release = Release(FedAvg(learning_rate=rate, epochs=steps))
        threat = HonestButCurious(targets=True)
        generators = [derive_generator(self.seed, "attack", str(place)) for place in range(len(batches))]
        updates = [release(objective, batch, generator) for batch, generator in zip(batches, generators, strict=True)]
        found = attack.many(
            updates, [threat.disclose(objective, release, batch) for batch in batches], generators=generators
        )
        scores = [
            {score.name: score for score in score_images(claim, batch)}
            for claim, batch in zip(found, batches, strict=True)
        ]
        images = {name: [v for score in scores for v in score[name].details["per_example"]] for name in _QUALITIES}
        gradients = [Release(FedSGD()).mean(objective, objective.params, batch) for batch in batches]
        cosines = [
            float(torch.cosine_similarity(objective.flatten(g), objective.flatten(u.tensors), dim=0))
            for g, u in zip(gradients, updates, strict=True)
        ]
        return {
            "way": name,
            "learning_rate": rate,
            "steps": steps,
            **{quality: float(np.median([v for v in values if v is not None])) for quality, values in images.items()},
            "hits": float(np.mean([score["exact_hits"].value or 0.0 for score in scores])),
            "wrong_pairing": float(np.median([s["mse"].details["wrong_pairing_pixel_rmse"] for s in scores])),
            "counted": sum(claim.plain_gradients for claim in found) / len(found),
            "loss": float(np.median([claim.loss for claim in found])),
            "relative_residual": float(np.median([claim.details["relative_residual"] for claim in found])),
            "cosine": float(np.median(cosines)),
            "per_example": images,
        }

    def _costs(self, objective: Objective, batch: Batch, steps: int) -> dict[str, float]:
        """Measured plain gradients an iteration of one start, by way."""
        release = Release(FedAvg(learning_rate=min(self.learning_rates), epochs=steps))
        update = release(objective, batch, torch.Generator())
        knowledge = HonestButCurious(targets=True).disclose(objective, release, batch)

        def run(iterations: int, way: LocalTraining) -> Callable[[], Any]:
            attack = InvertingGradients(iterations=iterations, local_training=way)
            return lambda: attack(update, knowledge, generator=torch.Generator())

        def plain() -> Any:
            return objective.gradient(objective.params, batch)

        ratios: dict[str, list[float]] = {way.value: [] for way in LocalTraining}
        for _ in range(TIMED_REPEATS):
            for way in LocalTraining:
                around = [_seconds(plain) for _ in range(15)]
                spent = _seconds(run(1 + TIMED_ITERATIONS, way)) - _seconds(run(1, way))
                around += [_seconds(plain) for _ in range(15)]
                ratios[way.value].append(spent / TIMED_ITERATIONS / median(around))
        return {way: median(values) for way, values in ratios.items()}

    def _quality(self, row: dict[str, Any]) -> Finding:
        low, high = self._interval(row["per_example"]["psnr"])
        return Finding(
            quantity=f"η = {row['learning_rate']:g}, T = {row['steps']}, {row['way']}: median PSNR in dB",
            ours=row["psnr"],
            paper="similar for both (figure 7)" if row["way"] == "average gradient" else "",
            interval=(low, high),
            n=len(row["per_example"]["psnr"]),
            note=(
                f"SSIM {row['ssim']:.3f}, MSE {row['mse']:.2g}, exact hits {row['hits']:.0%}; "
                f"{row['counted']:,.0f} plain gradients counted; cosine of delta and gradient at the truth "
                f"{row['cosine']:.3f}"
            ),
        )

    def _blind(self, batches: Sequence[Batch]) -> Finding:
        """The adversary that ignores the update."""
        psnr: list[float] = []
        for batch in batches:
            assert batch.domain is not None
            score = next(s for s in blind_baseline(batch, batch.domain) if s.name == "psnr")
            psnr += [v for v in score.details["per_example"] if v is not None]
        return Finding(
            quantity="blind adversary: median PSNR in dB",
            ours=float(np.median(psnr)),
            interval=self._interval(psnr),
            n=len(psnr),
            note="the best constant a channel, chosen with the truth",
        )

    def _interval(self, values: Sequence[float]) -> tuple[float, float]:
        """Percentile bootstrap of the median over images."""
        return resampled(values, np.median, seed=self.seed, resamples=self.resamples)


def _figures(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The paper's figure 7 has the average gradient as good as all steps, for up to a fourth of the time."""
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
        ways = panels.setdefault(f"local steps, η = {row['learning_rate']:g}", {})
        ways.setdefault(row["way"], []).append((float(row["steps"]), row["psnr"]))
    svg = quality_over(panels)
    return {"fed_avg_quality": svg} if svg else {}


_QUALITIES = ("psnr", "ssim", "mse")


def _saving(steps: int, cost: dict[str, float]) -> Finding:
    unrolled, average = cost["unrolled"], cost["average_gradient"]
    return Finding(
        quantity=f"T = {steps}: processor time of an unrolled iteration over one with the average gradient",
        ours=unrolled / average,
        paper="up to 4 (over 1 to 8 steps)",
        note=f"{unrolled:.1f} and {average:.1f} plain gradients measured; {3 * steps} and 3 counted",
    )


def _conclude(rows: Sequence[dict[str, Any]], costs: dict[int, dict[str, float]], blind: float) -> list[str]:
    """Conclusions: where both ways reach about the same, and what the average gradient saves."""
    lines = []
    by_place = {(row["learning_rate"], row["steps"], row["way"]): row["psnr"] for row in rows}
    for rate, steps in dict.fromkeys((row["learning_rate"], row["steps"]) for row in rows):
        unrolled, average = by_place[rate, steps, "unrolled"], by_place[rate, steps, "average gradient"]
        verdict = "similar" if abs(unrolled - average) <= 1 else "worse" if average < unrolled else "better"
        if max(unrolled, average) <= blind:
            verdict += ", and neither beats the blind guess"
        lines.append(
            f"η = {rate:g}, T = {steps}: the average gradient is {verdict} ({average:.1f} against {unrolled:.1f} dB)."
        )
    most = max(costs)
    saved = costs[most]["unrolled"] / costs[most]["average_gradient"]
    lines.append(f"At T = {most} an iteration with the average gradient takes {saved:.1f} times less processor time.")
    return lines


def _seconds(function: Callable[[], Any]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


__all__ = ["FedAvgQuality"]

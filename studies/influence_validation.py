"""Does I²F predict the error of an attacker who minimizes the L2 loss exactly?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from scipy import stats

from gradleak.core import Batch, Exposure, Objective, Release, derive_generator, describe
from gradleak.datasets import mnist_digits
from gradleak.defenses import GaussianNoise
from gradleak.models import Activation, initialize_uniform, lenet_i2f
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedSGD
from gradleak.results import ZHANG_2023, Citation, UnsupportedError
from gradleak.risk import InversionInfluence, InversionInfluenceLowerBound, perfect_attacker
from studies.correlations import paired, spearman
from studies.spots import Spot, spots
from studies.study import Finding, Say, Study, StudyResult


@dataclass(frozen=True, kw_only=True)
class InfluenceValidation(Study):
    """Predicted against reached pixel RMSE over digits and noise levels, figures 1 and 2 of the I²F paper.

    The attacker is the paper's perfect one (assumption 3.1): Levenberg–Marquardt from the truth, without box or prior.
    The slope is that of log reached on log predicted, over pairs predicted below `below`.

    **Source**: Zhang et al. 2023, figures 1 and 2 (there DGL and GS on ResNet-18 and linear models).

    Attributes:
        digits: number of MNIST digits.
        variances: of the Gaussian noise.
        activations: of `lenet_i2f`, weights uniform(−0.5, 0.5).
        below: largest predicted pixel RMSE.
        seed: of digits, weights and noise.
    """

    name: ClassVar[str] = "influence_validation"
    source: ClassVar[str] = "figures 1 and 2"
    citations: ClassVar[tuple[Citation, ...]] = (ZHANG_2023,)

    digits: int = 10
    variances: Sequence[float] = (1e-8, 1e-7, 1e-6, 1e-5, 1e-4)
    activations: Sequence[Activation] = (Activation.SIGMOID, Activation.TANH)
    below: float = 0.05
    seed: int = 0

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; about four seconds a digit and activation on one core."""
        batch = mnist_digits(count=self.digits, seed=self.seed)
        findings: list[Finding] = []
        conclusion: list[str] = []
        pairs: dict[str, list[tuple[float, float, float]]] = {}
        for activation in map(Activation, self.activations):
            rows = self._pairs(activation, batch, say)
            pairs[activation.value] = rows
            findings += _findings(activation.value, rows)
            slope, spearman = findings[-4].ours, findings[-3].ours
            assert slope is not None
            assert spearman is not None
            holds = abs(slope - 1) <= 0.02 and spearman > 0.99
            conclusion.append(
                f"{activation.value}: exact I²F {'predicts' if holds else 'does not predict'} the perfect attacker "
                f"(slope {slope:.4f}, Spearman {spearman:.4f}, {len(rows)} pairs); the lower bound lies a factor "
                f"{findings[-1].ours:.3g} below (median)."
            )
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=findings,
            conclusion=conclusion,
            details={"pairs": pairs},
            figures={"influence_validation": _figure(pairs)},
        )

    def _pairs(self, activation: Activation, batch: Batch, say: Say) -> list[tuple[float, float, float]]:
        generator = derive_generator(self.seed, "weights", activation.value)
        model = initialize_uniform(lenet_i2f(activation=activation), low=-0.5, high=0.5, generator=generator)
        objective = Objective.from_module(model).to(torch.float64)
        rows = []
        for index in range(batch.size):
            example = batch.example(index).to(torch.float64)
            operator = GradientJacobian(Exposure(objective, example, Release(FedSGD())))
            for variance in self.variances:
                release = Release(FedSGD(), [GaussianNoise(std=variance**0.5)])
                noise = derive_generator(self.seed, "noise", activation.value, str(index), str(variance))
                update = release(objective, example, noise)
                exposure = Exposure(objective, example, release)
                delta = objective.flatten(update.tensors) - operator.value
                predicted = InversionInfluence(unit="pixel_rmse")(exposure, delta=delta, operator=operator).value
                bound = InversionInfluenceLowerBound(unit="pixel_rmse")(exposure, delta=delta, operator=operator).value
                if predicted is None or bound is None or predicted >= self.below:
                    continue
                found = perfect_attacker(exposure, update, operator=operator)
                reached = float((found.inputs - example.inputs).square().mean().sqrt())
                rows.append((predicted, reached, bound))
            say(f"{activation.value}: digit {index + 1} of {batch.size}")
        if len(rows) < 3:
            raise UnsupportedError("influence_validation: fewer than three pairs below the limit; lower the variances")
        return rows


def _figure(pairs: Mapping[str, Sequence[tuple[float, float, float]]]) -> str:
    def points(rows: Sequence[tuple[float, float, float]], place: int) -> list[Spot]:
        return [(row[0], row[place], None, None) for row in rows]

    return spots(
        {
            name: {"perfect attacker": points(rows, 1), "lower bound of I²F": points(rows, 2)}
            for name, rows in pairs.items()
        },
        x="exact I²F",
        y="pixel RMSE",
        title="Errors over I²F",
        description="Pixel RMSE of the perfect attacker, and the lower bound, over exact I²F, a dot an image and level of "
        "noise. The paper's figure 1 has the errors of DGL on the diagonal, and the bound close to them.",
        diagonal=True,
    )


def _findings(name: str, rows: Sequence[tuple[float, float, float]]) -> list[Finding]:
    predicted, reached, bound = (np.array(column) for column in zip(*rows, strict=True))
    fit = stats.linregress(np.log(predicted), np.log(reached))
    half = float(stats.t.ppf(0.975, len(rows) - 2) * fit.stderr)
    gap = np.abs(predicted - reached) / predicted
    n = len(rows)
    return [
        Finding(
            quantity=f"{name}: log-log slope, reached on predicted",
            ours=float(fit.slope),
            paper="near 1 (figure 1)",
            interval=(float(fit.slope) - half, float(fit.slope) + half),
            n=n,
        ),
        Finding(
            quantity=f"{name}: Spearman of predicted and reached",
            ours=spearman(paired(predicted, reached)),
            n=n,
        ),
        Finding(quantity=f"{name}: median relative difference", ours=float(np.median(gap)), n=n),
        Finding(quantity=f"{name}: reached error / lower bound, median", ours=float(np.median(reached / bound)), n=n),
    ]

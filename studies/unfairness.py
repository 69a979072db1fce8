"""Study: people whom the same Gaussian noise protects, and those whom it does not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from scipy import stats

from gradleak.attacks import GaussNewton
from gradleak.core import Batch, Exposure, HonestButCurious, Objective, Release, derive_generator, describe, one_thread
from gradleak.datasets import mnist_digits
from gradleak.defenses import GaussianNoise
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedSGD
from gradleak.results import ZHANG_2023, Citation
from gradleak.risk import GaussianReconstructionError, LinearizedPosteriorError
from studies.correlations import paired, spearman
from studies.private_images import SmallNetwork, balanced, pixel_rmse, reach, trained
from studies.study import Finding, Say, Study, StudyResult, Table
from studies.summaries import known, median, shown

POOL = 5000
PRIVATE = 1000
Rows = Sequence[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Unfairness(Study):
    """Reconstruction error by digit and by class under the same Gaussian noise, with the spread and the worst digits.

    The error of a digit is expected I²F, √(σ² Σ 1/λᵢ / d), which does not depend on a draw of the noise; exact I²F at one
    draw, the perfect attacker on that draw (where the prediction is below 1), the linearized posterior error of an
    attacker with a Gaussian prior, and for some digits of each class `GaussNewton` (labels recovered, noise level known,
    in the box) stand beside it. Worst means least protected. Classes are compared by Kruskal and Wallis on the ranks of
    the errors.

    **Source**: Zhang et al. 2023, section 5.2 and figure 7: DGL on a well-trained LeNet, variance 1e-3; it gives no
    number. Deviations: an untrained network too, a second variance, and training by Adam on other digits.

    Attributes:
        classes: which digits.
        per_class: digits of each class.
        attacked_per_class: of these, attacked by `GaussNewton`.
        variances: of the noise on every entry.
        training_steps: Adam steps of the networks before the gradient is taken.
        prior_std: of the pixels, for the posterior error.
        worst: how many digits are listed.
        seed: of digits, weights, training and noise.
    """

    name: ClassVar[str] = "unfairness"
    source: ClassVar[str] = "section 5.2 and figure 7"
    citations: ClassVar[tuple[Citation, ...]] = (ZHANG_2023,)

    classes: Sequence[int] = tuple(range(10))
    per_class: int = 5
    attacked_per_class: int = 1
    variances: Sequence[float] = (1e-3, 1e-4)
    training_steps: Sequence[int] = (0, 300)
    prior_std: float = 0.3
    worst: int = 5
    seed: int = 0

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; about five minutes of one core."""
        pool = mnist_digits(count=POOL, seed=self.seed)
        private = balanced(pool.rows(slice(PRIVATE)), self.per_class, self.classes)
        public = pool.rows(slice(PRIVATE, None))
        start = SmallNetwork.SIGMOID_LENET.objective(private, seed=self.seed)
        rows: list[dict[str, Any]] = []
        with one_thread():
            for steps in self.training_steps:
                objective = trained(start, public, steps=steps, seed=self.seed).to(torch.float64)
                for index in range(private.size):
                    rows += self._digit(objective, private.example(index).to(torch.float64), index, steps)
                    if index % self.per_class == self.per_class - 1:
                        say(f"{steps} steps of training: digits of class {int(private.targets[index])}")
        groups = [
            (steps, variance, [row for row in rows if (row["steps"], row["variance"]) == (steps, variance)])
            for steps in self.training_steps
            for variance in self.variances
        ]
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=[finding for group in groups for finding in self._findings(*group)],
            conclusion=[_conclude(*group) for group in groups],
            details={"rows": rows},
            tables=[self._spread(groups), *(_classes(*group) for group in groups), self._worst(groups)],
        )

    def _digit(self, objective: Objective, example: Batch, index: int, steps: int) -> list[dict[str, Any]]:
        operator = GradientJacobian(Exposure(objective, example, Release(FedSGD())))
        values = operator.spectrum.values
        facts = {
            "digit": index,
            "label": int(example.targets[0]),
            "steps": steps,
            "loss": float(objective.loss(objective.params, example)),
            "gradient_norm": float(operator.value.norm()),
            "eigenvalue_max": float(values[-1]),
            "null_dimension": operator.shape[1] - operator.rank,
        }
        rows = []
        for variance in self.variances:
            std = math.sqrt(variance)
            release = Release(FedSGD(), [GaussianNoise(std=std)])
            exposure = Exposure(objective, example, release)
            update = release(objective, example, derive_generator(self.seed, "noise", str(index), str(variance)))
            perturbation = objective.flatten(update.tensors) - operator.value
            expected = GaussianReconstructionError(std=std, unit="pixel_rmse")(exposure, operator=operator).value
            posterior = LinearizedPosteriorError(noise_std=std, prior_std=self.prior_std, unit="pixel_rmse")(
                exposure, operator=operator
            ).value
            attacked = None
            if index % self.per_class < self.attacked_per_class:
                knowledge = HonestButCurious().disclose(objective, release, example)
                attack = GaussNewton(starts=1, max_steps=20)
                found = attack(update, knowledge, generator=derive_generator(self.seed, "attack", str(index)))
                attacked = pixel_rmse(found.inputs, example)
            rows.append(
                {
                    **facts,
                    "variance": variance,
                    "expected": expected,
                    "posterior": posterior,
                    "attack": attacked,
                    **asdict(reach(operator, perturbation)),
                }
            )
        return rows

    def _findings(self, steps: int, variance: float, rows: Rows) -> list[Finding]:
        setting = f"{_state(steps)}, variance {variance:g}"
        expected = np.array(known([row["expected"] for row in rows]))
        n = len(expected)
        reached = known([row["reached"] for row in rows])
        attacked = known([row["attack"] for row in rows])
        by_class = [[row["expected"] for row in rows if row["label"] == label] for label in _labels(rows)]
        test = stats.kruskal(*by_class)
        low, high = np.quantile(expected, (0.1, 0.9))
        findings = [
            Finding(quantity=f"{setting}: expected pixel RMSE, median", ours=float(np.median(expected)), n=n),
            Finding(
                quantity=f"{setting}: expected RMSE, largest over smallest digit",
                ours=float(expected.max() / expected.min()),
                paper="large variances among samples (figure 7)",
                n=n,
                note=f"90 % over 10 % quantile: {high / low:.3g}",
            ),
            Finding(
                quantity=f"{setting}: classes differ, p of Kruskal and Wallis",
                ours=float(test.pvalue),
                paper="some classes more secure (figure 7)",
                n=n,
                note=f"medians by class from {min(map(np.median, by_class)):.3g} to {max(map(np.median, by_class)):.3g}",
            ),
            Finding(
                quantity=f"{setting}: Spearman of expected RMSE and largest eigenvalue of AᵀA",
                ours=_spearman(rows, "eigenvalue_max"),
                paper="large ‖J‖, high risk (section 5.2)",
                n=n,
            ),
            Finding(quantity=f"{setting}: Spearman of expected RMSE and loss", ours=_spearman(rows, "loss"), n=n),
            Finding(
                quantity=f"{setting}: perfect attacker, median pixel RMSE",
                ours=median(reached),
                n=len(reached),
                note=f"not looked for on {n - len(reached)} digits" if len(reached) < n else "",
            ),
        ]
        if attacked:
            note = f"from {min(attacked):.3g} to {max(attacked):.3g}"
            findings.append(
                Finding(
                    quantity=f"{setting}: GaussNewton, median pixel RMSE",
                    ours=median(attacked),
                    n=len(attacked),
                    note=note,
                )
            )
        return findings

    def _spread(self, groups: Sequence[tuple[int, float, Rows]]) -> Table:
        cells = []
        for steps, variance, rows in groups:
            texts = [_state(steps), f"{variance:g}"]
            for column in ("expected", "predicted", "reached", "posterior", "attack"):
                values = sorted(known([row[column] for row in rows]))
                texts.append(
                    f"{median(values):.3g} ({values[0]:.3g} to {values[-1]:.3g}, n = {len(values)})" if values else "-"
                )
            cells.append(texts)
        columns = (
            "network", "variance", "expected I²F", "exact I²F at the draw", "perfect attacker", "posterior error", "GaussNewton",
        )  # fmt: skip
        return Table(title="Pixel RMSE over digits: median (least to best protected)", columns=columns, rows=cells)

    def _worst(self, groups: Sequence[tuple[int, float, Rows]]) -> Table:
        cells = []
        for steps, variance, rows in groups:
            middle = median([row["expected"] for row in rows])
            assert middle is not None
            for row in sorted(rows, key=lambda row: row["expected"] or math.inf)[: self.worst]:
                cells.append(
                    [
                        _state(steps),
                        f"{variance:g}",
                        str(row["digit"]),
                        str(row["label"]),
                        shown(row["loss"]),
                        shown(row["expected"]),
                        f"{row['expected'] / middle:.2g}",
                        shown(row["reached"]),
                        shown(row["attack"]),
                    ]
                )
        columns = (
            "network", "variance", "digit", "class", "loss", "expected I²F", "over the median", "perfect attacker",
            "GaussNewton",
        )  # fmt: skip
        return Table(title="The least protected digits", columns=columns, rows=cells)


def _classes(steps: int, variance: float, rows: Rows) -> Table:
    cells = []
    for label in _labels(rows):
        mine = [row for row in rows if row["label"] == label]
        values = sorted(known([row["expected"] for row in mine]))
        cells.append(
            [
                str(label),
                str(len(mine)),
                shown(median(values)),
                f"{values[0]:.3g} to {values[-1]:.3g}",
                *(shown(median([row[column] for row in mine])) for column in ("reached", "attack", "loss")),
            ]
        )
    columns = (
        "class",
        "n",
        "expected I²F, median",
        "least to best protected",
        "perfect attacker",
        "GaussNewton",
        "loss",
    )
    return Table(title=f"Pixel RMSE by class: {_state(steps)}, variance {variance:g}", columns=columns, rows=cells)


def _conclude(steps: int, variance: float, rows: Rows) -> str:
    errors = {
        label: median([row["expected"] for row in rows if row["label"] == label]) or 0.0 for label in _labels(rows)
    }
    expected = known([row["expected"] for row in rows])
    exposed, safest = min(errors, key=lambda label: errors[label]), max(errors, key=lambda label: errors[label])
    return (
        f"{_state(steps)}, variance {variance:g}: the expected error differs by a factor of "
        f"{max(expected) / min(expected):.3g} between digits and {errors[safest] / errors[exposed]:.3g} between class medians; "
        f"class {exposed} is least and class {safest} best protected."
    )


def _labels(rows: Rows) -> list[int]:
    return sorted({row["label"] for row in rows})


def _spearman(rows: Rows, column: str) -> float | None:
    return spearman(paired([row["expected"] for row in rows], [row[column] for row in rows]))


def _state(steps: int) -> str:
    return "untrained" if steps == 0 else f"after {steps} steps"


__all__ = ["Unfairness"]

"""Study: people whom the same Gaussian noise protects, and those whom it does not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from matplotlib.axes import Axes
from scipy import stats
from torch import Tensor

from gradleak.attacks import GaussNewton
from gradleak.core import Batch, Exposure, HonestButCurious, Objective, Release, derive_generator, describe, one_thread
from gradleak.datasets import mnist_digits
from gradleak.defenses import GaussianNoise
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedSGD
from gradleak.reporting.drawing import MARKERS, SERIES
from gradleak.results import ZHANG_2023, Citation
from gradleak.risk import GaussianReconstructionError, LinearizedPosteriorError
from studies.correlations import paired, spearman
from studies.panels import drawn_grid
from studies.private_images import SmallNetwork, balanced, pixel_rmse, reach, trained
from studies.study import Finding, Say, Study, StudyResult, Table
from studies.summaries import known, median, shown

POOL = 5000
PRIVATE = 1000
Rows = Sequence[dict[str, Any]]
_Claimed = tuple[dict[str, Any], Tensor]


@dataclass(frozen=True, kw_only=True)
class Unfairness(Study):
    """Reconstruction error by digit and by class under the same Gaussian noise, with the spread and the worst digits.

    The error of a digit is expected I²F, √(σ² Σ 1/λᵢ / d), which does not depend on a draw of the noise; exact I²F at one
    draw, the perfect attacker on that draw (where the prediction is below 1), the linearized posterior error of an
    attacker with a Gaussian prior, and for some digits of each class `GaussNewton` (labels recovered, noise level known,
    in the box) stand beside it. Worst means least protected. Classes are compared by Kruskal and Wallis on the ranks of
    the errors. Figures show the attacked digits with what the attack made of them, the least protected first.

    **Source**: Zhang et al. 2023, section 5.2, figures 7 and 14: DGL on a well-trained LeNet, variance 1e-3; they give
    no number. Deviations: an untrained network too, a second variance, and training by Adam on other digits.

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
    source: ClassVar[str] = "section 5.2, figures 7 and 14"
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
        claims: list[_Claimed] = []
        with one_thread():
            for steps in self.training_steps:
                objective = trained(start, public, steps=steps, seed=self.seed).to(torch.float64)
                for index in range(private.size):
                    found = self._digit(objective, private.example(index).to(torch.float64), index, steps)
                    rows += [row for row, _ in found]
                    claims += [(row, claim) for row, claim in found if claim is not None]
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
            figures=_figures(groups, claims, private),
        )

    def _digit(
        self, objective: Objective, example: Batch, index: int, steps: int
    ) -> list[tuple[dict[str, Any], Tensor | None]]:
        """A row a variance, with the claim of the attack where there was one."""
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
        rows: list[tuple[dict[str, Any], Tensor | None]] = []
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
            attacked, claim = None, None
            if index % self.per_class < self.attacked_per_class:
                knowledge = HonestButCurious().disclose(objective, release, example)
                attack = GaussNewton(starts=1, max_steps=20)
                found = attack(update, knowledge, generator=derive_generator(self.seed, "attack", str(index)))
                claim = found.inputs
                attacked = pixel_rmse(claim, example)
            row = {
                **facts,
                "variance": variance,
                "expected": expected,
                "posterior": posterior,
                "attack": attacked,
                **asdict(reach(operator, perturbation)),
            }
            rows.append((row, claim))
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
            findings.append(
                Finding(
                    quantity=f"{setting}: GaussNewton, largest over smallest RMSE of a digit",
                    ours=max(attacked) / min(attacked),
                    paper="some legible, some not (figure 14)",
                    n=len(attacked),
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


def _figures(groups: Sequence[tuple[int, float, Rows]], claims: Sequence[_Claimed], private: Batch) -> dict[str, str]:
    """Errors by class as in figure 7, and pictures as in figure 14, one of each a network and variance."""
    figures = {"unfairness": _errors(groups)}
    for steps, variance, _ in groups:
        mine = [one for one in claims if (one[0]["steps"], one[0]["variance"]) == (steps, variance)]
        if mine:
            ordered = sorted(mine, key=lambda one: one[0]["attack"])
            name = f"unfairness_{'untrained' if steps == 0 else 'trained'}_{variance:g}"
            figures[name] = _pictures(f"{_state(steps)}, variance {variance:g}", ordered, private)
    return figures


def _errors(groups: Sequence[tuple[int, float, Rows]]) -> str:
    """A dot a digit, by class: expected I²F and the error of the attack."""

    def paint(grid: Sequence[Axes]) -> None:
        for axes, (steps, variance, rows) in zip(grid, groups, strict=True):
            for place, (column, name) in enumerate((("expected", "expected I²F"), ("attack", "GaussNewton"))):
                points = [(row["label"], row[column]) for row in rows if row[column] is not None]
                axes.plot(
                    [label for label, _ in points],
                    [error for _, error in points],
                    linestyle="",
                    color=SERIES[3 * place],
                    marker=MARKERS[place],
                    markersize=4,
                    label=name,
                )
            axes.set_yscale("log")
            axes.set_title(f"{_state(steps)}, variance {variance:g}", fontsize=8)
            axes.set_xlabel("class")
            axes.set_ylabel("pixel RMSE")

    what = "Pixel error of each digit under the same noise, by class. The paper's figure 7 has large differences among both."
    return drawn_grid(len(groups), paint, prefix="unfairness", title="Error by class", description=what, columns=2)


def _pictures(title: str, ordered: Sequence[_Claimed], private: Batch) -> str:
    """Digits above, claims below, the least protected digit first."""
    domain = private.declared_domain()
    shape = domain.shape[1:]

    def paint(grid: Sequence[Axes]) -> None:
        for place, (row, claim) in enumerate(ordered):
            truth = private.example(row["digit"]).inputs
            pictures = ((f"{row['label']}", truth), (f"RMSE {row['attack']:.2f}", claim))
            for axes, (name, inputs) in zip((grid[place], grid[place + len(ordered)]), pictures, strict=True):
                pixels = domain.to_pixels(inputs.double()).reshape(shape).clamp(0.0, 1.0).numpy()
                axes.imshow(pixels, cmap="gray", vmin=0, vmax=1, interpolation="none")
                axes.set_title(name, fontsize=7)
                axes.set_axis_off()

    what = (
        f"Digits and what an attack makes of their gradients under the same noise, {title}; from the least protected on. "
        "The paper's figure 14 has such digits beside each other, some legible and some not."
    )
    name = title.replace(", ", "-").replace(" ", "-")
    return drawn_grid(
        2 * len(ordered), paint, prefix=name, title=title, description=what, columns=len(ordered), side=1.0
    )


def _labels(rows: Rows) -> list[int]:
    return sorted({row["label"] for row in rows})


def _spearman(rows: Rows, column: str) -> float | None:
    return spearman(paired([row["expected"] for row in rows], [row[column] for row in rows]))


def _state(steps: int) -> str:
    return "untrained" if steps == 0 else f"after {steps} steps"


__all__ = ["Unfairness"]

"""Study: leakage by the initialization of the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, ClassVar

import torch
from torch import nn

from gradleak.attacks import Attack, GaussNewton, InvertingGradients
from gradleak.core import (
    Batch,
    Exposure,
    HonestButCurious,
    Objective,
    Release,
    Update,
    derive_generator,
    describe,
    one_thread,
)
from gradleak.defenses import GaussianNoise
from gradleak.models import initialize_default, initialize_uniform, lenet_dlg, lenet_i2f
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedSGD
from gradleak.results import ZHANG_2023, Citation
from gradleak.risk import GaussianReconstructionError, LinearizedPosteriorError
from gradleak.scoring import blind_baseline
from studies.private_images import draw_images, pixel_rmse, reach
from studies.spots import Spot, spots
from studies.study import Finding, Say, Study, StudyResult, Table
from studies.summaries import known, median, shown

Rows = Sequence[dict[str, Any]]


class Initialization(StrEnum):
    """Initialization: uniform(−0.5, 0.5) and N(0, 0.5), biases too; Kaiming and Xavier normal, biases zero; torch's."""

    UNIFORM = "uniform"
    NORMAL = "normal"
    KAIMING = "kaiming"
    XAVIER = "xavier"
    DEFAULT = "default"

    def draw(self, model: nn.Module, generator: torch.Generator) -> nn.Module:
        """The model with its weights drawn anew."""
        if self is Initialization.UNIFORM:
            return initialize_uniform(model, low=-0.5, high=0.5, generator=generator)
        if self is Initialization.DEFAULT:
            return initialize_default(model, generator=generator)
        for parameter in model.parameters():
            if self is Initialization.NORMAL:
                nn.init.normal_(parameter, std=math.sqrt(0.5), generator=generator)
            elif parameter.dim() == 1:
                nn.init.zeros_(parameter)
            elif self is Initialization.KAIMING:
                nn.init.kaiming_normal_(parameter, generator=generator)
            else:
                nn.init.xavier_normal_(parameter, generator=generator)
        return model


@dataclass(frozen=True, kw_only=True)
class InitializationRisk(Study):
    """λmin, λmax and Σ 1/λ of AᵀA, and errors under the same Gaussian noise, by initialization of a sigmoid LeNet.

    Every initialization gets the same images, noise level and starts. Expected I²F is √(σ² Σ 1/λᵢ / d) over the range of
    A; the perfect attacker runs where the prediction at the draw is below 1. `GaussNewton` knows the noise level;
    `InvertingGradients` matches by cosine; both recover labels.

    **Source**: Zhang et al. 2023, section 5.3 and figure 8 (ten images, three attacks each, DGL and GS; no numbers, the
    noise level is not stated). Deviations: two draws of the weights; biases of Kaiming and Xavier zero, which the paper
    does not say; torch's default beside the four.

    Attributes:
        images: npz file with CIFAR-10 images (arrays x, y), or None for MNIST digits.
        only: name of a boolean array in that file that selects images.
        shrink: images are means over so many pixels squared.
        count: images.
        draws: of the weights.
        variance: of the noise on every entry.
        initializations: which.
        prior_std: of the pixels, for the posterior error.
        steps: linearizations of `GaussNewton`.
        iterations: of `InvertingGradients`.
        seed: of images, weights, noise and starts.
    """

    name: ClassVar[str] = "initialization"
    source: ClassVar[str] = "section 5.3 and figure 8"
    citations: ClassVar[tuple[Citation, ...]] = (ZHANG_2023,)

    images: str | None = None
    only: str | None = None
    shrink: int = 1
    count: int = 4
    draws: int = 2
    variance: float = 1e-4
    initializations: Sequence[Initialization] = tuple(Initialization)
    prior_std: float = 0.3
    steps: int = 20
    iterations: int = 300
    seed: int = 0

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; about a minute an initialization on one core."""
        batch = draw_images(self.images, count=self.count, seed=self.seed, only=self.only, shrink=self.shrink)
        examples = [batch.example(index).to(torch.float64) for index in range(batch.size)]
        rows: list[dict[str, Any]] = []
        with one_thread():
            for kind in map(Initialization, self.initializations):
                for draw in range(self.draws):
                    rows += self._draw(kind, draw, examples)
                say(f"{kind.value}: done")
        groups = {kind: [row for row in rows if row["kind"] == kind.value] for kind in self.initializations}
        blind = median([next(s.value for s in blind_baseline(one) if s.name == "pixel_rmse") for one in examples])
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=[finding for kind, mine in groups.items() for finding in _findings(kind, mine)],
            conclusion=_conclude(groups, blind),
            details={"rows": rows},
            tables=[_table(groups)],
            figures={"initialization": _figure(groups, blind)},
        )

    def _draw(self, kind: Initialization, draw: int, examples: Sequence[Batch]) -> list[dict[str, Any]]:
        channels, size = examples[0].inputs.shape[1:3]
        model = lenet_i2f(size=size) if channels == 1 else lenet_dlg(size=size, channels=channels)
        kind.draw(model, derive_generator(self.seed, "weights", kind.value, str(draw)))
        objective = Objective.from_module(model).to(torch.float64)
        std = math.sqrt(self.variance)
        release = Release(FedSGD(), [GaussianNoise(std=std)])
        updates = [
            release(objective, one, derive_generator(self.seed, "noise", str(draw), str(index)))
            for index, one in enumerate(examples)
        ]
        reached = {
            attack.name: self._attack(attack, objective, release, updates, examples)
            for attack in (GaussNewton(starts=1, max_steps=self.steps), InvertingGradients(iterations=self.iterations))
        }
        rows = []
        for index, (example, update) in enumerate(zip(examples, updates, strict=True)):
            exposure = Exposure(objective, example, release)
            operator = GradientJacobian(Exposure(objective, example, Release(FedSGD())))
            values, rank = operator.spectrum.values, operator.rank
            perturbation = objective.flatten(update.tensors) - operator.value
            expected = GaussianReconstructionError(std=std, unit="pixel_rmse")(exposure, operator=operator).value
            posterior = LinearizedPosteriorError(noise_std=std, prior_std=self.prior_std, unit="pixel_rmse")(
                exposure, operator=operator
            ).value
            rows.append(
                {
                    "kind": kind.value,
                    "draw": draw,
                    "image": index,
                    "gradient_norm": float(operator.value.norm()),
                    "eigenvalue_min": float(values[len(values) - rank]) if rank else None,
                    "eigenvalue_max": float(values[-1]),
                    "null_dimension": len(values) - rank,
                    "inverse_sum": float((1 / values[len(values) - rank :]).sum()) if rank else None,
                    "expected": expected,
                    "posterior": posterior,
                    **asdict(reach(operator, perturbation)),
                    **{name: errors[index] for name, errors in reached.items()},
                }
            )
        return rows

    def _attack(
        self,
        attack: Attack,
        objective: Objective,
        release: Release,
        updates: Sequence[Update],
        examples: Sequence[Batch],
    ) -> list[float | None]:
        facts = [HonestButCurious().disclose(objective, release, one) for one in examples]
        generators = [derive_generator(self.seed, "attack", str(index)) for index in range(len(examples))]
        found = attack.many(updates, facts, generators=generators)
        return [pixel_rmse(claim.inputs, one) for claim, one in zip(found, examples, strict=True)]


def _figure(groups: Mapping[Initialization, Rows], blind: float | None) -> str:
    def middles(column: str) -> list[Spot]:
        found: list[Spot] = []
        for place, rows in enumerate(groups.values()):
            values = known([row[column] for row in rows])
            low, high = (min(values), max(values)) if values else (None, None)
            found.append((float(place), median(values), low, high))
        return found

    wanted = {"expected": "expected I²F", "gauss_newton": "GaussNewton", "inverting_gradients": "InvertingGradients"}
    return spots(
        {"median over images and draws, with the range": {name: middles(column) for column, name in wanted.items()}},
        x="",
        y="pixel RMSE",
        title="Error by initialization",
        description="Errors under the same noise by initialization; the dashed line is the best guess without the update. "
        "The paper's figure 8 has uniform weights riskiest, then normal ones, and Kaiming and Xavier favorable.",
        names=[str(kind) for kind in groups],
        steep=True,
        beside=blind,
    )


def _findings(kind: Initialization, rows: Rows) -> list[Finding]:
    names = {
        "eigenvalue_min": "smallest eigenvalue of AᵀA on its range",
        "inverse_sum": "Σ 1/λ",
        "expected": "expected I²F, pixel RMSE",
        "reached": "perfect attacker, pixel RMSE",
        "gauss_newton": "GaussNewton, pixel RMSE",
        "inverting_gradients": "InvertingGradients, pixel RMSE",
    }
    paper = {
        Initialization.UNIFORM: "riskiest (figure 8)",
        Initialization.NORMAL: "second (figure 8)",
        Initialization.KAIMING: "favorable (figure 8)",
        Initialization.XAVIER: "favorable (figure 8)",
    }
    findings = []
    for column, what in names.items():
        values = known([row[column] for row in rows])
        findings.append(
            Finding(
                quantity=f"{kind}: {what}, median",
                ours=median(values),
                paper=paper.get(Initialization(kind), "") if "RMSE" in what else "",
                n=len(values),
                note=f"{min(values):.3g} to {max(values):.3g}" if values else "no number",
            )
        )
    return findings


def _table(groups: dict[Initialization, list[dict[str, Any]]]) -> Table:
    wanted = (
        "gradient_norm", "eigenvalue_min", "eigenvalue_max", "inverse_sum", "null_dimension", "expected", "posterior",
        "reached", "gauss_newton", "inverting_gradients",
    )  # fmt: skip
    cells = [
        [kind, *(shown(median([row[column] for row in rows])) for column in wanted)] for kind, rows in groups.items()
    ]
    columns = (
        "initialization", "‖g‖", "λmin", "λmax", "Σ 1/λ", "null dimension", "expected I²F", "posterior error",
        "perfect attacker", "GaussNewton", "InvertingGradients",
    )  # fmt: skip
    return Table(title="Medians over images and draws; errors are pixel RMSE", columns=columns, rows=cells)


def _conclude(groups: dict[Initialization, list[dict[str, Any]]], blind: float | None) -> list[str]:
    lines = []
    for column, what in (
        ("expected", "expected I²F"),
        ("gauss_newton", "GaussNewton"),
        ("inverting_gradients", "InvertingGradients"),
    ):
        errors = {
            kind: value for kind, rows in groups.items() if (value := median([row[column] for row in rows])) is not None
        }
        order = sorted(errors, key=lambda kind: errors[kind])
        lines.append(f"{what}, riskiest first: {', '.join(f'{kind} {errors[kind]:.3g}' for kind in order)}.")
    lines.append(f"The best guess without the update, chosen with the truth, is at a pixel RMSE of {shown(blind)}.")
    return lines


__all__ = ["Initialization", "InitializationRisk"]

"""Is the lower bound of I²F a good guess of the error that pruning causes?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import torch

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
from gradleak.defenses import Prune
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedSGD
from gradleak.results import ZHANG_2023, Citation, GradleakError
from studies.correlations import paired, spearman
from studies.private_images import SmallNetwork, draw_images, pixel_rmse, reach
from studies.spots import Spot, spots
from studies.study import Finding, Say, Study, StudyResult, Table
from studies.summaries import median, shown

ATTACKS = ("gauss_newton", "inverting_gradients")


@dataclass(frozen=True, kw_only=True)
class PruningBound(Study):
    """Pixel RMSE of attacks on pruned gradients against the lower bound of I²F, over pruning ratios.

    The perturbation is what pruning takes away, δ = pruned − plain, and A that of the plain gradient: the attacker of
    the paper matches all entries and does not know that some were removed (*static*). Exact I²F and the perfect attacker
    stand beside the bound. An *adaptive* attacker knows the defense and matches the entries that are there; for that one
    the rows of A that are left count, and the error is round-off as long as they have full rank.

    **Source**: Zhang et al. 2023, appendix D and figure 16, which gives no number (there DGL and GS; ratios not stated).

    Attributes:
        images: npz file with CIFAR-10 images (arrays x, y), or None for MNIST digits.
        only: name of a boolean array in that file that selects images.
        shrink: images are means over so many pixels squared.
        count: images.
        network: which network.
        ratios: shares of entries that are removed.
        steps: linearizations of `GaussNewton`.
        iterations: of `InvertingGradients`.
        seed: of images, weights and starts.
    """

    name: ClassVar[str] = "pruning_bound"
    source: ClassVar[str] = "appendix D and figure 16"
    citations: ClassVar[tuple[Citation, ...]] = (ZHANG_2023,)

    images: str | None = None
    only: str | None = None
    shrink: int = 1
    count: int = 3
    network: SmallNetwork = SmallNetwork.SIGMOID_LENET
    ratios: Sequence[float] = (0.3, 0.5, 0.7, 0.9, 0.95, 0.99)
    steps: int = 20
    iterations: int = 300
    seed: int = 0

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; about half a minute an image and ratio on one core."""
        batch = draw_images(self.images, count=self.count, seed=self.seed, only=self.only, shrink=self.shrink)
        objective = SmallNetwork(self.network).objective(batch, seed=self.seed).to(torch.float64)
        examples = [batch.example(index).to(torch.float64) for index in range(batch.size)]
        rows: list[dict[str, Any]] = []
        with one_thread():
            operators = [GradientJacobian(Exposure(objective, one, Release(FedSGD()))) for one in examples]
            for ratio in self.ratios:
                rows += self._ratio(objective, operators, ratio)
                say(f"pruning {ratio:g}: done")
        findings = _findings(rows)
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=findings,
            conclusion=_conclude(rows),
            details={"rows": rows},
            tables=[_table(rows, self.ratios)],
            figures=_figures(rows),
        )

    def _ratio(self, objective: Objective, operators: Sequence[GradientJacobian], ratio: float) -> list[dict[str, Any]]:
        release = Release(FedSGD(), [Prune(ratio)])
        examples = [operator.exposure.batch for operator in operators]
        updates = [release(objective, one, torch.Generator()) for one in examples]
        reached = {
            f"{name}_{'adaptive' if aware else 'static'}": self._attacks(
                name, objective, release, updates, examples, aware
            )
            for name in ATTACKS
            for aware in (False, True)
        }
        rows = []
        for index, (operator, example, update) in enumerate(zip(operators, examples, updates, strict=True)):
            perturbation = objective.flatten(update.tensors) - operator.value
            left = GradientJacobian(Exposure(objective, example, release))
            rows.append(
                {
                    "image": index,
                    "ratio": ratio,
                    **asdict(reach(operator, perturbation)),
                    "relative_norm": float(perturbation.norm() / operator.value.norm()),
                    "null_dimension": left.shape[1] - left.rank,
                    **{name: values[index][0] for name, values in reached.items()},
                    "notes": {name: values[index][1] for name, values in reached.items() if values[index][1]},
                }
            )
        return rows

    def _attacks(
        self,
        name: str,
        objective: Objective,
        release: Release,
        updates: Sequence[Update],
        examples: Sequence[Batch],
        aware: bool,
    ) -> list[tuple[float | None, str]]:
        """Pixel RMSE and, without one, the reason; one an image."""
        attack: Attack = GaussNewton(starts=1, max_steps=self.steps)
        if name != "gauss_newton":
            attack = InvertingGradients(iterations=self.iterations)
        facts = [HonestButCurious(defenses=aware).disclose(objective, release, one) for one in examples]
        generators = [derive_generator(self.seed, "attack", str(index)) for index in range(len(examples))]
        try:
            found = attack.many(updates, facts, generators=generators)
        except GradleakError as error:
            return [(None, str(error))] * len(examples)
        return [
            (pixel_rmse(claim.inputs, one), claim.note if claim.inputs is None else "")
            for claim, one in zip(found, examples, strict=True)
        ]


def _pairs(rows: Sequence[dict[str, Any]], column: str) -> tuple[np.ndarray, np.ndarray]:
    pairs = [(row["bound"], row[column]) for row in rows if row["bound"] and row[column] is not None]
    bound, reached = zip(*pairs, strict=True) if pairs else ((), ())
    return np.array(bound), np.array(reached)


def _figures(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    series: dict[str, list[Spot]] = {}
    for column, who in (("reached", "perfect attacker"), *((f"{name}_static", name) for name in ATTACKS)):
        found = [(float(x), float(y), None, None) for x, y in zip(*_pairs(rows, column), strict=True)]
        if found:
            series[who] = list(found)
    if not series:
        return {}
    svg = spots(
        {"static attackers": series},
        x="lower bound of I²F",
        y="pixel RMSE",
        title="Errors under pruning over the lower bound",
        description="Pixel RMSE of attackers who do not know of the pruning, over the bound of I²F, a dot an image and "
        "ratio. The paper's figure 16 has the errors of DGL and GS close to the diagonal.",
        diagonal=True,
    )
    return {"pruning_bound": svg}


def _findings(rows: Sequence[dict[str, Any]]) -> list[Finding]:
    columns = {"reached": "perfect attacker", **{f"{name}_static": name for name in ATTACKS}}
    findings = []
    for column, who in columns.items():
        bound, reached = _pairs(rows, column)
        if len(bound) < 3:
            continue
        paper = "a good estimator of RMSE (figure 16)"
        findings += [
            Finding(
                quantity=f"{who}, static: Spearman of lower bound and RMSE",
                ours=spearman(paired(bound, reached)),
                paper=paper,
                n=len(bound),
            ),
            Finding(
                quantity=f"{who}, static: share of pairs at or above the bound",
                ours=float(np.mean(reached >= bound)),
                n=len(bound),
            ),
            Finding(
                quantity=f"{who}, static: RMSE / lower bound, median",
                ours=float(np.median(reached / bound)),
                n=len(bound),
            ),
        ]
    return findings


def _table(rows: Sequence[dict[str, Any]], ratios: Sequence[float]) -> Table:
    wanted = (
        "relative_norm",
        "bound",
        "predicted",
        "reached",
        *(f"{a}_{w}" for w in ("static", "adaptive") for a in ATTACKS),
    )
    cells = []
    for ratio in ratios:
        mine = [row for row in rows if row["ratio"] == ratio]
        nulls = sorted(row["null_dimension"] for row in mine)
        cells.append(
            [
                f"{ratio:g}",
                *(shown(median([row[column] for row in mine])) for column in wanted),
                f"{nulls[0]} to {nulls[-1]}",
            ]
        )
    columns = (
        "ratio", "‖δ‖/‖g‖", "I²F lower bound", "exact I²F", "perfect attacker", "GaussNewton, static",
        "InvertingGradients, static", "GaussNewton, adaptive", "InvertingGradients, adaptive", "null dimension left",
    )  # fmt: skip
    return Table(title="Median pixel RMSE over images", columns=columns, rows=cells)


def _conclude(rows: Sequence[dict[str, Any]]) -> list[str]:
    lines = []
    bound, reached = _pairs(rows, "gauss_newton_static")
    if len(bound) >= 3:
        lines.append(
            f"Static GaussNewton errs {np.median(reached / bound):.3g} times the lower bound in the median, between "
            f"{np.min(reached / bound):.3g} and {np.max(reached / bound):.3g}; Spearman "
            f"{shown(spearman(paired(bound, reached)), '.2f')}."
        )
    exact = [row["ratio"] for row in rows if (row["gauss_newton_adaptive"] or 1.0) < 1e-3]
    whole = [row["ratio"] for row in rows if row["null_dimension"] == 0]
    lines.append(
        f"Adaptive GaussNewton hits exactly in {len(exact)} of {len(rows)} cases, up to a ratio of {max(exact, default=0):g}; "
        f"what is left has full rank up to {max(whole, default=0):g}."
    )
    return lines


__all__ = ["PruningBound"]

"""Study: factor by which noise in the most protective directions beats isotropic noise of the same norm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradleak.attacks import GaussNewton
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
from gradleak.defenses import SpectralNoise
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedSGD
from gradleak.results import ZHANG_2023, Citation, UnsupportedError
from studies.private_images import SmallNetwork, draw_images, isotropic, pixel_rmse, reach
from studies.study import Finding, Say, Study, StudyResult, Table
from studies.summaries import geometric_mean, known, median, shown

ISOTROPIC = "isotropic"
FREE, BOXED = "GaussNewton without the box", "GaussNewton in the box"


@dataclass(frozen=True, kw_only=True)
class SpectralNoiseGain(Study):
    """Error under `SpectralNoise` over that under isotropic noise of the same norm, predicted and reached.

    For every image the norm c is such that spectral noise in one direction is predicted to cause a given pixel RMSE:
    c = r√(d λmin). The isotropic perturbation has exactly that norm, in a random direction of all P entries. Exact I²F
    at the perturbation that was drawn predicts the error; the perfect attacker (from the truth, without box or prior)
    and `GaussNewton` (a real attack: from a random start, labels recovered, defense not known) reach one, the latter with
    and without the box [0, 1] of the pixels, which the prediction knows nothing of.
    Factors are means of the logarithm over images, with bootstrap intervals.

    **Source**: Zhang et al. 2023, section 5.1 and figure 6, which compare single directions; isotropic noise of the same
    norm beside them is ours. Their LeNet has uniform(−0.5, 0.5) weights; the ReLU network is `lenet_dlg` with ReLU.

    Attributes:
        images: npz file with CIFAR-10 images (arrays x, y), or None for MNIST digits.
        only: name of a boolean array in that file that selects images.
        shrink: images are means over so many pixels squared.
        count: images.
        network: which network.
        errors: pixel RMSEs r that set the norm.
        directions: of spectral noise.
        attack_steps: linearizations of `GaussNewton`, against the first number of directions; 0 leaves it out.
        seed: of images, weights, noise and starts.
    """

    name: ClassVar[str] = "spectral_noise"
    source: ClassVar[str] = "section 5.1 and figure 6"
    citations: ClassVar[tuple[Citation, ...]] = (ZHANG_2023,)

    images: str | None = None
    only: str | None = None
    shrink: int = 1
    count: int = 5
    network: SmallNetwork = SmallNetwork.SIGMOID_LENET
    errors: Sequence[float] = (1e-3, 0.03)
    directions: Sequence[int] = (1, 16)
    attack_steps: int = 20
    seed: int = 0

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; about half a minute an image of 768 entries on one core."""
        batch = draw_images(self.images, count=self.count, seed=self.seed, only=self.only, shrink=self.shrink)
        objective = SmallNetwork(self.network).objective(batch, seed=self.seed).to(torch.float64)
        rows: list[dict[str, Any]] = []
        with one_thread():
            for index in range(batch.size):
                rows += self._image(objective, batch.example(index).to(torch.float64), index)
                say(f"image {index + 1} of {batch.size}")
        findings, cells, conclusion = [], [], []
        for error in self.errors:
            for directions in self.directions:
                found, texts, sentence = self._compare(rows, error, directions)
                findings += found
                cells.append(texts)
                conclusion.append(sentence)
        columns = (
            "predicted RMSE of one direction", "directions", "norm / gradient norm", "isotropic: I²F", "perfect attacker",
            "GaussNewton, no box", "GaussNewton, box", "spectral: I²F", "perfect attacker", "GaussNewton, no box",
            "GaussNewton, box",
        )  # fmt: skip
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=findings,
            conclusion=conclusion,
            details={"rows": rows},
            tables=[Table(title="Median pixel RMSE over images", columns=columns, rows=cells)],
        )

    def _image(self, objective: Objective, example: Batch, index: int) -> list[dict[str, Any]]:
        operator = GradientJacobian(Exposure(objective, example, Release(FedSGD())))
        spectrum = operator.spectrum
        kept = spectrum.values[spectrum.values > spectrum.threshold]
        if not kept.numel():
            raise UnsupportedError("spectral_noise: the gradient does not depend on the image")
        smallest = float(kept[0])
        facts = {"image": index, "null_dimension": len(spectrum.values) - len(kept), "eigenvalue_min": smallest}
        rows = []
        for error in self.errors:
            norm = error * math.sqrt(len(spectrum.values) * smallest)
            noise = derive_generator(self.seed, ISOTROPIC, str(index), str(error))
            drawn = {ISOTROPIC: isotropic(objective, norm, noise)}
            for directions in self.directions:
                release = Release(FedSGD(), [SpectralNoise(norm=norm, directions=directions)])
                noise = derive_generator(self.seed, "spectral", str(index), str(error), str(directions))
                update = release(objective, example, noise)
                drawn[str(directions)] = objective.flatten(update.tensors) - operator.value
            attacked_kinds = (ISOTROPIC, str(self.directions[0])) if self.attack_steps else ()
            for kind, perturbation in drawn.items():
                free, boxed = (
                    self._attack(operator, perturbation, index, box) if kind in attacked_kinds else None
                    for box in (False, True)
                )
                line = {
                    "error": error,
                    "noise": kind,
                    "norm": norm,
                    "relative_norm": norm / float(operator.value.norm()),
                }
                rows.append({**facts, **line, **asdict(reach(operator, perturbation)), "attack": free, "boxed": boxed})
        return rows

    def _attack(self, operator: GradientJacobian, perturbation: Tensor, index: int, box: bool) -> float | None:
        exposure = operator.exposure
        tensors = exposure.objective.unflatten(operator.value + perturbation)
        update = Update(tensors=tensors, kind=exposure.release.protocol.kind)
        knowledge = HonestButCurious(defenses=False).disclose(exposure.objective, exposure.release, exposure.batch)
        attack = GaussNewton(starts=1, max_steps=self.attack_steps, box=box)
        found = attack(update, knowledge, generator=derive_generator(self.seed, "attack", str(index)))
        return pixel_rmse(found.inputs, exposure.batch)

    def _compare(
        self, rows: Sequence[dict[str, Any]], error: float, directions: int
    ) -> tuple[list[Finding], list[str], str]:
        flat, aimed = (
            [row for row in rows if row["error"] == error and row["noise"] == kind]
            for kind in (ISOTROPIC, str(directions))
        )
        setting = f"{_times(directions)}, predicted RMSE {error:g}"
        findings, factors = [], {}
        for column, who in (("predicted", "I²F"), ("reached", "perfect attacker"), ("attack", FREE), ("boxed", BOXED)):
            pairs = [(one[column], other[column]) for one, other in zip(flat, aimed, strict=True)]
            ratios = [b / a for a, b in pairs if a and b]
            if not ratios:
                continue
            mean, interval = geometric_mean(ratios, seed=self.seed)
            factors[who] = mean
            paper = "1/λ, error by direction (figure 6)" if who != "I²F" else ""
            findings.append(
                Finding(
                    quantity=f"{setting}: factor by {who}",
                    ours=mean,
                    paper=paper,
                    interval=interval,
                    n=len(ratios),
                    note="" if len(ratios) == len(pairs) else f"{len(pairs) - len(ratios)} without a number",
                )
            )
        off = [abs(row["reached"] / row["predicted"] - 1) for row in (*flat, *aimed) if row["reached"]]
        findings.append(
            Finding(
                quantity=f"{setting}: perfect attacker against prediction, median relative difference",
                ours=median(off),
                n=len(off),
                note="",
            )
        )
        texts = [f"{error:g}", str(directions), shown(median([row["relative_norm"] for row in flat]), ".2g")]
        texts += [
            shown(median(known([row[column] for row in side])))
            for side in (flat, aimed)
            for column in ("predicted", "reached", "attack", "boxed")
        ]
        parts = ", ".join(f"{factor:.3g} by {who}" for who, factor in factors.items())
        return findings, texts, f"{setting}: the error grows by a factor of {parts or 'nothing that was measured'}."


def _times(directions: int) -> str:
    return "one direction" if directions == 1 else f"{directions} directions"


__all__ = ["SpectralNoiseGain"]

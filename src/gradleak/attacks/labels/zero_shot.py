"""Distinct labels from the smallest entries of the classifier's weight gradient (GradInversion's batch restoration)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.attacks.labels.label_attack import LabelAttack, LabelRecovery, Unreadable, spelled_out
from gradleak.attacks.labels.reading import Reading, read
from gradleak.core import DiagonalGaussian, Knowledge, Update
from gradleak.core.defense import Noise, NotGaussian
from gradleak.results import YIN_2021, Citation, Outcome, Probability


@dataclass(frozen=True, kw_only=True)
class ZeroShotLabels(LabelAttack):
    """The K classes whose rows of the classifier's weight gradient reach the lowest values; distinct labels only.

    A row of ∂L/∂W is (1/K) Σ_k (p_k,c − y_k,c) h_kᵀ. With non-negative inputs h (ReLU, sigmoid) the row of a class that
    does not occur has no negative entry, so that a negative entry proves a class present. With repeated labels fewer
    than K rows are negative, and the rule, which always names K different classes, fills up with absent ones: it is
    wrong, and the confidence is 0. With more examples than classes there are no K classes to name: not identifiable.

    **Assumptions**: distinct labels, non-negative inputs of the classifier, hard labels and no smoothing. If exactly K
    rows are negative beyond noise and round-off, the labels are proven: confidence 1, or 1 − 1e-6 under known Gaussian
    noise. A class that every one of its examples is already given with near certainty can stay hidden; then K negative
    rows are missing too. Clipping, scale and local steps keep the signs.

    **Cost**: one forward pass of a few inputs.

    **Source**: Yin et al. 2021, "See through gradients" (batch label restoration), as Fang et al. 2024
    compare with it. The proof from counting negative rows, and so the confidence, is ours.

    Attributes:
        minimum_confidence: below it there is no claim; 0 names the K lowest rows whatever they are worth, as the paper.
    """

    name: ClassVar[str] = "zero_shot_labels"
    citations: ClassVar[tuple[Citation, ...]] = (YIN_2021,)
    summary: ClassVar[str] = (
        "Distinct labels from the smallest entries of the rows of the classifier's weight gradient."
    )

    minimum_confidence: Probability = 0.5

    def _recover(self, update: Update, knowledge: Knowledge, generator: torch.Generator) -> LabelRecovery:
        reading = read(update, knowledge, generator)
        if isinstance(reading, Unreadable):
            return reading.recovery()
        weight, total = reading.weight, reading.examples
        if weight is None:
            return Unreadable(reason="the gradient of the classifier's weight is not shared by itself").recovery()
        if total > len(weight):
            return Unreadable(
                reason=f"the zero-shot rule names different classes, and {total} examples have only {len(weight)}"
            ).recovery()
        lowest = weight.min(dim=1).values
        negative = int((lowest < -self._threshold(reading, weight, update, knowledge)).sum())
        confidence, why = _proof(reading, negative)
        if confidence and negative == len(weight) and not self._noise_is_known(knowledge):
            confidence, why = 0.0, "every row has a negative entry, as unknown noise would make it"
        chosen = lowest.argsort(stable=True)[:total]
        counts = torch.zeros(len(weight), dtype=torch.long).index_fill(0, chosen, 1)
        note = f"different labels by the zero-shot rule from {reading.head.weight_name}: {why}"
        claimed = confidence >= self.minimum_confidence
        return LabelRecovery(
            targets=spelled_out(counts) if claimed else None,
            confidence=confidence,
            outcome=Outcome.CONVERGED if claimed else Outcome.NOT_IDENTIFIABLE,
            note=note,
            counts=counts if claimed else None,
        )

    def _threshold(self, reading: Reading, weight: Tensor, update: Update, knowledge: Knowledge) -> float:
        """Distance below 0 that round-off and noise alone reach in the whole gradient, but once in a million times."""
        name = reading.head.weight_name
        assert name is not None
        largest = float(weight.abs().max())
        round_off = 64 * float(torch.finfo(update.tensors[name].dtype).eps) * largest
        noise = _noise_of(knowledge)
        if not isinstance(noise, DiagonalGaussian) or largest == 0:
            return round_off
        factor = largest / float(update.tensors[name].double().abs().max())
        return round_off + noise.std[name] * factor * math.sqrt(2 * math.log(weight.numel() / 1e-6))

    def _noise_is_known(self, knowledge: Knowledge) -> bool:
        """True if the law of the noise is known, or there is none."""
        return knowledge.defenses is not None and not isinstance(_noise_of(knowledge), NotGaussian)


def _noise_of(knowledge: Knowledge) -> Noise:
    """The law of the noise as far as it is known."""
    if knowledge.defenses is None or knowledge.protocol is None or knowledge.objective is None:
        return None
    return knowledge.release.noise(knowledge.objective, examples=knowledge.batch_size)


def _proof(reading: Reading, negative: int) -> tuple[float, str]:
    """The confidence in different labels, and its reason."""
    if reading.doubt:
        return 0.0, reading.doubt
    if not reading.form.one_hot:
        return 0.0, "the loss smooths labels, under which rows of absent classes have negative entries too"
    if not reading.head.non_negative:
        return 0.0, "the inputs of the classifier can be negative, so that a negative entry proves nothing"
    if negative == reading.examples:
        return (1 - 1e-6 if reading.noisy else 1.0), "as many rows have a negative entry as there are examples"
    if negative < reading.examples:
        return 0.0, f"{negative} rows have a negative entry and there are {reading.examples} examples: labels repeat"
    return 0.0, f"{negative} rows have a negative entry, more than the {reading.examples} examples: labels are soft"

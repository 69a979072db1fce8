"""Class counts from the bias gradient and mean probabilities of dummy inputs (ALR)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.attacks.labels.counting import counts_at, expected_predictions
from gradleak.attacks.labels.head import Head
from gradleak.attacks.labels.label_attack import LabelAttack, LabelRecovery, Unreadable
from gradleak.attacks.labels.reading import Reading, read, run_dummies
from gradleak.attacks.labels.rounding import recovery
from gradleak.core import Knowledge, Update
from gradleak.results import FANG_2024, Citation, Probability

_TRAINED = (
    "the model is trained: it is sure of the class of most dummies, so that their mean probabilities say little of a "
    "few private examples"
)


@dataclass(frozen=True, kw_only=True)
class AdaptiveLabelRecovery(LabelAttack):
    """Class counts n = K (p̄ − ∂L/∂b) from the bias gradient and mean probabilities p̄ that dummy inputs give (ALR).

    For cross entropy ∂L/∂b = (1/K) Σ_k (p_k − y_k), with p_k the softmax of example k. An untrained model gives every
    input nearly the same probabilities, so that those of noise stand for the private ones. Counts are rounded by
    largest remainder, are non-negative and sum to K.

    Without a bias gradient, ∂L/∂W = (1/K) Σ_k (p_k − y_k) h_kᵀ is read along the mean input h̄ of the classifier for
    dummies, v = ∂L/∂W h̄/‖h̄‖², as if h_kᵀh̄ = ‖h̄‖² for all. Known label smoothing, class weights and a loss that adds
    up are corrected for exactly, since the loss is asked what it does. A delta is read as the average gradient of its
    local steps, with p̄ taken halfway along it where no defense disturbs it. Where the scale is hidden (clipping), the
    classes that surely do not occur show it, if there are more classes than examples.

    **Assumptions**: that the private examples have, on average, the probabilities of the dummies: good for an untrained
    model, not for a trained one. The confidence comes from how near the estimates lie to whole numbers
    (`gradleak.attacks.labels.rounding.judge`) and from noise that is known. Labels that are soft show as estimates far
    from whole numbers; those of mixup with partners from the same batch average to the hard counts, which are what is
    found.

    **Cost**: one forward pass of the dummies.

    **Source**: Fang et al. 2024, equations 9 to 11 (there: untrained models, one gradient, a bias). Deviations: p̄ is the
    mean of the dummies' softmax, where the paper averages the inputs of the classifier first; dummies are uniform noise
    over the valid range (the paper does not say), or public inputs where the adversary has some. Everything beyond a
    bias gradient at a known scale, and the confidence, is ours.

    Attributes:
        dummies: number of dummy inputs.
        minimum_confidence: below it there is no claim, only `estimate`; 0 always claims.
    """

    name: ClassVar[str] = "adaptive_label_recovery"
    citations: ClassVar[tuple[Citation, ...]] = (FANG_2024,)
    summary: ClassVar[str] = "Class counts from the bias gradient and the mean probabilities of dummy inputs."

    dummies: int = 128
    minimum_confidence: Probability = 0.5

    def _recover(self, update: Update, knowledge: Knowledge, generator: torch.Generator) -> LabelRecovery:
        reading = read(update, knowledge, generator)
        if isinstance(reading, Unreadable):
            return reading.recovery()
        ran = run_dummies(reading, knowledge, self.dummies, generator)
        if isinstance(ran, Unreadable):
            return ran.recovery()
        head, dummies = ran
        gradient = reading.bias if reading.bias is not None else _along_mean(reading, head)
        if isinstance(gradient, Unreadable):
            return gradient.recovery()
        mean = head.probabilities.mean(dim=0)
        values = counts_at(reading, gradient, mean)
        if isinstance(values, Unreadable):
            return values.recovery()
        relative = expected_predictions(reading, values, reading.bias, mean)
        source = reading.head.bias_name if reading.bias is not None else reading.head.weight_name
        return recovery(
            values,
            reading,
            relative=relative,
            minimum_confidence=self.minimum_confidence,
            how=f"counts by adaptive label recovery from {source} and {dummies}",
            doubt=_TRAINED if head.decided else "",
        )


def _along_mean(reading: Reading, head: Head) -> Tensor | Unreadable:
    mean = head.features.mean(dim=0)
    square = float(mean.square().sum())
    if square == 0:
        return Unreadable(reason="the inputs of the classifier are zero for dummies (dead units), and it has no bias")
    assert reading.weight is not None
    return reading.weight @ mean / square

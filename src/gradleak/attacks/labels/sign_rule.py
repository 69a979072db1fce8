"""The label of one example from the signs of the classifier's gradient (iDLG)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.attacks.labels.label_attack import LabelAttack, LabelRecovery
from gradleak.core import Classifier, DiagonalGaussian, Knowledge, Update
from gradleak.results import ZHAO_2020, Citation, Outcome

_CROSS_ENTROPY = ("cross_entropy", "CrossEntropyLoss")


def is_cross_entropy(loss_name: str) -> bool:
    """Whether an objective's loss is cross entropy: the loss by name, or torch's module, whatever its settings."""
    return loss_name.startswith(_CROSS_ENTROPY)


@dataclass(frozen=True, kw_only=True)
class SignRule(LabelAttack):
    """The class of one example: the only negative entry of the classifier's bias gradient.

    For one example and cross entropy the gradient of the logits is v = softmax(logits) − onehot(y): negative at y
    alone, and with entries that sum to 0. The bias gradient is v; the weight gradient is v hᵀ with h the input of the
    layer, so that without a bias the row of y is the one whose inner products with the other rows are negative
    (with two classes that rule cannot tell them apart). Clipping, pruning and taking signs keep the signs. A delta of
    several local steps sums such vectors with positive factors: the rule stays exact with a bias, and without one for
    as long as local training does not turn h around.

    **Assumptions**: exact for one example, hard labels and no noise. Under Gaussian noise of std s an entry can change
    its sign: the confidence is 1 − Σ_c Φ(−(v_c − v_y)/(s√2)) over the other classes. Noise that is not known shows in
    the sum of v, and s = |Σv|/√c stands in for it. Several negative entries beyond the noise (repeated, mixed or
    smoothed labels) are not identifiable.

    **Cost**: one forward pass, to find the layer.

    **Source**: Zhao et al. 2020, "iDLG", equation 5 (and section 3.2 for the weight gradient). The confidence
    under noise is ours.

    Attributes:
        minimum_confidence: below it the label counts as not identifiable, in (0, 1].
    """

    name: ClassVar[str] = "sign_rule"
    citations: ClassVar[tuple[Citation, ...]] = (ZHAO_2020,)
    summary: ClassVar[str] = "The class of one example from the signs of the classifier's gradient."

    minimum_confidence: float = 0.99

    def _recover(self, update: Update, knowledge: Knowledge, generator: torch.Generator) -> LabelRecovery:
        objective, domain = knowledge.objective, knowledge.domain
        assert objective is not None
        assert domain is not None
        if knowledge.batch_size != 1:
            return _unknown(f"the sign rule is for one example, and the batch has {knowledge.batch_size}")
        if not is_cross_entropy(objective.loss_name):
            return _unknown(f"the sign rule is for cross entropy, and the loss is {objective.loss_name}")
        layer = objective.classifier(domain)
        if layer is None:
            return _unknown("the model's output is not made by a linear layer, whose gradient the sign rule reads")
        if layer.classes < 2:
            return _unknown("the model has one logit; the sign rule needs one a class")
        if layer.bias is not None:
            values, scale = update.tensors[layer.bias].double().reshape(-1), 1.0
            source = layer.bias
        elif layer.weight is not None:
            if layer.classes == 2:
                return _unknown("two classes without a bias: the rows of the weight only differ in sign")
            values, scale = _from_rows(update.tensors[layer.weight].double())
            source = layer.weight
        else:
            return _unknown("the classifier is frozen, so its gradient is not shared")
        return self._decide(values, self._noise_std(knowledge, layer, values, scale), source)

    def _noise_std(self, knowledge: Knowledge, layer: Classifier, values: Tensor, scale: float) -> float:
        """The std of the noise on `values`: known, or as large as the sum that ought to be 0 suggests."""
        apparent = float(values.sum().abs()) / math.sqrt(values.numel())
        objective = knowledge.objective
        if knowledge.protocol is None or objective is None:
            return apparent
        noise = knowledge.release.noise(objective, examples=knowledge.batch_size)
        adaptive = knowledge.protocol.mini_batch_weights(1) is None
        if noise is None and (knowledge.defenses or adaptive):
            return 0.0  # known to be free of noise: pruning, signs or Adam, not noise, keep the sum from being 0
        if not isinstance(noise, DiagonalGaussian):
            return apparent
        name = layer.bias or layer.weight
        assert name is not None
        return noise.std[name] * scale

    def _decide(self, values: Tensor, std: float, source: str) -> LabelRecovery:
        label = int(values.argmin())
        lowest = float(values[label])
        others = torch.cat([values[:label], values[label + 1 :]])
        if not lowest < 0:
            return _unknown(f"no entry of {source} is negative in the update")
        threshold = -std * math.sqrt(2 * math.log(max(2.0, values.numel() / (1 - self._level))))
        negative = [index for index in range(values.numel()) if float(values[index]) < min(threshold, 0.0)]
        if len(negative) > 1:
            return _unknown(
                f"{len(negative)} entries of {source} are negative beyond the noise in the update (classes "
                f"{', '.join(map(str, negative))}): labels are repeated, mixed or smoothed"
            )
        confidence = 1.0
        if std > 0:
            margins = (others - lowest) / (std * math.sqrt(2))
            confidence = float((1 - torch.special.ndtr(-margins).sum()).clamp(0, 1))
        if confidence < self.minimum_confidence:
            return LabelRecovery(
                targets=None,
                confidence=confidence,
                outcome=Outcome.NOT_IDENTIFIABLE,
                note=f"noise of std {std:.2g} on {source} leaves the label at confidence {confidence:.2f}",
            )
        return LabelRecovery(
            targets=torch.tensor([label]),
            counts=torch.zeros(len(values), dtype=torch.long).index_fill(0, torch.tensor([label]), 1),
            confidence=confidence,
            expected_accuracy=confidence,
            outcome=Outcome.CONVERGED,
            note=f"label recovered by the sign rule from {source}, confidence {confidence:.4f}",
        )

    @property
    def _level(self) -> float:
        """Two-sided level for calling an entry negative; strict, since a mistake hides a label."""
        return min(self.minimum_confidence, 1 - 1e-9)


def _from_rows(gradient: Tensor) -> tuple[Tensor, float]:
    """The vector v up to a positive factor, from rows v_c h, and its noise for unit noise on the gradient.

    The direction of h is the leading right singular vector; its sign is the one that leaves one entry negative, that
    of the largest magnitude where a pruned gradient leaves two rows or one, else the one with fewer negative entries.
    """
    _, _, directions = torch.linalg.svd(gradient, full_matrices=False)
    values = gradient @ directions[0]
    negative, positive = int((values < 0).sum()), int((values > 0).sum())
    pruned = negative <= 1 and positive <= 1
    if float(values.max()) > -float(values.min()) if pruned else negative > positive:
        values = -values
    return values, 1.0


def _unknown(reason: str) -> LabelRecovery:
    return LabelRecovery(targets=None, confidence=0.0, outcome=Outcome.NOT_IDENTIFIABLE, note=reason)

"""Labels from the signs of the classifier's gradient, and the surest of all label attacks."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.attacks.labels.label_attack import LabelAttack, LabelRecovery, LossForm, Unreadable, loss_form
from gradleak.attacks.labels.reading import Head, dummy_inputs, round_off, run_head, scale_of
from gradleak.attacks.labels.solved import AdaptiveLabelRecovery, ConsistentLabels, ZeroShotLabels
from gradleak.attacks.labels.target import UNCHECKED, Seen, seen_target
from gradleak.core import DiagonalGaussian, Knowledge, Update
from gradleak.results import ZHAO_2020, Citation, Outcome, Probability


def is_cross_entropy(loss_name: str) -> bool:
    """True if an objective's loss is cross entropy: the loss by name, or torch's module, whatever its settings."""
    return loss_name == "cross_entropy" or loss_name.startswith("CrossEntropyLoss(")


@dataclass(frozen=True, kw_only=True)
class SignRule(LabelAttack):
    """The class of one example: the only negative entry of the classifier's bias gradient.

    For one example and cross entropy the gradient of the logits is v = softmax(logits) − onehot(y): negative at y
    alone, and with entries that sum to 0. The bias gradient is v; the weight gradient is v hᵀ with h the input of the
    layer, so that without a bias the row of y is the one whose inner products with the other rows are negative
    (with two classes that rule cannot tell them apart). Clipping, pruning and taking signs keep the signs. A delta of
    several local steps sums such vectors with positive factors: the rule stays exact with a bias, and without one for
    as long as local training does not turn h around.

    Class weights, sums and a log-softmax before the loss change no sign. Label smoothing ε does: then every entry may
    be as low as −ε/c, and that of y can be positive. Only an entry lower than that proves its class, which takes a bias
    gradient at a known scale; where there is none, a model that is sure of its example hides the label.

    A client that smooths without telling looks like one with hard labels, and where the model is sure of its example
    the sign names another class. So the whole gradient is asked for the target (`seen_target`): where it shows a smoothed
    one, its label is named all the same. Where it shows none (pruned, signed, too noisy, or soft) the confidence is 0.9 at
    most, and the note says what was not checked; of two classes, where smoothing and an unknown scale look alike but name
    different ones, there is no claim.

    **Assumptions**: exact for one example, hard labels and no noise; the loss is asked what it does (`LossForm`), and one
    whose gradient at the logits is not that of cross entropy is not read. Under Gaussian noise of std s an entry can change
    its sign: the confidence is 1 − Σ_c Φ(−(v_c − v_y)/(s√2)) over the other classes. Noise that is not known shows in
    the sum of v, and s = |Σv|/√c stands in for it. Several negative entries beyond the noise (repeated, mixed or
    smoothed labels) are not identifiable.

    **Cost**: one forward pass of two inputs, to find the layer; for a loss with settings what `loss_form` costs.

    **Source**: Zhao et al. 2020, "iDLG", equation 5 (and section 3.2 for the weight gradient). The confidence
    under noise and what is said about smoothing are ours.

    Attributes:
        minimum_confidence: below it noise makes the label not identifiable, in (0, 1].
    """

    name: ClassVar[str] = "sign_rule"
    citations: ClassVar[tuple[Citation, ...]] = (ZHAO_2020,)
    summary: ClassVar[str] = "The class of one example from the signs of the classifier's gradient."

    minimum_confidence: Probability = 0.99

    def _recover(self, update: Update, knowledge: Knowledge, generator: torch.Generator) -> LabelRecovery:
        objective = knowledge.objective
        assert objective is not None
        if knowledge.batch_size != 1:
            return _unknown(f"the sign rule is for one example, and the batch has {knowledge.batch_size}")
        # A stream of its own: finding the layer must not move the dummies of attacks that come after.
        inputs, _ = dummy_inputs(knowledge, 2, torch.Generator().manual_seed(0))
        head = run_head(objective, objective.params, inputs, together=2)
        if isinstance(head, Unreadable):
            return head.recovery()
        form = loss_form(objective, head.classes, log_softmax=head.log_softmax)
        if isinstance(form, Unreadable):
            return form.recovery()
        if head.bias_name is not None:
            values, source = update.tensors[head.bias_name].cpu().double().reshape(-1), head.bias_name
        elif head.weight_name is not None:
            if head.classes == 2:
                return _unknown("two classes without a bias: the rows of the weight only differ in sign")
            values, source = _from_rows(update.tensors[head.weight_name].cpu().double()), head.weight_name
        else:
            return _unknown(
                "the classifier's gradient is not shared by itself: it is frozen, computed, or tied to another layer"
            )
        std = self._noise_std(knowledge, source, values)
        if form.one_hot:
            target = _target(update, knowledge, form, head)
            return _checked(self._decide(values, std, source), target, source, len(values))
        found = _beyond_smoothing(
            update, knowledge, form, (values, std), source if head.bias_name is not None else None
        )
        return found.recovery() if isinstance(found, Unreadable) else self._decide(*found, source, smoothed=True)

    def _noise_std(self, knowledge: Knowledge, name: str, values: Tensor) -> float:
        """The std of the noise on `values`: known, or as large as the sum that ought to be 0 suggests."""
        apparent = float(values.sum().abs()) / math.sqrt(values.numel())
        objective = knowledge.objective
        if knowledge.protocol is None or objective is None:
            return apparent
        noise = knowledge.release.noise(objective, examples=knowledge.batch_size)
        adaptive = knowledge.protocol.mini_batch_weights(1) is None
        if noise is None and (knowledge.defenses or adaptive):
            return 0.0  # known to be free of noise: pruning, signs or Adam, not noise, keep the sum from being 0
        return noise.std[name] if isinstance(noise, DiagonalGaussian) else apparent

    def _decide(self, values: Tensor, std: float, source: str, *, smoothed: bool = False) -> LabelRecovery:
        label = int(values.argmin())
        lowest = float(values[label])
        others = torch.cat([values[:label], values[label + 1 :]])
        if not lowest < 0:
            low = "lower than smoothed labels make those of other classes" if smoothed else "negative"
            return _unknown(f"no entry of {source} is {low} in the update")
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
            if smoothed:  # the label's entry need not be the lowest unless it is negative without the noise
                confidence = min(confidence, float(torch.special.ndtr(torch.tensor(-lowest / std))))
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


def _target(update: Update, knowledge: Knowledge, form: LossForm, head: Head) -> Seen:
    """The target that the classifier's whole gradient shows."""
    scale = scale_of(update, knowledge, form)
    if isinstance(scale, Unreadable) or not bool((form.factors - 1).abs().max() < 1e-4):
        return Seen()
    bias, weight = (
        None if name is None else update.tensors[name].cpu().double() / scale[0]
        for name in (head.bias_name, head.weight_name)
    )
    at_once = knowledge.protocol is not None and knowledge.protocol.shares_gradient
    return seen_target(head, bias, weight, scaled=scale[1], at_once=at_once)


def _checked(found: LabelRecovery, target: Seen, source: str, classes: int) -> LabelRecovery:
    """The label by the signs beside the target that the whole gradient shows."""
    if target.unclear:
        return _unknown(
            f"{source} and the weight gradient name one class if labels are hard, and another if the client smooths them"
        )
    if target.label is None:
        if found.targets is None or found.confidence <= UNCHECKED:
            return found
        note = f"{found.note}; at most {UNCHECKED}, since the update does not show whether labels are hard or smoothed"
        return replace(found, confidence=UNCHECKED, expected_accuracy=UNCHECKED, note=note)
    if target.share is None or (found.targets is not None and found.targets.tolist() == [target.label]):
        return found
    label = torch.tensor([target.label])
    return LabelRecovery(
        targets=label,
        counts=torch.zeros(classes, dtype=torch.long).index_fill(0, label, 1),
        confidence=1 - 1e-6,
        expected_accuracy=1 - 1e-6,
        outcome=Outcome.CONVERGED,
        note=f"label read from {source} and the weight gradient together: the client's target is {target.share:.2f} for it, "
        "smoothed where the stated loss is not",
    )


def _beyond_smoothing(
    update: Update, knowledge: Knowledge, form: LossForm, read: tuple[Tensor, float], bias: str | None
) -> tuple[Tensor, float] | Unreadable:
    """The bias gradient of one example above what smoothing leaves for other classes (c,), and its noise."""
    values, std = read
    scale = scale_of(update, knowledge, form)
    if isinstance(scale, Unreadable):
        return scale
    factor, scaled = scale[0], scale[1]
    if bias is None or not scaled:
        return Unreadable(
            reason="labels are smoothed, and without a bias gradient at a known scale an entry that smoothing made negative "
            "cannot be told from that of the label"
        )
    assert knowledge.objective is not None
    classes = len(values)
    others = form.targets.masked_fill(torch.eye(classes, dtype=torch.bool), -torch.inf)
    rounding = 64 * float(round_off(update, knowledge.objective.params[bias], bias).max()) / factor
    return values / factor + others.amax(dim=1) + rounding, std / factor


def _from_rows(gradient: Tensor) -> Tensor:
    """The vector v up to a positive factor, from rows v_c h; noise on it has the std of that on the gradient.

    The direction of h is the leading right singular vector; its sign is the one that leaves one entry negative, that
    of the largest magnitude where a pruned gradient leaves two rows or one, else the one with fewer negative entries.
    """
    _, _, directions = torch.linalg.svd(gradient, full_matrices=False)
    values: Tensor = gradient @ directions[0]
    negative, positive = int((values < 0).sum()), int((values > 0).sum())
    pruned = negative <= 1 and positive <= 1
    if float(values.max()) > -float(values.min()) if pruned else negative > positive:
        values = -values
    return values


def _unknown(reason: str) -> LabelRecovery:
    return LabelRecovery(targets=None, confidence=0.0, outcome=Outcome.NOT_IDENTIFIABLE, note=reason)


def recover_labels(
    update: Update,
    knowledge: Knowledge,
    *,
    generator: torch.Generator | None = None,
    minimum_confidence: float = 0.9,
) -> LabelRecovery:
    """The labels behind an update by the attack that is surest of them, or why none is sure enough.

    One example: the sign rule, and where it gives nothing the rules for batches. A batch: `ZeroShotLabels` where it
    proves different labels, else `ConsistentLabels`, else `AdaptiveLabelRecovery`, the first whose confidence reaches
    `minimum_confidence`. If none does, the answer is that of the surest, without targets.

    The order follows what each can prove. The confidences are those of each attack's own error model; they are not
    compared with each other where one is reached.

    Args:
        update: what the server saw.
        knowledge: all that the adversary knows besides it.
        generator: the only source of randomness (dummy inputs); None stands for a new one with seed 0.
        minimum_confidence: of the rules for batches; the sign rule has its own.

    Raises:
        KnowledgeError: without objective, batch size or domain.
        InconsistentUpdateError: if the update does not fit the model.
        InputError: naming a tensor of the update with NaN or infinite values.

    **Cost**: a few forward passes.
    """
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    attacks: list[LabelAttack] = [
        ZeroShotLabels(minimum_confidence=minimum_confidence),
        ConsistentLabels(minimum_confidence=minimum_confidence),
        AdaptiveLabelRecovery(minimum_confidence=minimum_confidence),
    ]
    if knowledge.batch_size == 1:
        attacks.insert(0, SignRule())
    failed: list[LabelRecovery] = []
    for attack in attacks:
        found = attack(update, knowledge, generator=generator)
        if found.targets is not None:
            return found
        failed.append(found)
    return max(failed, key=lambda one: one.confidence)

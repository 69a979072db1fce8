"""The labels of a batch by whichever label attack is surest of them."""

from __future__ import annotations

import torch

from gradleak.attacks.labels.adaptive import AdaptiveLabelRecovery
from gradleak.attacks.labels.consistent import ConsistentLabels
from gradleak.attacks.labels.label_attack import LabelAttack, LabelRecovery
from gradleak.attacks.labels.sign_rule import SignRule
from gradleak.attacks.labels.zero_shot import ZeroShotLabels
from gradleak.core import Knowledge, Update


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

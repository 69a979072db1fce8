"""Attacks on the labels of a batch."""

from gradleak.attacks.labels.label_attack import LabelAttack, LabelRecovery
from gradleak.attacks.labels.sign_rule import SignRule, recover_labels
from gradleak.attacks.labels.solved import AdaptiveLabelRecovery, ConsistentLabels, ZeroShotLabels

__all__ = [
    "AdaptiveLabelRecovery",
    "ConsistentLabels",
    "LabelAttack",
    "LabelRecovery",
    "SignRule",
    "ZeroShotLabels",
    "recover_labels",
]

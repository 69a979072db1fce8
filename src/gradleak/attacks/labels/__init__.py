"""Attacks on the labels of a batch."""

from gradleak.attacks.labels.adaptive import AdaptiveLabelRecovery
from gradleak.attacks.labels.consistent import ConsistentLabels
from gradleak.attacks.labels.label_attack import LabelAttack, LabelRecovery
from gradleak.attacks.labels.recover import recover_labels
from gradleak.attacks.labels.sign_rule import SignRule
from gradleak.attacks.labels.zero_shot import ZeroShotLabels

__all__ = [
    "AdaptiveLabelRecovery",
    "ConsistentLabels",
    "LabelAttack",
    "LabelRecovery",
    "SignRule",
    "ZeroShotLabels",
    "recover_labels",
]

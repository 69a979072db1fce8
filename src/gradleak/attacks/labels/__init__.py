"""Attacks on the labels of a batch."""

from gradleak.attacks.labels.sign_rule import LabelRecovery, SignRule

__all__ = ["LabelRecovery", "SignRule"]

"""What the update itself says of a claim that came out of a generator, for its line in the record."""

from __future__ import annotations

from typing import Any

from gradleak.attacks import Attack, InventionCheck, Inversion
from gradleak.core import Knowledge, Reconstruction, Update, derive_generator
from gradleak.results import GradleakError


def claim_support(
    attack: Attack, found: Reconstruction, update: Update, knowledge: Knowledge
) -> tuple[str, dict[str, Any]]:
    """A sentence and JSON-ready facts on whether the update bears a generator's picture out.

    A verdict goes by the error against the auditor's own batch and needs none of this; who reads the picture alone does.

    Args:
        attack: that made the claim.
        found: its claim.
        update: what it was given.
        knowledge: what it was given.

    Returns:
        ("", {}) for an attack that needs no generator, or where nothing was claimed.

    **Cost**: see `gradleak.attacks.InventionCheck`: about 3,300 plain gradients.
    """
    behind = "generator" in attack.needs or (isinstance(attack, Inversion) and attack.variables.needs_generator)
    if not behind or found.inputs is None:
        return "", {}
    try:
        said = InventionCheck()(found, update, knowledge, generator=derive_generator(0, "claim support"))
    except GradleakError as refusal:
        return f"whether the update bears the claim out could not be asked: {refusal}", {}
    return f"{said.support.value}: {said.sentence}", said.facts()


__all__ = ["claim_support"]

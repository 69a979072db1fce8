"""Support of the update for a claim that came out of a generator, for its line in the record."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gradleak.attacks import Attack, InventionCheck
from gradleak.core import Knowledge, Reconstruction, Update, derive_generator
from gradleak.results import GradleakError

REFINED = " refined without the generator"
"""How the names of refined claims end in the record."""

CHECK = InventionCheck()
"""As audits run it."""


@dataclass(frozen=True, kw_only=True)
class CheckedClaim:
    """Result of a check of a claim, and its cost.

    Attributes:
        sentence: for the note of the attack's line.
        facts: JSON-ready numbers; empty where the check was refused.
        refined: the claim refined without the generator, a claim of its own; None where there is none.
        plain_gradients: what the check cost.
        seconds: how long it took.
    """

    sentence: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    refined: Reconstruction | None = None
    plain_gradients: float = 0.0
    seconds: float = 0.0


def claim_support(attack: Attack, found: Reconstruction, update: Update, knowledge: Knowledge) -> CheckedClaim | None:
    """Support of the update for a generator's picture, and the picture that the update leads to from there.

    A verdict goes by the error against the auditor's own batch, of the claim and of the refined one; who reads a picture
    alone needs the sentence.

    Args:
        attack: that made the claim.
        found: its claim.
        update: what it was given.
        knowledge: what it was given.

    Returns:
        None for an attack that needs no generator, or where nothing was claimed.

    **Cost**: see `gradleak.attacks.InventionCheck`: about 3,300 plain gradients, up to 6,600 T for T local steps.
    """
    if not attack.searches_images or found.inputs is None:
        return None
    started = time.perf_counter()
    try:
        said = CHECK(found, update, knowledge, generator=derive_generator(0, "claim support"))
    except GradleakError as refusal:
        return CheckedClaim(
            sentence=f"the support of the update for the claim could not be checked: {refusal}",
            seconds=time.perf_counter() - started,
        )
    return CheckedClaim(
        sentence=f"{said.support.value}: {said.sentence}",
        facts=said.facts(),
        refined=said.refined,
        plain_gradients=said.plain_gradients,
        seconds=time.perf_counter() - started,
    )


def check_estimate(attack: Attack, knowledge: Knowledge) -> float:
    """Cost of checking a claim of this attack in plain gradients; 0 where nothing is checked.

    Raises:
        KnowledgeError: if a fact that it depends on is not disclosed.
    """
    return CHECK.estimate(knowledge) if attack.searches_images else 0.0


def refined_name(attack: str) -> str:
    """Name of the refined claim of an attack in the record."""
    return f"{attack}{REFINED}"

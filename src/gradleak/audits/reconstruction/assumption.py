"""Effect of an assumed protocol on an attack's claim, for its line in the record."""

from __future__ import annotations

from typing import Any

from gradleak.attacks import ProtocolTrial, neighboring_protocols, residuals_under
from gradleak.core import Knowledge, Protocol, Reconstruction, Update, describe
from gradleak.results import GradleakError

WRONG = 0.5
"""Below this share of the assumed protocol's residual, another one is the likelier."""


def protocol_sensitivity(found: Reconstruction, update: Update, knowledge: Knowledge) -> tuple[str, list[Any]]:
    """A sentence and JSON-ready rows on how well the claim explains the update under other assumptions.

    Learning rates from a quarter to four times the assumed one, and half and twice as many epochs; the attack is not run
    again (`gradleak.attacks.rerun_under` does that).

    Args:
        found: an attack's claim.
        update: what it was given.
        knowledge: what it was given.

    Returns:
        ("", []) where the protocol is known or nothing was claimed.

    **Cost**: seven released means.
    """
    if "protocol" not in (knowledge.assumed or ()) or found.inputs is None or knowledge.protocol is None:
        return "", []
    protocols = list(dict.fromkeys([knowledge.protocol, *neighboring_protocols(knowledge.protocol)]))
    try:
        trials = residuals_under(found, update, knowledge, protocols)
    except GradleakError as refusal:
        return f"the sensitivity to the assumed protocol could not be computed: {refusal}", []
    rows = [
        {
            "protocol": describe(trial.protocol),
            "relative_residual": trial.relative_residual,
            "cosine_distance": trial.cosine_distance,
        }
        for trial in trials
    ]
    return _sentence(trials), rows


def _sentence(trials: list[ProtocolTrial]) -> str:
    here = trials[0].relative_residual
    known = [trial for trial in trials if trial.relative_residual is not None]
    if here is None or len(known) < 2:
        return "the dependence on the assumed protocol could not be tested"
    best = min(known, key=lambda trial: trial.relative_residual or 0.0)
    worst = max(trial.relative_residual or 0.0 for trial in known)
    text = (
        f"under the assumed protocol the claim leaves a relative residual of {here:.2g}; under {len(known) - 1} others "
        f"(learning rates from ¼ to 4 times it, half and twice the epochs) {best.relative_residual:.2g} to {worst:.2g}"
    )
    if best.protocol == trials[0].protocol:
        return text
    text = f"{text}, smallest for {_difference(trials[0].protocol, best.protocol)}"
    return f"{text}: the assumption looks wrong" if (best.relative_residual or 0.0) <= WRONG * here else text


def _difference(first: Protocol, second: Protocol) -> str:
    """The settings of the second that differ, or the whole of it."""
    one, two = describe(first), describe(second)
    changed = [f"{key}={value}" for key, value in two.items() if one.get(key) != value]
    return ", ".join(changed) if one["use"] == two["use"] else str(second)

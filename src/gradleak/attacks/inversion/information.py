"""Information that an attack used besides the update itself, in words for the reader of a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradleak.core import Knowledge, describe


def known_facts(knowledge: Knowledge, *, labels: str, first_order: bool, draws: int = 1) -> list[str]:
    """Knowledge that every inversion uses: update rule, defenses, labels, and the form of an example.

    Args:
        knowledge: all that the adversary knows.
        labels: where the labels come from: "disclosed", "recovered" or "optimized".
        first_order: whether local steps are read as the average gradient.
        draws: over how many draws of the model's random layers the release of a guess is averaged.
    """
    rule = in_words(describe(knowledge.protocol))
    facts = [f"update rule: {rule}"]
    if "protocol" in (knowledge.assumed or ()):
        facts[0] += ", assumed, not known"
    if first_order:
        facts[0] += ", read as the average gradient"
    if knowledge.defenses is None:
        facts.append("defenses: none assumed, since they are not known")
    elif knowledge.defenses:
        facts.append(f"defenses: {', '.join(in_words(describe(defense)) for defense in knowledge.defenses)}")
    if knowledge.masks is not None:
        facts.append("masks of random layers: the client's own, disclosed")
    elif draws > 1:
        facts.append(f"masks of random layers: not known; the mean over {draws} draws of its own")
    facts.append(f"labels: {labels}")
    guessed = knowledge.domain is not None and knowledge.domain.guessed
    form = "shape, range and normalization of an example" + (", guessed from the data themselves" if guessed else "")
    facts.append(f"{form}, and the number of examples")
    return facts


def in_words(described: Any) -> str:
    """A description made by `describe`, as a call: Name(argument=value, ...)."""
    if isinstance(described, Mapping):
        values = {key: in_words(value) for key, value in described.items() if key != "use"}
        inside = ", ".join(f"{key}={value}" for key, value in values.items())
        return f"{described['use']}({inside})" if "use" in described else f"{{{inside}}}"
    if isinstance(described, list):
        return f"[{', '.join(map(in_words, described))}]"
    return f"{described:g}" if isinstance(described, float) else str(described)

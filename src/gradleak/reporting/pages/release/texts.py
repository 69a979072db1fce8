"""What an adversary knows and what number formats take from an update, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradleak.reporting.numerals import as_number, count, percent
from gradleak.reporting.words import mapping, plain, sequence
from gradleak.results.findings.release import UpdatePrecision

_HALF = ("float16", "bfloat16")
_TENSORS_NAMED = 4

KNOWLEDGE_LABELS: Mapping[str, str] = {
    "objective": "Model, parameters and loss",
    "protocol": "Training protocol",
    "defenses": "Defenses and their constants",
    "batch_size": "Number of examples",
    "targets": "True labels",
    "domain": "Kind, shape and range of the data",
    "public": "Public data of the same kind",
    "statistics": "BatchNorm statistics of the private batch",
    "masks": "The client's draw of dropout masks and other random layers",
    "generator": "A generator of images that the adversary brings along",
}

GATES: Mapping[str, str] = {
    "consistent": "consistent",
    "inconsistent": "not consistent",
    "not_needed": "not needed (computed by the auditor)",
    "not_applicable": "not applicable",
}


def knowledge(key: str, value: Any) -> str:
    """An entry of the knowledge card in words.

    Args:
        key: name of the entry.
        value: its description; None for unknown.
    """
    if value is None:
        return "not known"
    if key == "objective":
        card = mapping(value)
        numbers, tensors = count(as_number(card.get("shared_entries"))), len(mapping(card.get("shared")))
        return (
            f"loss {plain(card.get('loss'))}, {plain(card.get('mode'))} mode, "
            + (f"computed in {plain(card['dtype'])}, " if card.get("dtype") else "")
            + f"{numbers} shared numbers in {tensors} tensors"
        )
    if key == "batch_size":
        return plain(value)
    if key == "targets":
        return f"disclosed: {plain(value)}"
    if key == "masks":
        return "disclosed: its very draw"
    if key == "domain":
        return domain(mapping(value))
    if key == "generator":
        return generator(mapping(value))
    if key == "defenses":
        return plain(value) if sequence(value) else "there are none"
    return plain(value)


def generator(card: Mapping[str, Any]) -> str:
    """A generator in words: what it is, what it was trained on, its sizes.

    Args:
        card: the description of a generator.
    """
    trained_on = as_number(card.get("training_images"))
    if trained_on is None:
        known = "; which images trained it is not on file, so that whether the audited ones did cannot be told"
    else:
        known = (
            f"; none of its {count(trained_on)} training images on file is audited"
            if trained_on
            else "; no image trained it"
        )
    latent = " × ".join(plain(size) for size in sequence(card.get("latent_shape")))  # noqa: RUF001
    return (
        f"{plain(card.get('module'))} ({plain(card.get('source'))}), latents of {latent} numbers, "
        f"{count(as_number(card.get('weights')))} weights{', conditional on the class' if card.get('conditional') else ''}"
        f"{known}"
    )


def precision(found: UpdatePrecision) -> str:
    """The loss of an update to its number format, "" where that was wide enough and nothing is missing.

    Args:
        found: shares of all entries and by tensor.
    """
    if not (found.dtype in _HALF or found.made_in or found.subnormal or found.non_finite):
        return ""
    parts = {name: part.zero + part.subnormal for name, part in found.tensors.items()}
    worst = sorted(parts, key=lambda name: -parts[name])[:_TENSORS_NAMED]
    listed = ", ".join(f"{percent(parts[name])} of {name}" for name in worst if parts[name] > 0)
    where = f" ({listed}{', and more' if len(parts) > len(worst) else ''})" if listed else ""
    origin = f": its numbers have the few digits of {found.made_in}, in which they were made" if found.made_in else ""
    text = (
        f"the update came in {found.dtype}{origin}; {percent(found.zero + found.subnormal)} of its entries are zero or "
    )
    text += f"subnormal there{where}, flushed or zero to begin with, and no attack gets them back"
    return f"{text}; {percent(found.non_finite)} are NaN or infinite." if found.non_finite else f"{text}."


def domain(card: Mapping[str, Any]) -> str:
    """A domain in words: "image of 1 × 28 × 28, values from 0 to 1".

    Args:
        card: the description of a domain.
    """
    shape = " × ".join(plain(size) for size in sequence(card.get("shape")))  # noqa: RUF001 - multiplication sign
    text = f"{plain(card.get('kind'))} of {shape or 'unknown shape'}"
    if card.get("low") is not None and card.get("high") is not None:
        text += f", values from {plain(card['low'])} to {plain(card['high'])}"
    for name in ("mean", "std"):
        if card.get(name) is not None:
            text += f", normalized with {name} {plain(card[name])}"
    return f"{text}; not stated, but guessed from the values of the data" if card.get("guessed") else text


__all__ = ["GATES", "KNOWLEDGE_LABELS", "domain", "generator", "knowledge", "precision"]

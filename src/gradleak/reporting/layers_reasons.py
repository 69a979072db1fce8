"""Reasons of verdicts on layers, and what to do next."""

from __future__ import annotations

REASONS: dict[str, str] = {
    "attribute_told_by_layer": "an attribute is told from the gradients of a single layer",
    "nothing_told": "from no layer alone was the attribute told",
    "layers_compared": "layers were compared, and nothing was attacked",
    "layers_refused": "no measure of the layers could be taken",
}
NEXT_STEPS: dict[str, str] = {
    "nothing_told": "Try other classifiers, features and more rows, batches of rows that share the attribute, or an inference "
    "game over several rounds, before you rely on it.",
    "layers_compared": "Protect the layers that the advice names and run the plan again; add an attack, or a measure of an "
    "attribute, for a verdict.",
    "layers_refused": "See the reasons; take other measures, groups, rows or releases.",
}

__all__ = ["NEXT_STEPS", "REASONS"]

"""Reasons of verdicts on layers, and what to do next."""

from __future__ import annotations

REASONS: dict[str, str] = {
    "attribute_told_by_layer": "an attribute is told from the gradients of a single layer",
    "nothing_told": "from no layer alone was the attribute told",
    "not_judged": "whether the attribute is told was not found out",
    "layers_compared": "layers were compared, and nothing was attacked",
    "layers_refused": "no measure of the layers could be taken",
}
NEXT_STEPS: dict[str, str] = {
    "attribute_told_by_layer": "Do not share updates of this kind as they are. The section on where it leaks says which layers "
    "tell the attribute; those that told nothing are not shown to be safe. To go on, protect the layers that the advice names "
    "(hidden, or with noise) in a further scenario, and look at what the others still tell.",
    "not_judged": "See the reasons in the table of the measure; take more rows, other defenses or other groups.",
    "nothing_told": "Try other classifiers, features and more rows, batches of rows that share the attribute, or an inference "
    "game over several rounds, before you rely on it.",
    "layers_compared": "Protect the layers that the advice names and run the plan again; add an attack, or a measure of an "
    "attribute, for a verdict.",
    "layers_refused": "See the reasons; take other measures, groups, rows or releases.",
}

__all__ = ["NEXT_STEPS", "REASONS"]

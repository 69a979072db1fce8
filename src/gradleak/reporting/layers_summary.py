"""Where a release leaks, for the document for machines."""

from __future__ import annotations

from typing import Any

from gradleak.reporting.layers_view import AdviceView, LayerColumn, LayerMap


def summarize_layers(one: LayerMap) -> dict[str, Any]:
    """One map as a JSON-ready dictionary.

    Args:
        one: of a setting and grouping.
    """
    return {
        "scenario": one.scenario or None,
        "setting": one.setting or None,
        "grouping": one.grouping,
        "layers": [{"name": name, "tensors": list(tensors)} for name, tensors in one.layers.items()],
        "profiles": [_column(column) for column in one.columns],
        "advice": [_advice(advice) for advice in one.advice],
    }


def _column(column: LayerColumn) -> dict[str, Any]:
    first = column.leakiest
    return {
        "measure": column.measure,
        "label": column.label,
        "about": column.about or None,
        "unit": column.unit or None,
        "leakier": column.leakier.value,
        "compared_by": "effect_size" if column.by_effect else "value",
        "leakiest": first.layer if first is not None else None,
        "may_be_leakiest": [cell.layer for cell in column.rivals],
        "control_passed": column.control,
        "outcome": column.lost.outcome.label if column.lost is not None and column.lost.outcome is not None else None,
        "scores": [
            {
                "layer": cell.layer,
                "value": cell.score.value,
                "evidence": cell.score.evidence or None,
                "outcome": cell.score.outcome.label if cell.score.outcome is not None else None,
                "interval": cell.span,
                "n": cell.n,
                "rank": cell.place,
                "standing": cell.standing or None,
                "effect_size": cell.effect,
                "shuffled": cell.null.value if cell.null is not None else None,
            }
            for cell in column.cells.values()
        ],
    }


def _advice(advice: AdviceView) -> dict[str, Any]:
    return {
        "budget": advice.budget,
        "share": advice.share,
        "protect": [row.layer for row in advice.chosen],
        "layers": [
            {
                "layer": row.layer,
                "rank": row.rank,
                "entries": row.entries,
                "share": row.share,
                "chosen": row.chosen,
                "why": row.why,
            }
            for row in advice.rows
        ],
        "note": advice.note or None,
    }

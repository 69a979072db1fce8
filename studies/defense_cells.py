"""Predictions, cells and sentences of the defense table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from gradleak.attacks.inversion.reading import Reading
from gradleak.core import Batch, Exposure, Objective, Release, Update
from gradleak.operators import GradientJacobian
from gradleak.results import GradleakError
from gradleak.risk import InversionInfluence, InversionInfluenceLowerBound
from studies.shields import Shield
from studies.study import Finding, Table
from studies.summaries import median, shown

STATIC, ADAPTIVE = "static", "adaptive"


def predict(objective: Objective, seen: Release, example: Batch, update: Update) -> dict[str, Any]:
    """Exact I²F and its lower bound for who takes `seen` for the release, with the outcome; pixel RMSE."""
    exact, single = objective.to(torch.float64), example.to(torch.float64)
    flat = exact.flatten({name: tensor.double() for name, tensor in update.tensors.items()})
    nothing = {"value": None, "bound": None, "outcome": "only bounds", "null": None, "note": ""}
    try:
        reading = Reading.of(seen, exact)
        exposure = Exposure(exact, single, reading.release)
        operator = GradientJacobian(exposure)
        if reading.bounded:
            known = reading.known_entries(flat)
            if not bool(known.any()):
                return nothing
            lower, _ = reading.bounds(reading.rows(flat))
            flat = torch.where(known, torch.cat([entry.reshape(-1) for entry in lower]), operator.value)
            operator.hold(operator.dense() * known[:, None])
        delta = flat - operator.value
        score = InversionInfluence(unit="pixel_rmse")(exposure, delta=delta, operator=operator)
        bound = InversionInfluenceLowerBound(unit="pixel_rmse")(exposure, delta=delta, operator=operator)
    except GradleakError as error:
        return {**nothing, "outcome": "unsupported", "note": str(error)}
    return {
        "value": score.value,
        "bound": bound.value,
        "outcome": score.outcome.label,
        "null": score.details.get("null_dimension"),
        "note": score.note,
    }


def _errors(side: dict[str, Any]) -> dict[str, float]:
    """The median pixel RMSE of every attack that claimed something, the strongest first."""
    medians = {
        name: median([math.sqrt(line["mse"]) if line["mse"] is not None else None for line in lines])
        for name, lines in side.get("attacks", {}).items()
    }
    return dict(sorted(((n, v) for n, v in medians.items() if v is not None), key=lambda item: item[1]))


def _reasons(side: dict[str, Any]) -> dict[str, str]:
    lines = {name: lines[0] for name, lines in side.get("attacks", {}).items()}
    return {name: line["note"] or line["outcome"] for name, line in lines.items() if line["mse"] is None}


def _cell(side: dict[str, Any]) -> str:
    errors, reasons = _errors(side), _reasons(side)
    parts = [f"{name} {error:.2g} ({_decibel(error)})" for name, error in errors.items()]
    return "; ".join([*parts, *(f"{name} refused: {reason}" for name, reason in reasons.items())]) or "-"


def _decibel(error: float) -> str:
    return "exact" if error == 0 else f"{-20 * math.log10(error):.1f} dB"


def _prediction(side: dict[str, Any], column: str) -> str:
    found = side.get("predictions", [])
    value = median([one[column] for one in found])
    if value is None:
        return "not applicable: " + (found[0]["outcome"] if found else "refused")
    nulls = [one["null"] for one in found if one["null"]]
    return shown(value, ".2g") + (f" ({sum(nulls) / len(found):.0f} directions not seen)" if nulls else "")


def findings_of(row: dict[str, Any]) -> list[Finding]:
    """The median error of the stronger attack, for both adversaries."""
    findings = []
    for who in (STATIC, ADAPTIVE):
        errors, reasons = _errors(row[who]), _reasons(row[who])
        notes = [f"{name} {error:.3g}" for name, error in errors.items()]
        notes += [f"{name}: {reason}" for name, reason in reasons.items()]
        best = next(iter(errors.values()), None)
        count = len(next(iter(row[who]["attacks"].values()))) if row[who] else 0
        note = "; ".join(notes) or str(row.get("refused", ""))
        findings.append(Finding(quantity=f"{row['shield']}, {who}: median pixel RMSE", ours=best, n=count, note=note))
    return findings


def defense_rows(rows: Sequence[dict[str, Any]]) -> Table:
    """The table."""
    cells = [
        [
            Shield(row["shield"]).described,
            row.get("guarantee", "-"),
            _cell(row[STATIC]),
            _prediction(row[STATIC], "value"),
            _cell(row[ADAPTIVE]),
            _prediction(row[ADAPTIVE], "value"),
            _prediction(row[ADAPTIVE], "bound"),
            row["utility"] or "-",
        ]
        for row in rows
    ]
    columns = (
        "defense", "guarantee", "static: RMSE", "static: I²F", "adaptive: RMSE", "adaptive: I²F", "adaptive: lower bound",
        "test accuracy",
    )  # fmt: skip
    return Table(title="Median pixel RMSE over images, the stronger attack first", columns=columns, rows=cells)


def sentence(row: dict[str, Any]) -> str:
    """A line of progress."""
    return f"{row['shield']}: static {_cell(row[STATIC])}; adaptive {_cell(row[ADAPTIVE])}"


def conclude_on(rows: Sequence[dict[str, Any]], blind: float | None) -> list[str]:
    """Defense by defense: who gets what, and whether the typical image leaks."""
    lines = [f"The best guess without the update, chosen with the truth, is at a pixel RMSE of {shown(blind)}."]
    for row in rows:
        static, adaptive = (next(iter(_errors(row[who]).values()), None) for who in (STATIC, ADAPTIVE))
        if static is None or adaptive is None or blind is None or row["shield"] == Shield.NONE:
            continue
        leaks = "leaks" if adaptive <= min(0.1, blind / 2) else "does not leak"
        lines.append(
            f"{row['shield']}: {shown(static, '.2g')} to an adversary who does not know it, {shown(adaptive, '.2g')} to one "
            f"who does; by the limits of a verdict the typical image {leaks} to the latter."
        )
    return lines


__all__ = ["ADAPTIVE", "STATIC", "conclude_on", "defense_rows", "findings_of", "predict", "sentence"]

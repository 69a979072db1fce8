"""Findings, tables and figures of the study of leakage over epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradleak.reporting.drawing import INK, look
from studies.correlations import pearson
from studies.influence_cells import Numbers, interval_of
from studies.layer_latent_cells import FOREST, LOGISTIC, Reading
from studies.panels import panels
from studies.smoothing import loess
from studies.study import Finding, Table
from studies.summaries import shown, shown_with

INPUTS, LABEL, ATTRIBUTE = "MI with the inputs", "MI with the label", "MI with the attribute"
SENSITIVITY, DISTANCE = "sensitivity", "subspace distance"
V = {FOREST: "V, forest", LOGISTIC: "V, logistic"}
MEASURES = (INPUTS, LABEL, ATTRIBUTE, V[FOREST], V[LOGISTIC], SENSITIVITY, DISTANCE)
Readings = dict[str, dict[str, Reading]]


def _coefficient(cell: Readings, measure: str, attacker: str) -> float | None:
    """R over layers of a measure with V of an attacker."""
    values = [
        (found.value, cell[V[attacker]][layer].value)
        for layer, found in cell[measure].items()
        if found.value is not None and cell[V[attacker]][layer].value is not None
    ]
    return pearson(np.array(values, dtype=np.float64).reshape(-1, 2)) if values else None


def latent_findings(latent: Mapping[str, Mapping[int, Readings]]) -> list[Finding]:
    """Findings on figures 3 and 10, layer by layer, and R of the measures with V."""
    found = []
    for network, curve in latent.items():
        first_layer = next(iter(next(iter(curve.values()))[LABEL]))
        for measure in (INPUTS, LABEL, ATTRIBUTE):
            known = [_largest(cell[measure]) for cell in curve.values()]
            found.append(
                Finding(
                    quantity=f"{network}: epochs at which the first layer has the largest {measure}, share",
                    ours=float(np.mean([layer == first_layer for layer in known])),
                    paper="" if measure == ATTRIBUTE else "1 (figure 3)",
                    n=len(known),
                    note=", ".join(f"{epoch}: {layer}" for epoch, layer in zip(curve, known, strict=True)),
                )
            )
        for name in V.values():
            values = {epoch: max((one.value or 0.0) for one in cell[name].values()) for epoch, cell in curve.items()}
            found.append(_drop(f"{network}: drop of {name} of the leakiest layer (nats)", values))
            last = {epoch: list(cell[name].values())[-1].value or 0.0 for epoch, cell in curve.items()}
            found.append(_drop(f"{network}: drop of {name} of the last layer (nats)", last))
        for measure in (SENSITIVITY, DISTANCE):
            pairs = {epoch: _coefficient(cell, measure, FOREST) for epoch, cell in curve.items()}
            known_values = [value for value in pairs.values() if value is not None]
            found.append(
                Finding(
                    quantity=f"{network}: R of the {measure} with {V[FOREST]} over layers, mean over epochs",
                    ours=float(np.mean(known_values)) if known_values else None,
                    paper="0.686 to 0.707",
                    n=len(known_values),
                    note=", ".join(f"{epoch}: {shown(value, '.2f')}" for epoch, value in pairs.items()),
                )
            )
    return found


def _drop(quantity: str, values: Mapping[int, float], *, note: str = "") -> Finding:
    """V at the start less the smallest later; without either there is none."""
    if 0 not in values:
        return Finding(quantity=quantity, ours=None, n=len(values), note=f"{note}no value at the start")
    start = values[0]
    later = {epoch: value for epoch, value in values.items() if epoch}
    lowest = min(later, key=lambda epoch: later[epoch]) if later else 0
    return Finding(
        quantity=quantity,
        ours=start - later[lowest] if later else None,
        paper="positive, within 10 to 20 epochs, then flat (figure 10)",
        n=len(values),
        note=note + ", ".join(f"{epoch}: {value:.3g}" for epoch, value in values.items()),
    )


def original_findings(original: Mapping[str, Mapping[int, Numbers]]) -> list[Finding]:
    """Drops over the epochs of what is told of images."""
    found = []
    for name, curve in original.items():
        for quantity, words in (
            ("value", "V of images (nats)"),
            ("sensitivity", "sensitivity"),
            ("norm", "gradient norm"),
        ):
            values = {epoch: value for epoch, cell in curve.items() if (value := cell[quantity]) is not None}
            note = ""
            if quantity == "value":
                ends = {epoch: interval_of(cell, "value") for epoch, cell in curve.items()}
                note = "; ".join(
                    f"{epoch}: {shown_with(value, ends[epoch], '.1f')}" for epoch, value in values.items()
                ) + "; "  # fmt: skip
            found.append(_drop(f"{name}: drop of the {words}", values, note=note))
    return found


def _largest(readings: Mapping[str, Reading]) -> str | None:
    known = {layer: one.value for layer, one in readings.items() if one.value is not None}
    return max(known, key=lambda layer: known[layer]) if known else None


def conclude_latent(latent: Mapping[str, Mapping[int, Readings]]) -> list[str]:
    """V of the leakiest layer over the epochs."""
    lines = []
    for network, curve in latent.items():
        start, *rest = curve
        for name in V.values():
            first = max(one.value or 0.0 for one in curve[start][name].values())
            ends = {epoch: max(one.value or 0.0 for one in curve[epoch][name].values()) for epoch in rest}
            said = ", ".join(f"{value:.2f} after {epoch}" for epoch, value in ends.items())
            lines.append(f"{network}, {name} of the leakiest layer: {first:.2f} at the start, {said}.")
    return lines


def conclude_original(original: Mapping[str, Mapping[int, Numbers]]) -> list[str]:
    """V of images over the epochs."""
    lines = []
    for name, curve in original.items():
        said = ", ".join(f"{shown(cell['value'], '.1f')} after {epoch}" for epoch, cell in curve.items())
        lines.append(f"images, {name}: {said} epochs (nats).")
    return lines


def latent_table(network: str, curve: Mapping[int, Readings]) -> Table:
    """Every measure of every layer."""
    layers = list(next(iter(curve.values()))[LABEL])
    rows = [
        [str(epoch), name, *(cell[name][layer].text() for layer in layers)]
        for epoch, cell in curve.items()
        for name in MEASURES
    ]
    return Table(title=f"{network}, layer by layer", columns=("epoch", "measure", *layers), rows=rows)


def original_table(original: Mapping[str, Mapping[int, Numbers]]) -> list[Table]:
    """V of images and what goes with it, at most one table."""
    columns = ("condition", "epoch", "V (nats)", "above an exchanged one", "sensitivity", "gradient norm", "accuracy")
    rows = [
        [
            name,
            str(epoch),
            shown_with(cell["value"], interval_of(cell, "value"), ".1f"),
            shown_with(cell["above_exchanged"], interval_of(cell, "above_exchanged"), ".1f"),
            shown(cell["sensitivity"], ".2g"),
            shown(cell["norm"], ".2g"),
            shown(cell["accuracy"], ".2f"),
        ]
        for name, curve in original.items()
        for epoch, cell in curve.items()
    ]
    return [Table(title="Images over epochs", columns=columns, rows=rows)] if rows else []


def _along(epochs: Sequence[int]) -> list[float]:
    return [float(np.log2(1 + epoch)) for epoch in epochs]


def _smooth(axes: Any, x: Sequence[float], y: Sequence[float], place: int, label: str) -> None:
    """Points, and LOESS through them."""
    own = look(place)
    axes.plot(x, y, linestyle="", marker=own.marker, markersize=3.5, color=own.color)
    at = np.linspace(min(x), max(x), 41).tolist()
    curve = loess(x, y, at) if len(x) > 2 else np.interp(at, x, y)
    axes.plot(at, curve, color=own.color, linestyle=own.dash, linewidth=1.3, label=label)


def latent_figure(network: str, curve: Mapping[int, Readings]) -> str:
    """A panel a measure, a curve a layer."""
    names = (INPUTS, LABEL, ATTRIBUTE, V[FOREST], V[LOGISTIC], SENSITIVITY)
    layers = list(next(iter(curve.values()))[LABEL])

    def paint(grid: Any) -> None:
        for axes, name in zip(grid.flat, names, strict=True):
            for place, layer in enumerate(layers):
                known = [
                    (x, value)
                    for x, cell in zip(_along(list(curve)), curve.values(), strict=True)
                    if (value := cell[name][layer].value) is not None
                ]
                if known:
                    _smooth(axes, [x for x, _ in known], [y for _, y in known], place, layer)
            axes.set_title(name, fontsize=9)
            axes.set_xlabel("log2(1 + epoch)")

    what = "Measures of each layer over log2(1 + epoch): points, and LOESS through them."
    return panels(2, 3, (8.6, 5.6), paint, prefix="epochs", title=f"{network} over epochs", description=what)


def original_figure(original: Mapping[str, Mapping[int, Numbers]]) -> str:
    """Curves of V and sensitivity, one a condition."""

    def paint(grid: Any) -> None:
        for axes, (quantity, words) in zip(
            grid.flat, (("value", "V of images (nats)"), ("sensitivity", "sensitivity")), strict=True
        ):
            for place, (name, curve) in enumerate(original.items()):
                values = {epoch: value for epoch, cell in curve.items() if (value := cell[quantity]) is not None}
                _smooth(axes, _along(list(values)), list(values.values()), place, name)
            axes.axhline(0.0, color=INK, linewidth=0.8)
            axes.set_xlabel("log2(1 + epoch)")
            axes.set_ylabel(words)

    what = "V-information of images and sensitivity over log2(1 + epoch) under several conditions, with LOESS."
    return panels(1, 2, (8.2, 3.4), paint, prefix="images", title="Images over epochs", description=what)


__all__ = [
    "ATTRIBUTE",
    "DISTANCE",
    "INPUTS",
    "LABEL",
    "MEASURES",
    "SENSITIVITY",
    "Readings",
    "V",
    "conclude_latent",
    "conclude_original",
    "latent_figure",
    "latent_findings",
    "latent_table",
    "original_figure",
    "original_findings",
    "original_table",
]  # fmt: skip

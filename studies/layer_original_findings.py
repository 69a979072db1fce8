"""Findings from all cells of the study of original information by layer: findings, sentences and a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gradleak.risk import JacobianNorm, PairedRows
from gradleak.risk.v_information.original_information import SIGMA
from studies.layer_correlation import Correlation
from studies.layer_original_cells import ATTACK, BLIND, SWAPPED, Claims
from studies.spots import Spot, spots
from studies.study import Finding, Table
from studies.summaries import known, shown, student

FROBENIUS, ONE, INF = (f"{norm.value} norm" for norm in (JacobianNorm.FROBENIUS, JacobianNorm.ONE, JacobianNorm.INF))
PER_ENTRY, ENTRIES, POSTERIOR = "frobenius norm per root entry", "number of entries", "posterior precision"
MOST = 0.5 / SIGMA**2
PAPER_R = "R = 0.686 to 0.707"
WIDE = 2
_PAPER_TITLES = tuple(f"sets of {WIDE}: {measure}" for measure in (FROBENIUS, ONE, INF))
# Shares of the most nats: from which on a set is said to give all; by which a part may beat the whole by chance.
_FULL, _SLACK = 0.95, 0.02


@dataclass(frozen=True, kw_only=True)
class LayerRow:
    """One set of layers of one network.

    Attributes:
        network: its name.
        layers: the set.
        count: layers of it.
        entries: numbers that it shares.
        nats: of each image.
        against_blind: of each image, less what a gray image has; 0 where nothing was claimed.
        ssim: of each image, or None.
        measures: means over images by name; None where there is no value.
        note: why there is nothing, or "".
    """

    network: str
    layers: str
    count: int
    entries: int
    nats: Sequence[float]
    against_blind: Sequence[float]
    ssim: Sequence[float | None]
    measures: Mapping[str, float | None]
    note: str = ""

    @property
    def value(self) -> float:
        """V-information as the paper has it, in nats."""
        return float(np.mean(self.nats))


def profiles(rows: Sequence[LayerRow]) -> list[tuple[str, int, list[LayerRow]]]:
    """Network, size of sets, and its rows in the order of the model, where there are at least two."""
    keys = dict.fromkeys((row.network, row.count) for row in rows)
    groups = [(*key, [row for row in rows if (row.network, row.count) == key]) for key in keys]
    return [group for group in groups if len(group[2]) > 1]


def against(claims: Claims, blind: Sequence[float]) -> list[float]:
    """Nats of each image less those of the blind guess; 0 where nothing was claimed."""
    return [
        0.0 if similarity is None else value - floor
        for value, similarity, floor in zip(claims.nats, claims.ssim, blind, strict=True)
    ]


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean; None unless there are values and all are numbers."""
    numbers = known(values)
    return float(np.mean(numbers)) if numbers and len(numbers) == len(values) else None


def clear(values: Sequence[float]) -> bool:
    """True if the interval of the mean lies above 0."""
    interval = student(values)
    return interval is not None and interval[0] > 0.0


def apart(paired: PairedRows, more: LayerRow, less: LayerRow) -> bool:
    """True if the interval of the difference, which holds for all pairs together, lies above 0."""
    interval = paired.difference(more.layers, less.layers)[1]
    return interval is not None and interval[0] > 0.0


def control_findings(controls: Mapping[str, Mapping[str, Sequence[float]]]) -> list[Finding]:
    """Findings of the attack on all layers, and on the gradient of another image, against blind."""
    findings = []
    for network, found in controls.items():
        for control, paper in ((ATTACK, "all layers rebuild"), (SWAPPED, "nothing to gain")):
            beside = [value - floor for value, floor in zip(found[control], found[BLIND], strict=True)]
            similar, blind = found[f"ssim, {control}"], found[f"ssim, {BLIND}"]
            findings.append(
                Finding(
                    quantity=f"{network}, control, all layers, {control}: nats against blind",
                    ours=float(np.mean(beside)),
                    interval=student(beside),
                    n=len(beside),
                    note=f"{paper}; SSIM {shown(mean_of(similar))}, blind {shown(mean_of(blind))}",
                )
            )
    return findings


def set_finding(row: LayerRow) -> Finding:
    """The V-information of one set."""
    return Finding(
        quantity=f"{row.network}, {row.layers}: V-information (nats)",
        ours=row.value,
        interval=student(row.nats),
        n=len(row.nats),
        note=row.note or f"{np.mean(row.against_blind):.2f} against blind; mean SSIM {shown(mean_of(row.ssim))}",
    )


def correlation_findings(found: Correlation) -> list[Finding]:
    """Pearson, Spearman, and Spearman within networks."""
    pairs = found.pairs
    return [
        Finding(
            quantity=f"{found.title}: Pearson R, each divided by the network's largest",
            ours=found.pearson,
            interval=found.pearson_interval,
            paper=PAPER_R if found.title in _PAPER_TITLES else "",
            n=pairs,
            note=f"p = {shown(found.p_value)}; undivided {shown(found.pearson_raw)}",
        ),
        Finding(
            quantity=f"{found.title}: Spearman, each divided by the network's largest",
            ours=found.spearman,
            interval=found.spearman_interval,
            n=pairs,
        ),
        Finding(
            quantity=f"{found.title}: Spearman within networks, mean",
            ours=found.within,
            interval=found.within_interval,
            n=pairs,
            note=", ".join(f"{network} {shown(value)}" for network, value in found.by_network.items()),
        ),
    ]


def conclude_controls(controls: Mapping[str, Mapping[str, Sequence[float]]]) -> list[str]:
    """Conclusions on the attack: does it say anything about the layers of each network?"""
    lines = []
    for network, found in controls.items():
        seen, swapped = (
            [value - floor for value, floor in zip(found[control], found[BLIND], strict=True)]
            for control in (ATTACK, SWAPPED)
        )
        similar, blind = mean_of(found[f"ssim, {ATTACK}"]), mean_of(found[f"ssim, {BLIND}"])
        text = f"{network}: with all layers the attack reaches a mean SSIM of {shown(similar)}, blind {shown(blind)}"
        text += ", clearly better" if clear(seen) else ", not clearly better: this attack says nothing about its layers"
        null = "is clearly better than blind, so that the scale is off" if clear(swapped) else "is no better than blind"
        lines.append(f"{text}; what it makes of another image's gradient {null}.")
    return lines


def conclude_ceiling(rows: Sequence[LayerRow], controls: Mapping[str, Mapping[str, Sequence[float]]]) -> list[str]:
    """Conclusions where a profile shows limits of the scale or of the search in place of what the layers hold."""
    lines = []
    for network, size, mine in profiles(rows):
        name = f"{network}, sets of {size}"
        full = [row.layers for row in mine if row.value >= _FULL * MOST]
        if full:
            which = "every set" if len(full) == len(mine) else ", ".join(full)
            lines.append(
                f"{name}: {which} gives at least {_FULL:.0%} of the {MOST:.1f} nats that there are; "
                "between such sets there is no order."
            )
        everything = float(np.mean(controls[network][ATTACK]))
        beyond = [row.layers for row in mine if row.value > everything + _SLACK * MOST]
        if beyond:
            lines.append(
                f"{name}: more from {', '.join(beyond)} than from all layers ({everything:.2f} nats), though all layers hold "
                "what a part of them holds: to that extent the profile is one of the search, not of what is there."
            )
    return lines


def conclude_correlations(found: Sequence[Correlation]) -> list[str]:
    """One sentence for each measure whose correlation has an interval."""
    lines = []
    for one in found:
        if one.pearson is None or one.pearson_interval is None:
            continue
        low, high = one.pearson_interval
        clear = "clearly" if low > 0 or high < 0 else "not clearly"
        text = (
            f"{one.title} against V-information: R = {one.pearson:.2f} ({low:.2f} to {high:.2f}, {one.pairs} pairs), "
        )
        text += f"{clear} different from 0; rank correlation within networks {shown(one.within, '.2f')}"
        lines.append(f"{text}{'' if 'norm' not in one.title else ' (paper: 0.686 to 0.707)'}.")
    return lines


def figures(rows: Sequence[LayerRow]) -> dict[str, str]:
    """V-information and norms of the sets over their place in the network, as in the paper's figures 4, 6 and 8."""
    panels: dict[str, dict[str, list[Spot]]] = {}
    for network, size, mine in profiles(rows):
        name = f"{network}, sets of {size}"
        measures = {"V-information": [row.value for row in mine]}
        measures |= {norm: [row.measures[norm] or 0.0 for row in mine] for norm in (FROBENIUS, ONE, INF)}
        for measure, values in measures.items():
            largest = max(values)
            if largest > 0:
                panels.setdefault(measure, {})[name] = [
                    (place / (len(values) - 1), value / largest, None, None) for place, value in enumerate(values)
                ]
    if not panels:
        return {}
    svg = spots(
        panels,
        x="place in the network, first to last",
        y="of the largest",
        title="Sets of layers",
        description="V-information and norms of each set of layers, each over its largest in the network. The paper's "
        "figures 4, 6 and 8 have all of them fall from the first layers to the last.",
        joined=True,
    )
    return {"layer_original": svg}


def table(rows: Sequence[LayerRow]) -> Table:
    """All sets with what was found in them and their measures."""
    columns = (
        "network", "layers", "entries", "nats", "95 % interval", "of the largest", "against blind", "SSIM", "F-norm",
        "1-norm", "∞-norm", "posterior RMSE",
    )  # fmt: skip
    cells = []
    for row in rows:
        largest = max(other.value for other in rows if (other.network, other.count) == (row.network, row.count))
        interval, precision = student(row.nats), row.measures[POSTERIOR]
        cells.append(
            [
                row.network,
                row.layers,
                f"{row.entries:,}",
                f"{row.value:.2f}",
                "-" if interval is None else f"{interval[0]:.2f} to {interval[1]:.2f}",
                f"{row.value / largest:.2f}" if largest > 0 else "-",
                f"{np.mean(row.against_blind):.2f}",
                shown(mean_of(row.ssim)),
                *(shown(row.measures[name]) for name in (FROBENIUS, ONE, INF)),
                shown(None if precision is None else 1.0 / precision),
            ]
        )
    return Table(title="Sets of layers, in the order of the model", columns=columns, rows=cells)


__all__ = [
    "ENTRIES",
    "FROBENIUS",
    "INF",
    "MOST",
    "ONE",
    "PER_ENTRY",
    "POSTERIOR",
    "WIDE",
    "LayerRow",
    "against",
    "apart",
    "clear",
    "conclude_ceiling",
    "conclude_controls",
    "conclude_correlations",
    "control_findings",
    "correlation_findings",
    "figures",
    "mean_of",
    "profiles",
    "set_finding",
    "student",
    "table",
]

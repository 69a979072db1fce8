"""Figures of the study of I²F against real attacks: scatters, curves over epochs and over ε."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradleak.reporting.drawing import BESIDE, INK, MARKERS, SERIES
from studies.influence_world_tables import PREDICTORS, SCORES, by_setting, levels
from studies.panels import drawn_grid
from studies.summaries import known, median

Row = Mapping[str, Any]


def figures(rows: Sequence[Row]) -> dict[str, str]:
    """Every figure that the rows are enough for, as the text of an SVG file by name."""
    untrained = [row for row in rows if not row["epoch"]]
    found = {}
    if untrained:
        found["influence-world-rmse"] = _scatters(untrained, "influence", "rmse", diagonal=True)
        found["influence-world-bound"] = _scatters(untrained, "bound", "rmse", diagonal=True)
        for score in ("ssim", "st_lpips"):
            if any(row[score] is not None for row in untrained):
                found[f"influence-world-{score.replace('_', '-')}"] = _scatters(untrained, "bound", score)
        found["influence-world-epsilon"] = _epsilons(untrained)
    if any(row["epoch"] for row in rows):
        found["influence-world-epochs"] = _epochs(rows)
    return found


def _scatters(rows: Sequence[Row], predictor: str, score: str, *, diagonal: bool = False) -> str:
    groups = [
        (title, mine)
        for title, mine in by_setting(rows)
        if any(row[predictor] is not None and row[score] is not None for row in mine)
    ]

    def paint(grid: Sequence[Any]) -> None:
        for axes, (title, mine) in zip(grid, groups, strict=True):
            for place, (variance, level) in enumerate(levels(mine)):
                points = [(row[predictor], row[score]) for row in level if None not in (row[predictor], row[score])]
                axes.plot(
                    [x for x, _ in points],
                    [y for _, y in points],
                    linestyle="",
                    marker=MARKERS[place % len(MARKERS)],
                    markersize=3.5,
                    color=SERIES[place % len(SERIES)],
                    label=f"variance {variance:g}",
                )
            axes.set_xscale("log")
            if diagonal:
                axes.set_yscale("log")
                both = [row[key] for row in mine for key in (predictor, score) if row[key]]
                axes.plot([min(both), max(both)], [min(both), max(both)], color=INK, linewidth=0.8, linestyle=BESIDE)
            axes.set_title(title, fontsize=8)
            axes.set_xlabel(PREDICTORS[predictor])
            axes.set_ylabel(SCORES[score])

    what = f"{SCORES[score]} of attacks over {PREDICTORS[predictor]}, a panel a setting, a marker a level of noise."
    return drawn_grid(
        len(groups),
        paint,
        prefix=f"world-{predictor}-{score.replace('_', '-')}",
        title="I²F and attacks",
        description=what,
    )


def _epochs(rows: Sequence[Row]) -> str:
    trained = next(row for row in rows if row["epoch"])
    keys = ("network", "data", "variance")
    same = [row for row in rows if all(row[key] == trained[key] for key in keys)]
    attacks = list(dict.fromkeys(row["attack"] for row in same if row["epoch"]))
    drawn: list[tuple[str, str, str]] = [
        ("bound of I²F", attacks[0], "bound"),
        ("I²F", attacks[0], "influence"),
        *((f"RMSE of {attack}", attack, "rmse") for attack in attacks),
    ]
    epochs = sorted({row["epoch"] for row in same})

    def paint(grid: Sequence[Any]) -> None:
        for axes, (title, attack, column) in zip(grid, drawn, strict=True):
            mine = [row for row in same if row["attack"] == attack]
            for image in sorted({row["image"] for row in mine}):
                line = {row["epoch"]: row[column] for row in mine if row["image"] == image and row[column] is not None}
                places = sorted(line)
                axes.plot(places, [line[at] for at in places], color=SERIES[1], linewidth=0.6, alpha=0.6)
            middles = [(at, median([row[column] for row in mine if row["epoch"] == at])) for at in epochs]
            points = [(at, value) for at, value in middles if value is not None]
            axes.plot(*zip(*points, strict=True), color=SERIES[0], marker="o", markersize=4, label="median")
            axes.set_xscale("symlog", linthresh=1)
            axes.set_xticks(epochs)
            axes.set_yscale("log")
            axes.set_title(title, fontsize=8)
            axes.set_xlabel("epoch")

    what = "Predictions and errors over epochs; a thin line is an image."
    return drawn_grid(len(drawn), paint, prefix="world-epochs", title="Over epochs", description=what, columns=2)


def _epsilons(rows: Sequence[Row]) -> str:
    groups = [(title, mine) for title, mine in by_setting(rows) if mine[0]["data"] == rows[0]["data"]]

    def paint(grid: Sequence[Any]) -> None:
        for axes, (title, mine) in zip(grid, groups, strict=True):
            for place, (variance, level) in enumerate(levels(mine)):
                names = [name for name in level[0]["influences"] if float(name) > 0]
                color = SERIES[place % len(SERIES)]
                curve = [(float(name), median([row["influences"][name] for row in level])) for name in names]
                points = [(x, y) for x, y in curve if y is not None]
                axes.plot(
                    [x for x, _ in points],
                    [y for _, y in points],
                    color=color,
                    marker=MARKERS[place % len(MARKERS)],
                    markersize=3.5,
                    label=f"variance {variance:g}",
                )
                reached = median(known([row["rmse"] for row in level]))
                if reached is not None and points:
                    axes.plot(
                        [points[0][0], points[-1][0]], [reached, reached], color=color, linewidth=0.9, linestyle=BESIDE
                    )
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_title(title, fontsize=8)
            axes.set_xlabel("ε / median λmax")
            axes.set_ylabel("median I²F")

    what = "Median I²F over ε by level of noise; dotted: the median RMSE of the attack."
    return drawn_grid(len(groups), paint, prefix="world-epsilon", title="I²F over ε", description=what)


__all__ = ["figures"]

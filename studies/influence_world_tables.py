"""Rank correlations, tables and findings of the study of I²F against real attacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from studies.correlations import spearman, spearmans
from studies.study import Finding, Table
from studies.summaries import Interval, known, median, percentiles, shown, shown_with

Row = Mapping[str, Any]

PREDICTORS: Mapping[str, str] = {"influence": "I²F", "bound": "its bound", "nominal": "I_nom"}
SCORES: Mapping[str, str] = {"rmse": "RMSE", "ssim": "SSIM", "st_lpips": "ST-LPIPS"}
# Fewer images have no interval.
_FEWEST = 5
_RESAMPLES = 500
_SPEAKS = {
    "rmse": "close to linear (figures 1 and 2)",
    "ssim": "correlated (figure 17)",
    "st_lpips": "correlated (figure 17)",
}


def by_setting(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Rows of each setting, in their order."""
    for title in dict.fromkeys(row["setting"] for row in rows):
        yield title, [row for row in rows if row["setting"] == title]


def levels(rows: Sequence[Row]) -> Iterator[tuple[float, list[Row]]]:
    """Rows of each level of noise, from the smallest on."""
    for variance in sorted({row["variance"] for row in rows}):
        yield variance, [row for row in rows if row["variance"] == variance]


def over_all(rows: Sequence[Row], predictor: str, score: str) -> float | None:
    """Spearman's correlation over the rows that have both numbers."""
    pairs = [(row[predictor], row[score]) for row in rows if row[predictor] is not None and row[score] is not None]
    return spearman(np.array(pairs, dtype=np.float64).reshape(-1, 2))


def within(rows: Sequence[Row], predictor: str, score: str) -> float | None:
    """The mean over levels of noise of the correlation within each; None where no level has one."""
    found = known([over_all(level, predictor, score) for _, level in levels(rows)])
    return float(np.mean(found)) if found else None


def over_images(rows: Sequence[Row], predictor: str, score: str, *, seed: int, by_level: bool) -> Interval | None:
    """Percentile bootstrap of 95 % of a correlation over images, each drawn with all its levels; None for fewer than five.

    Args:
        rows: of one setting.
        predictor: column.
        score: column.
        seed: of the draws.
        by_level: whether the correlation is the mean over levels, or over everything.
    """
    images, places = sorted({row["image"] for row in rows}), sorted({row["variance"] for row in rows})
    pairs = np.full((2, len(places), len(images)), np.nan)
    for row in rows:
        if row[predictor] is not None and row[score] is not None:
            pairs[:, places.index(row["variance"]), images.index(row["image"])] = row[predictor], row[score]
    pairs = pairs[:, :, ~np.isnan(pairs).any(axis=(0, 1))]
    count = pairs.shape[2]
    if count < _FEWEST:
        return None
    draws = np.random.default_rng(seed).integers(0, count, (_RESAMPLES, count))
    drawn = pairs[:, :, draws].transpose(2, 1, 3, 0)
    parts = drawn.reshape(_RESAMPLES * len(places), count, 2) if by_level else drawn.reshape(_RESAMPLES, -1, 2)
    values = spearmans(parts).reshape(_RESAMPLES, -1)
    # A draw in which one side is the same everywhere has no order.
    known_draws = values[~np.isnan(values).all(axis=1)]
    return percentiles(np.nanmean(known_draws, axis=1), of=_RESAMPLES)


def ratios(rows: Sequence[Row], above: str, below: str) -> list[float]:
    """Quotients of the rows that have both numbers."""
    return [row[above] / row[below] for row in rows if row[above] is not None and row[below]]


def findings(rows: Sequence[Row], *, seed: int) -> list[Finding]:
    """Correlations of each setting, over everything and within a level, and how the errors compare."""
    found = []
    for title, mine in by_setting(rows):
        images = len({row["image"] for row in mine})
        wanted = [(predictor, "rmse") for predictor in PREDICTORS] + [("bound", "ssim"), ("bound", "st_lpips")]
        for predictor, score in wanted:
            for name, statistic in (("over everything", over_all), ("within a level of noise", within)):
                value = statistic(mine, predictor, score)
                if value is not None:
                    found.append(
                        Finding(
                            quantity=f"{title}: Spearman of {PREDICTORS[predictor]} and {SCORES[score]}, {name}",
                            ours=value,
                            paper=_SPEAKS[score] if statistic is over_all and predictor != "nominal" else "",
                            interval=over_images(mine, predictor, score, seed=seed, by_level=statistic is within),
                            n=images,
                        )
                    )
        for above, below, what, paper in (
            ("rmse", "influence", "RMSE / I²F at the smallest noise, median", "about 1 (figure 1)"),
            ("influence", "bound", "I²F / its bound, median", "about 1: a tight approximation (figure 1)"),
            ("influence", "nominal", "I²F / I_nom, median", "I_nom is far off (figure 1)"),
        ):
            values = ratios(next(levels(mine))[1], above, below)
            if values:
                least, most = min(values), max(values)
                found.append(
                    Finding(
                        quantity=f"{title}: {what}",
                        ours=median(values),
                        paper=paper,
                        n=len(values),
                        note=f"{least:.3g} to {most:.3g}",
                    )
                )
        shares = [value >= 1 for value in ratios(mine, "rmse", "bound")]
        if shares:
            quantity = f"{title}: share of attacks whose RMSE is at least the bound"
            paper = "a lower bound of the risk (figures 1, 2 and 19)"
            found.append(Finding(quantity=quantity, ours=float(np.mean(shares)), paper=paper, n=len(shares)))
        found += [*_by_level(title, mine), *_by_epsilon(title, mine)]
    return found


def _by_level(title: str, mine: Sequence[Row]) -> Iterator[Finding]:
    """Medians by level of noise, by which settings and epochs are compared, and how far images lie apart."""
    for variance, level in levels(mine):
        errors = known([row["rmse"] for row in level])
        bound = median([row["bound"] for row in level])
        n = len(errors)
        if errors:
            yield Finding(quantity=f"{title}: median RMSE at variance {variance:g}", ours=median(errors), n=n)
            quantity = f"{title}: largest over smallest RMSE of an image at variance {variance:g}"
            paper = "large differences among samples (figures 7 and 15)"
            yield Finding(quantity=quantity, ours=max(errors) / min(errors) if min(errors) else None, paper=paper, n=n)
        yield Finding(quantity=f"{title}: median of the bound at variance {variance:g}", ours=bound, n=len(level))


def _by_epsilon(title: str, mine: Sequence[Row]) -> Iterator[Finding]:
    """Shares of attacks that err by I²F or more, by ε (figure 19)."""
    for name in mine[0]["influences"]:
        above = [
            row["rmse"] >= row["influences"][name]
            for row in mine
            if row["rmse"] is not None and row["influences"][name] is not None
        ]
        if above:
            quantity = f"{title}: share of attacks whose RMSE is at least I²F at ε = {name} of the median λmax"
            yield Finding(quantity=quantity, ours=float(np.mean(above)), n=len(above))


def tables(rows: Sequence[Row], accuracies: Mapping[int, float], *, seed: int) -> list[Table]:
    """Correlations, medians by cell, ε, epochs and classes; what was not run is left out."""
    if not rows:
        return []
    made = [_correlations(rows, seed), _medians(rows), *_epsilons(rows), *_epochs(rows, accuracies), *_classes(rows)]
    return [table for table in made if table.rows]


def _correlations(rows: Sequence[Row], seed: int) -> Table:
    body = []
    for title, mine in by_setting(rows):
        for score, name in SCORES.items():
            cells = []
            for predictor in PREDICTORS:
                for statistic in (over_all, within):
                    interval = over_images(mine, predictor, score, seed=seed, by_level=statistic is within)
                    cells.append(shown_with(statistic(mine, predictor, score), interval, ".2f"))
            if any(cell != "-" for cell in cells):
                body.append([title, name, str(len({row["image"] for row in mine})), *cells])
    heads = [f"{name}, {where}" for name in PREDICTORS.values() for where in ("all", "within a level")]
    return Table(
        title="Spearman over everything and within a level of noise (95 % over images)",
        columns=["setting", "error", "images", *heads],
        rows=body,
    )


def _medians(rows: Sequence[Row]) -> Table:
    columns = ("bound", "influence", "expected", "nominal", "rmse", "ssim", "st_lpips")
    body = []
    for title, mine in by_setting(rows):
        for variance, level in levels(mine):
            cells = [shown(median([row[column] for row in level])) for column in columns]
            body.append([title, f"{variance:g}", *cells, str(len(level))])
    heads = ["bound", "I²F", "expected I²F", "I_nom", "RMSE", "SSIM", "ST-LPIPS"]
    return Table(
        title="Medians over images; I²F, I_nom/√d and RMSE in pixels",
        columns=["setting", "variance", *heads, "n"],
        rows=body,
    )


def _epsilons(rows: Sequence[Row]) -> Iterator[Table]:
    """Predictions by ε at every level, beside what was reached."""
    for title, mine in by_setting(rows):
        if any(row["epoch"] for row in mine):
            continue
        names = list(mine[0]["influences"])
        middle = median([row["eigenvalue_max"] for row in mine])
        body = []
        for name in names:
            changed = [{**row, "influence": row["influences"][name]} for row in mine]
            cells = [shown(median([row["influence"] for row in level])) for _, level in levels(changed)]
            below = [value >= 1 for value in ratios(changed, "rmse", "influence")]
            absolute = "-" if middle is None else f"{float(name) * middle:.3g}"
            body.append(
                [
                    name,
                    absolute,
                    *cells,
                    shown(over_all(changed, "influence", "rmse"), ".2f"),
                    shown(within(changed, "influence", "rmse"), ".2f"),
                    shown(float(np.mean(below)) if below else None, ".2f"),
                ]
            )
        for name, column in (("the bound at the first ε", "bound"), ("RMSE of the attack", "rmse")):
            cells = [shown(median([row[column] for row in level])) for _, level in levels(mine)]
            body.append([name, "-", *cells, "-", "-", "-"])
        heads = [f"variance {variance:g}" for variance, _ in levels(mine)]
        yield Table(
            title=f"{title}: median I²F by ε",
            columns=["ε / median λmax", "ε", *heads, "Spearman with RMSE", "within a level", "share of RMSE above"],
            rows=body,
        )


def _epochs(rows: Sequence[Row], accuracies: Mapping[int, float]) -> Iterator[Table]:
    """Predictions and errors by epoch at one level of noise, with their spread over images."""
    trained = [row for row in rows if row["epoch"]]
    if not trained:
        return
    variance, first = trained[0]["variance"], trained[0]
    same = [row for row in rows if row["variance"] == variance and row["network"] == first["network"]]
    same = [row for row in same if row["data"] == first["data"]]
    for attack in dict.fromkeys(row["attack"] for row in trained):
        body = []
        for epoch in sorted({row["epoch"] for row in same}):
            level = [row for row in same if (row["epoch"], row["attack"]) == (epoch, attack)]
            cells = [_spread([row[column] for row in level]) for column in ("bound", "influence", "rmse", "ssim")]
            cells.append(shown(over_all(level, "influence", "rmse"), ".2f"))
            norm = shown(median([row["gradient_norm"] for row in level]))
            body.append([str(epoch), shown(accuracies.get(epoch)), norm, *cells, str(len(level))])
        yield Table(
            title=f"{attack} by epoch at variance {variance:g}: median (least to largest over images)",
            columns=["epoch", "accuracy", "‖g‖", "bound", "I²F", "RMSE", "SSIM", "Spearman of I²F and RMSE", "n"],
            rows=body,
        )


def _spread(values: Sequence[float | None]) -> str:
    numbers = known(values)
    return f"{shown(median(numbers))} ({min(numbers):.3g} to {max(numbers):.3g})" if numbers else "-"


def _classes(rows: Sequence[Row]) -> Iterator[Table]:
    """Squared errors by class of ResNet-18 on color images, worst protected first (figure 15)."""
    mine = [row for row in rows if row["network"] == "resnet18" and row["data"] == "cifar10"]
    if not mine:
        return
    for variance, level in levels(mine):
        labels = sorted({row["label"] for row in level})
        body = []
        for label in labels:
            values = [row["rmse"] ** 2 for row in level if row["label"] == label and row["rmse"] is not None]
            predicted = [row["influence"] for row in level if row["label"] == label]
            body.append([str(label), shown(median(values)), shown(median(predicted)), str(len(values))])
        yield Table(
            title=f"{level[0]['setting']}, variance {variance:g}: squared error by class (figure 15)",
            columns=["class", "MSE, median", "I²F, median", "n"],
            rows=sorted(body, key=lambda cells: float(cells[1]) if cells[1] != "-" else np.inf),
        )


def conclusions(rows: Sequence[Row], *, planned: int) -> list[str]:
    """Words computed from the rows."""
    if not rows:
        return [f"{planned} cells are planned, and none was computed."]
    lines = []
    for title, mine in by_setting(rows):
        said = []
        for predictor, name in PREDICTORS.items():
            pair = [shown(rule(mine, predictor, "rmse"), ".2f") for rule in (over_all, within)]
            said.append(f"{name} {pair[0]} / {pair[1]}")
        near = median(ratios(next(levels(mine))[1], "rmse", "influence"))
        lines.append(
            f"{title}: Spearman with RMSE over everything / within a level: {', '.join(said)}; RMSE is {shown(near)} times "
            "I²F at the smallest noise (median)."
        )
    return lines


__all__ = [
    "PREDICTORS",
    "SCORES",
    "by_setting",
    "conclusions",
    "findings",
    "levels",
    "over_all",
    "over_images",
    "ratios",
    "tables",
    "within",
]

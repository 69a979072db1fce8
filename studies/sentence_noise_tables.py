"""Tables and figures of the study of sentences under noise: rank correlations over everything and within a level."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gradleak.reporting.drawing import INK, MARKERS, SERIES
from studies import correlations
from studies.panels import panels
from studies.study import Finding, Table
from studies.summaries import percentiles

Row = Mapping[str, Any]

PREDICTORS: Mapping[str, str] = {
    "influence_bound": "I²F bound",
    "influence": "I²F",
    "token_error_bound": "TokenError",
    "nearest_pair": "nearest candidate alone",
    "exact_error": "exact decoder, played",
    "linear_nearest": "least squares, nearest word",
}
SCORES: Mapping[str, str] = {
    "rouge_1": "ROUGE-1",
    "rouge_l": "ROUGE-L",
    "google_bleu": "Google BLEU",
    "feature_mse": "feature MSE",
    "tag_error": "token error of TAG",
    "decoder_error": "token error of the decoder after TAG",
    "exact_error": "token error of the exact decoder",
}
_DRAWN = ("rouge_l", "google_bleu", "feature_mse")
_OVER = ("influence_bound", "influence", "token_error_bound")
_RESAMPLES = 500
# Signs in figures 4 and 9, which print no numbers.
_PAPER = {
    "rouge_1": "falls with the bound",
    "rouge_l": "falls with the bound",
    "google_bleu": "falls with the bound",
    "feature_mse": "rises with it, less distinguished",
}
# Spread of scores below which a level of noise orders nothing.
_FLAT = 0.02


def spearman(rows: Sequence[Row], predictor: str, score: str) -> float | None:
    """The rank correlation over the rows that have both numbers; None where one of them hardly moves."""
    pairs = [
        (row[predictor], row[score]) for row in rows if row.get(predictor) is not None and row.get(score) is not None
    ]
    if len(pairs) < 4:
        return None
    first, second = np.array(pairs, dtype=float).T
    if first.max() == first.min() or np.std(second) <= _FLAT * max(1.0, float(np.abs(second).mean())):
        return None
    return correlations.spearman(np.stack([first, second], axis=1))


def within(rows: Sequence[Row], predictor: str, score: str) -> tuple[float | None, int]:
    """The mean of the rank correlations within each level of noise that orders the scores, and how many levels do."""
    found = [spearman(level, predictor, score) for _, level in by_level(rows)]
    known = [one for one in found if one is not None and not math.isnan(one)]
    return (sum(known) / len(known) if known else None), len(known)


def by_level(rows: Sequence[Row]) -> Iterator[tuple[float, list[Row]]]:
    """The rows of each level of noise."""
    for noise in sorted({row["noise"] for row in rows}):
        yield noise, [row for row in rows if row["noise"] == noise]


def by_network(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """The rows of each network."""
    for name in dict.fromkeys(row["network"] for row in rows):
        yield name, [row for row in rows if row["network"] == name]


def over_draws(rows: Sequence[Row]) -> list[Row]:
    """One row for each sentence and level: the mean over draws of noise of every number that there is."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["network"], row["sentence"], row["noise"]), []).append(row)
    keys = {*PREDICTORS, *SCORES}
    found: list[Row] = []
    for (network, sentence, noise), group in groups.items():
        known = {key: [row[key] for row in group if row.get(key) is not None] for key in keys}
        found.append(
            {"network": network, "sentence": sentence, "noise": noise}
            | {key: sum(values) / len(values) for key, values in known.items() if values}
        )
    return found


def repeated(rows: Sequence[Row], score: str) -> float | None:
    """The mean over levels of the rank correlation of a score between two draws of noise: no predictor orders it better."""
    pairs: list[Row] = []
    for row in rows:
        if row["draw"] == 1:
            same = (one for one in rows if all(one[key] == row[key] for key in ("network", "sentence", "noise")))
            first = next((one for one in same if one["draw"] == 0), None)
            if first is not None and first.get(score) is not None and row.get(score) is not None:
                pairs.append({"noise": row["noise"], "first": first[score], score: row[score]})
    return within(pairs, "first", score)[0] if pairs else None


def correlation_table(rows: Sequence[Row]) -> list[Table]:
    """A table a network: of each predictor with each score, over everything and within a level."""
    tables = []
    for name, group in by_network(rows):
        averaged = over_draws(group)
        known = [key for key in PREDICTORS if any(row.get(key) is not None for row in averaged)]
        scores = [key for key in SCORES if any(row.get(key) is not None for row in averaged)]
        body = [
            [PREDICTORS[key], *(_pair(averaged, key, score) if key != score else "-" for score in scores)]
            for key in known
        ]
        tables.append(
            Table(
                title=f"{name}: Spearman over everything / within a level of noise",
                columns=("predictor", *(SCORES[key] for key in scores)),
                rows=body,
            )
        )
    return tables


def _pair(rows: Sequence[Row], predictor: str, score: str) -> str:
    return f"{_shown(spearman(rows, predictor, score))} / {_shown(within(rows, predictor, score)[0])}"


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def level_table(rows: Sequence[Row]) -> Table:
    """Means of every number by network and level of noise."""
    keys = ("influence_bound", "influence", "token_error_bound", "exact_error", "decoder_error", "tag_error", *_DRAWN)
    names = {**PREDICTORS, **SCORES}
    body = []
    for network, group in by_network(rows):
        for noise, level in by_level(group):
            means = [_mean([row[key] for row in level if row.get(key) is not None]) for key in keys]
            body.append([network, f"{noise:g}", f"{level[0]['std']:.2g}", *means])
    columns = ("network", "noise / distance", "noise std", *(names[key] for key in keys))
    return Table(title="Means by level of noise", columns=columns, rows=body)


def _mean(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.3g}" if values else "-"


def of_the_paper(name: str, averaged: Sequence[Row]) -> list[Finding]:
    """Rank correlations of the I²F bound with the scores of figures 4 and 9, over all levels and within one.

    The interval is a percentile bootstrap over sentences, each with all its levels.
    """
    found = []
    sentences = {row["sentence"]: [one for one in averaged if one["sentence"] == row["sentence"]] for row in averaged}
    groups = list(sentences.values())
    draws = np.random.default_rng(0).integers(0, len(groups), (_RESAMPLES, len(groups)))
    for score, paper in _PAPER.items():
        value = spearman(averaged, "influence_bound", score)
        resamples = ([row for place in draw for row in groups[place]] for draw in draws)
        values = [one for rows in resamples if (one := spearman(rows, "influence_bound", score)) is not None]
        inside = within(averaged, "influence_bound", score)[0]
        found += [
            Finding(
                quantity=f"{name}: Spearman of the I²F bound with {SCORES[score]}, over all levels",
                ours=value,
                interval=percentiles(values, of=_RESAMPLES),
                paper=paper,
                n=len(groups),
            ),
            Finding(
                quantity=f"{name}: Spearman of the I²F bound with {SCORES[score]}, mean within a level",
                ours=inside,
                n=len(groups),
                note="" if inside is not None else "no level orders the score",
            ),
        ]
    return found


def findings(rows: Sequence[Row]) -> list[Finding]:
    """Rank correlations of the bound with the paper's scores; by level, of `TokenError` and its rivals with token errors."""
    found = []
    for name, group in by_network(rows):
        averaged = over_draws(group)
        found += of_the_paper(name, averaged)
        for score in ("tag_error", "decoder_error", "exact_error"):
            for key in ("token_error_bound", "nearest_pair", "exact_error", "linear_nearest", "influence"):
                if key == score:
                    continue
                for noise, level in by_level(averaged):
                    value = spearman(level, key, score)
                    if value is not None:
                        count = sum(row.get(score) is not None and row.get(key) is not None for row in level)
                        quantity = f"{name}, noise {noise:g}: Spearman of {PREDICTORS[key]} with the {SCORES[score]}"
                        found.append(Finding(quantity=quantity, ours=value, n=count))
        again = repeated(group, "tag_error")
        if again is not None:
            quantity = f"{name}: Spearman of the token error of TAG between two draws of noise, mean over levels"
            found.append(Finding(quantity=quantity, ours=again, n=sum(row["draw"] == 1 for row in group)))
    return found


def conclusions(rows: Sequence[Row]) -> list[str]:
    """Words on what holds of the paper's claim, and of the goal for `TokenError`."""
    lines = []
    for name, group in by_network(rows):
        averaged = over_draws(group)
        signs = ", ".join(f"{SCORES[key]} {_pair(averaged, 'influence_bound', key)}" for key in _DRAWN)
        lines.append(f"{name}: the I²F bound has Spearman over everything / within a level of noise: {signs}.")
        own = ", ".join(
            f"{SCORES[key]} {_shown(within(averaged, 'token_error_bound', key)[0])}"
            for key in ("tag_error", "decoder_error", "exact_error")
        )
        lines.append(f"{name}: TokenError within a level of noise: {own}.")
    return lines


def figures(rows: Sequence[Row]) -> dict[str, str]:
    """Scatters of scores over the numbers that foresee them, and curves of rank correlations over noise, a network each."""
    found: dict[str, str] = {}
    for name, group in by_network(rows):
        label = name.lower().replace("-like", "")
        found[f"sentence-noise-{label}"] = _scatter(name, over_draws(group))
    small = {row["network"] for row in rows if row.get("influence") is not None}
    chosen = [row for row in rows if row["network"] in small]
    return {**found, "sentence-noise-within": _curves(chosen)} if chosen else found


def _scatter(name: str, rows: Sequence[Row]) -> str:
    over = [key for key in _OVER if any(row.get(key) is not None for row in rows)]
    levels = [level for _, level in by_level(rows)]

    def paint(grid: Any) -> None:
        for line, score in zip(grid, _DRAWN, strict=True):
            for axes, key in zip(line, over, strict=True):
                for place, level in enumerate(levels):
                    known = [(row[key], row[score]) for row in level if row.get(key) is not None]
                    shade = 0.25 + 0.75 * place / max(1, len(levels) - 1)
                    axes.plot(
                        *zip(*known, strict=True),
                        linestyle="",
                        marker=MARKERS[place % len(MARKERS)],
                        markersize=2.6,
                        color=SERIES[0],
                        alpha=shade,
                        label=f"noise {level[0]['noise']:g}",
                    )
                if key != "token_error_bound":
                    axes.set_xscale("log")
                axes.set_xlabel(PREDICTORS[key])
                axes.set_ylabel(SCORES[score])

    what = f"Scores of TAG's sentences over numbers that foresee them, {name}; a darker marker is a larger noise."
    return panels(len(_DRAWN), len(over), (2.6 * len(over), 6.6), paint, prefix="text", title=name, description=what)


def _curves(rows: Sequence[Row]) -> str:
    networks = [(name, over_draws(group)) for name, group in by_network(rows)]
    scores = ("tag_error", "decoder_error", "exact_error")
    keys = ("influence", "token_error_bound", "nearest_pair", "exact_error", "linear_nearest")

    def paint(grid: Any) -> None:
        for line, (name, group) in zip(grid, networks, strict=True):
            for axes, score in zip(line, scores, strict=True):
                for place, key in enumerate(keys):
                    found = [(noise, spearman(level, key, score)) for noise, level in by_level(group) if key != score]
                    known = [(noise, value) for noise, value in found if value is not None]
                    if known:
                        axes.plot(
                            *zip(*known, strict=True),
                            color=SERIES[place % len(SERIES)],
                            marker=MARKERS[place % len(MARKERS)],
                            markersize=4,
                            label=PREDICTORS[key],
                        )
                axes.axhline(0.7, color=INK, linewidth=0.8, linestyle=":")
                axes.set_xscale("log")
                levels = sorted({row["noise"] for row in group})
                axes.set_xlim(0.8 * levels[0], 1.25 * levels[-1])
                axes.set_xticks(levels)
                axes.set_ylim(-1.05, 1.05)
                axes.set_xlabel("noise / distance")
                axes.set_ylabel("Spearman")
                axes.set_title(f"{name}: {SCORES[score].removeprefix('token error of ')}", fontsize=9)

    what = (
        "Rank correlation within a level of noise, over the noise, for predictors of three token errors; dotted: 0.7."
    )
    title = "Rank correlations within a level of noise"
    size = (8.4, 2.9 * len(networks))
    return panels(len(networks), len(scores), size, paint, prefix="text", title=title, description=what)

"""Predicted against reached error over noise levels, and how much noise it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import TYPE_CHECKING

from gradleak.reporting import words
from gradleak.reporting.blocks import MOST, Badge, Block, Section, Small, Style, Table, Text, Words, numbers, plot
from gradleak.reporting.context import Context
from gradleak.reporting.numerals import MISSING, Quantity, as_number, decimal, percent, quantity
from gradleak.results import Evidence, Subject, median
from gradleak.results.findings.risk import RiskFinding

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The prediction is linear in the noise; beyond this error it is not held against the perfect attacker.
SMALL_PREDICTION = 0.05
_SERIES = ("lower_bound", "predicted", "perfect_attacker", "attack", "baseline")
_NOTHING = (
    "No release of this run carries Gaussian noise of one level, so there is nothing to plot. Add scenarios with "
    "`GaussianNoise` to see how much noise it takes."
)
_NOT_MEASURED = (
    "Releases of this run carry Gaussian noise, but the plan has no measure of single releases, so there is nothing to plot. Add "
    "{measure} to `[measures]` to see errors over the noise."
)
_MEASURES = {"tokens": "`TokenError`"}
_MEASURE = '`InversionInfluence` (`unit = "pixel_rmse"`)'


@dataclass(frozen=True, kw_only=True)
class NoisePoint:
    """One noisy release: what was predicted and what was reached, as errors of entries scaled to [0, 1]."""

    scenario: str
    subject: Subject
    noise_std: float
    predicted: float | None
    lower_bound: float | None
    perfect_attacker: float | None
    attack: float | None
    baseline: float | None

    @property
    def difference(self) -> float | None:
        """|perfect - predicted| / predicted where the prediction is small enough to be held against it, else None."""
        if self.predicted is None or self.perfect_attacker is None or not 0 < self.predicted < SMALL_PREDICTION:
            return None
        return abs(self.perfect_attacker - self.predicted) / self.predicted


Levels = dict[float, list[NoisePoint]]


def noise_levels(findings: Sequence[RiskFinding], context: Context) -> Levels:
    """The noisy releases of a record by noise level, the smallest first."""
    validated = {(one.scenario, one.subject): one for one in findings if one.validation is not None}
    found: Levels = {}
    for one in findings:
        std, scenario, subject = as_number(one.noise_std), one.scenario, one.subject
        if std is None or std <= 0 or scenario is None or subject is None:
            continue
        predicted, attack = context.predicted(scenario, subject), context.reached(scenario, subject)
        perfect, blind = validated.get((scenario, subject)), context.blind(attack, scenario, subject)
        found.setdefault(std, []).append(
            NoisePoint(
                scenario=scenario,
                subject=subject,
                noise_std=std,
                predicted=quantity(predicted).value,
                lower_bound=one.value("inversion_influence_lower_bound", "pixel_rmse"),
                perfect_attacker=None if perfect is None else perfect.value("pixel_rmse"),
                attack=quantity(attack).value,
                baseline=quantity(blind).value,
            )
        )
    return dict(sorted(found.items()))


def values(points: Sequence[NoisePoint], name: str) -> list[float]:
    """The values of a series, or the differences, over the releases that have one."""
    return [value for point in points if (value := getattr(point, name)) is not None]


def noise_section(findings: Sequence[RiskFinding], context: Context) -> Section:
    """The part of the page on predicted and reached errors."""
    levels = noise_levels(findings, context)
    blocks = [*(_studied(levels, context) if levels else []), *_needed(findings)]
    missing = _NOT_MEASURED.format(measure=_MEASURES.get(context.data_kind, _MEASURE))
    blocks += [] if levels else [Text(parts=[missing if _noisy(context) else _NOTHING])]
    return Section(
        anchor="noise",
        title="Predicted against reached error",
        label="Predicted and reached" if levels else None,
        blocks=blocks,
    )


def _noisy(context: Context) -> bool:
    """True if a release of the record carries noise of one level, whatever was measured of it."""
    return any((as_number(getattr(one, "noise_std", None)) or 0.0) > 0 for one in context.record.findings)


def _studied(levels: Levels, context: Context) -> list[Block]:
    found = values([point for points in levels.values() for point in points], "difference")
    checked: Sequence[str | Quantity] = (
        f"No release with a prediction below {SMALL_PREDICTION} was also given to the perfect attacker, so the prediction "
        "was not checked here.",
    )
    if found:
        checked = (
            f"Where it predicts a {context.error} below {SMALL_PREDICTION} ({len(found)} releases), the perfect attacker "
            "differs from it by ",
            _share(median(found)),
            " (median).",
        )
    relies = "This report relies on **exact I²F without damping (ε = 0), for the very noise drawn**. "
    if not values([point for points in levels.values() for point in points], "predicted"):
        relies, checked = "No measure of the plan predicts the error (`InversionInfluence` would). ", ()
    exact = Evidence.EXACT
    return [
        Text(
            parts=[
                "How far from the truth does noise on the update push a reconstruction? Lines are medians over the examples "
                "on which each was computed (not always the same ones), open markers are single examples."
            ]
        ),
        plot(
            lambda axes: _paint(axes[0], levels, context.error),
            prefix="noise",
            title="Predicted and reached error over noise levels",
            alt=f"Log-log plot of {context.error} against the standard deviation of the noise; the table below holds the "
            "medians.",
            size=(7.4, 4.3),
        ),
        Text(
            parts=[
                (
                    relies,
                    *checked,
                    " I²F is a prediction, **no guarantee**: an attacker with a prior on the data, or one that knows the "
                    "valid range, can do better. The perfect attacker starts at the truth; it checks the prediction and is "
                    "never counted as an attack. The lower bound can be a thousand times too low.",
                )
            ]
        ),
        Table(
            caption=f"{words.sentence(context.error)}, median over the releases of each noise level; n where not all of them "
            "have the number",
            columns=[
                *numbers("Noise std", "Variance", "Releases"),
                *numbers("Lower bound of I²F", evidence=Evidence.LOWER_BOUND),
                *numbers("Predicted, I²F", evidence=exact),
                *numbers("Perfect attacker (validation)", hint="starts at the truth; checks the prediction"),
                *numbers("Real attack", evidence=Evidence.ATTACK),
                *numbers("Blind guess", evidence=exact),
                *numbers("Prediction error"),
            ],
            rows=[_row(std, points) for std, points in levels.items()],
        ),
        Text(
            style=Style.FINE,
            parts=[
                "“Prediction error”: median of |perfect attacker − predicted| / predicted over the releases predicted below "  # noqa: RUF001
                f"{SMALL_PREDICTION}. Beyond that the map from input to gradient is no longer linear over the error."
            ],
        ),
    ]


def _row(std: float, points: Sequence[NoisePoint]) -> list[Words]:
    cells: list[Words] = [decimal(std), decimal(std**2), str(len(points))]
    for name in _SERIES:
        known = values(points, name)
        cell = Quantity(value=median(known), text=decimal(median(known)))
        cells.append((cell, Small(f"n = {len(known)}")) if len(known) not in (0, len(points)) else cell)
    found = values(points, "difference")
    return [*cells, (_share(median(found)), Small(f"n = {len(found)}")) if found else MISSING]


def _needed(findings: Sequence[RiskFinding]) -> list[Block]:
    """The noise, over the undefended releases, at which the expected error of an unbiased attacker is at the threshold."""
    scores = (score for one in findings for score in one.scores if score.name == "noise_std_for_threshold")
    known = sorted((score for score in scores if score.value is not None), key=lambda score: score.value or 0.0)
    if not known:
        return []
    least, most = quantity(known[0]), quantity(known[-1])
    span: Sequence[str | Quantity] = (" to ", most, ", depending on the example,") if most.value != least.value else ()
    told = (
        "Without a defense, Gaussian noise of standard deviation ",
        least,
        *span,
        " on every shared number would bring the expected error of an unbiased attacker to the threshold ",
        Badge(Evidence.ESTIMATE),
        ". An attacker with a prior on the data can need more noise to be stopped.",
    )
    return [Text(parts=[told])]


def _share(value: float | None) -> Quantity:
    return Quantity(value=value, text=percent(value))


def _nearest(known: Sequence[float]) -> Sequence[float]:
    """All of some hundred errors, and of more the smallest, so that a page can hold them."""
    return known if len(known) <= MOST else nsmallest(MOST, known)


def _paint(axes: Axes, levels: Levels, error: str) -> None:
    """Thin markers are single examples, lines medians over them; the dashed level is what the blind guess reaches."""
    from gradleak.reporting.drawing import BESIDE, DASHES, INK, SERIES

    # name of the series -> (legend, color, dash, marker)
    drawn = {
        "predicted": ("predicted by I²F", SERIES[0], DASHES[0], "o"),
        "perfect_attacker": ("perfect attacker (validation)", SERIES[2], DASHES[1], "D"),
        "attack": ("real attack, random start", SERIES[3], DASHES[3], "s"),
        "lower_bound": ("lower bound of I²F", SERIES[1], DASHES[2], "v"),
    }
    for name, (legend, color, dash, marker) in drawn.items():
        by_level = {std: [value for value in values(points, name) if value] for std, points in levels.items()}
        by_level = {std: known for std, known in by_level.items() if known}
        if by_level:
            single = [(std, value) for std, known in by_level.items() for value in _nearest(known)]
            middles = [median(known) or 0.0 for known in by_level.values()]
            axes.plot(*zip(*single, strict=True), marker, color=color, markersize=4.5, fillstyle="none", alpha=0.75)
            axes.plot(
                [*by_level], middles, color=color, linestyle=dash, linewidth=1.9, label=legend, marker=marker, ms=3
            )
    blind = [point.baseline for points in levels.values() for point in points if point.baseline]
    if blind:
        axes.axhline(min(blind), color=INK, linestyle=BESIDE, linewidth=1.0, label="blind guess")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("standard deviation of the noise on each shared number")
    axes.set_ylabel(error)

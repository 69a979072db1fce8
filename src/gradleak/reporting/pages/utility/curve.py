"""A privacy-utility curve as a Markdown table and as a figure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from gradleak.reporting.drawing import BESIDE, INK, Look, drawn, look
from gradleak.reporting.worth import learned_little
from gradleak.results import Score
from gradleak.results.findings.utility import CurvePoint, CurveSummary, Standing

# What stands at the left edge of a plot of errors: nothing smaller makes a difference to anyone.
_SMALLEST_ERROR = 1e-4
_ATTACKERS = ("static", "adaptive")
_STANDINGS = {Standing.ABOVE: "yes", Standing.NOT_ABOVE: "no", Standing.UNRESOLVED: "not resolvable", None: ""}


def curve_table(curve: CurveSummary) -> str:
    """The curve as a Markdown table: one row a setting, with its interval, its learning rate and every score of the probe.

    Args:
        curve: the summary of a curve of `privacy_utility_curve`.
    """
    names = [score.name for score in curve.undefended.privacy]
    metric = _worth(curve.undefended).name.replace("_", " ").replace("auroc", "AUROC")
    header = [
        "setting", f"{metric} (95 %)", "blind answer", "credit", "learning rate",
        *(name.replace("_", " ") for name in names),
        "kept share", "cosine", "epsilon",
    ]  # fmt: skip
    lines = [header, ["---"] * len(header), *(_row(point, names) for point in curve.points)]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    note = (
        f"Epsilon is that of the whole training; {curve.settings_tried} settings were tried, and no epsilon covers a choice "
        "among them."
    )
    reference = _worth(curve.undefended)
    if learned_little(reference.value, reference.details.get("blind")):
        note += (
            f" The undefended training hardly learned ({reference.value:.3f}, where the best answer that ignores the input has "
            f"{reference.details['blind']:.3f}): no setting can be compared with it before there are more rounds or another "
            "learning rate."
        )
    return f"{table}\n\n{note}\n"


def curve_figure(curve: CurveSummary) -> str:
    """Utility against what each attacker is left with, as the text of an SVG file; "" where there is nothing to draw.

    What attacks reached where some were run, else what is predicted, static and adaptive side by side.

    Args:
        curve: the summary of a curve of `privacy_utility_curve` with a probe.
    """
    held = {score.name for score in curve.undefended.privacy}
    panels = {}
    for who in _ATTACKERS:
        name = next((key for key in (f"reached_{who}", f"predicted_{who}") if key in held), None)
        if name is not None:
            panels[f"{who} attacker"] = [
                _marker(point, name) for point in curve.points if _worth(point).value is not None
            ]
    blind = curve.undefended.score("blind")
    metric = _worth(curve.undefended).name.replace("_", " ").replace("auroc", "AUROC")
    svg = trade_off_plot(panels, utility=metric, blind=None if blind is None else blind.value) if panels else ""
    return standalone(svg) if svg else ""


def _row(point: CurvePoint, names: Sequence[str]) -> list[str]:
    score, close, epsilon = _worth(point), point.utility.closeness, point.utility.epsilon
    value = score.outcome.label.replace("_", " ") if score.value is None else f"{score.value:z.3f}"
    interval = "" if score.interval is None else f" ({score.interval[0]:z.3f} to {score.interval[1]:z.3f})"
    family, label = point.family, point.label
    assert epsilon is not None
    terms = [f"δ = {epsilon.details['delta']:g}"] if "delta" in epsilon.details else []
    terms += [f"{epsilon.details['rounds']} rounds"] if "rounds" in epsilon.details else []
    terms += [f"one {epsilon.details['unit']}"] if "unit" in epsilon.details else []
    return [
        (label if label == family else f"{family}, {label}").replace("|", "\\|"),
        value + interval,
        f"{score.details['blind']:.3f}" if "blind" in score.details else "",
        _STANDINGS[point.utility.standing],
        f"{point.learning_rate:g}",
        *(_cell(point.score(name)) for name in names),
        "" if close is None else _two_digits(close.kept_share),
        "" if close is None else _two_digits(close.cosine),
        "none" if epsilon.value is None else f"{epsilon.value:.3g} ({', '.join(terms)})",
    ]


def _worth(point: CurvePoint) -> Score:
    found = point.utility.worth
    assert found is not None
    return found


def _two_digits(value: float | None) -> str:
    return "" if value is None else f"{value:z.2f}"


def _cell(score: Score | None) -> str:
    if score is None:
        return ""
    return score.outcome.label.replace("_", " ") if score.value is None else f"{score.value:.3g}"


def _marker(point: CurvePoint, name: str) -> TradeOff:
    score, utility = point.score(name), _worth(point)
    assert utility.value is not None
    return TradeOff(
        family=point.family,
        label=point.label,
        utility=utility.value,
        interval=utility.interval,
        error=None if score is None or score.value is None or not math.isfinite(score.value) else score.value,
        credit=point.utility.credit,
    )


@dataclass(frozen=True, kw_only=True)
class TradeOff:
    """One setting of a defense in a plot of utility against the error that an attacker is left with.

    Settings of one family are joined by a line. One without an error is not drawn; one without credit is drawn hollow.
    """

    family: str
    label: str
    utility: float
    interval: tuple[float, float] | None
    error: float | None
    credit: bool


def trade_off_plot(
    panels: Mapping[str, Sequence[TradeOff]],
    *,
    utility: str = "test accuracy",
    error: str = "pixel RMSE",
    blind: float | None = None,
) -> str:
    """Utility against the error of an attacker, one panel an attacker, as SVG; "" without a point.

    The upper right is where a defense should be. Hollow markers are models that are no better than an answer that ignores
    the input; the dashed level is the error of the blind guess. Errors below a ten thousandth stand at the left edge.
    """
    shown = {name: [p for p in points if p.error is not None] for name, points in panels.items()}
    families = list(dict.fromkeys(point.family for points in shown.values() for point in points))
    if not families:
        return ""

    def paint(every: Sequence[Axes]) -> None:
        for axes, (name, points) in zip(every, shown.items(), strict=True):
            for place, family in enumerate(families):
                _family(axes, family, look(place), [point for point in points if point.family == family])
            if blind:
                axes.axvline(blind, color=INK, linestyle=BESIDE, linewidth=1.0)
            axes.set_xscale("log")
            axes.set_title(name, fontsize=10)
            axes.set_xlabel(error)
        every[0].set_ylabel(utility)

    about = (
        "One marker a setting of a defense, bars are 95 % intervals of the utility, the dashed line is the error of the blind "
        "guess; the table holds the numbers."
    )
    return drawn(
        paint,
        prefix="trade-off",
        title=f"{utility} against {error}",
        description=about,
        size=(7.4, 4.0),
        panels=len(shown),
        shared=True,
    )


def standalone(svg: str) -> str:
    """A plot of this module as a file of its own: dark on white, with the colors that a page would define."""
    text = re.sub(r"var\(--[\w-]+, ([^)]+)\)", r"\1", svg).replace("currentColor", "#222222")
    head = '<svg xmlns="http://www.w3.org/2000/svg" style="background: white; color: #222222; font-family: sans-serif" '
    return text.replace("<svg ", head, 1)


def _family(axes: Axes, family: str, of: Look, points: Sequence[TradeOff]) -> None:
    color, dash, marker = of
    errors = [max(point.error or 0.0, _SMALLEST_ERROR) for point in points]
    axes.plot(errors, [point.utility for point in points], color=color, linestyle=dash, linewidth=1.4)
    axes.plot([], [], color=color, linestyle=dash, marker=marker, markersize=5, label=family)
    for x, point in zip(errors, points, strict=True):
        low, high = point.interval or (point.utility, point.utility)
        axes.plot([x, x], [low, high], color=color, linewidth=1.0, alpha=0.6)
        axes.plot(x, point.utility, marker, color=color, markersize=5, fillstyle="full" if point.credit else "none")

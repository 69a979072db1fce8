"""A privacy-utility curve as a Markdown table and as a figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradleak.results import Score

if TYPE_CHECKING:
    from gradleak.reporting.plots import TradeOff
    from gradleak.utility.curve import Curve, Point

ATTACKERS = ("static", "adaptive")


def curve_table(curve: Curve) -> str:
    """The curve as a Markdown table: one row a setting, with its interval, its learning rate and every score of the probe.

    Args:
        curve: of `privacy_utility_curve`.
    """
    from gradleak.reporting.utility_view import learned_little

    names = [score.name for score in curve.undefended.privacy]
    metric = curve.undefended.utility.score.name.replace("_", " ").replace("auroc", "AUROC")
    header = [
        "setting", f"{metric} (95 %)", "blind answer", "credit", "learning rate",
        *(name.replace("_", " ") for name in names),
        "kept share", "cosine", "epsilon",
    ]  # fmt: skip
    lines = [header, ["---"] * len(header), *(_row(point, names) for point in curve.every)]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    note = (
        f"Epsilon is that of the whole training; {curve.settings_tried} settings were tried, and no epsilon covers a choice "
        "among them."
    )
    reference = curve.undefended.utility.score
    if learned_little(reference.value, reference.details.get("blind")):
        note += (
            f" The undefended training hardly learned ({reference.value:.3f}, where the best answer that ignores the input has "
            f"{reference.details['blind']:.3f}): no setting can be compared with it before there are more rounds or another "
            "learning rate."
        )
    return f"{table}\n\n{note}\n"


def curve_figure(curve: Curve) -> str:
    """Utility against what each attacker is left with, as the text of an SVG file; "" where there is nothing to draw.

    What attacks reached where some were run, else what is predicted, static and adaptive side by side.

    Args:
        curve: of `privacy_utility_curve` with a probe.
    """
    from gradleak.reporting.plots import standalone, trade_off_plot

    held = {score.name for score in curve.undefended.privacy}
    panels = {}
    for who in ATTACKERS:
        name = next((key for key in (f"reached_{who}", f"predicted_{who}") if key in held), None)
        if name is not None:
            panels[f"{who} attacker"] = [
                _marker(point, name) for point in curve.every if point.utility.score.value is not None
            ]
    blind = curve.undefended.score("blind")
    metric = curve.undefended.utility.score.name.replace("_", " ").replace("auroc", "AUROC")
    svg = trade_off_plot(panels, utility=metric, blind=None if blind is None else blind.value) if panels else ""
    return standalone(svg) if svg else ""


def _row(point: Point, names: Sequence[str]) -> list[str]:
    score, close, epsilon = point.utility.score, point.utility.closeness, point.utility.epsilon
    value = score.outcome.label.replace("_", " ") if score.value is None else f"{score.value:.3f}"
    interval = "" if score.interval is None else f" ({score.interval[0]:.3f} to {score.interval[1]:.3f})"
    family, label = point.setting.family, point.setting.label
    terms = [f"δ = {epsilon.details['delta']:g}"] if "delta" in epsilon.details else []
    terms += [f"{epsilon.details['rounds']} rounds"] if "rounds" in epsilon.details else []
    terms += [f"one {epsilon.details['unit']}"] if "unit" in epsilon.details else []
    return [
        (label if label == family else f"{family}, {label}").replace("|", "\\|"),
        value + interval,
        f"{score.details['blind']:.3f}" if "blind" in score.details else "",
        {"above": "yes", "not_above": "no"}.get(point.utility.standing.value, "not resolvable"),
        f"{point.learning_rate:g}",
        *(_cell(point.score(name)) for name in names),
        "" if close is None else f"{close.kept_share:.2f}",
        "" if close is None or close.cosine is None else f"{close.cosine:.2f}",
        "none" if epsilon.value is None else f"{epsilon.value:.3g} ({', '.join(terms)})",
    ]


def _cell(score: Score | None) -> str:
    if score is None:
        return ""
    return score.outcome.label.replace("_", " ") if score.value is None else f"{score.value:.3g}"


def _marker(point: Point, name: str) -> TradeOff:
    from gradleak.reporting.plots import TradeOff

    score, utility = point.score(name), point.utility.score
    assert utility.value is not None
    return TradeOff(
        family=point.setting.family,
        label=point.setting.label,
        utility=utility.value,
        interval=utility.interval,
        error=None if score is None or score.value is None or not math.isfinite(score.value) else score.value,
        credit=point.credit,
    )


__all__ = ["ATTACKERS", "curve_figure", "curve_table"]

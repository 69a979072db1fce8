"""A privacy-utility curve as a Markdown table and as a figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from gradleak.reporting.plots import TradeOff, standalone, trade_off_plot
from gradleak.reporting.utility_view import learned_little
from gradleak.results import Score

ATTACKERS = ("static", "adaptive")


class DrawnSetting(Protocol):
    """The names of a setting."""

    @property
    def family(self) -> str:
        """The defense, which makes a line of the plot."""

    @property
    def label(self) -> str:
        """The setting in words."""


class DrawnCloseness(Protocol):
    """How much of the undefended update a release lets through."""

    @property
    def kept_share(self) -> float:
        """Share of the entries that are not zero."""

    @property
    def cosine(self) -> float | None:
        """To the undefended update."""


class DrawnUtility(Protocol):
    """What a table says of a trained model."""

    @property
    def score(self) -> Score:
        """What it is worth."""

    @property
    def standing(self) -> str:
        """Where it stands against the best answer that ignores the input."""

    @property
    def epsilon(self) -> Score:
        """Of the whole training."""

    @property
    def closeness(self) -> DrawnCloseness | None:
        """Of releases to undefended updates."""


class DrawnPoint(Protocol):
    """One setting with what it is worth and what it hides."""

    @property
    def setting(self) -> DrawnSetting:
        """The setting."""

    @property
    def utility(self) -> DrawnUtility:
        """What a model trained with it is worth."""

    @property
    def privacy(self) -> tuple[Score, ...]:
        """Scores of the probe."""

    @property
    def learning_rate(self) -> float:
        """That of the server."""

    @property
    def credit(self) -> bool:
        """Whether it may be credited with what it hides."""

    def score(self, name: str) -> Score | None:
        """The score of the probe with this name."""


class DrawnCurve(Protocol):
    """What a table and a figure read of a curve; `gradleak.utility.Curve` is one."""

    @property
    def undefended(self) -> DrawnPoint:
        """The setting without a defense."""

    @property
    def every(self) -> Sequence[DrawnPoint]:
        """All settings, the undefended first."""

    @property
    def settings_tried(self) -> int:
        """How many settings no epsilon is enlarged for."""


def curve_table(curve: DrawnCurve) -> str:
    """The curve as a Markdown table: one row a setting, with its interval, its learning rate and every score of the probe.

    Args:
        curve: of `privacy_utility_curve`.
    """
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


def curve_figure(curve: DrawnCurve) -> str:
    """Utility against what each attacker is left with, as the text of an SVG file; "" where there is nothing to draw.

    What attacks reached where some were run, else what is predicted, static and adaptive side by side.

    Args:
        curve: of `privacy_utility_curve` with a probe.
    """
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


def _row(point: DrawnPoint, names: Sequence[str]) -> list[str]:
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
        {"above": "yes", "not_above": "no"}.get(point.utility.standing, "not resolvable"),
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


def _marker(point: DrawnPoint, name: str) -> TradeOff:
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


__all__ = ["curve_figure", "curve_table"]

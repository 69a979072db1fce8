"""Predicted against reached error over noise levels, and how much noise it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradleak.reporting.blocks import Badge, Block, Column, Figure, Section, Small, Style, Table, Text, Words
from gradleak.reporting.context import Context
from gradleak.reporting.numerals import MISSING, Quantity, as_number, decimal, median, percent, quantity
from gradleak.results import Evidence, Score, Subject
from gradleak.results.findings.risk import RiskFinding

# The prediction is linear in the noise; beyond this error it is not held against the perfect attacker.
SMALL_PREDICTION = 0.05

_COLUMNS = ("lower_bound", "predicted", "perfect_attacker", "attack", "baseline")


@dataclass(frozen=True, kw_only=True)
class NoisePoint:
    """One noisy release: what was predicted and what was reached, as errors of entries scaled to [0, 1].

    Attributes:
        scenario: which scenario.
        subject: whose release.
        noise_std: standard deviation of the noise.
        predicted: exact I²F for the noise drawn.
        lower_bound: the lower bound of I²F.
        perfect_attacker: error of the validation routine that starts at the truth.
        attack: smallest error of a real attack.
        baseline: error of the blind adversary.
    """

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


@dataclass(frozen=True, kw_only=True)
class NoiseLevel:
    """The releases of one noise level.

    Attributes:
        noise_std: standard deviation of the noise.
        points: the releases.
    """

    noise_std: float
    points: Sequence[NoisePoint]

    def values(self, name: str) -> list[float]:
        """The values of a series over the releases that have one."""
        return [value for value in (getattr(point, name) for point in self.points) if value is not None]

    @property
    def differences(self) -> list[float]:
        """The relative differences of the releases that are compared."""
        return [point.difference for point in self.points if point.difference is not None]


@dataclass(frozen=True, kw_only=True)
class NoiseStudy:
    """All noise levels, smallest first."""

    levels: Sequence[NoiseLevel]

    @property
    def points(self) -> list[NoisePoint]:
        """All points of all levels."""
        return [point for level in self.levels for point in level.points]

    @property
    def differences(self) -> list[float]:
        """The relative differences of all releases that are compared."""
        return [difference for level in self.levels for difference in level.differences]


def noise_study(findings: Sequence[RiskFinding], context: Context) -> NoiseStudy:
    """The noisy releases of a record by noise level."""
    validated = {(one.scenario, one.subject): one for one in findings if one.validation is not None}
    by_level: dict[float, list[NoisePoint]] = {}
    for finding in findings:
        std, scenario, subject = as_number(finding.noise_std), finding.scenario, finding.subject
        if std is None or std <= 0 or scenario is None or subject is None:
            continue
        prediction, best = predicted(finding), _best_attack(context, scenario, subject)
        perfect = validated.get((scenario, subject))
        by_level.setdefault(std, []).append(
            NoisePoint(
                scenario=scenario,
                subject=subject,
                noise_std=std,
                predicted=None if prediction is None else prediction.value,
                lower_bound=finding.value("inversion_influence_lower_bound", "pixel_rmse"),
                perfect_attacker=None if perfect is None else perfect.value("pixel_rmse"),
                attack=None if best is None else best.value,
                baseline=_blind(context, scenario, subject, best),
            )
        )
    return NoiseStudy(levels=[NoiseLevel(noise_std=std, points=by_level[std]) for std in sorted(by_level)])


def predicted(finding: RiskFinding) -> Score | None:
    """The prediction that reports rely on: exact I²F at ε = 0, of entries scaled to [0, 1], for the noise drawn."""
    return next(
        (
            score
            for score in finding.scores
            if (score.name, score.unit) == ("inversion_influence", "pixel_rmse")
            and not as_number(score.details.get("epsilon"))
        ),
        None,
    )


def noise_section(findings: Sequence[RiskFinding], context: Context) -> Section:
    """The part of the page on predicted and reached errors."""
    study = noise_study(findings, context)
    blocks = _studied(study, context) if study.levels else []
    blocks += _needed(findings)
    if not study.levels:
        blocks.append(
            Text(
                parts=[
                    "No release of this run carries Gaussian noise of one level, so there is nothing to plot. Add scenarios "
                    "with `GaussianNoise` to see how much noise it takes."
                ]
            )
        )
    return Section(
        anchor="noise", title="Predicted against reached error", label="Predicted and reached", blocks=blocks
    )


def _studied(study: NoiseStudy, context: Context) -> list[Block]:
    found = study.differences
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
    error = context.error[:1].upper() + context.error[1:]
    return [
        Text(
            parts=[
                "How far from the truth does noise on the update push a reconstruction? Lines are medians over the examples "
                "on which each was computed (not always the same ones), open markers are single examples."
            ]
        ),
        Figure(
            draw=lambda: noise_plot(study, context.error),
            alt=f"Log-log plot of {context.error} against the standard deviation of the noise; the table below holds the "
            "medians.",
        ),
        Text(
            parts=[
                (
                    "This report relies on **exact I²F at ε = 0, for the very noise drawn**. ",
                    *checked,
                    " I²F is a prediction, **no guarantee**: an attacker with a prior on the data, or one that knows the "
                    "valid range, can do better. The perfect attacker starts at the truth; it checks the prediction and is "
                    "never counted as an attack. The lower bound can be a thousand times too low.",
                )
            ]
        ),
        Table(
            caption=f"{error}, median over the releases of each noise level; n where not all of them have the number",
            columns=[
                Column(label="Noise std", numeric=True, heading=True),
                Column(label="Variance", numeric=True),
                Column(label="Releases", numeric=True),
                Column(label="Lower bound", numeric=True, evidence=Evidence.LOWER_BOUND),
                Column(label="Predicted, I²F", numeric=True, evidence=Evidence.EXACT),
                Column(
                    label="Perfect attacker (validation)",
                    numeric=True,
                    hint="starts at the truth; checks the prediction",
                ),
                Column(label="Real attack", numeric=True, evidence=Evidence.ATTACK),
                Column(label="Blind baseline", numeric=True, evidence=Evidence.EXACT),
                Column(label="Prediction off by", numeric=True),
            ],
            rows=[_row(level) for level in study.levels],
        ),
        Text(
            style=Style.FINE,
            parts=[
                "“Prediction off by”: median of |perfect attacker − predicted| / predicted over the releases predicted below "  # noqa: RUF001
                f"{SMALL_PREDICTION}. Beyond that the map from input to gradient is no longer linear over the error."
            ],
        ),
    ]


def _row(level: NoiseLevel) -> list[Words]:
    cells: list[Words] = [decimal(level.noise_std), decimal(level.noise_std**2), str(len(level.points))]
    for name in _COLUMNS:
        values = level.values(name)
        middle = median(values)
        cell = Quantity(value=middle, text=decimal(middle))
        cells.append((cell, Small(f"n = {len(values)}")) if len(values) not in (0, len(level.points)) else cell)
    found = level.differences
    return [*cells, (_share(median(found)), Small(f"n = {len(found)}")) if found else MISSING]


def _needed(findings: Sequence[RiskFinding]) -> list[Block]:
    """The noise, over the undefended releases, at which the expected error of an unbiased attacker is at the threshold."""
    found = sorted(
        (score for one in findings for score in one.scores if score.name == "noise_std_for_threshold"),
        key=lambda score: score.value or 0.0,
    )
    known = [quantity(score) for score in found if score.value is not None]
    if not known:
        return []
    least, most = known[0], known[-1]
    span: Sequence[str | Quantity] = (" to ", most, ", depending on the example,") if most.value != least.value else ()
    return [
        Text(
            parts=[
                (
                    "Without a defense, Gaussian noise of standard deviation ",
                    least,
                    *span,
                    " on every shared number would bring the expected error of an unbiased attacker to the threshold ",
                    Badge(Evidence.ESTIMATE),
                    ". An attacker with a prior on the data can need more noise to be stopped.",
                )
            ]
        )
    ]


def _share(value: float | None) -> Quantity:
    return Quantity(value=value, text=percent(value))


def _best_attack(context: Context, scenario: str, subject: Subject) -> Score | None:
    """The error of the real attack that came closest, or None."""
    tried = context.grounds.with_evidence(Evidence.ATTACK, scenario, subject)
    scored = [score for _, score in tried if score.name == "pixel_rmse" and score.value is not None]
    return min(scored, key=lambda score: score.value or 0.0, default=None)


def _blind(context: Context, scenario: str, subject: Subject, best: Score | None) -> float | None:
    """The error of the blind adversary, on the example of a batch that the attack came closest to."""
    known = context.grounds.with_evidence(Evidence.EXACT, scenario, subject)
    blind = next((score for _, score in known if score.name == "pixel_rmse"), None)
    if blind is None or best is None:
        return None if blind is None else blind.value
    own, beside = (_per_example(score.details) for score in (best, blind))
    places = [place for place, value in enumerate(own) if value is not None]
    if not places or len(own) != len(beside):
        return blind.value
    nearest = beside[min(places, key=lambda place: own[place] or 0.0)]
    return blind.value if nearest is None else nearest


def _per_example(details: Mapping[str, object]) -> list[float | None]:
    listed = details.get("per_example")
    return [as_number(value) for value in listed] if isinstance(listed, list | tuple) else []


def noise_plot(study: NoiseStudy, error: str = "pixel RMSE") -> str:
    """Predicted against reached error over noise levels, log-log, as SVG; "" without noisy releases.

    Thin markers are single examples, lines are medians over them, the dashed level is what the blind adversary
    reaches.
    """
    if not study.levels:
        return ""
    import matplotlib

    from gradleak.reporting.drawing import INK, SERIES, STYLE, as_svg, finish, new_figure

    # name of the series -> (legend, color, dash, marker)
    drawn: dict[str, tuple[str, str, Any, str]] = {
        "predicted": ("predicted by I²F", SERIES[0], "solid", "o"),
        "perfect_attacker": ("perfect attacker (validation)", SERIES[2], (0, (5, 2)), "D"),
        "attack": ("real attack, random start", SERIES[3], (0, (6, 2, 1, 2)), "s"),
        "lower_bound": ("lower bound of I²F", SERIES[1], (0, (1, 1.4)), "v"),
    }
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure(7.4, 4.3)
        for name, (legend, color, dash, marker) in drawn.items():
            points = [(point.noise_std, value) for point in study.points if (value := getattr(point, name))]
            if not points:
                continue
            levels = sorted({std for std, _ in points})
            middles = [median([value for std, value in points if std == level]) or 0.0 for level in levels]
            axes.plot(*zip(*points, strict=True), marker, color=color, markersize=4.5, fillstyle="none", alpha=0.75)
            axes.plot(levels, middles, color=color, linestyle=dash, linewidth=1.9, label=legend, marker=marker, ms=3)
        blind = [point.baseline for point in study.points if point.baseline]
        if blind:
            level = min(blind)
            axes.axhline(level, color=INK, linestyle=(0, (2, 3)), linewidth=1.0, label="blind baseline")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("standard deviation of the noise on each shared number")
        axes.set_ylabel(error)
        finish(figure, axes)
        return as_svg(
            figure,
            prefix="noise",
            title="Predicted and reached error over noise levels",
            description=f"Log-log plot of {error} against the standard deviation of the noise; the table below holds the "
            "medians.",
        )

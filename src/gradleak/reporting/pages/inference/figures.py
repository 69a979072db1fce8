"""The figures of the page on inference, each in a section of its own; those without data are left out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradleak.reporting import words
from gradleak.reporting.blocks import Block, Fold, Section, Table, Words, as_is, labels, numbers, plot
from gradleak.reporting.numerals import MISSING, as_number, decimal
from gradleak.reporting.pages.inference.view import BOTH, InferenceView

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# More lines than this cannot be told apart.
MOST_LINES = 12
_LEAST_RATE = 1e-4
CURVES = (
    "How many of the batches with the value are found (upward) for how many false alarms (to the right), all observed rounds "
    "together. On the logarithmic axes the left edge shows what is found almost without false alarms: a curve that is "
    "close to the diagonal on the left panel may still find some batches for certain."
)
_CURVES = (
    "True-positive against false-positive rate of each game and adversary, on linear axes at the left and on logarithmic ones at "
    "the right; the dashed line is guessing. The table holds the areas and the rate at few false alarms."
)
_ROUNDS = (
    "Advantage over the best blind guess from each observed round alone, with intervals; short lines at the right edge are all "
    "observed rounds together. The dashed line is no advantage."
)
_WORTH = (
    "One marker a scenario, bars are intervals of the advantage; the upper left is a useful model that gives nothing away. The "
    "table holds the numbers."
)
# What else differs between games of one line of a plot: sizes are its axes.
_SIZES = ("batch_size", "public_rows", "shadow_batches", "observed", "adversaries")
Line = Sequence[tuple[float, InferenceView]]


def figures(views: Sequence[InferenceView]) -> list[Section]:
    """Curves, rounds, sizes and worth, as far as there are data; of more than twelve lines the first twelve are drawn."""
    parts = (
        _curves([view for view in views if _curve(view)][:MOST_LINES]),
        _rounds([view for view in views if len(view.rounds) > 1][:MOST_LINES]),
        _sizes(
            _lines(views, "batch_size", "public_rows"),
            ("Advantage by batch size", "examples of a batch", "batch-size"),
        ),
        _sizes(
            _lines(views, "public_rows", "batch_size"),
            (
                "Advantage by the number of public rows that the adversary has",
                "public rows that the adversary has",
                "shadow-size",
            ),
        ),
        _worth([view for view in views if view.utility is not None and view.advantage.value is not None]),
    )
    return [part for part in parts if part is not None]


def _section(name: str, title: str, *blocks: Block) -> Section:
    return Section(anchor=f"inference-{name}", title=title, label=None, blocks=blocks)


def _curves(shown: Sequence[InferenceView]) -> Section | None:
    # The left edge of logarithmic axes is a little below the smallest false-positive rate that any curve resolves.
    rates = [rate for view in shown for rate, _ in _curve(view) if rate > 0]
    least = max(_LEAST_RATE, min(rates, default=0.1) / 2.0) if min(rates, default=1.0) < 0.5 else 0.01

    def paint(every: Sequence[Axes]) -> None:
        from gradleak.reporting.drawing import BESIDE, INK

        linear, log = every
        for axes, floor in ((linear, 0.0), (log, least)):
            for view in shown:
                color, dash, _ = _look(view, shown)
                points = [(max(false, floor), max(true, floor)) for false, true in _curve(view)]
                axes.plot(*zip(*points, strict=True), color=color, ls=dash, lw=1.6, label=_name(view, shown))
            axes.plot([least, 1], [least, 1], color=INK, linestyle=BESIDE, linewidth=1.0)
            axes.set_xlabel("false-positive rate")
        linear.set_xlim(0, 1)
        linear.set_ylim(0, 1.02)
        log.set_xscale("log")
        log.set_xlim(least, 1.1)
        log.set_yscale("log")
        log.set_ylim(least, 1.1)
        linear.set_ylabel("true-positive rate")

    title, name = (
        "ROC curves, all observed rounds together: linear axes, and logarithmic ones",
        "ROC curves, linear and logarithmic",
    )
    figure = plot(paint, prefix="roc", title=name, alt=_CURVES, caption=CURVES, size=(7.4, 4.3), panels=2)
    return _section("curves", title, figure) if shown else None


def _curve(view: InferenceView) -> Sequence[tuple[float, float]]:
    """The points (false, true positive rate) of the ROC curve, none without two."""
    score = view.score("auroc")
    roc = words.mapping(score.details.get("roc")) if score else {}
    rates = ([as_number(rate) for rate in words.sequence(roc.get(key))] for key in ("fpr", "tpr"))
    pairs = [(f, t) for f, t in zip(*rates, strict=False) if f is not None and t is not None]
    return pairs if len(pairs) > 1 else ()


def _rounds(shown: Sequence[InferenceView]) -> Section | None:
    known = sorted({number for view in shown for number in view.rounds})

    def paint(every: Sequence[Axes]) -> None:
        (axes,) = every
        for view in shown:
            points = [(score.value or 0.0, score.interval) for score in view.rounds.values()]
            spans = [span or (value, value) for value, span in points]
            where = [number + 1 for number in view.rounds]
            _line(axes, where, [value for value, _ in points], spans, view, shown, _name(view, shown))
            if view.advantage.value is not None:
                color, dash, _ = _look(view, shown)
                ends = [known[-1] + 1.25, known[-1] + 1.75]
                axes.plot(ends, [view.advantage.value] * 2, color=color, linestyle=dash, linewidth=2.4)
        _scale(axes, "round of training; all observed rounds together at the right edge")

    rows: list[list[Words]] = [
        [
            as_is(view.label),
            view.adversary,
            *(decimal(view.rounds[number].value) if number in view.rounds else MISSING for number in known),
        ]
        for view in shown
    ]
    columns = [*labels("Scenario and game", "Adversary"), *numbers(*(f"Round {number + 1}" for number in known))]
    table = Fold(title="Advantage from each round alone", blocks=[Table(columns=columns, rows=rows)], printed=True)
    figure = plot(paint, prefix="rounds", title="Advantage by round", alt=_ROUNDS, size=(7.4, 3.9))
    return _section("rounds", "Advantage by round", figure, table) if shown else None


def _lines(views: Sequence[InferenceView], size: str, other: str) -> Sequence[Line]:
    """Lines of two sizes at least, of games that differ in nothing else."""
    lines: dict[str, list[tuple[float, InferenceView]]] = {}
    for view in views:
        found = as_number(view.finding.game.get(size))
        if found is not None and view.advantage.value is not None:
            lines.setdefault(_differs(view, other), []).append((found, view))
    several = [line for line in lines.values() if len({number for number, _ in line}) > 1]
    return [sorted(line, key=lambda pair: pair[0]) for line in several][:MOST_LINES]


def _differs(view: InferenceView, other: str) -> str:
    """All but the sizes that describes the game and its adversary, and the other size, as text."""
    game = {key: value for key, value in view.finding.game.items() if key not in _SIZES}
    return json.dumps([view.adversary, view.finding.scenario, game, view.finding.game.get(other)], sort_keys=True)


def _span(view: InferenceView) -> tuple[float, float]:
    """The ends of the interval of the advantage, or the advantage twice."""
    score, value = view.score("advantage"), view.advantage.value or 0.0
    return (value, value) if score is None or score.interval is None else score.interval


def _sizes(lines: Sequence[Line], terms: tuple[str, str, str]) -> Section | None:
    """The advantage over a size: its title, what stands on its axis, and the prefix of its ids."""
    title, axis, prefix = terms
    alt = (
        f"Advantage over the best blind guess against the number of {axis}, with intervals, one line a scenario and adversary; "
        "the table holds the numbers. The dashed line is no advantage."
    )

    def paint(every: Sequence[Axes]) -> None:
        (axes,) = every
        firsts = [line[0][1] for line in lines]
        one_kind = len({_kind(view) for view in firsts}) == 1
        for line, first in zip(lines, firsts, strict=True):
            where, views = zip(*line, strict=True)
            base = first.scenario if one_kind else f"{first.scenario}, {_kind(first)}"
            name = f"{base}, {first.adversary}" if first.adversary else base
            values, spans = [view.advantage.value or 0.0 for view in views], [_span(view) for view in views]
            _line(axes, where, values, spans, first, firsts, name)
        axes.set_xscale("log")
        _scale(axes, axis)
        axes.set_xticks(sorted({size for line in lines for size, _ in line}))

    return _section(prefix, title, plot(paint, prefix=prefix, title=title, alt=alt, size=(7.4, 3.7))) if lines else None


def _worth(points: Sequence[InferenceView]) -> Section | None:
    """The worth of the trained model against the advantage, one panel an adversary."""
    sides = [side for side in ("static", "adaptive") if any(view.adversary in (side, BOTH) for view in points)]
    scenarios = list(dict.fromkeys(view.label for view in points))

    def paint(every: Sequence[Axes]) -> None:
        from gradleak.reporting.drawing import look

        for axes, side in zip(every, sides, strict=True):
            for place, label in enumerate(scenarios):
                color, _, marker = look(place)
                axes.plot([], [], marker, color=color, markersize=6, label=label)
                for view in (view for view in points if view.adversary in (side, BOTH) and view.label == label):
                    worth = view.utility or 0.0
                    axes.plot(_span(view), [worth] * 2, color=color, linewidth=1.0, alpha=0.6)
                    axes.plot(view.advantage.value or 0.0, worth, marker, color=color, markersize=6)
            axes.set_xlim(-0.03, 1.03)
            axes.set_title(f"{side} adversary", fontsize=10)
            axes.set_xlabel("advantage")
        every[0].set_ylabel(f"test {points[0].metric}".strip())

    title, prefix = "Utility against advantage", "advantage-utility"
    if not sides or len(scenarios) < 2:
        return None
    figure = plot(paint, prefix=prefix, title=title, alt=_WORTH, size=(7.4, 4.2), panels=len(sides), shared=True)
    return _section("worth", "Utility of the model against advantage", figure)


def _scale(axes: Axes, label: str) -> None:
    from gradleak.reporting.drawing import BESIDE, INK

    axes.axhline(0.0, color=INK, linestyle=BESIDE, linewidth=1.0)
    axes.set_ylim(-0.03, 1.03)
    axes.set_xlabel(label)
    axes.set_ylabel("advantage")


def _line(
    axes: Axes,
    where: Sequence[float],
    values: Sequence[float],
    spans: Sequence[tuple[float, float]],
    view: InferenceView,
    views: Sequence[InferenceView],
    label: str,
) -> None:
    color, dash, marker = _look(view, views)
    low, high = zip(*spans, strict=True)
    axes.fill_between(where, low, high, color=color, alpha=0.12, linewidth=0)
    axes.plot(where, values, color=color, ls=dash, marker=marker, markersize=4, linewidth=1.6, label=label)


def _name(view: InferenceView, views: Sequence[InferenceView]) -> str:
    """A name that tells it from the others: the scenario alone where all play one game."""
    base = view.scenario if len({other.game for other in views}) == 1 else view.label
    return f"{base}, {view.adversary}" if view.adversary else base


def _kind(view: InferenceView) -> str:
    return view.game.split(" ")[0]


def _look(view: InferenceView, views: Sequence[InferenceView]) -> tuple[str, object, str]:
    """Color, dash and marker: both adversaries share color and marker, lines of the static one are broken."""
    from gradleak.reporting.drawing import DASHES, SERIES, look

    place = list(dict.fromkeys(other.label for other in views)).index(view.label)
    again = place // len(SERIES) * 2
    color, _, marker = look(place)
    return color, DASHES[(again + (view.adversary == "static")) % len(DASHES)], marker

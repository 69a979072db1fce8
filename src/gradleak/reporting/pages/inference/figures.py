"""The figures of the page on inference, each in a section of its own; those without data are left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gradleak.reporting.blocks import Block, Column, Figure, Fold, Section, Table, Words, as_is
from gradleak.reporting.numerals import MISSING, decimal
from gradleak.reporting.pages.inference.view import BOTH, InferenceView

# More lines than this cannot be told apart.
MOST_LINES = 12
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
GAME, WHO = Column(label="Scenario and game", heading=True), Column(label="Adversary")
Size = Callable[[InferenceView], float | None]


def figures(views: Sequence[InferenceView]) -> list[Section]:
    """Curves, rounds, sizes and worth, as far as there are data; of more than twelve lines the first twelve are drawn."""
    return [
        *_curves([view for view in views if view.curve is not None][:MOST_LINES]),
        *_rounds([view for view in views if len(view.rounds) > 1][:MOST_LINES]),
        *_sizes(
            _lines(views, lambda view: view.batch_size, lambda view: view.public_rows),
            ("Advantage by batch size", "examples of a batch", "batch-size"),
        ),
        *_sizes(
            _lines(views, lambda view: view.public_rows, lambda view: view.batch_size),
            (
                "Advantage by the number of public rows that the adversary has",
                "public rows that the adversary has",
                "shadow-size",
            ),
        ),
        *_worth([view for view in views if view.utility is not None and view.advantage.value is not None]),
    ]


def _curves(shown: Sequence[InferenceView]) -> list[Section]:
    if not shown:
        return []

    def draw() -> str:
        from gradleak.reporting.pages.inference.plots import roc_plot

        return roc_plot(shown, _CURVES)

    title = "ROC curves, all observed rounds together: linear axes, and logarithmic ones"
    return [_section("curves", title, Figure(draw=draw, alt=_CURVES, caption=CURVES))]


def _rounds(shown: Sequence[InferenceView]) -> list[Section]:
    if not shown:
        return []

    def draw() -> str:
        from gradleak.reporting.pages.inference.plots import round_plot

        return round_plot(shown, _ROUNDS)

    numbers = sorted({point.number for view in shown for point in view.rounds})
    rows: list[list[Words]] = []
    for view in shown:
        found = {point.number: decimal(point.advantage) for point in view.rounds}
        rows.append([as_is(view.label), view.adversary, *(found.get(number, MISSING) for number in numbers)])
    columns = [GAME, WHO, *(Column(label=f"Round {number + 1}", numeric=True) for number in numbers)]
    table = Fold(title="Advantage from each round alone", blocks=[Table(columns=columns, rows=rows)], printed=True)
    return [_section("rounds", "Advantage by round", Figure(draw=draw, alt=_ROUNDS), table)]


def _lines(views: Sequence[InferenceView], size: Size, other: Size) -> list[list[tuple[float, InferenceView]]]:
    """Lines of two sizes at least, of games that differ in nothing else."""
    lines: dict[tuple[str, float | None], list[tuple[float, InferenceView]]] = {}
    for view in views:
        found = size(view)
        if found is not None and view.advantage.value is not None:
            lines.setdefault((view.key, other(view)), []).append((found, view))
    several = [line for line in lines.values() if len({number for number, _ in line}) > 1]
    return [sorted(line, key=lambda pair: pair[0]) for line in several][:MOST_LINES]


def _sizes(shown: Sequence[Sequence[tuple[float, InferenceView]]], terms: tuple[str, str, str]) -> list[Section]:
    """The advantage over a size: its title, what stands on its axis, and the prefix of its ids."""
    if not shown:
        return []
    title, axis, prefix = terms
    alt = (
        f"Advantage over the best blind guess against the number of {axis}, with intervals, one line a scenario and adversary; "
        "the table holds the numbers. The dashed line is no advantage."
    )

    def draw() -> str:
        from gradleak.reporting.pages.inference.plots import size_plot

        return size_plot(shown, alt, prefix=prefix, title=title, axis=axis)

    return [_section(prefix, title, Figure(draw=draw, alt=alt))]


def _worth(points: Sequence[InferenceView]) -> list[Section]:
    known = [view for view in points if view.adversary in ("static", "adaptive", BOTH)]
    if not known or len({view.label for view in points}) < 2:
        return []

    def draw() -> str:
        from gradleak.reporting.pages.inference.plots import advantage_utility_plot

        return advantage_utility_plot(points, _WORTH)

    title = "The worth of the model against what is inferred"
    return [_section("worth", title, Figure(draw=draw, alt=_WORTH))]


def _section(name: str, title: str, *blocks: Block) -> Section:
    return Section(anchor=f"inference-{name}", title=title, label=None, blocks=blocks)

"""What the models trained through each release are worth, to stand beside what the release gives away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gradleak.reporting.numerals import Quantity, as_number, decimal, percent, quantity
from gradleak.reporting.reading import Line, Reading, mapping, sequence
from gradleak.results import Outcome, Score

_METRICS = {"test_accuracy": "accuracy", "test_auroc": "AUROC", "test_r2": "R²"}
TEXT = (
    "New models of the same kind, trained federatedly through each release and judged on rows that nobody trained on: mean "
    "over seeds, with a 95 % interval over rows and seeds. A model that is no better than the best answer that ignores its "
    "input earns its defense no credit for what it hides."
)


@dataclass(frozen=True, kw_only=True)
class UtilityView:
    """A scenario in one row.

    Attributes:
        scenario: its name.
        metric: what the value is, in words.
        value: mean over the seeds, or its outcome.
        interval: in print.
        rows: test rows.
        seeds: how many trainings.
        blind: what the best answer that ignores the input reaches.
        epsilon: of the whole training.
        epsilon_note: why there is none, or what it does not cover.
        kept_share: share of the entries that are sent, in print.
        cosine: to the true update, in print.
        replaced: layers that others stand in for, in words.
        credit: whether the defense may be credited with what it hides.
        note: what a reader needs to know.
    """

    scenario: str
    metric: str
    value: Quantity
    interval: str
    rows: int
    seeds: int
    blind: str
    epsilon: Quantity
    epsilon_note: str
    kept_share: str
    cosine: str
    replaced: Sequence[str]
    credit: bool
    note: str


def utilities(reading: Reading | None) -> list[UtilityView]:
    """One view for every scenario whose utility was measured, in file order.

    Args:
        reading: the sorted lines, or None.
    """
    lines = [] if reading is None else reading.of_kind("utility")
    return [_view(reading, line) for line in lines if reading is not None]


def _view(reading: Reading, line: Line) -> UtilityView:
    scores = reading.scores.get(str(line.get("item")), ())
    score = next((score for score in scores if score.name in _METRICS), None)
    epsilon = reading.score(line, "pld_epsilon")
    close = mapping(line.get("closeness"))
    details = mapping(score.details) if score else {}
    interval = score.interval if score else None
    return UtilityView(
        scenario=str(line.get("scenario")),
        metric=_METRICS.get(score.name, score.name) if score else "",
        value=quantity(score),
        interval="" if interval is None or score is None else " to ".join(_end(end, score.unit) for end in interval),
        rows=score.n if score else 0,
        seeds=len(sequence(details.get("seeds"))),
        blind=_end(as_number(details.get("blind")), score.unit if score else ""),
        epsilon=_epsilon(epsilon),
        epsilon_note=epsilon.note if epsilon else "",
        kept_share=_share(close.get("kept_share")),
        cosine=decimal(as_number(close.get("cosine"))),
        replaced=[_replaced(mapping(layer)) for layer in sequence(line.get("replaced"))],
        credit=line.get("credit") is True,
        note=str(line.get("note") or ""),
    )


def _epsilon(score: Score | None) -> Quantity:
    """In print; a release without a guarantee has none, whatever the reason."""
    found = quantity(score)
    return replace(found, text="none") if found.outcome is Outcome.NOT_INFORMATIVE else found


def _end(value: float | None, unit: str) -> str:
    return percent(value) if unit == "share" else decimal(value)


def _share(value: object) -> str:
    number = as_number(value)
    return decimal(None) if number is None else percent(number)


def _replaced(layer: Line) -> str:
    was, now = (str(layer.get(key) or "").split("(")[0] for key in ("was", "now"))
    erases = ", which erases its input" if layer.get("erases") is True else ""
    return f"{layer.get('name') or 'the model'}: {was} by {now}{erases}"


__all__ = ["TEXT", "UtilityView", "utilities"]

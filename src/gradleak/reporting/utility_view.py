"""What the models trained through each release are worth, to stand beside what the release gives away."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gradleak.reporting.numerals import Quantity, as_number, decimal, percent, quantity
from gradleak.reporting.reading import Line, Reading, mapping, sequence
from gradleak.results import Outcome, Score

_METRICS = {"test_accuracy": "accuracy", "test_auroc": "AUROC", "test_r2": "R²"}
_STANDINGS = {"above": "yes", "not_above": "no", "not_resolvable": "not resolvable"}
# A reference whose gain over the blind answer is a smaller share of the room above that has learned too little to compare.
_LEARNED = 0.25
TEXT = (
    "New models of the same kind, trained federatedly through each release and judged on rows that nobody trained on: mean "
    "over seeds, with a 95 % interval over rows and seeds. A defense earns credit for what it hides only where the whole "
    "interval lies above the best answer that ignores the input: no where it lies below or the model is constant or "
    "diverged, not resolvable where it holds that answer. Epsilon is that of the whole training."
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
        learning_rate: of the server, in print.
        epsilon: of the whole training.
        epsilon_terms: what it holds for: delta, rounds, sampling, adjacency, whose presence it hides.
        epsilon_note: why there is none, or what it does not cover.
        kept_share: share of the entries that are sent, in print.
        cosine: to the true update, in print.
        replaced: layers that others stand in for, in words.
        credit: whether the defense may be credited with what it hides.
        standing: the same in words: "yes", "no" or "not resolvable".
        attacked: what the releases that were attacked are: examples and noise, in print.
        trained: what the releases of the training are, in print.
        undefended: whether no defense stands in the release.
        note: what a reader needs to know.
        ends: of the interval.
        blind_value: what the best answer that ignores the input reaches.
    """

    scenario: str
    metric: str
    value: Quantity
    interval: str
    rows: int
    seeds: int
    blind: str
    learning_rate: str
    epsilon: Quantity
    epsilon_terms: str
    epsilon_note: str
    kept_share: str
    cosine: str
    replaced: Sequence[str]
    credit: bool
    standing: str
    attacked: str
    trained: str
    undefended: bool
    note: str
    ends: tuple[float, float] | None
    blind_value: float | None


def utilities(reading: Reading | None) -> list[UtilityView]:
    """One view for every scenario whose utility was measured, in file order.

    Args:
        reading: the sorted lines, or None.
    """
    lines = [] if reading is None else reading.of_kind("utility")
    return [_view(reading, line) for line in lines if reading is not None]


def warnings(views: Sequence[UtilityView]) -> list[str]:
    """What keeps a reader from comparing the rows of the table, in one line each.

    Args:
        views: all rows.
    """
    return [*_other_releases(views), *_reference(views)]


def _other_releases(views: Sequence[UtilityView]) -> Iterable[str]:
    """Rows whose privacy is that of another release than their utility."""
    apart: dict[tuple[str, str], list[str]] = {}
    for view in views:
        if view.attacked and view.trained and view.attacked != view.trained:
            apart.setdefault((view.attacked, view.trained), []).append(view.scenario)
    for (attacked, trained), scenarios in apart.items():
        yield (
            f"{', '.join(scenarios)}: what was attacked and what was trained through are different releases ({attacked} "
            f"against {trained}), so that privacy and utility of this row do not belong together; a defense acts "
            "otherwise on another batch size. Give [data] and [utility] the same batch_size to compare them."
        )


def _reference(views: Sequence[UtilityView]) -> Iterable[str]:
    """An undefended training that learned too little to compare anything with."""
    reference = next((view for view in views if view.undefended and view.value.value is not None), None)
    if reference is None:
        if views:
            yield "No undefended training stands beside: what a defense costs cannot be told."
        return
    value, blind = reference.value.value, reference.blind_value
    assert value is not None
    if learned_little(value, blind):
        yield (
            f"{reference.scenario}, the reference without a defense, is itself near the best answer that ignores the "
            f"input ({reference.value.text} against {reference.blind}): it learned too little (too few rounds, another "
            "learning rate), so that no defense can be compared with it."
        )
    elif reference.standing != "yes":
        yield (
            f"{reference.scenario}, the reference without a defense, cannot be told from the best answer that ignores the "
            f"input ({reference.interval} holds {reference.blind}): no defense can be compared with it before there are "
            "more seeds or rows."
        )
    better = [v.scenario for v in views if reference.ends and (v.value.value or 0.0) > reference.ends[1]]
    if better:
        yield (
            f"{', '.join(better)} does better than {reference.scenario}, beyond its interval: the learning rate or the "
            "number of rounds does not suit the reference. Give learning_rates to choose from."
        )


def learned_little(value: float | None, blind: float | None) -> bool:
    """Whether a model without a defense gains so little over the best answer that ignores the input that it is no reference.

    Args:
        value: what it is worth.
        blind: what that answer is worth, in the same metric.
    """
    return value is not None and blind is not None and value - blind < _LEARNED * (1 - blind)


def _view(reading: Reading, line: Line) -> UtilityView:
    scores = reading.scores.get(str(line.get("item")), ())
    score = next((score for score in scores if score.name in _METRICS), None)
    epsilon = reading.score(line, "pld_epsilon")
    close = mapping(line.get("closeness"))
    details = mapping(score.details) if score else {}
    interval = score.interval if score else None
    training = mapping(line.get("training"))
    credit = line.get("credit") is True
    release = mapping(line.get("release"))
    return UtilityView(
        scenario=str(line.get("scenario")),
        metric=_METRICS.get(score.name, score.name) if score else "",
        value=quantity(score),
        interval="" if interval is None or score is None else " to ".join(_end(end, score.unit) for end in interval),
        rows=score.n if score else 0,
        seeds=len(sequence(details.get("seeds"))),
        blind=_end(as_number(details.get("blind")), score.unit if score else ""),
        learning_rate=decimal(as_number(training.get("learning_rate"))),
        epsilon=_epsilon(epsilon),
        epsilon_terms=epsilon_terms(epsilon),
        epsilon_note=epsilon.note if epsilon else "",
        kept_share=_share(close.get("kept_share")),
        cosine=decimal(as_number(close.get("cosine"))),
        replaced=[_replaced(mapping(layer)) for layer in sequence(line.get("replaced"))],
        credit=credit,
        standing=_STANDINGS.get(str(line.get("standing")), "yes" if credit else "no"),
        attacked=_attacked(reading, str(line.get("scenario"))),
        trained=_released(line.get("examples"), line.get("noise_std")),
        undefended=bool(release) and not sequence(release.get("defenses")),
        note=str(line.get("note") or ""),
        ends=interval,
        blind_value=as_number(details.get("blind")),
    )


def epsilon_terms(score: Score | None) -> str:
    """What an epsilon holds for, in print, "" where there is none.

    Args:
        score: of an accountant or a formula.
    """
    if score is None or score.value is None:
        return ""
    facts = mapping(score.details)
    delta, rounds, steps = (as_number(facts.get(key)) for key in ("delta", "rounds", "steps_per_round"))
    parts = ["" if delta is None else f"δ = {decimal(delta)}"]
    if rounds is not None:
        each = f" of {steps:g} steps" if steps and steps > 1 else ""
        parts.append(f"takes part in {rounds:g} round{'s' if rounds != 1 else ''}{each}")
    sampling = str(facts.get("sampling") or "")
    parts.append(
        ""
        if not sampling
        else "no sampling"
        if sampling.startswith("none")
        else sampling.replace("Poisson, rate", "Poisson sampling at rate")
    )
    parts.append(str(facts.get("adjacency") or "").replace("_", " "))
    unit = str(facts.get("unit") or "")
    parts.append(f"hides one {unit}" if unit else "")
    return ", ".join(part for part in parts if part)


def _attacked(reading: Reading, scenario: str) -> str:
    """Examples and noise of the releases of a scenario, as far as they agree."""
    found = {
        _released(line.get("batch_size"), line.get("noise_std") or 0.0)
        for line in reading.of_kind("release")
        if line.get("scenario") == scenario
    }
    return " or ".join(sorted(found))


def _released(examples: object, noise_std: object) -> str:
    size, std = as_number(examples), as_number(noise_std)
    if not size:
        return ""
    text = f"{size:g} example{'s' if size != 1 else ''}"
    return f"{text}, noise std {decimal(std)}" if std else text


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


__all__ = ["TEXT", "UtilityView", "epsilon_terms", "learned_little", "utilities", "warnings"]

"""The page on utility: the utility of models trained through each release, beside what the release gives away."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gradleak.reporting.blocks import (
    Badge,
    Block,
    Level,
    Note,
    Section,
    Small,
    Style,
    Table,
    Text,
    Words,
    as_is,
    labels,
    numbers,
    plot,
)
from gradleak.reporting.context import Context
from gradleak.reporting.numerals import as_number, decimal, percent, quantity
from gradleak.reporting.worth import learned_little
from gradleak.results import Evidence, Outcome, Score, VerdictKind
from gradleak.results.findings.utility import ReleaseSize, Replacement, Standing, UtilityFinding

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Nothing smaller makes a difference to anyone.
_SMALLEST = 1e-4
# Relative difference up to which two epsilons are of one guarantee.
_SAME = 0.01
_METRICS = {"test_accuracy": "accuracy", "test_auroc": "AUROC", "test_r2": "R²"}
_STANDINGS = {Standing.ABOVE: "yes", Standing.UNRESOLVED: "not resolvable"}
TEXT = (
    "New models of the same kind, trained federatedly through each release and judged on rows that nobody trained on: mean "
    "over seeds, with a 95 % interval over rows and seeds. A defense earns credit for what it hides only where the whole "
    "interval lies above the best answer that ignores the input: no where it lies below or the model is constant or "
    "diverged, not resolvable where it holds that answer. Epsilon is that of the whole training."
)


def page(findings: Sequence[UtilityFinding], context: Context) -> Section | None:
    """The section on utility, None where none was measured."""
    if not findings:
        return None
    notes = [(one, note) for one in findings for note in (one.note, one.epsilon.note if one.epsilon else "") if note]
    blocks: list[Block] = [Text(parts=[TEXT])]
    blocks += [Note(title="Careful:", text=as_is(warning), level=Level.PLAIN) for warning in warnings(findings)]
    columns = [
        *labels("Scenario"),
        *numbers("Utility on test rows", evidence=Evidence.ESTIMATE),
        *numbers("95 % interval", "Rows, seeds", "Blind answer"),
        *labels("Credit"),
        *numbers("Learning rate"),
        *numbers(f"Smallest {context.error} reached", evidence=Evidence.ATTACK),
        *labels("Attacked", "Trained through"),
        *numbers("Epsilon"),
        *numbers("Kept share", hint="of the shared numbers, those that the release does not set to 0"),
        *numbers(
            "Cosine to the true update",
            hint="of the release to the undefended update: 1 is its direction, 0 none of it",
        ),
        *labels("Layers replaced"),
    ]
    blocks.append(Table(columns=columns, rows=[_row(one, context) for one in findings]))
    blocks += _trade_off(findings, context)
    if notes:
        blocks.append(Text(style=Style.FINE, parts=[f"{as_is(one.scenario)}: {as_is(note)}" for one, note in notes]))
    caveats = {str(one.scenario): said for one in findings if (said := _apart(one, context))}
    return Section(anchor="utility", title="Utility beside privacy", label="Utility", blocks=blocks, caveats=caveats)


def _apart(one: UtilityFinding, context: Context) -> list[str]:
    """Caveat on a bounded scenario whose utility is that of another release than its bound; none where they are the same."""
    attacked, trained, verdict = _attacked(one), _size(one.trained), context.verdict_on(str(one.scenario))
    if (
        verdict is None
        or verdict.verdict is not VerdictKind.BOUNDED
        or not attacked
        or not trained
        or attacked == trained
    ):
        return []
    guaranteed, lost = as_number(verdict.details.get("epsilon")), one.epsilon
    if guaranteed and lost is not None and lost.value is not None and abs(lost.value / guaranteed - 1) < _SAME:
        return [
            f"This is the price of what an example is guaranteed (epsilon {decimal(guaranteed)} in both); attacked was another "
            f"release ({attacked}) than that of the training ({trained})."
        ]
    return [
        f"**Privacy and utility were measured on different releases**: audited was {attacked}, trained through was {trained}. "
        "This utility is not the price of this privacy."
    ]


def _trade_off(findings: Sequence[UtilityFinding], context: Context) -> list[Block]:
    """Utility against the smallest error that an attack reached and against epsilon, a point a scenario."""
    measured = [(one, one.worth) for one in findings if one.worth is not None and one.worth.value is not None]
    lost: dict[str, list[tuple[float, float, bool]]] = {
        f"smallest {context.error} reached": [],
        "epsilon of the training": [],
    }
    for one, score in measured:
        verdict = context.verdict_on(str(one.scenario))
        bounded = verdict is not None and verdict.verdict is VerdictKind.BOUNDED
        for points, number in zip(lost.values(), (context.reached(one.scenario), one.epsilon), strict=True):
            if number is not None and number.value is not None and math.isfinite(number.value):
                points.append((max(number.value, _SMALLEST), score.value or 0.0, bounded))
    # A single point shows nothing that the table does not.
    panels = {label: points for label, points in lost.items() if len(points) > 1}

    def paint(every: Sequence[Axes]) -> None:
        from gradleak.reporting.drawing import SERIES

        for axes, (label, points) in zip(every, panels.items(), strict=True):
            for kind, color, marker, name in (
                (True, SERIES[0], "s", "bounded"),
                (False, SERIES[3], "o", "not bounded"),
            ):
                mine = [(x, y) for x, y, bounded in points if bounded is kind]
                if mine:
                    axes.plot(
                        *zip(*mine, strict=True), marker, color=color, fillstyle="full" if kind else "none", label=name
                    )
            axes.set_xscale("log")
            axes.set_xlabel(label)
        every[0].set_ylabel(_METRICS.get(measured[0][1].name, "utility"))

    if not panels:
        return []
    return [
        plot(
            paint,
            prefix="worth",
            title="Utility against what is given away",
            alt="One marker a scenario, a filled square where it is bounded; the table holds the numbers.",
            caption=f"One marker a scenario, a filled square where it is *bounded*; {decimal(_SMALLEST)} is the least shown.",
            panels=len(panels),
            shared=True,
        )
    ]


def warnings(findings: Sequence[UtilityFinding]) -> list[str]:
    """Warnings against comparing the rows of the table, in one line each."""
    return [*_other_releases(findings), *_reference(findings)]


def _other_releases(findings: Sequence[UtilityFinding]) -> Iterable[str]:
    """Rows whose privacy is that of another release than their utility."""
    apart: dict[tuple[str, str], list[str]] = {}
    for one in findings:
        attacked, trained = _attacked(one), _size(one.trained)
        if attacked and trained and attacked != trained:
            apart.setdefault((attacked, trained), []).append(str(one.scenario))
    for (attacked, trained), scenarios in apart.items():
        yield (
            f"{', '.join(scenarios)}: what was attacked and what was trained through are different releases ({attacked} "
            f"against {trained}), so that what attacks reached and the utility of this row do not belong together; a defense "
            "acts otherwise on another batch size. Give [data] and [utility] the same batch_size to compare them."
        )


def _reference(findings: Sequence[UtilityFinding]) -> Iterable[str]:
    """An undefended training that learned too little to compare anything with."""
    found = next(
        ((one, one.worth) for one in findings if _undefended(one) and one.worth and one.worth.value is not None), None
    )
    if found is None:
        if findings:
            yield "No undefended training stands beside: what a defense costs cannot be told."
        return
    one, score = found
    name, blind = one.scenario, as_number(score.details.get("blind"))
    if learned_little(score.value, blind):
        yield (
            f"{name}, the reference without a defense, is itself near the best answer that ignores the input "
            f"({quantity(score).text} against {_blind(score)}): it learned too little (too few rounds, another learning "
            "rate), so that no defense can be compared with it."
        )
    elif one.standing is not Standing.ABOVE:
        yield (
            f"{name}, the reference without a defense, cannot be told from the best answer that ignores the input "
            f"({_interval(score)} holds {_blind(score)}): no defense can be compared with it before there are more seeds or "
            "rows."
        )
    top = None if score.interval is None else score.interval[1]
    better = [str(one.scenario) for one in findings if top and one.worth and (one.worth.value or 0.0) > top]
    if better:
        yield (
            f"{', '.join(better)} does better than {name}, beyond its interval: the learning rate or the number of rounds "
            "does not suit the reference. Give learning_rates to choose from."
        )


def _row(one: UtilityFinding, context: Context) -> list[Words]:
    score, close = one.worth, one.closeness
    seeds = score.details.get("seeds") if score else None
    rate = as_number(one.training.get("learning_rate"))
    return [
        as_is(one.scenario),
        (quantity(score), Small(_METRICS.get(score.name, score.name))) if score else quantity(score),
        _interval(score),
        f"{score.n if score else 0}, {len(seeds) if isinstance(seeds, list | tuple) else 0}",
        _blind(score),
        "no" if one.standing is None else _STANDINGS.get(one.standing, "no"),
        decimal(rate),
        quantity(context.reached(one.scenario)),
        _attacked(one),
        _size(one.trained),
        _epsilon(one.epsilon),
        decimal(None) if close is None or close.kept_share is None else percent(close.kept_share),
        decimal(None if close is None else close.cosine),
        "; ".join(as_is(_replaced(layer)) for layer in one.replaced) or "none",
    ]


def _undefended(one: UtilityFinding) -> bool:
    return bool(one.release) and not one.release.get("defenses")


def _blind(score: Score | None) -> str:
    """Best value of an answer that ignores the input, in print."""
    return decimal(None) if score is None else _end(as_number(score.details.get("blind")), score.unit)


def _interval(score: Score | None) -> str:
    if score is None or score.interval is None:
        return ""
    return " to ".join(_end(end, score.unit) for end in score.interval)


def _end(value: float | None, unit: str) -> str:
    return percent(value) if unit == "share" else decimal(value)


def _attacked(one: UtilityFinding) -> str:
    """Examples and noise of the releases that were attacked, as far as they agree."""
    return " or ".join(sorted({_size(size) for size in one.attacked}))


def _size(size: ReleaseSize | None) -> str:
    if size is None or not size.examples:
        return ""
    text = f"{size.examples} example{'s' if size.examples != 1 else ''}"
    return f"{text}, noise std {decimal(size.noise_std)}" if size.noise_std else text


def _epsilon(score: Score | None) -> Words:
    """In print with what it holds for; a release without a guarantee has none, whatever the reason."""
    found = quantity(score)
    if score is None or score.value is None:
        return "none" if found.outcome is Outcome.NOT_INFORMATIVE else found
    return (found, Badge(score.evidence), Small(epsilon_terms(score)))


def epsilon_terms(score: Score | None) -> str:
    """Conditions that an epsilon holds for, in print, "" where there is none."""
    if score is None or score.value is None:
        return ""
    facts: Mapping[str, Any] = score.details
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


def _replaced(layer: Replacement) -> str:
    was, now = (text.split("(")[0] for text in (layer.was, layer.now))
    return f"{layer.name or 'the model'}: {was} by {now}{', which erases its input' if layer.erases else ''}"


__all__ = ["TEXT", "epsilon_terms", "page", "warnings"]

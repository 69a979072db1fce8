"""The page on releases: how each scenario fared, what the adversary was assumed to know, and what left the client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradleak.reporting import words
from gradleak.reporting.blocks import Block, Column, Level, Note, Section, Style, Table, Text, Words, as_is
from gradleak.reporting.context import Context
from gradleak.reporting.numerals import MISSING, Quantity, as_number, beside_blind, decimal, quantity
from gradleak.reporting.pages.release.setting import settings
from gradleak.results import Attempt, Evidence, Score, Status, VerdictKind
from gradleak.results.findings.release import ReleaseFinding

_ORDER = {VerdictKind.LEAKS: 0, VerdictKind.INCONCLUSIVE: 1, VerdictKind.BOUNDED: 2}


def page(findings: Sequence[ReleaseFinding], context: Context) -> Section | None:
    """The section on the setting; the scenarios stand on the first screen.

    Args:
        findings: the releases of the record.
        context: the rest of it.
    """
    made = [finding for finding in findings if finding.status is Status.DONE]
    blocks = settings(made, context) if made else [Text(parts=["The record holds no release yet."])]
    return Section(
        anchor="setting",
        title="What the adversary was assumed to know",
        label="Setting",
        blocks=blocks,
        front=list(_front(made, context)) if made else (),
    )


def _front(releases: Sequence[ReleaseFinding], context: Context) -> Iterator[Block]:
    for note in dict.fromkeys(one.range_note for one in releases if one.range_note):
        yield Note(title="Mind the range.", text=f"{words.sentence(as_is(note))}.", level=Level.WARN)
    yield Text(parts=["Releases by scenario"], style=Style.HEADING)
    by_name: dict[str, list[ReleaseFinding]] = {}
    for release in releases:
        by_name.setdefault(str(release.scenario), []).append(release)
    found = sorted((_row(name, mine, context) for name, mine in by_name.items()), key=lambda pair: pair[0])
    error = context.error
    yield Table(
        columns=[
            Column(label="Scenario"),
            Column(label="Releases", numeric=True),
            Column(label="Leaking, of attacked", numeric=True),
            Column(label="Noise std", numeric=True),
            Column(label=f"Smallest {error} reached", numeric=True, evidence=Evidence.ATTACK),
            Column(label="Blind baseline", numeric=True, evidence=Evidence.EXACT),
            Column(label=f"Smallest {error} predicted", numeric=True, evidence=Evidence.EXACT),
        ],
        rows=[row for _, row in found],
    )
    yield Text(parts=[_thresholds(releases, context)], style=Style.FINE)


def _row(name: str, releases: Sequence[ReleaseFinding], context: Context) -> tuple[tuple[int, float], list[Words]]:
    """How bad a scenario is, and its row."""
    errors: list[tuple[float, Attempt]] = []
    predictions: list[Score] = []
    for release in releases:
        for one in context.grounds.about(release.scenario, release.subject):
            if isinstance(one, Attempt) and one.error is not None and one.error.value is not None:
                errors.append((one.error.value, one))
        predicted = _predicted(release, context)
        predictions += [] if predicted is None else [predicted]
    worst = min(errors, key=lambda pair: pair[0])[1] if errors else None
    smallest = min(predictions, key=lambda score: score.value or 0.0, default=None)
    verdicts = [context.verdict_on(release.item) for release in releases]
    leaking = sum(one is not None and one.verdict is VerdictKind.LEAKS for one in verdicts)
    attacked = len({one.subject for _, one in errors})
    std = next((release.noise_std for release in releases if release.noise_std), None)
    reached = quantity(None if worst is None else worst.error)
    blind = Quantity() if worst is None else quantity(context.blind(worst.error, worst.scenario, worst.subject))
    given = context.verdict_on(name)
    badness = (1 if given is None else _ORDER[given.verdict], min((error for error, _ in errors), default=float("inf")))
    return badness, [
        as_is(name),
        str(len(releases)),
        f"{leaking} of {attacked}",
        decimal(std) if std else "none",
        reached,
        blind,
        beside_blind(quantity(smallest), blind) if smallest is not None else MISSING,
    ]


def _predicted(release: ReleaseFinding, context: Context) -> Score | None:
    """The prediction that reports rely on: exact I²F at ε = 0 for the noise drawn, where it has a value."""
    for _, score in context.grounds.scores("inversion_influence", release.scenario, release.subject):
        if score.unit == "pixel_rmse" and not as_number(score.details.get("epsilon")):
            return score if score.value is not None else None
    return None


def _thresholds(releases: Sequence[ReleaseFinding], context: Context) -> Words:
    """When an example counts as rebuilt and a release as bounded, in words."""
    limits = context.thresholds
    text = f"An example counts as rebuilt where the {context.error} is at most "
    text += decimal(limits["pixel_rmse"]) if "pixel_rmse" in limits else "the threshold of the plan"
    if "baseline_ratio" in limits:
        text += f" and at most {decimal(limits['baseline_ratio'])} times the blind baseline"
    chances = [release.value("chance_pixel_rmse") for release in releases]
    luck = min((chance for chance in chances if chance is not None), default=None)
    if luck is not None:
        text += f", and nearer than luck brings blind guesses: a single one below {decimal(luck)}, or several at once below "
        text += "limits of their own"
    text += "."
    if "reconstruction_probability" in limits:
        chance = decimal(limits["reconstruction_probability"])
        text += f" Differential privacy bounds a release where it leaves every attacker a chance of at most {chance}."
    return f"{text} Errors are in {context.entries} scaled to [0, 1]. All thresholds are values of the plan."


__all__ = ["page"]

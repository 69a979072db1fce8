"""The page on inference games: what adversaries told, against each defense, and what any adversary could reach."""

from __future__ import annotations

from collections.abc import Sequence

from gradleak.reporting.blocks import (
    Block,
    Column,
    Inline,
    Level,
    Note,
    Section,
    Small,
    Style,
    Table,
    Text,
    Tile,
    Tiles,
    Words,
    as_is,
)
from gradleak.reporting.context import Context
from gradleak.reporting.numerals import MISSING, Quantity, count, decimal, percent
from gradleak.reporting.pages.inference.figures import GAME, WHO, figures
from gradleak.reporting.pages.inference.view import (
    InferenceView,
    defense_rows,
    inferences,
    merged,
    noted,
    warnings,
)
from gradleak.results import Evidence
from gradleak.results.findings.inference import InferenceFinding

TEXT = (
    "Can the server tell a sensitive variable of the batch behind the updates? Advantage is how much of what a blind guesser "
    "gets wrong the adversary gets right: 0 is no better than the best guess without the updates, 1 is always right. The "
    "static adversary does not know the defenses, the adaptive one trains through them; what keeps off the static one alone is "
    "no protection. Intervals are of 95 %."
)
KNOWN = (
    "The server of a game knows the model, its parameters at every observed round, the protocol, the public rows and the prior; "
    "the adaptive adversary knows the defenses too. What each game was played with stands with its numbers."
)
NO_PROOF = (
    "“Not above chance” is no evidence of safety: a stronger adversary, more public rows or more rounds may find what this one "
    "did not."
)
FANO = (
    "Fano's inequality turns a number of nats that the updates may hold into the largest advantage that any adversary can have. "
    "With an upper bound on the information (Gaussian noise on a bounded update) it is a bound, and 1 says that it is vacuous. "
    "With the information that a trained adversary shows it is an estimate, from below: a stronger adversary may exceed it."
)


def page(findings: Sequence[InferenceFinding], context: Context) -> Section | None:
    """The section on inference, None where no game stands in the record."""
    every = inferences([finding for finding in findings if finding.control is None], context)
    if not every:
        return None
    views = merged(every)
    careful = [Note(title="Careful:", text=as_is(warning), level=Level.WARN) for warning in warnings(every)]
    notes = [f"**{as_is(label)}:** {as_is(note)}" for label, note in noted(views)]
    return Section(
        anchor="inference",
        title="Inference",
        label="Inference",
        front=list(_front(views)),
        reading=list(_reading(context)),
        blocks=[
            Text(parts=[TEXT, KNOWN]),
            *careful,
            _told(views),
            Text(parts=[NO_PROOF, *notes], style=Style.FINE),
        ],
        sections=[*figures(views), *_defenses(views), *_bounds(views)],
    )


def _front(views: Sequence[InferenceView]) -> list[Block]:
    told = [view for view in views if view.advantage.value is not None]
    if not told:
        return []
    best = max(told, key=lambda view: view.advantage.value or 0.0)
    interval = f", {best.intervals['advantage']}" if best.intervals["advantage"] else ""
    above = sum(view.above_chance is True for view in views)
    attack = Evidence.ATTACK
    return [
        Tiles(
            tiles=[
                Tile(
                    label="Largest advantage",
                    value=best.advantage,
                    sub=f"{as_is(best.label)}, {best.adversary} adversary{interval}",
                    evidence=attack,
                ),
                Tile(label="Its AUROC", value=best.auroc, sub="0.5 is guessing, 1 tells every batch", evidence=attack),
                Tile(
                    label="Its success rate",
                    value=best.success,
                    sub=f"the best blind guess is right in {best.blind}",
                    evidence=attack,
                ),
                Tile(label="Above chance", value=f"{above} of {len(views)}", sub="games and adversaries"),
            ]
        )
    ]


def _reading(context: Context) -> list[Block]:
    allowed = context.thresholds.get("advantage")
    most = "the threshold of the plan" if allowed is None else decimal(allowed)
    text = (
        "An inference game leaks where an adversary has an advantage over the best blind guess whose interval lies above 0. It "
        f"is bounded where Fano's inequality leaves every adversary an advantage of at most {most}."
    )
    return [Text(parts=[text])]


def _told(views: Sequence[InferenceView]) -> Table:
    attack = Evidence.ATTACK
    return Table(
        caption="All observed rounds together",
        columns=[
            GAME,
            WHO,
            Column(label="More than chance"),
            Column(label="AUROC", evidence=attack, numeric=True, hint="0.5 is guessing, 1 tells every batch"),
            Column(
                label="Found at few false alarms",
                evidence=attack,
                numeric=True,
                hint="the true-positive rate at a low false-positive rate",
            ),
            Column(label="Success rate", evidence=attack, numeric=True),
            Column(label="Best blind guess", numeric=True),
            Column(label="Advantage", evidence=attack, numeric=True),
            Column(label="Trials, seeds", numeric=True),
        ],
        rows=[
            [
                as_is(view.label),
                view.adversary,
                f"**{view.verdict}**" if view.above_chance else view.verdict,
                [*_with_interval(view, "auroc"), *_small(f"± {view.spread} over seeds" if view.spread else "")],
                [*_with_interval(view, "tpr"), *_small(_at(view.false_positive_rate))],
                _with_interval(view, "success"),
                view.blind,
                _with_interval(view, "advantage"),
                f"{count(view.trials)}, {view.seeds}",
            ]
            for view in views
        ],
    )


def _at(rate: float | None) -> str:
    return "" if rate is None else f"at {percent(rate)} false alarms"


def _small(text: str) -> list[Inline]:
    return [Small(text)] if text else []


def _with_interval(view: InferenceView, name: str) -> list[Inline]:
    found: Quantity = getattr(view, name)
    return [found, *_small(view.intervals[name])]


def _defenses(views: Sequence[InferenceView]) -> list[Section]:
    """Static and adaptive side by side."""
    rows: list[list[Words]] = []
    for row in defense_rows(views):
        known = row.adaptive or row.static
        sides: list[Words] = []
        for view in (row.static, row.adaptive):
            sides += [MISSING, "not played"] if view is None else [view.auroc, _with_interval(view, "advantage")]
        worth: Words = MISSING
        if known is not None and known.utility is not None:
            worth = [Quantity(value=known.utility, text=decimal(known.utility)), Small(known.metric)]
        rows.append([as_is(row.label), as_is(row.defenses), *sides, worth])
    if not rows:
        return []
    attack = Evidence.ATTACK
    columns = [
        GAME,
        Column(label="Defenses"),
        *(
            Column(label=f"{what}, {who}", evidence=attack, numeric=True)
            for who in ("static", "adaptive")
            for what in ("AUROC", "Advantage")
        ),
        Column(label="Worth of the model", evidence=Evidence.ESTIMATE, numeric=True, hint="on its test rows"),
    ]
    return [
        Section(
            anchor="inference-defenses",
            title="Each defense against an adversary who knows it",
            label=None,
            blocks=[Table(columns=columns, rows=rows)],
        )
    ]


def _bounds(views: Sequence[InferenceView]) -> list[Section]:
    """The advantage that Fano's inequality leaves to any adversary."""
    rows: list[list[Words]] = [
        [
            as_is(view.label),
            view.adversary,
            view.information,
            view.fano_bound,
            view.estimate,
            view.fano_estimate,
            view.advantage,
        ]
        for view in views
        if view.informed
    ]
    if not rows:
        return []
    bound, estimate = Evidence.UPPER_BOUND, Evidence.ESTIMATE
    columns = [
        GAME,
        WHO,
        Column(label="Information, nats", evidence=bound, numeric=True),
        Column(label="Advantage it allows", evidence=bound, numeric=True),
        Column(label="Information shown, nats", evidence=estimate, numeric=True),
        Column(label="Advantage by it", evidence=estimate, numeric=True),
        Column(label="Advantage reached", evidence=Evidence.ATTACK, numeric=True),
    ]
    return [
        Section(
            anchor="inference-bounds",
            title="What any adversary could reach",
            label=None,
            blocks=[Text(parts=[FANO]), Table(columns=columns, rows=rows)],
        )
    ]


__all__ = ["page"]

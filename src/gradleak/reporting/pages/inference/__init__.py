"""The page on inference games: what adversaries inferred, each defense, and limits on every adversary's advantage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradleak.reporting.blocks import (
    Block,
    Chip,
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
    labels,
    numbers,
)
from gradleak.reporting.context import Context
from gradleak.reporting.numerals import MISSING, NBSP, Quantity, between, count, decimal, percent
from gradleak.reporting.pages.inference.figures import figures
from gradleak.reporting.pages.inference.view import InferenceView, defense_rows, inferences, merged, noted, warnings
from gradleak.results import Evidence
from gradleak.results.findings.inference import InferenceFinding

TEXT = (
    "Can the server tell a sensitive variable of the batch behind the updates? Advantage is the share of a blind "
    "guesser's errors that the adversary avoids: 0 is no better than the best guess without the updates, 1 is always right. The "
    "static adversary does not know the defenses, the adaptive one trains through them; a defense that stops the static one "
    "alone does not protect. Intervals are of 95 %, for other rows or users too, so that they are wider than many trials would "
    "make them; the widest are those of true-positive rates, which rest on the few batches that give false alarms. The utility "
    "of a model has an interval, too: defenses whose intervals meet are not shown to differ in cost."
)
KNOWN = (
    "The server of a game knows the model, its parameters at every observed round, the protocol, the public rows and the prior; "
    "the adaptive adversary knows the defenses too. The settings of each game stand with its numbers."
)
NO_PROOF = (
    "“Not above chance” is no evidence of safety: a stronger adversary, more public rows or more rounds may find what this one "
    "did not."
)
FANO = (
    "Fano's inequality turns a number of nats that the updates may hold into the largest advantage that any adversary can have. "
    "With an upper bound on the information (Gaussian noise on a bounded update) it is a bound, and 1 says that it is vacuous. "
    "With the information that a trained adversary shows it is an estimate, from below, and no limit: that adversary itself may "
    "exceed it. H(a) is the entropy of the variable, all that there is to be told, and a bound on the "
    "information is never printed above it. The std of noise is that on the update, a mean over the batch."
)

_RANKS = "by its own guesses, but it ranks the batches correctly: another threshold makes this a leak"
_WRONG_WAY = "but it tells the values apart, and reads them the wrong way round: another adversary makes this a leak"
_ON_TEST_ROWS = "on its test rows; defenses whose intervals meet are not shown to differ"
# What an adversary tells, by the class of the game.
_TOLD: Mapping[str, str] = {
    "PropertyGame": "which value all rows of a batch share, of a variable that the model does not see",
    "AttributeGame": "which value all rows of a batch share, of a variable that the model sees",
    "DistributionGame": "how large the share of rows with a property is in a batch",
    "UserGame": "whose rows a batch holds",
}
# Scenarios and games on the first screen.
MOST_SHOWN = 8
_AUROC = "0.5 is guessing, 1 tells every batch"
_WHO = labels("Scenario and game", "Adversary")


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
        evidence=_who_was_told(views, context),
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


def _who_was_told(views: Sequence[InferenceView], context: Context) -> list[Block]:
    """The strongest adversary of every scenario and game, the worst first, as right answers of a hundred."""
    best: dict[str, InferenceView] = {}
    for view in sorted(views, key=lambda one: one.reached, reverse=True):
        if view.advantage.value is not None:
            best.setdefault(view.label, view)
    if not best:
        return []
    rows: list[list[Words]] = []
    worth = any(view.utility is not None for view in best.values())
    for view in list(best.values())[:MOST_SHOWN]:
        verdict = context.verdict_on(view.scenario)
        rows.append(
            [
                as_is(view.label),
                Chip(verdict.verdict) if verdict else MISSING,
                _of_a_hundred(view.success),
                _of_a_hundred(view.detail("advantage", "blind")),
                view.adversary,
                view.seen,
                *([_worth(view)] if worth else []),
            ]
        )
    columns = [
        *labels("Scenario and game", "Verdict of the scenario"),
        *numbers(
            "Right answers in 100",
            evidence=Evidence.ATTACK,
            hint="of the strongest adversary, on batches not seen before",
        ),
        *numbers("Best blind guess", hint="right answers in 100 without the updates"),
        *labels("Adversary", "From"),
        *(numbers("Utility of the model", evidence=Evidence.ESTIMATE, hint=_ON_TEST_ROWS) if worth else []),
    ]
    uses = dict.fromkeys(str(view.finding.game.get("use")) for view in views)
    asked = [_TOLD[use] for use in uses if use in _TOLD]
    text = f"From updates alone an adversary infers {'; '.join(asked) or 'a variable that is sensitive'}"
    little = list(dict.fromkeys(f"{as_is(view.vacuous)}." for view in best.values() if view.vacuous))
    return [
        Text(parts=["What was inferred from the updates alone"], style=Style.HEADING),
        Table(caption=text, columns=columns, rows=rows),
        *([Text(parts=little, style=Style.FINE)] if little else []),
    ]


def _worth(view: InferenceView) -> Words:
    """Utility of the model that was trained through the defenses, with its interval."""
    if view.utility is None:
        return MISSING
    span = between(view.worth[0]) if len(view.worth) == 1 else ""
    return [
        Quantity(value=view.utility, text=decimal(view.utility)),
        *(Small(part) for part in (view.metric, span) if part),
    ]


def _of_a_hundred(share: float | None) -> str:
    return percent(share).partition(NBSP)[0]


def _front(views: Sequence[InferenceView]) -> list[Block]:
    told = [view for view in views if view.advantage.value is not None]
    if not told:
        return []
    best = max(told, key=lambda view: view.advantage.value or 0.0)
    beside = ", ".join(
        part for part in (f"{as_is(best.label)}, {best.adversary} adversary", best.interval("advantage")) if part
    )
    guessed = f"the best blind guess is right in {decimal(best.detail('advantage', 'blind'))}"
    above = f"{sum(view.above_chance is True for view in views)} of {len(views)}"
    attack = Evidence.ATTACK
    tiles = [
        Tile(label="Largest advantage", value=best.advantage, sub=beside, evidence=attack),
        Tile(label="Its AUROC", value=best.number("auroc"), sub=_AUROC, evidence=attack),
        Tile(label="Its success rate", value=best.number("attack_success_rate"), sub=guessed, evidence=attack),
        Tile(
            label="Above chance",
            value=above,
            sub="adversaries; where there is nothing to know, static and adaptive are one",
        ),
    ]
    return [Tiles(tiles=tiles)]


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
    rows: list[list[Words]] = []
    for view in views:
        told = view.score("advantage")
        spread, rate = view.detail("auroc", "sd"), view.detail("tpr_at_fpr", "false_positive_rate")
        rows.append(
            [
                as_is(view.label),
                view.adversary,
                f"**{view.verdict}**"
                if view.above_chance
                else [
                    view.verdict,
                    *([Small(_RANKS)] if view.ranks else [Small(_WRONG_WAY)] if view.wrong_way else []),
                ],
                _with_interval(view, "auroc", "" if spread is None else f"± {decimal(spread, 2)} over seeds"),
                _with_interval(view, "tpr_at_fpr", "" if rate is None else f"at {percent(rate)} false alarms"),
                _with_interval(view, "attack_success_rate"),
                decimal(view.detail("advantage", "blind")),
                _with_interval(view, "advantage"),
                f"{count(told.n if told else 0)}, {len(view.finding.runs)}",
            ]
        )
    columns = [
        *_WHO,
        *labels("Above chance"),
        *numbers("AUROC", evidence=attack, hint=_AUROC),
        *numbers("TPR at low FPR", evidence=attack, hint="the true-positive rate at a low false-positive rate"),
        *numbers("Success rate", evidence=attack),
        *numbers("Best blind guess"),
        *numbers("Advantage", evidence=attack),
        *numbers("Trials, seeds"),
    ]
    return Table(caption="All observed rounds together", columns=columns, rows=rows)


def _with_interval(view: InferenceView, name: str, further: str = "") -> list[Inline]:
    return [view.number(name), *(Small(text) for text in (view.interval(name), further) if text)]


def _defenses(views: Sequence[InferenceView]) -> list[Section]:
    """Static and adaptive side by side."""
    rows: list[list[Words]] = []
    for (label, defenses), row in defense_rows(views).items():
        known = row.get("adaptive") or row.get("static")
        sides: list[Words] = []
        for view in (row.get("static"), row.get("adaptive")):
            sides += (
                [MISSING, "not played"] if view is None else [view.number("auroc"), _with_interval(view, "advantage")]
            )
        rows.append([as_is(label), as_is(defenses), *sides, MISSING if known is None else _worth(known)])
    columns = [
        *labels("Scenario and game", "Defenses"),
        *numbers(
            "AUROC, static", "Advantage, static", "AUROC, adaptive", "Advantage, adaptive", evidence=Evidence.ATTACK
        ),
        *numbers("Utility of the model", evidence=Evidence.ESTIMATE, hint=_ON_TEST_ROWS),
    ]
    title = "Each defense against an adversary who knows it"
    return _section("defenses", title, rows, Table(columns=columns, rows=rows))


def _bounds(views: Sequence[InferenceView]) -> list[Section]:
    """The advantage that Fano's inequality leaves to any adversary."""
    bound, estimate = Evidence.UPPER_BOUND, Evidence.ESTIMATE
    names = (
        ("information_bound", None),
        ("fano_advantage", bound),
        ("information_estimate", None),
        ("fano_advantage", estimate),
    )
    found = [(view, [view.number(name, evidence) for name, evidence in names]) for view in views]
    rows: list[list[Words]] = [
        [as_is(view.label), view.adversary, *known, view.advantage]
        for view, known in found
        if any(one.value is not None or one.outcome is not None for one in known)
    ]
    columns = [
        *_WHO,
        *numbers("Information, nats", "Largest advantage", evidence=bound),
        *numbers("Information found, nats", "Advantage from it", evidence=estimate),
        *numbers("Advantage reached", evidence=Evidence.ATTACK),
    ]
    title = "Limits on every adversary's advantage"
    return _section("bounds", title, rows, Text(parts=[FANO]), Table(columns=columns, rows=rows))


def _section(name: str, title: str, rows: Sequence[object], *blocks: Block) -> list[Section]:
    """A part of the page, nothing without rows."""
    return [Section(anchor=f"inference-{name}", title=title, label=None, blocks=blocks)] if rows else []


__all__ = ["page"]

"""The page on privacy audits: epsilon as it was measured, beside what is claimed and what is known."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gradleak.reporting import words
from gradleak.reporting.blocks import (
    Badge,
    Block,
    Chip,
    Fold,
    Level,
    Note,
    Section,
    Small,
    Style,
    Table,
    Tag,
    Text,
    Tile,
    Tiles,
    Words,
    as_is,
    labels,
    numbers,
)
from gradleak.reporting.context import Context
from gradleak.reporting.numerals import MISSING, Quantity, between, count, decimal, power_of_ten, quantity
from gradleak.reporting.pages.privacy.figures import figures
from gradleak.reporting.pages.privacy.view import (
    EXACT,
    THEORY,
    PrivacyView,
    broken,
    estimator,
    largest,
    noted,
    privacies,
    shown_theory,
    statistic,
)
from gradleak.results import Evidence, Score
from gradleak.results.findings.privacy import PrivacyFinding

TEXT = (
    "Two hypotheses that differ in one thing alone (an attribute of a record, or whether a record is there) are released many "
    "times, and somebody who knows everything else tells them apart. The rate of errors bounds ε from below: "
    "(ε, δ) privacy does not allow fewer. A lower bound shows a loss of at least that size, never that nothing more is lost: "
    "it can break a claim, and cannot prove one."
)
TERMS = (
    "δ is the small chance with which the promise of ε may fail; it has to be far below one over the number of people. A canary "
    "is a record that was made to be told apart, to come near the worst case; a random record is one of the public rows. Claimed "
    "is the ε that the release is said to have. Largest certifiable is the largest bound that so many trials can give, even if "
    "not one of them is told wrongly: what is lost beyond that only more trials can show. Epoch 0 is the model before training."
)
KNOWN = (
    "The auditor knows the model, its parameters, both hypotheses, the protocol and the defenses with their constants, and sees "
    "nothing but releases. Differential privacy is a promise about exactly this observer."
)
NO_PROOF = (
    "A bound of 0 is no evidence of safety: another record, another statistic or more trials may tell the two hypotheses of an "
    "audit apart."
)
# Scenarios on the first screen.
MOST_SHOWN = 8
INTERVALS = (
    "Certified is the number under Epsilon, with the confidence that stands below the table above. An interval is another "
    "statement of the same test: two-sided, with half of the error at each end, so that it may begin a little below the bound; "
    "its upper end limits what this threshold shows, never what is lost. A Gaussian trade-off curve is assumed where that is "
    "said; the other bounds assume nothing of the noise."
)
# Beyond it a factor of odds is told by its power of ten.
_MILLION = math.log(1e6)
THEORIES = (
    "Exact for these hypotheses: the epsilon of the very two releases, which bounds from trials approach from below. The others "
    "speak of the release whatever its record is: by the exact Gaussian mechanism for a record that is there or not, or that is "
    "replaced by another (twice the clipping norm), and by the classical formula, which is proven below 1 only. A total divided "
    "by the number of attributes is a convention that bounds nothing."
)


def page(findings: Sequence[PrivacyFinding], context: Context) -> Section | None:
    """The section on the measured privacy loss, None where no audit stands in the record."""
    views = privacies([finding for finding in findings if finding.control is None], context)
    if not views:
        return None
    notes = [f"**{as_is(label)}:** {as_is(note)}" for label, note in noted(views)]
    return Section(
        anchor="privacy",
        title="Measured privacy loss",
        label="Privacy loss",
        evidence=_odds(views, context),
        front=list(_front(views)),
        reading=list(_reading(context)),
        blocks=[
            Text(parts=[TEXT, KNOWN]),
            Text(parts=[TERMS], style=Style.FINE),
            _losses(views),
            Text(parts=[NO_PROOF, *notes], style=Style.FINE),
        ],
        sections=[*figures(views), *_theory(views), *_measured(views)],
    )


def _odds(views: Sequence[PrivacyView], context: Context) -> list[Block]:
    """The largest lower bound of every scenario, the worst first, as a factor of odds."""
    best: dict[str, PrivacyView] = {}
    for view in sorted(views, key=lambda one: one.epsilon.value or 0.0, reverse=True):
        if view.epsilon.value is not None:
            best.setdefault(view.scenario, view)
    if not best:
        return []
    rows: list[list[Words]] = []
    for view in list(best.values())[:MOST_SHOWN]:
        verdict = context.verdict_on(view.scenario)
        rows.append(
            [
                [as_is(view.scenario), Small(as_is(words.named(view.audit, view.pair.name)))],
                Chip(verdict.verdict) if verdict else MISSING,
                _factor(view.epsilon.value),
                _factor(view.claim.value),
                [view.epsilon, *([Small(as_is(view.reserve))] if view.reserve else [])],
                view.exact,
            ]
        )
    columns = [
        *labels("Scenario", "Verdict"),
        *numbers("Odds change at least", hint="by this factor, for some release, but for a chance of delta"),
        *numbers("At most, as claimed", hint="e to the epsilon that differential privacy, or the plan, states"),
        *numbers("Epsilon is at least", hint="shown by trials, for these two versions of one record"),
        *numbers(
            "Exactly, for these two versions", hint="computed without trials, for these two versions of one record"
        ),
    ]
    allowed = context.thresholds.get("epsilon")
    deltas = {view.terms.delta for view in best.values() if view.terms.delta is not None}
    told = [f"delta {decimal(deltas.pop())}"] if len(deltas) == 1 else []
    told += [f"the plan calls epsilon above {decimal(allowed)} a leak"] if allowed is not None else []
    told += (
        ["epoch 0 is the model before training"] if any("epoch 0" in view.pair.name for view in best.values()) else []
    )
    text = (
        "Who knows everything else, sees *one* release, and wonders which of two versions of a record is behind it, can change "
        "the odds so far "
        f"({'; '.join([*told, 'more releases tell more'])})"
    )
    return [
        Text(parts=["What one release tells of a record"], style=Style.HEADING),
        Table(caption=text, columns=columns, rows=rows),
        *_of_others(list(best.values())[:MOST_SHOWN], views, allowed),
    ]


def _of_others(worst: Sequence[PrivacyView], views: Sequence[PrivacyView], allowed: float | None) -> list[Block]:
    """Scenarios above the limit by one pair of hypotheses alone, in words."""
    told: list[str] = []
    for view in worst:
        others = [one for one in views if one.finding is view.finding and one is not view]
        if allowed is None or (view.epsilon.value or 0.0) <= allowed or not others:
            continue
        most = max(others, key=lambda one: one.epsilon.value or 0.0)
        if most.epsilon.value is not None and most.epsilon.value <= allowed:
            told.append(
                f"{as_is(view.scenario)} is above the limit by {as_is(view.pair.name)} alone: of {as_is(most.pair.name)} "
                f"epsilon is at least {most.epsilon.text}."
            )
    return [Text(parts=told, style=Style.FINE)] if told else []


def _factor(epsilon: float | None) -> str:
    if epsilon is None:
        return MISSING
    if math.isinf(epsilon):
        return "without limit"
    if epsilon > _MILLION:
        return f"over {power_of_ten(math.floor(epsilon / math.log(10.0)))} times"
    return f"{decimal(math.exp(epsilon))} times" if epsilon > 0.0 else "no change shown"


def _front(views: Sequence[PrivacyView]) -> list[Block]:
    """Every broken claim, and the largest lower bound."""
    loud: list[Block] = [
        Note(title="The claim is broken.", text=as_is(sentence), level=Level.LOUD) for sentence in broken(views)
    ]
    lost = [view for view in views if view.best is not None]
    if not lost:
        return loud
    worst = max(lost, key=lambda view: view.epsilon.value or 0.0)
    best = worst.best
    assert best is not None
    most = largest(best)
    tiles = [
        Tile(
            label="Epsilon is at least",
            value=worst.epsilon,
            sub=as_is("; ".join(filter(None, (f"{worst.label}, by {statistic(best)}", worst.reserve)))),
            evidence=_evidence(worst.epsilon),
        ),
        Tile(label="Claimed there", value=worst.claim, sub=as_is(worst.claimed)),
        Tile(
            label="Exact, these hypotheses",
            value=worst.exact,
            sub="" if most is None else f"so many trials can certify at most {decimal(most)}",
            evidence=_evidence(worst.exact),
        ),
        Tile(
            label="Told apart",
            value=f"{sum(bool(view.epsilon.value) for view in lost)} of {len(views)}",
            sub="pairs of hypotheses with a lower bound above 0",
        ),
    ]
    return [*loud, Tiles(tiles=tiles)]


def _reading(context: Context) -> list[Block]:
    allowed = context.thresholds.get("epsilon")
    most = "the threshold of the plan" if allowed is None else decimal(allowed)
    text = (
        f"A privacy audit leaks where a lower bound on epsilon lies above {most}, or above what is claimed. It is bounded where "
        f"the guarantee of the release has an epsilon of at most {most} and nothing contradicts it."
    )
    return [Text(parts=[text])]


def _losses(views: Sequence[PrivacyView]) -> Table:
    rows: list[list[Words]] = []
    for view in views:
        best = view.best
        by = "" if best is None else f"by {as_is(statistic(best))}, {as_is(estimator(best))}"
        if best is not None and not best.value:
            by = "by every statistic and estimator"
        rows.append(
            [
                as_is(view.label),
                Tag(view.state, tone="bad") if view.loud else as_is(view.state),
                [*_with_badge(view.epsilon), *(Small(text) for text in (by, as_is(view.reserve)) if text)],
                decimal(largest(best)),
                [view.claim, Small(f"δ = {decimal(view.terms.delta)}")],
                view.exact,
                count(view.pair.trials or None),
            ]
        )
    columns = [
        *labels("Scenario and audit", "Result"),
        *numbers("Epsilon is at least", "Largest certifiable", "Claimed"),
        *numbers("Exact, these hypotheses", evidence=Evidence.EXACT),
        *numbers("Trials a hypothesis"),
    ]
    caption = "The largest lower bound of each audit; all bounds of an audit hold together"
    return Table(caption=caption, columns=columns, rows=rows)


def _theory(views: Sequence[PrivacyView]) -> list[Section]:
    names = shown_theory(views)
    rows: list[list[Words]] = [
        [as_is(view.label), *(_with_badge(_known(view, name)) for name in names)] for view in views
    ]
    columns = [*labels("Scenario and audit"), *numbers(*(THEORY[name] for name in names))]
    blocks = (Text(parts=[THEORIES]), Table(columns=columns, rows=rows))
    return [Section(anchor="privacy-known", title="Known without trials", label=None, blocks=blocks)] if names else []


def _known(view: PrivacyView, name: str) -> Quantity:
    """A number of theory; of releases without noise the epsilon of the two hypotheses is known by looking at them."""
    found = view.theory.get(name, Quantity())
    return view.exact if name in EXACT and found.value is None else found


def _measured(views: Sequence[PrivacyView]) -> list[Section]:
    rows: list[list[Words]] = [
        [
            as_is(view.label),
            as_is(statistic(score)),
            as_is(estimator(score)),
            _with_badge(quantity(score)),
            between(score) or MISSING,
            decimal(largest(score)),
            _told(score, "direction").replace("h1", "the alternative") or MISSING,
            _told(score, "selection") or MISSING,
        ]
        for view in views
        for score in view.measured
    ]
    columns = [
        *labels("Scenario and audit", "Statistic", "Estimator"),
        *numbers("Epsilon"),
        *labels("Interval, two-sided"),
        *numbers("Largest certifiable"),
        *labels("Direction", "Threshold"),
    ]
    title, table = "Every epsilon from the trials, bounds and estimates apart", Table(columns=columns, rows=rows)
    fold = Fold(title=title, blocks=[Text(parts=[INTERVALS], style=Style.FINE), table], printed=True)
    return [Section(anchor="privacy-trials", title="From the trials", label=None, blocks=[fold])] if rows else []


def _told(score: Score, key: str) -> str:
    return as_is(str(score.details.get(key) or "").replace("_", " "))


def _evidence(found: Quantity) -> Evidence | None:
    return Evidence(found.evidence) if found.evidence else None


def _with_badge(found: Quantity) -> list[Quantity | Badge]:
    evidence = _evidence(found)
    return [found] if evidence is None or found.value is None else [found, Badge(evidence)]


__all__ = ["page"]

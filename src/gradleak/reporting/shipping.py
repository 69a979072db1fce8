"""The answer to "What may I ship?", and the verdicts on the scenarios with what the plan demands of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist

from gradleak.reporting import words
from gradleak.reporting.blocks import (
    Block,
    Chip,
    Column,
    Inline,
    Section,
    Small,
    Style,
    Table,
    Tag,
    Text,
    Words,
    as_is,
    labels,
)
from gradleak.reporting.context import Context
from gradleak.reporting.numerals import MISSING, as_number, decimal, quantity
from gradleak.results import Evidence, Policy, Score, Verdict, VerdictKind, rounded_up

_NAMED = 6
_NOT_MEASURED = "What a defense costs in utility was not measured (a plan with `utility` trains through every release)."
_TRIED = "releases of examples or batches, inference games, and audits of privacy loss"
_POLICY = "what the plan demands of a scenario; the gate of a pipeline goes by it, and none means any verdict will do"


def shipping(pages: Sequence[Section], context: Context) -> Iterable[Block]:
    """Answer to "What may I ship?", without a verdict on a scenario none. Nothing is ever called safe.

    Args:
        pages: whose caveats stand beside the scenarios.
        context: the record.
    """
    bounded, open_ = (context.judged(kind) for kind in (VerdictKind.BOUNDED, VerdictKind.INCONCLUSIVE))
    parts: list[Words] = []
    for name in bounded[:_NAMED]:
        why = next(words.reason(one.reason) for one in context.record.verdicts if name in (one.scenario, one.item))
        said = [f"**{as_is(name)}** is bounded: {as_is(why)}.", _guarantee(name, context), *_cost(name, context)]
        parts.append([*said, *_caveats(name, pages)])
    if not bounded:
        parts.append(
            "Nothing by what this run has shown: no scenario is bounded, since no guarantee was computed that keeps every "
            "attacker below the limits."
        )
    if open_:
        more = f" and {len(open_) - _NAMED} more" if len(open_) > _NAMED else ""
        named = ", ".join(map(as_is, open_[:_NAMED])) + more
        risk = "A stronger attack may succeed: that is a risk that you take, not a result."
        parts.append(f"Neither shown to leak nor bounded: {named}. {risk}")
        parts += [[f"**{as_is(name)}**:", *said] for name in open_[:_NAMED] if (said := _told(name, pages, context))]
    change = _smallest_change(context)
    if bounded or open_ or context.judged(VerdictKind.LEAKS):
        measured = bounded or any(_utility(name, context) for name in context.scenarios)
        parts += [*([change] if change else []), *([] if measured else [_NOT_MEASURED])]
        yield Text(parts=["What may I ship?"], style=Style.HEADING)
        yield Text(parts=parts, style=Style.LIST)


def enough_noise(score: Score, limit: float) -> str:
    """Change that would bring a chance to rebuild an example to the limit: noise, where guessing alone is below it.

    Args:
        score: the chance to rebuild an example that differential privacy leaves, above the limit.
        limit: of the plan.
    """
    kappa, mu, size = (as_number(score.details.get(key)) for key in ("kappa", "mu", "examples"))
    fewer = ", or fewer releases," if (as_number(score.details.get("rounds")) or 1) > 1 else ""
    if kappa is None or mu is None or size is None or mu <= 0.0 or kappa <= 0.0:
        return f"more noise{fewer} would bound it"
    # What is left where noise hides everything, of one example at least.
    guessed = min(1.0, size * kappa)
    if guessed >= limit:
        return (
            f"no noise is enough, since blind guesses alone are given {decimal(guessed)} under the prior of the plan; "
            "a wider one (more candidates, where the attacker knows no better), or batches of fewer examples, would help"
        )
    # The whole client is hidden at once, examples of a batch one by one.
    whole = score.details.get("hidden") == "client"
    start, end = (guessed, limit) if whole else (kappa, limit / size)
    normal = NormalDist()
    factor = mu / (normal.inv_cdf(end) - normal.inv_cdf(start))
    # Rounded up, so that the noise that is named is enough.
    return f"about {decimal(rounded_up(factor, digits=2))} times the noise{fewer} would bound it"


def _guarantee(name: str, context: Context) -> str:
    """The bound of a scenario with all that it rests on, as its verdict has it."""
    verdict = context.verdict_on(name)
    told = "" if verdict is None else str(verdict.details.get("reason_text", verdict.explanation))
    return as_is(context.printed(told))


def _told(name: str, pages: Sequence[Section], context: Context) -> list[Inline]:
    """Parts that leak of a scenario that is not shown to leak as a whole, and its caveats."""
    reasons = dict.fromkeys(one.reason for one in context.record.verdicts if one.scenario == name)
    return [*(words.PARTLY[reason] for reason in reasons if reason in words.PARTLY), *_caveats(name, pages)]


def _caveats(name: str, pages: Sequence[Section]) -> list[Inline]:
    return [said for page in pages for said in page.caveats.get(name, ())]


def _cost(name: str, context: Context) -> Sequence[Inline]:
    """Utility of a scenario, beside the best that was measured in another one."""
    own = _utility(name, context)
    if own is None:
        return [_NOT_MEASURED]
    measured = {one: score for one in context.scenarios if one != name and (score := _utility(one, context))}
    others = {one: score for one, score in measured.items() if score.name == own.name}
    beside: list[Inline] = []
    if others:
        best = max(others, key=lambda one: others[one].value or 0.0)
        of = "" if len(others) == 1 else f", the best of {len(others)} others that were trained"
        beside = [f"({as_is(best)}{of}:", quantity(others[best]), ")"]
    return [f"{words.sentence(words.score_name(own.name))} of models trained through it:", quantity(own), *beside, "."]


def _utility(name: str, context: Context) -> Score | None:
    found = (score for one in context.grounds.about(name) for score in one.scores)
    return next((score for score in found if score.name.startswith("test_") and score.value is not None), None)


def _smallest_change(context: Context) -> str:
    """Noise that the closed form asks for, of the example that needs the most; "" where none was computed."""
    needed, limit = context.noise_needed, context.thresholds.get("pixel_rmse")
    if needed is None or limit is None:
        return _smallest_for_tokens(context)
    beaten = _beaten(needed, context)
    return (
        f"The smallest change that the closed form asks for: Gaussian noise of std {decimal(needed)} or more on every shared "
        f"number would keep any *unbiased* attacker above {context.error} {decimal(limit)} on average, for every audited "
        f"example. It is an estimate and no guarantee: an attacker with a prior comes nearer.{beaten}"
    )


def _smallest_for_tokens(context: Context) -> str:
    """Noise that bounds between tokens ask for, with the prior that they rest on; "" where none was computed."""
    score = context.token_noise_needed
    if score is None or score.value is None:
        return ""
    prior, threshold = score.details.get("under_prior", "not stated"), as_number(score.details.get("threshold"))
    kind = "It is an estimate, from the linear form. " if score.evidence is Evidence.ESTIMATE else ""
    return (
        f"The smallest change that the closed form asks for: Gaussian noise of std {decimal(score.value)} or more on every "
        f"shared number would keep every decoder of a single token, told all others, above an error of {decimal(threshold)} at "
        f"the places that were looked at, on average over a prior ({prior}). {kind}**It bounds nothing without that prior**: "
        "words of a language are not as likely as each other, and a decoder that knows the language errs less."
        f"{_beaten(score.value, context)}"
    )


def _beaten(needed: float, context: Context) -> str:
    """Scenarios that leak in spite of so much noise, in words."""
    std = {name: context.noise_of(name, even=True) for name in context.judged(VerdictKind.LEAKS)}
    found = [(name, size) for name, size in std.items() if size >= needed]
    told = ", ".join(f"{as_is(name)} carries noise of std {decimal(size)} and leaks" for name, size in found)
    return f" **Do not go by it here, it is too little**: {told}." if told else ""


def by_scenario(context: Context) -> Iterable[Block]:
    """The verdicts on the scenarios, the worst first, those of one verdict by their noise.

    Args:
        context: the record.
    """
    given = {name: context.verdict_on(name) for name in context.scenarios}
    verdicts = {name: verdict for name, verdict in given.items() if verdict is not None}
    if not verdicts:
        return
    order = (VerdictKind.LEAKS, VerdictKind.INCONCLUSIVE, VerdictKind.BOUNDED)
    members: dict[str | None, list[Verdict]] = {}
    for one in context.record.verdicts:
        if one.audit is not None and one.attacked:
            members.setdefault(one.scenario, []).append(one)
    policy = Policy.of(context.record)
    rows: list[list[Words]] = []
    for name, verdict in sorted(
        verdicts.items(), key=lambda pair: (order.index(pair[1].verdict), context.noise_of(pair[0]))
    ):
        mine = members.get(name, [])
        leaking = sum(one.verdict is VerdictKind.LEAKS for one in mine)
        tally = f"{leaking} of {len(mine)}" if mine else MISSING
        row: list[Words] = [
            [as_is(name), *small] if (small := _defended(name, context)) else as_is(name),
            Chip(verdict.verdict),
            tally,
            _why(verdict, mine),
        ]
        rows.append(row if policy == Policy() else [*row[:2], _stated(name, verdict, policy), *row[2:]])
    yield Text(parts=["By scenario"], style=Style.HEADING)
    columns = [
        *labels("Scenario", "Verdict"),
        Column(label="Leaking, of those attacked", hint=_TRIED),
        *labels("Why", why=True),
    ]
    if policy != Policy():
        columns[2:2] = [Column(label="Policy", hint=_POLICY)]
    yield Table(columns=columns, rows=rows)


def _defended(name: str, context: Context) -> list[Small]:
    """The defenses of a scenario with their numbers, as the plan has them; none where it does not list them."""
    listed = (words.mapping(one) for one in words.sequence(context.plan.get("scenarios")))
    release = next((words.mapping(one.get("release")) for one in listed if one.get("name") == name), {})
    if "defenses" not in release:
        return []
    told: list[str] = []
    for one in map(words.mapping, words.sequence(release["defenses"])):
        numbers = {
            key: value for key, value in one.items() if isinstance(value, Mapping) or as_number(value) is not None
        }
        told.append(
            " ".join(part for part in (str(one.get("use", "defense")), words.constants(numbers, joint=" ")) if part)
        )
    return [Small(as_is("; ".join(told) or "no defense"))]


def _why(verdict: Verdict, members: Sequence[Verdict]) -> Words:
    """The reason of a scenario, and those of its parts that do not have its verdict: they may tell something, too."""
    others = [one.reason for one in members if one.verdict is not verdict.verdict]
    if not others:
        return as_is(words.reason(verdict.reason))
    told = (f"{others.count(reason)} more: {as_is(words.reason(reason))}" for reason in dict.fromkeys(others))
    return [as_is(words.reason(verdict.reason)), *map(Small, told)]


def _stated(name: str, verdict: Verdict, policy: Policy) -> Words:
    """Statement of the plan on a scenario beside its verdict: a reference, or a requirement that is met or not."""
    if name in policy.references:
        return Tag("reference", "There to compare with: no verdict on the run and no gate counts it.")
    required = policy.required.get(name)
    if required is None:
        return "none"
    met = required.met_by(verdict.verdict)
    return [f"{required.value} required:", Tag("met" if met else "not met", tone="good" if met else "bad")]

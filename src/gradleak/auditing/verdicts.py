"""From findings to verdicts: each audit judges its own; scenarios and the run take the worst."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gradleak.audits.base import Audit
from gradleak.results import (
    ERRORS,
    RUN,
    Citation,
    Finding,
    Grounds,
    InputError,
    Record,
    Thresholds,
    Verdict,
    VerdictKind,
    kinds,
)


def worst_of(item: str, verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on a set: leaks if any leaks, bounded if all are bounded, else inconclusive."""
    what = "scenarios" if item == RUN else _kinds(verdicts)
    leaking = [verdict for verdict in verdicts if verdict.verdict is VerdictKind.LEAKS]
    bounded = [verdict for verdict in verdicts if verdict.verdict is VerdictKind.BOUNDED]
    # Of scenarios, one that is bounded counts among those of the run, whatever bounds it.
    tested = [verdict for verdict in verdicts if (verdict.tried if item == RUN else verdict.attacked)]
    others = len(verdicts) - len(tested)
    besides = [f"{others} not attacked"] if others else []
    besides += [f"{len(bounded)} bounded"] if bounded else []
    rest = f" ({', '.join(besides)})" if besides else ""
    if leaking:
        worst = min(leaking, key=_how_bad)
        place = worst.details.get("worst", worst.item)
        return Verdict(
            item=item,
            scenario=None if item == RUN else item,
            verdict=VerdictKind.LEAKS,
            reason=worst.reason,
            explanation=f"{_leaking(len(leaking), len(tested), what, others)}{rest}. Worst, {place}: {_core(worst)}",
            details={
                **worst.details,
                "leaking": len(leaking),
                "of": len(tested),
                "worst": place,
                "reason_text": _core(worst),
            },
        )
    if len(bounded) == len(verdicts):
        weakest = min(verdicts, key=lambda verdict: verdict.details.get("bound_margin") or 0.0)
        one = "scenario" if item == RUN else "release"
        members = f"The only {one} is" if len(verdicts) == 1 else f"All {len(verdicts)} {one}s are"
        return Verdict(
            item=item,
            scenario=None if item == RUN else item,
            verdict=VerdictKind.BOUNDED,
            reason="all_bounded",
            explanation=f"{members} bounded. {_core(weakest)}",
            details={**weakest.details, "leaking": 0, "of": len(verdicts), "reason_text": _core(weakest)},
        )
    # Where something was attacked, that is what the reader wants to know about.
    tried = sorted(
        (verdict for verdict in verdicts if verdict.verdict is VerdictKind.INCONCLUSIVE),
        key=lambda verdict: (not verdict.tested, verdict.reason == "no_attack_finished"),
    )
    # Of those with one reason the worst speaks: its number is the one that nothing in the tables undercuts.
    first = min((verdict for verdict in tried if verdict.reason == tried[0].reason), key=_how_bad)
    place = first.details.get("worst", first.item)
    return Verdict(
        item=item,
        scenario=None if item == RUN else item,
        verdict=VerdictKind.INCONCLUSIVE,
        reason=first.reason,
        explanation=_core(first)
        if not tested
        else f"{_none(len(tested), what, others)} shown to leak{rest}, which is no proof of safety. {place}: {_core(first)}",
        details={**first.details, "leaking": 0, "of": len(tested), "worst": place, "reason_text": _core(first)},
        tested=first.tested,
    )


def _leaking(count: int, of: int, what: str, others: int) -> str:
    return f"{_only(what, others)} leaks" if of == 1 else f"{count} of {of} {what} leak{'s' if count == 1 else ''}"


def _none(of: int, what: str, others: int) -> str:
    return f"{_only(what, others)} is not" if of == 1 else f"None of {of} {what} is"


def _only(what: str, others: int) -> str:
    """As people say it of one: the only scenario; beside others that were not attacked, the only one that was tried."""
    one = " and ".join(word.removesuffix("s") for word in what.split(" and "))
    return f"The only {one.removeprefix('attacked ')} that was tried" if others else f"The only {one}"


def _kinds(verdicts: Sequence[Verdict]) -> str:
    """Parts of a scenario, in words: attacked releases, games, privacy audits."""
    return " and ".join(dict.fromkeys(verdict.noun for verdict in verdicts if verdict.noun)) or "items"


def _how_bad(verdict: Verdict) -> tuple[int, float]:
    """Worst first: a broken claim, an example rebuilt (its error), something inferred (its advantage), an epsilon, no number.

    Of bags of words the one of which most was named, and rightly.
    """
    if verdict.reason == "claim_broken":
        return 0, -float(verdict.details["epsilon"])
    bag = verdict.details.get("bag")
    if verdict.reason == "words_leak" and bag:
        return 1, -min(float(bag["recall"]), float(bag["precision"]))
    error = next((found for name in ERRORS if (found := verdict.details.get(name)) is not None), None)
    if error is not None:
        return 1, float(error)
    if verdict.details.get("advantage") is not None:
        return 2, -float(verdict.details["advantage"])
    if verdict.details.get("epsilon") is not None:
        return 3, -float(verdict.details["epsilon"])
    return 4, 0.0


def _core(verdict: Verdict) -> str:
    """The explanation of the release behind a verdict on a set, not nested."""
    return str(verdict.details.get("reason_text", verdict.explanation))


# A group of a record is never empty, and a run without verdicts is no unfinished one.
_NOTHING_JUDGED = Verdict(
    item=RUN,
    verdict=VerdictKind.INCONCLUSIVE,
    reason="no_attack_ran",
    explanation="No audit of this plan attacks a release, so that nothing was judged.",
    tested=False,
)


def judge(
    audits: Sequence[Audit[Any]],
    findings: Sequence[Finding],
    thresholds: Thresholds,
    *,
    references: Collection[str] = (),
) -> list[Verdict]:
    """The verdicts of every audit, on every scenario and on the run, in that order.

    Args:
        audits: of the plan.
        findings: of the run.
        thresholds: when something counts as leaking.
        references: scenarios that the verdict on the run leaves out.
    """
    verdicts = _judge({audit.name: type(audit) for audit in audits}, findings, thresholds, references)
    return verdicts if verdicts and verdicts[-1].item == RUN else [*verdicts, _NOTHING_JUDGED]


def record_of(
    findings: Sequence[Finding],
    *,
    name: str = "findings",
    thresholds: Thresholds | None = None,
    citations: Sequence[Citation] = (),
) -> Record:
    """The record of findings that were made in Python, with their verdicts: what `write_html` and its like take.

    Args:
        findings: of any kinds, each item once; those of one audit in a row.
        name: of the record.
        thresholds: when something counts as leaking, and when as bounded.
        citations: of the methods behind them.

    Returns:
        The record, in memory; `Record.save` writes it.

    Raises:
        InputError: without a finding, for an item twice, or for an audit whose findings are of several kinds.
    """
    chosen = thresholds or Thresholds()
    owners: dict[str, type[Audit[Any]]] = {}
    for finding in findings:
        kind = kinds().get(finding.kind)
        if kind is None:
            raise InputError(f"record_of: expected findings of {', '.join(kinds())}, got {finding.kind!r}")
        if owners.setdefault(finding.audit, kind.load_audit()) is not kind.load_audit():
            raise InputError(f"record_of: expected findings of one kind in audit {finding.audit!r}, got several kinds")
    verdicts = _judge(owners, findings, chosen)
    return Record.of(findings, verdicts, name=name, thresholds=chosen, citations=citations)


def _judge(
    owners: Mapping[str, type[Audit[Any]]],
    findings: Sequence[Finding],
    thresholds: Thresholds,
    references: Collection[str] = (),
) -> list[Verdict]:
    verdicts: list[Verdict] = []
    by_audit: dict[str, list[Finding]] = {}
    for finding in findings:
        by_audit.setdefault(finding.audit, []).append(finding)
    grounds = Grounds(thresholds=thresholds, findings=findings)
    for name, audit in owners.items():
        verdicts += audit.judge(by_audit.get(name, []), grounds.given(verdicts))
    by_scenario: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.scenario is not None:
            by_scenario.setdefault(verdict.scenario, []).append(verdict)
    scenarios = [worst_of(name, group) for name, group in by_scenario.items()]
    counted = (verdict for verdict in scenarios if verdict.item not in references)
    parts = [*counted, *(verdict for verdict in verdicts if verdict.scenario is None)]
    return [*verdicts, *scenarios, *([worst_of(RUN, parts)] if parts else [])]

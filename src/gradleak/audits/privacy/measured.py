"""From the results of privacy audits to findings, of a plan or of audits that were carried out in Python."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gradleak.audits.privacy.trials import apart, never_varies, together
from gradleak.privacy import AuditResult, PairResult, Statistic
from gradleak.results import Evidence, InputError, Leakier, Outcome, Score
from gradleak.results.findings.privacy import ESTIMATOR, PAIR, STATISTIC, Claim, Histogram, Pair, PrivacyFinding
from gradleak.results.score import jsonable

APART = "no noise: perfectly distinguishable"
SAME = "no noise, and the same release under both hypotheses: this record shows nothing"


def measured(
    results: Sequence[AuditResult], empty: PrivacyFinding, *, many: int, quiet: bool, scenarios: int = 1
) -> PrivacyFinding:
    """The finding of one release: what was measured of every pair, and what is known of it without a trial.

    Where releases never vary, no rate of errors is a measurement: they are the same or they are not.

    Args:
        results: one a seed, with estimators as they stand in the plan.
        empty: the finding without a result.
        many: how many lower bounds are to hold together.
        quiet: whether nothing of the release is random, as far as it says.
        scenarios: how many releases were audited.
    """
    pairs: list[Pair] = []
    scores: list[Score] = []
    for number, given in enumerate(results, 1):
        found = together(given, many)
        for one in found.pairs:
            name = f"{one.name}, seed {number}" if len(results) > 1 else one.name
            pair, read = _pair(one, found, name, quiet=quiet and never_varies(one))
            pairs.append(pair)
            scores += read
    first = results[0]
    confidence = next((estimator.confidence for estimator in first.estimators), 0.95)
    return empty.but(
        outcome=next((one.outcome for one in results if one.outcome is not Outcome.CONVERGED), Outcome.CONVERGED),
        seconds=sum(pair.seconds for pair in pairs),
        scores=tuple(scores),
        variety=first.kind,
        method=jsonable(first.audit),
        pairs=tuple(pairs),
        bounds=many,
        confidence=confidence,
        terms=_terms(confidence, many, scenarios),
    )


def finding_of_audit(
    result: AuditResult, *, item: str = "", audit: str = "", scenario: str | None = None, claim: Claim | None = None
) -> PrivacyFinding:
    """The finding of one audit; all its lower bounds hold together.

    No number of a single trial and none of a record is in it.

    Args:
        result: of the audit.
        item: a name that is unique in a record; "" for the kind of the audit.
        audit: the name of the audit; "" for its kind.
        scenario: the release that was audited, or None.
        claim: what is claimed for it, or None.
    """
    name = item or f"privacy loss, {result.kind}"
    empty = PrivacyFinding(item=name, audit=audit or result.kind, scenario=scenario, claim=claim)
    return _finding(result, empty, [result])


def findings_of_audits(
    results: AuditResult | Mapping[str, AuditResult], *, claims: Mapping[str, Claim | float] | None = None
) -> list[PrivacyFinding]:
    """The findings of audits that were already carried out: what `record_of` makes a record of.

    The lower bounds of all of them hold together. Controls are not among them: an audit by a plan has two, in Python
    `null_control` and `planted_control` do.

    Args:
        results: one result; or results by scenario, the audited release in words ("no defense", "DP-SGD").
        claims: by scenario, what is claimed for a release; a number stands for what a plan would state.

    Raises:
        InputError: without a result, or for a claim on a scenario that has none.
    """
    given = {"release": results} if isinstance(results, AuditResult) else dict(results)
    claimed = dict(claims or {})
    if not given:
        raise InputError("findings_of_audits: expected at least one result, got none")
    wrong = sorted(set(claimed) - set(given))
    if wrong:
        raise InputError(f"findings_of_audits.claims: expected some of {', '.join(given)}, got {', '.join(wrong)}")
    found = []
    for scenario, result in given.items():
        claim = claimed.get(scenario)
        if isinstance(claim, int | float):
            delta = next((estimator.delta for estimator in result.estimators), None)
            claim = Claim(epsilon=claim, delta=delta, of="as stated")
        empty = PrivacyFinding(item=f"{scenario}/{result.kind}", audit=result.kind, scenario=scenario, claim=claim)
        found.append(_finding(result, empty, list(given.values())))
    return found


def _finding(result: AuditResult, empty: PrivacyFinding, beside: Sequence[AuditResult]) -> PrivacyFinding:
    if not result.pairs:
        return without_pairs([result], empty)
    many = sum(
        len(pair.samples) * sum(one.evidence is Evidence.LOWER_BOUND for one in other.estimators)
        for other in beside
        for pair in other.pairs
    )
    quiet = all(Statistic.DISTANCE in pair.samples for pair in result.pairs)
    return measured([result], empty, many=max(1, many), quiet=quiet, scenarios=len(beside))


def without_pairs(results: Sequence[AuditResult], empty: PrivacyFinding) -> PrivacyFinding:
    """The finding of audits that came to no pair of hypotheses.

    Args:
        results: one a seed.
        empty: the finding without a result.
    """
    notes = "; ".join(dict.fromkeys(note for found in results for note in found.notes))
    return empty.but(
        outcome=results[0].outcome,
        note=notes or "no pair of hypotheses could be made",
        variety=results[0].kind,
        method=jsonable(results[0].audit),
    )


def _pair(one: PairResult, found: AuditResult, name: str, *, quiet: bool) -> tuple[Pair, list[Score]]:
    """A pair with its scores: what is known of it, and what was measured unless no release varies."""
    notes = [one.note, *found.notes]
    about: dict[str, str | int] = {PAIR: name}
    known = [replace(score, about=about) for score in one.theory]
    if quiet:
        notes.append(APART if apart(one) else SAME)
        scores = [_certain(about, apart=apart(one)), *known]
    else:
        scores = known + [
            replace(score, about=about | {STATISTIC: statistic, ESTIMATOR: type(estimator).__name__})
            for statistic, several in one.scores.items()
            for estimator, score in zip(found.estimators, several, strict=True)
        ]
    pair = Pair(
        name=name,
        trials=one.trials,
        note="; ".join(note for note in notes if note),
        seconds=one.seconds,
        facts=jsonable(one.facts),
        histograms=() if quiet else tuple(Histogram(**each.to_dict()) for each in one.histograms.values()),
    )
    return pair, scores


def _certain(about: Mapping[str, str | int], *, apart: bool) -> Score:
    return Score(
        name="epsilon",
        value=math.inf if apart else 0.0,
        unit="epsilon",
        leakier=Leakier.HIGHER,
        evidence=Evidence.EXACT,
        note=APART if apart else SAME,
        about={**about, STATISTIC: "the release itself", ESTIMATOR: "no noise"},
    )


def _terms(confidence: float, many: int, scenarios: int) -> str:
    """Number of bounds that hold together, and what no epsilon covers."""
    each = 1.0 - (1.0 - confidence) / many
    text = (
        f"all lower bounds of this audit over its scenarios hold together with a confidence of {confidence:.3g} (each with "
        f"{each:.6g}, for {many} of them: releases without noise are counted, too, and need none)"
        if many > 1
        else f"the lower bound holds with a confidence of {confidence:.3g}"
    )
    if scenarios > 1:
        text += (
            f"; {scenarios} settings were tried, and choosing one of them by what it did to private rows is covered by no "
            "epsilon of one release"
        )
    return text

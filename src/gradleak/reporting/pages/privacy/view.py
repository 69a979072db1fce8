"""Measured privacy loss beside what is claimed: the rows behind the page on it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gradleak.reporting import words
from gradleak.reporting.context import Context
from gradleak.reporting.numerals import NBSP, Quantity, as_number, decimal, quantity
from gradleak.results import Evidence, Outcome, Score, Verdict
from gradleak.results.findings.privacy import ESTIMATOR, PAIR, STATISTIC, Claim, Histogram, Pair, PrivacyFinding

# Reasons of verdicts that follow from the numbers of a pair.
_MEASURED = (
    "no_noise", "claim_broken", "epsilon_above_threshold", "epsilon_bounded", "epsilon_within_claim",
    "epsilon_below_threshold", "nothing_told_apart",
)  # fmt: skip
# Theory, in the order of the table: name of the score, heading.
THEORY: Mapping[str, str] = {
    "per_attribute_epsilon": "Exact, these hypotheses",
    "pair_epsilon": "Exact, these two releases",
    "gaussian_epsilon": "Exact, record there or not",
    "replaced_gaussian_epsilon": "Exact, record replaced",
    "classical_gaussian_epsilon": "Classical formula",
    "gaussian_epsilon_share": "Exact, divided by the attributes",
    "classical_epsilon_share": "Classical, divided by the attributes",
}

# By the reason of the verdict.
STATES: Mapping[str, str] = {
    "claim_broken": "THE CLAIM IS BROKEN",
    "no_noise": "no noise: perfectly distinguishable",
    "epsilon_above_threshold": "leaks: above the threshold",
    "epsilon_bounded": "bounded by what is claimed; not contradicted",
    "epsilon_within_claim": "told apart, within the claim",
    "epsilon_below_threshold": "told apart, below the threshold",
    "nothing_told_apart": "not told apart",
    "audit_refused": "refused",
}
# Names of the record stay as they are.
STATISTICS: Mapping[str, str] = {"likelihood_ratio": "log likelihood ratio"}

_PAIRS_NAMED = 3
EXACT = ("per_attribute_epsilon", "pair_epsilon")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One epsilon from the trials of one statistic.

    Attributes:
        statistic: name of it.
        estimator: the class.
        epsilon: the number; its evidence says whether it is a bound.
        interval: in print, "" for none.
        span: ends of the interval, or None.
        largest: the largest value that so many trials can certify, or None.
        direction: which hypothesis the tail is of, in words, or "".
        selection: how the threshold was chosen, or "".
        trials: in all.
    """

    statistic: str
    estimator: str
    epsilon: Quantity
    interval: str
    span: tuple[float, float] | None
    largest: float | None
    direction: str
    selection: str
    trials: int

    @property
    def bound(self) -> bool:
        """True if it is a lower bound with a value, or exact."""
        return self.epsilon.value is not None and self.epsilon.evidence in (Evidence.LOWER_BOUND, Evidence.EXACT)


@dataclass(frozen=True, kw_only=True)
class PrivacyView:
    """One pair of hypotheses of one audit of one scenario.

    Attributes:
        label: the scenario, the audit and the pair.
        scenario: its scenario, or the item.
        audit: name and kind of the audit.
        pair: name of the pair, or "".
        state: what came of it, in words.
        loud: whether a claim is broken.
        measured: every epsilon from trials.
        theory: by name of the score.
        trials: releases a hypothesis, or None.
        claim: epsilon claimed.
        claimed: for what it is claimed, or why there is none.
        delta: of all of them, or None.
        histograms: by statistic.
        outcome: of the audit.
        note: what a reader needs to know.
        settings: how it was done, in a sentence.
    """

    label: str
    scenario: str
    audit: str
    pair: str
    state: str
    loud: bool
    measured: Sequence[Measured]
    theory: Mapping[str, Quantity]
    trials: float | None
    claim: Quantity
    claimed: str
    delta: float | None
    histograms: Sequence[Histogram] = field(repr=False)
    outcome: Outcome | None
    note: str
    settings: str

    @property
    def best(self) -> Measured | None:
        """The largest lower bound."""
        return max((found for found in self.measured if found.bound), key=_value, default=None)

    @property
    def exact(self) -> Quantity:
        """The exact epsilon of the two hypotheses."""
        certain = [found.epsilon for found in self.measured if found.epsilon.evidence == Evidence.EXACT]
        known = (self.theory[name] for name in EXACT if name in self.theory)
        return next((found for found in (*certain, *known) if found.value is not None), Quantity(text="none"))

    @property
    def epsilon(self) -> Quantity:
        """The largest lower bound, or in words why there is none."""
        if self.best is not None:
            return self.best.epsilon
        if self.measured:
            return self.measured[0].epsilon
        if self.outcome is None or self.outcome.has_value is not False:
            return Quantity()
        return Quantity(text=self.outcome.label.replace("_", " "), outcome=self.outcome, note=self.note)


def privacies(findings: Sequence[PrivacyFinding], context: Context) -> list[PrivacyView]:
    """One view for every audit, scenario and pair, in the order of the record; one for an audit without a pair."""
    return [
        _view(finding, pair, context.verdict_on(finding.item))
        for finding in findings
        for pair in finding.pairs or (Pair(name=""),)
    ]


def statistic(name: str) -> str:
    """A statistic of a privacy audit in words."""
    return STATISTICS.get(name, name.replace("_", " "))


def noted(views: Sequence[PrivacyView]) -> list[tuple[str, str]]:
    """Notes on audits, each once: (whom it is about, note)."""
    about: dict[str, list[str]] = {}
    for view in views:
        shown = view.best or next(iter(view.measured), None)
        notes = [view.settings, view.note, "" if shown is None else shown.epsilon.note]
        if view.claimed:
            notes.append(f"{'no epsilon is claimed' if view.claim.value is None else 'claimed'}: {view.claimed}")
        for note in dict.fromkeys(part for part in notes if part):
            about.setdefault(note, []).append(view.label)
    return [(_whom(names, views), note) for note, names in about.items()]


def _whom(names: Sequence[str], views: Sequence[PrivacyView]) -> str:
    """The labels in short: no pair where a note is on all of an audit, no scenario where it is the same in all."""
    if len(names) == len(views) > 1:
        return "all audits"
    found = []
    for audit in dict.fromkeys(view.audit for view in views):
        every: dict[str, list[str]] = {}
        told: dict[str, list[str]] = {}
        for view in views:
            if view.audit == audit:
                every.setdefault(view.scenario, []).append(view.pair)
                if view.label in names:
                    told.setdefault(view.scenario, []).append(view.pair)
        pairs = {
            scenario: "" if mine == every[scenario] and len(mine) > 1 else " and ".join(mine)
            for scenario, mine in told.items()
        }
        if len(told) == len(every) > 1 and len(set(pairs.values())) == 1:
            found.append(words.named(audit, next(iter(pairs.values())), "all scenarios"))
        else:
            found += [words.named(scenario, audit, mine) for scenario, mine in pairs.items()]
    return "; ".join(found)


def broken(views: Sequence[PrivacyView]) -> list[str]:
    """A sentence for every claim that does not hold, worst first; one for all pairs of an audit of a scenario."""
    loud = [view for view in views if view.loud and view.best is not None]
    loud.sort(key=lambda view: (view.claim.value or 0.0) - (view.epsilon.value or 0.0))
    groups: dict[tuple[str, str, str, str], list[PrivacyView]] = {}
    for view in loud:
        groups.setdefault((view.scenario, view.audit, view.claim.text, view.claimed), []).append(view)
    return [
        f"{_least(group)}, and {group[0].claim.text} is claimed{f' ({group[0].claimed})' if group[0].claimed else ''}."
        for group in groups.values()
    ]


def _least(group: Sequence[PrivacyView]) -> str:
    """Lower bound on epsilon for the worst pairs of an audit of a scenario."""
    first = group[0]
    if len(group) == 1:
        return f"{first.label}: epsilon is at least {first.epsilon.text}"
    shown = [f"{view.epsilon.text} ({view.pair})" for view in group[:_PAIRS_NAMED]]
    if len(group) > len(shown):
        shown.append(f"above the claim for {len(group) - len(shown)} more")
    return f"{words.named(first.scenario, first.audit)}: epsilon is at least {', '.join(shown[:-1])} and {shown[-1]}"


def shown_theory(views: Sequence[PrivacyView]) -> list[str]:
    """The names of what is known of at least one of them, in the order of the table."""
    return [
        name for name in THEORY if any(name in view.theory and view.theory[name].value is not None for view in views)
    ]


def _view(finding: PrivacyFinding, pair: Pair, verdict: Verdict | None) -> PrivacyView:
    scores = [score for score in finding.scores if score.about.get(PAIR) == pair.name]
    claim = finding.claim or Claim()
    measured = [_measured(score) for score in scores if ESTIMATOR in score.about]
    scenario = finding.scenario or finding.item
    use = str(finding.method.get("use") or "").removesuffix("Audit").removesuffix("Pair").lower()
    audit = " ".join(part for part in (use, finding.audit) if part)
    reason = _reason(verdict, measured, claim.epsilon)
    return PrivacyView(
        label=words.named(scenario, audit, pair.name),
        scenario=scenario,
        audit=audit,
        pair=pair.name,
        state=STATES.get(reason, words.reason(reason) if reason else "not judged"),
        loud=reason == "claim_broken",
        measured=measured,
        theory={score.name: _known(score) for score in scores if ESTIMATOR not in score.about},
        trials=pair.trials or None,
        claim=Quantity(text="none")
        if claim.epsilon is None
        else Quantity(value=claim.epsilon, text=decimal(claim.epsilon), evidence=claim.evidence or ""),
        claimed=claim.of if claim.epsilon is not None else claim.reason,
        delta=claim.delta,
        histograms=[histogram for histogram in pair.histograms if _drawable(histogram)],
        outcome=finding.outcome,
        note="; ".join(note for note in (finding.note, pair.note) if note),
        settings=finding.terms,
    )


def _known(score: Score) -> Quantity:
    """A number that is known without trials; an epsilon that there is none of is called so."""
    found = quantity(score)
    return found if score.value is not None else replace(found, text="none", note=found.note.removeprefix("none: "))


def _reason(verdict: Verdict | None, measured: Sequence[Measured], claimed: float | None) -> str:
    """Reason of this pair's result: of several, the verdict speaks of the one that was told apart best."""
    if verdict is None:
        return ""
    if verdict.reason not in _MEASURED:
        return verdict.reason
    value = max((_value(found) for found in measured if found.bound), default=None)
    allowed = as_number(verdict.details.get("threshold_epsilon"))
    if value is None:
        return "audit_refused" if not measured else "nothing_told_apart"
    if math.isinf(value):
        return "no_noise"
    if claimed is not None and value > claimed:
        return "claim_broken"
    if allowed is not None and value > allowed:
        return "epsilon_above_threshold"
    if verdict.reason == "epsilon_bounded" or value <= 0.0:
        return verdict.reason if verdict.reason == "epsilon_bounded" else "nothing_told_apart"
    return "epsilon_within_claim" if claimed is not None else "epsilon_below_threshold"


def _measured(score: Score) -> Measured:
    details = score.details
    span = score.interval if score.value is not None else None
    return Measured(
        statistic=str(score.about.get(STATISTIC) or ""),
        estimator=str(score.about.get(ESTIMATOR)),
        epsilon=quantity(score),
        interval="" if span is None else f"{decimal(span[0])} to{NBSP}{decimal(span[1])}",
        span=span,
        largest=as_number(details.get("largest_certifiable")),
        direction=str(details.get("direction") or "").replace("_", " ").replace("h1", "the alternative"),
        selection=str(details.get("selection") or "").replace("_", " "),
        trials=score.n,
    )


def _drawable(histogram: Histogram) -> bool:
    """True if it has finite edges that rise, and a count for every bin."""
    edges, null, alternative = histogram.edges, histogram.null, histogram.alternative
    whole = all(value is not None and math.isfinite(value) for value in (*edges, *null, *alternative))
    bins = len(null)
    return (
        whole
        and len(edges) == bins + 1 == len(alternative) + 1
        and bins > 0
        and all(low < high for low, high in itertools.pairwise(edges))  # type: ignore[operator]
    )


def _value(found: Measured) -> float:
    return found.epsilon.value or 0.0

"""Measured privacy loss beside what is claimed: the rows behind the page on it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from gradleak.reporting import words
from gradleak.reporting.context import Context
from gradleak.reporting.numerals import Quantity, as_number, decimal, quantity
from gradleak.results import Evidence, Score, Verdict
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
    "classical_gaussian_epsilon": "Classical formula, record there or not",
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


def statistic(found: Score | Histogram) -> str:
    """The test statistic behind a score or a histogram, in words."""
    name = found.statistic if isinstance(found, Histogram) else str(found.about.get(STATISTIC) or "")
    return STATISTICS.get(name, name.replace("_", " "))


def estimator(score: Score) -> str:
    """The class of the estimator behind a score."""
    return str(score.about.get(ESTIMATOR))


def largest(score: Score | None) -> float | None:
    """The largest value that so many trials can certify, or None."""
    return None if score is None else as_number(score.details.get("largest_certifiable"))


def assumes(score: Score) -> bool:
    """True if a bound rests on the shape of the noise."""
    return "assumed" in str(score.details.get("selection") or "")


def is_bound(score: Score) -> bool:
    """True for a lower bound with a value, and for an exact one."""
    return score.value is not None and score.evidence in (Evidence.LOWER_BOUND, Evidence.EXACT)


@dataclass(frozen=True, eq=False)
class PrivacyView:
    """One pair of hypotheses of one audit of one scenario."""

    finding: PrivacyFinding
    pair: Pair
    verdict: Verdict | None

    @cached_property
    def scores(self) -> Sequence[Score]:
        """All scores of the pair."""
        return [score for score in self.finding.scores if score.about.get(PAIR) == self.pair.name]

    @cached_property
    def measured(self) -> Sequence[Score]:
        """Every epsilon from trials."""
        return [score for score in self.scores if ESTIMATOR in score.about]

    @cached_property
    def theory(self) -> Mapping[str, Quantity]:
        """The numbers that are known without trials, by name; an epsilon that there is none of is called so."""
        found = {score.name: quantity(score) for score in self.scores if ESTIMATOR not in score.about}
        return {
            name: known
            if known.value is not None
            else replace(known, text="none", note=known.note.removeprefix("none: "))
            for name, known in found.items()
        }

    @cached_property
    def best(self) -> Score | None:
        """The largest lower bound."""
        return max((one for one in self.measured if is_bound(one)), key=lambda one: one.value or 0.0, default=None)

    @property
    def reserve(self) -> str:
        """The assumption that the largest lower bound rests on, and the largest one without it; "" for none."""
        best = self.best
        if best is None or not best.value or not assumes(best):
            return ""
        free = [score.value or 0.0 for score in self.measured if is_bound(score) and not assumes(score)]
        facts = self.pair.facts
        gaussian = facts.get("law") == "Gaussian" and facts.get("std") == facts.get("std_alternative")
        holds = ", as it is here" if gaussian else ""
        return f"if the noise is Gaussian{holds}" + (f"; {decimal(max(free))} without that" if free else "")

    @cached_property
    def exact(self) -> Quantity:
        """The exact epsilon of the two hypotheses."""
        certain = [quantity(score) for score in self.measured if score.evidence is Evidence.EXACT]
        known = (self.theory[name] for name in EXACT if name in self.theory)
        return next((found for found in (*certain, *known) if found.value is not None), Quantity(text="none"))

    @cached_property
    def epsilon(self) -> Quantity:
        """The largest lower bound, or in words why there is none."""
        if self.measured:
            return quantity(self.best or self.measured[0])
        outcome = self.finding.outcome
        if outcome is None or outcome.has_value is not False:
            return Quantity()
        return Quantity(text=outcome.label.replace("_", " "), outcome=outcome, note=self.note)

    @property
    def terms(self) -> Claim:
        """The epsilon that is claimed for the release."""
        return self.finding.claim or Claim()

    @property
    def claim(self) -> Quantity:
        """The same in print."""
        claim = self.terms
        if claim.epsilon is None:
            return Quantity(text="none")
        return Quantity(value=claim.epsilon, text=decimal(claim.epsilon), evidence=claim.evidence or "")

    @property
    def claimed(self) -> str:
        """The subject of the claim, or why there is none."""
        return self.terms.of if self.terms.epsilon is not None else self.terms.reason

    @property
    def scenario(self) -> str:
        """Its scenario, or the item."""
        return self.finding.scenario or self.finding.item

    @property
    def audit(self) -> str:
        """The kind and the name of the audit."""
        use = str(self.finding.method.get("use") or "").removesuffix("Audit").removesuffix("Pair").lower()
        return " ".join(part for part in (use, self.finding.audit) if part)

    @property
    def label(self) -> str:
        """The scenario, the audit and the pair."""
        return words.named(self.scenario, self.audit, self.pair.name)

    @property
    def note(self) -> str:
        """The notes of the audit and the pair."""
        return "; ".join(note for note in (self.finding.note, self.pair.note) if note)

    @cached_property
    def reason(self) -> str:
        """The reason for this pair: of several, the verdict speaks of the one that was told apart best."""
        if self.verdict is None or self.verdict.reason not in _MEASURED:
            return "" if self.verdict is None else self.verdict.reason
        value = None if self.best is None else self.best.value
        claimed, allowed = self.terms.epsilon, as_number(self.verdict.details.get("threshold_epsilon"))
        if value is None:
            return "nothing_told_apart" if self.measured else "audit_refused"
        if math.isinf(value):
            return "no_noise"
        if claimed is not None and value > claimed:
            return "claim_broken"
        if allowed is not None and value > allowed:
            return "epsilon_above_threshold"
        if self.verdict.reason == "epsilon_bounded":
            return self.verdict.reason
        if value <= 0.0:
            return "nothing_told_apart"
        return "epsilon_within_claim" if claimed is not None else "epsilon_below_threshold"

    @property
    def state(self) -> str:
        """The same in words."""
        return STATES.get(self.reason, words.reason(self.reason) if self.reason else "not judged")

    @property
    def loud(self) -> bool:
        """True if a claim is broken."""
        return self.reason == "claim_broken"

    @property
    def histograms(self) -> Sequence[Histogram]:
        """The histograms that can be drawn, one a statistic."""
        return [histogram for histogram in self.pair.histograms if _drawable(histogram)]


def privacies(findings: Sequence[PrivacyFinding], context: Context) -> list[PrivacyView]:
    """One view for every audit, scenario and pair, in the order of the record; one for an audit without a pair."""
    return [
        PrivacyView(finding, pair, context.verdict_on(finding.item))
        for finding in findings
        for pair in finding.pairs or (Pair(name=""),)
    ]


def noted(views: Sequence[PrivacyView]) -> list[tuple[str, str]]:
    """Notes on audits, each once: (whom it is about, note)."""
    about: dict[str, list[str]] = {}
    for view in views:
        notes = [view.finding.terms, view.note, view.epsilon.note if view.measured else ""]
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
                every.setdefault(view.scenario, []).append(view.pair.name)
                if view.label in names:
                    told.setdefault(view.scenario, []).append(view.pair.name)
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
    shown = [f"{view.epsilon.text} ({view.pair.name})" for view in group[:_PAIRS_NAMED]]
    if len(group) > len(shown):
        shown.append(f"above the claim for {len(group) - len(shown)} more")
    return f"{words.named(first.scenario, first.audit)}: epsilon is at least {', '.join(shown[:-1])} and {shown[-1]}"


def shown_theory(views: Sequence[PrivacyView]) -> list[str]:
    """The names of what is known of at least one of them, in the order of the table."""
    return [
        name for name in THEORY if any(name in view.theory and view.theory[name].value is not None for view in views)
    ]


def _drawable(histogram: Histogram) -> bool:
    """True if it has finite edges that rise, and a count for every bin."""
    edges, bins = histogram.edges, len(histogram.null)
    known = [edge for edge in edges if edge is not None and math.isfinite(edge)]
    counts = (*histogram.null, *histogram.alternative)
    return (
        bins > 0
        and len(edges) == len(known) == bins + 1 == len(histogram.alternative) + 1
        and all(count is not None and math.isfinite(count) for count in counts)
        and all(low < high for low, high in itertools.pairwise(known))
    )

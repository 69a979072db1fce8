"""What was measured of the privacy loss, beside what is claimed: the rows behind the section on empirical epsilon.

It reads these lines of a record (others may stand beside them, further fields are ignored):

- item lines of kind "privacy", one for each audit, scenario and pair of hypotheses: `item`, `scenario`, `audit_name`, `pair`,
  `status`, `outcome`, `note`, `trials`, `audit` (a description with `use`), `claim` (`epsilon`, `delta`, `of`, and `reason` where
  there is none), `settings` (words), and `histograms`: `statistic`, `edges`, `null` and `alternative` counts.
- score lines with the same `item` and `pair`. With `statistic` and `estimator`: what was measured (evidence "lower_bound",
  "exact" or "estimate"; `details.largest_certifiable`, `details.direction`, `details.selection`). Without: what is known.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gradleak.reporting import words
from gradleak.reporting.numerals import NBSP, Quantity, as_number, decimal, quantity
from gradleak.reporting.reading import Line, Reading, mapping, outcome_of, sequence
from gradleak.results import Evidence, Outcome, Score, Verdict

TEXT = (
    "Two hypotheses that differ in one thing alone (an attribute of a record, or whether a record is there) are released many "
    "times, and somebody who knows everything else tells them apart. How well bounds epsilon from below: (ε, δ) privacy "
    "would not allow fewer errors. A lower bound shows what is lost at least and never that nothing more is: it can break a "
    "claim, and cannot prove one."
)
FIGURE = (
    "What was measured (markers, with intervals) against the exact epsilon of the two hypotheses: bounds lie below the diagonal, "
    "except for few in a hundred by chance. The dash above a marker is the largest value that so many trials can certify: a "
    "bound that stands there is saturated, not exact."
)
KNOWN = (
    "Exact for these hypotheses: the epsilon of the very two releases, which bounds from trials approach from below. The others "
    "speak of the release whatever its record is: by the exact Gaussian mechanism for a record that is there or not, or that is "
    "replaced by another (twice the clipping norm), and by the classical formula, which is proven below 1 only. A total divided "
    "by the number of attributes is a convention that bounds nothing."
)
TERMS = (
    "δ is the small chance with which the promise of ε may fail; it has to be far below one over the number of people. A canary "
    "is a record that was made to be told apart, to come near the worst case; a random record is one of the public rows. Claimed "
    "is the ε that the release is said to have. At most certifiable is the largest bound that so many trials can give, even if "
    "not one of them is told wrongly: what is lost beyond that only more trials can show."
)
NO_RELEASE = (
    "Privacy audits alone: the auditor knows the model, its parameters, both hypotheses, the protocol and the defenses with "
    "their constants, and sees nothing but releases. That is whom differential privacy promises something against."
)
HISTOGRAMS = (
    "How often each value of the statistic came up under both hypotheses: the null hypothesis (an audited record as it is; a "
    "batch without the example, or with another in its place) and the alternative (the record with another value; the batch with "
    "the example). What does not overlap tells them apart."
)
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
        """Whether it is a lower bound with a value, or exact."""
        return self.epsilon.value is not None and self.epsilon.evidence in (Evidence.LOWER_BOUND, Evidence.EXACT)


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """How often values of a statistic came up.

    Attributes:
        statistic: name of it.
        edges: one more than there are bins.
        null: counts under the null hypothesis.
        alternative: counts under the alternative.
    """

    statistic: str
    edges: Sequence[float]
    null: Sequence[float]
    alternative: Sequence[float]


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


def privacies(reading: Reading | None) -> list[PrivacyView]:
    """One view for every audit, scenario and pair, in file order.

    Args:
        reading: the sorted lines, or None.
    """
    if reading is None:
        return []
    scores: dict[tuple[str, str], list[tuple[Line, Score]]] = {}
    for line, score in reading.score_lines:
        scores.setdefault(_place(line), []).append((line, score))
    return [_view(reading, line, scores.get(_place(line), [])) for line in reading.of_kind("privacy")]


def noted(views: Sequence[PrivacyView]) -> list[tuple[str, str]]:
    """What has to be said about audits, each once: (whom it is about, note).

    Args:
        views: all of them.
    """
    about: dict[str, list[str]] = {}
    for view in views:
        shown = view.best or next(iter(view.measured), None)
        notes = [view.settings, view.note, "" if shown is None else shown.epsilon.note]
        if view.claimed:
            notes.append(f"{'no epsilon is claimed' if view.claim.value is None else 'claimed'}: {view.claimed}")
        for note in dict.fromkeys(part for part in notes if part):
            about.setdefault(note, []).append(view.label)
    return [(_whom(names, views), note) for note, names in about.items()]


def named(*parts: str) -> str:
    """One name of several, with a mark between them that names hardly hold.

    Args:
        parts: scenario, audit, pair; empty ones and repetitions are left out.
    """
    return " · ".join(dict.fromkeys(part for part in parts if part))


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
            found.append(named(audit, next(iter(pairs.values())), "all scenarios"))
        else:
            found += [named(scenario, audit, mine) for scenario, mine in pairs.items()]
    return "; ".join(found)


def broken(views: Sequence[PrivacyView]) -> list[str]:
    """A sentence for every claim that does not hold, worst first; one for all pairs of an audit of a scenario.

    Args:
        views: all of them.
    """
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
    """What epsilon is at least, for the worst pairs of an audit of a scenario."""
    first = group[0]
    if len(group) == 1:
        return f"{first.label}: epsilon is at least {first.epsilon.text}"
    shown = [f"{view.epsilon.text} ({view.pair})" for view in group[:_PAIRS_NAMED]]
    if len(group) > len(shown):
        shown.append(f"above the claim for {len(group) - len(shown)} more")
    return f"{named(first.scenario, first.audit)}: epsilon is at least {', '.join(shown[:-1])} and {shown[-1]}"


def shown_theory(views: Sequence[PrivacyView]) -> list[str]:
    """The names of what is known of at least one of them, in the order of the table.

    Args:
        views: all of them.
    """
    return [
        name for name in THEORY if any(name in view.theory and view.theory[name].value is not None for view in views)
    ]


def _view(reading: Reading, line: Line, found: Sequence[tuple[Line, Score]]) -> PrivacyView:
    item, pair = str(line.get("item")), str(line.get("pair") or "")
    claim = mapping(line.get("claim"))
    claimed = as_number(claim.get("epsilon"))
    measured = [_measured(row, score) for row, score in found if row.get("estimator")]
    scenario, name = str(line.get("scenario") or item), str(line.get("audit_name") or "")
    use = str(mapping(line.get("audit")).get("use") or "").removesuffix("Audit").removesuffix("Pair").lower()
    audit = " ".join(part for part in (use, name) if part)
    reason = _reason(reading.verdict_on(item), measured, claimed)
    return PrivacyView(
        label=named(scenario, audit, pair),
        scenario=scenario,
        audit=audit,
        pair=pair,
        state=words.PRIVACY_STATES.get(reason, words.reason(reason) if reason else "not judged"),
        loud=reason == "claim_broken",
        measured=measured,
        theory={score.name: _known(score) for row, score in found if not row.get("estimator")},
        trials=as_number(line.get("trials")),
        claim=Quantity(value=claimed, text=decimal(claimed), evidence=str(claim.get("evidence") or ""))
        if claimed is not None
        else Quantity(text="none"),
        claimed=str(claim.get("of" if claimed is not None else "reason") or ""),
        delta=as_number(claim.get("delta")),
        histograms=_histograms(sequence(line.get("histograms"))),
        outcome=outcome_of(line),
        note=str(line.get("note") or ""),
        settings=str(line.get("settings") or ""),
    )


def _known(score: Score) -> Quantity:
    """A number that is known without trials; an epsilon that there is none of is called so."""
    found = quantity(score)
    return found if score.value is not None else replace(found, text="none")


def _place(line: Line) -> tuple[str, str]:
    return str(line.get("item")), str(line.get("pair") or "")


def _reason(verdict: Verdict | None, measured: Sequence[Measured], claimed: float | None) -> str:
    """What came of this pair: of several, the verdict speaks of the one that was told apart best."""
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


def _measured(line: Line, score: Score) -> Measured:
    details = mapping(score.details)
    span = score.interval if score.value is not None else None
    return Measured(
        statistic=str(line.get("statistic") or ""),
        estimator=str(line.get("estimator")),
        epsilon=quantity(score),
        interval="" if span is None else f"{decimal(span[0])} to{NBSP}{decimal(span[1])}",
        span=span,
        largest=as_number(details.get("largest_certifiable")),
        direction=str(details.get("direction") or "").replace("_", " ").replace("h1", "the alternative"),
        selection=str(details.get("selection") or "").replace("_", " "),
        trials=score.n,
    )


def _histograms(given: Sequence[Any]) -> list[Histogram]:
    """Those that can be drawn: finite edges that rise, and a count for every bin."""
    found = []
    for entry in given:
        name = mapping(entry).get("statistic")
        parts = [
            [as_number(value) for value in sequence(mapping(entry).get(key))]
            for key in ("edges", "null", "alternative")
        ]
        edges, null, alternative = ([v for v in part if v is not None and math.isfinite(v)] for part in parts)
        whole = all(len(kept) == len(part) for kept, part in zip((edges, null, alternative), parts, strict=True))
        rising = all(low < high for low, high in itertools.pairwise(edges))
        if whole and rising and len(edges) == len(null) + 1 == len(alternative) + 1 and len(null) > 0:
            found.append(Histogram(statistic=str(name), edges=edges, null=null, alternative=alternative))
    return found


def _value(found: Measured) -> float:
    return found.epsilon.value or 0.0


__all__ = [
    "FIGURE",
    "HISTOGRAMS",
    "KNOWN",
    "NO_RELEASE",
    "TERMS",
    "TEXT",
    "THEORY",
    "Histogram",
    "Measured",
    "PrivacyView",
    "broken",
    "named",
    "noted",
    "privacies",
    "shown_theory",
]

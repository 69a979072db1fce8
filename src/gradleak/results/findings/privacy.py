"""Finding of an audit of the privacy loss: bounds and estimates of epsilon beside what is claimed and what is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from gradleak.results.finding import Finding, NumberOrNone, Part
from gradleak.results.score import Evidence

# Marks of scores: of which pair of hypotheses, and what was measured by which statistic and estimator.
PAIR, STATISTIC, ESTIMATOR = "pair", "statistic", "estimator"


class Claim(Part):
    """An epsilon that is said to hold for one release, or why none is.

    Attributes:
        epsilon: the number, or None.
        delta: δ.
        of: for what it is claimed, in words.
        reason: why there is none, or "".
        proven: whether it follows from the release; a number that the plan states does not.
    """

    epsilon: NumberOrNone = None
    delta: NumberOrNone = None
    of: str = ""
    reason: str = ""
    proven: bool = False

    @property
    def evidence(self) -> Evidence | None:
        """The kind of evidence that the claim is; None for one that is merely stated."""
        return Evidence.UPPER_BOUND if self.proven else None


class Histogram(Part):
    """Counts of the values of a statistic.

    Attributes:
        statistic: name of it.
        edges: of the bins, one more than there are bins.
        null: counts under the null hypothesis.
        alternative: counts under the alternative.
    """

    statistic: str
    edges: tuple[NumberOrNone, ...]
    null: tuple[NumberOrNone, ...]
    alternative: tuple[NumberOrNone, ...]


class Pair(Part):
    """One pair of hypotheses.

    Attributes:
        name: for instance "canary, epoch 10".
        trials: releases a hypothesis.
        note: for the reader.
        seconds: how long it took.
        facts: of the pair and its record.
        histograms: one a statistic; none where no release varies.
    """

    name: str
    trials: int = 0
    note: str = ""
    seconds: float = 0.0
    facts: Mapping[str, Any] = {}
    histograms: tuple[Histogram, ...] = ()


class PrivacyFinding(Finding):
    """Finding on the privacy loss of one release, or a control of it.

    Scores are marked by `pair`; what was measured also by `statistic` and `estimator`. The others are known without trials.

    Attributes:
        variety: "attribute", "membership", or what a user calls theirs.
        method: a description of the audit: `use`, rows, records, without a data value.
        claim: what is claimed for the release, or why nothing is.
        pairs: the pairs of hypotheses.
        bounds: how many lower bounds hold together.
        confidence: with which they hold.
        terms: how many bounds hold together and what no epsilon covers, in words.
    """

    kind: Literal["privacy"] = "privacy"
    variety: str = ""
    method: Mapping[str, Any] = {}
    claim: Claim | None = None
    pairs: tuple[Pair, ...] = ()
    bounds: int = 1
    confidence: NumberOrNone = None
    terms: str = ""

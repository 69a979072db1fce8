"""Result of an audit of epsilon: bounds and estimates of every pair beside what is known, and histograms."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gradleak.core import derive_generator, derive_seed
from gradleak.privacy.lower_bounds import EpsilonEstimator, GaussianFitEpsilon, TradeOff, TrialScores
from gradleak.privacy.released import HypothesisPair
from gradleak.results import Evidence, InputError, Outcome, Score, check_count
from gradleak.results.score import jsonable

BINS = 60


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Number of values of a statistic in each bin, under each hypothesis.

    Attributes:
        statistic: its name.
        edges: of bins of one width, one more than bins.
        null: counts under H0.
        alternative: counts under H1.
    """

    statistic: str
    edges: tuple[float, ...]
    null: tuple[int, ...]
    alternative: tuple[int, ...]

    @classmethod
    def of(cls, scores: TrialScores, *, bins: int = BINS) -> Histogram:
        """The histogram from the smallest to the largest value of both.

        Args:
            scores: of the trials.
            bins: how many.

        Examples:
            >>> scores = TrialScores(null=np.array([0.0, 0.1]), alternative=np.array([1.0]), name="x")
            >>> Histogram.of(scores, bins=2)
            Histogram(statistic='x', edges=(0.0, 0.5, 1.0), null=(2, 0), alternative=(0, 1))
        """
        check_count("Histogram.bins", bins)
        both = np.concatenate([scores.null, scores.alternative])
        edges = np.histogram_bin_edges(both, bins=bins)
        null, alternative = (np.histogram(values, bins=edges)[0] for values in (scores.null, scores.alternative))
        return cls(
            statistic=scores.name,
            edges=tuple(edges.tolist()),
            null=tuple(null.tolist()),
            alternative=tuple(alternative.tolist()),
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        found: dict[str, Any] = jsonable(vars(self))
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class PairResult:
    """One pair of hypotheses.

    Attributes:
        name: for tables, for instance "canary, epoch 10".
        trials: releases a hypothesis.
        scores: by statistic, one an estimator.
        theory: values that are known without trials.
        facts: of the pair and its record, JSON-ready.
        samples: the statistics of every trial, by name; kept in memory alone.
        note: for the reader.
        seconds: of wall time.
    """

    name: str
    trials: int
    scores: Mapping[str, Sequence[Score]]
    theory: Sequence[Score]
    facts: Mapping[str, Any] = field(default_factory=dict)
    samples: Mapping[str, TrialScores] = field(default_factory=dict, repr=False)
    note: str = ""
    seconds: float = 0.0

    @property
    def histograms(self) -> dict[str, Histogram]:
        """Histograms of both hypotheses, by statistic."""
        return {name: Histogram.of(scores) for name, scores in self.samples.items()}

    def known(self, name: str) -> Score:
        """One of `theory`, by its name.

        Raises:
            InputError: if there is none of that name.
        """
        for score in self.theory:
            if score.name == name:
                return score
        raise InputError(f"{self.name}: expected one of {', '.join(s.name for s in self.theory)}, got {name!r}")


def audit_pair(
    pair: HypothesisPair,
    *,
    estimators: Sequence[EpsilonEstimator],
    trials: int = 5000,
    delta: float = 1e-5,
    seed: int = 0,
    name: str = "pair",
    theory: Sequence[Score] = (),
    facts: Mapping[str, Any] | None = None,
    note: str = "",
) -> PairResult:
    """Trials of a pair of hypotheses, what each estimator makes of them, and what is known beside it.

    Any pair will do, also one that a user writes (see `HypothesisPair`). A bound that assumes two Gaussians of one
    covariance is given as an estimate where the pair says that it is not that: releases that were drawn, or noise that
    differs between the hypotheses.

    Args:
        pair: the two hypotheses.
        estimators: bounds and estimates of epsilon.
        trials: releases a hypothesis.
        delta: δ of the theory; the estimators have their own.
        seed: of the trials and of what estimators draw.
        name: of the pair.
        theory: further scores that are known beforehand.
        facts: further facts.
        note: for the reader.

    Raises:
        InputError: without an estimator.
    """
    began = time.perf_counter()
    if not estimators:
        raise InputError(f"{name}: expected at least one estimator of epsilon, got none")
    samples = dict(pair.trials(trials, generator=derive_generator(seed, "audit", name)))
    said = {**pair.facts, **(facts or {})}
    return PairResult(
        name=name,
        trials=trials,
        scores={
            statistic: tuple(
                _held(estimator, estimator.estimate(scores, seed=derive_seed(seed, "estimate", name, statistic)), said)
                for estimator in estimators
            )
            for statistic, scores in samples.items()
        },
        theory=(*pair.theory(delta=delta), *theory),
        facts=said,
        samples=samples,
        note=note,
        seconds=time.perf_counter() - began,
    )


def assumes_gaussians(estimator: EpsilonEstimator) -> bool:
    """True if what an estimator reads is a bound for two Gaussians of one covariance alone.

    Args:
        estimator: of epsilon.
    """
    return isinstance(estimator, GaussianFitEpsilon) or getattr(estimator, "curve", None) == TradeOff.GAUSSIAN


def as_estimate(score: Score) -> Score:
    """The score of a bound whose assumption of two Gaussians is not known to hold.

    Args:
        score: with evidence lower_bound.
    """
    note = "an estimate: the release is not known to be two Gaussians of one covariance, which this bound assumes"
    note = "; ".join(part for part in (score.note, note) if part)
    return replace(score, name="epsilon_estimate", evidence=Evidence.ESTIMATE, note=note)


def _held(estimator: EpsilonEstimator, score: Score, facts: Mapping[str, Any]) -> Score:
    known_not = facts.get("law") == "drawn" or facts.get("std") != facts.get("std_alternative")
    return as_estimate(score) if known_not and assumes_gaussians(estimator) else score


@dataclass(frozen=True, kw_only=True, eq=False)
class AuditResult:
    """Result of an audit.

    Attributes:
        kind: "attribute", "membership", or what a user calls theirs.
        audit: a description of the audit.
        estimators: in the order of every pair's scores.
        pairs: one a record and epoch.
        outcome: of the training.
        notes: for the reader.
        seed: of everything that was drawn.
        seconds: of wall time, canaries and training included.
    """

    kind: str
    audit: Mapping[str, Any] = field(repr=False)
    estimators: Sequence[EpsilonEstimator]
    pairs: Sequence[PairResult]
    outcome: Outcome = Outcome.CONVERGED
    notes: Sequence[str] = ()
    seed: int = 0
    seconds: float = 0.0

    def pair(self, name: str) -> PairResult:
        """A pair by its name.

        Raises:
            InputError: if there is none of that name.
        """
        for pair in self.pairs:
            if pair.name == name:
                return pair
        raise InputError(f"audit: expected one of {', '.join(pair.name for pair in self.pairs)}, got {name!r}")

    def largest(self, estimator: EpsilonEstimator | None = None) -> Score:
        """The largest value of one estimator over all pairs and statistics.

        Choosing the largest of n bounds costs confidence: each is computed again with n comparisons, so that the largest
        keeps the stated confidence. An estimate is taken as it is.

        Args:
            estimator: one of `estimators`; None for the first.

        Raises:
            InputError: if it is none of them, or there is no pair.
        """
        chosen = self.estimators[0] if estimator is None else estimator
        if not self.pairs or chosen not in list(self.estimators):
            raise InputError("largest: expected an estimator of this audit, and at least one pair")
        among = sum(len(pair.samples) for pair in self.pairs)
        strict = replace(chosen, comparisons=chosen.comparisons * among)
        found = []
        for pair in self.pairs:
            for statistic, scores in pair.samples.items():
                score = strict.estimate(scores, seed=derive_seed(self.seed, "estimate", pair.name, statistic))
                found.append((pair.name, statistic, _held(strict, score, pair.facts)))
        valued = [entry for entry in found if entry[2].value is not None]
        name, statistic, score = max(valued, key=lambda entry: entry[2].value or 0.0) if valued else found[0]
        said = f"the largest of {among}: {name}, by {statistic}"
        note = "; ".join(part for part in (score.note, said) if part)
        details = {**score.details, "pair": name}
        return Score(**{**vars(score), "note": note, "details": details})

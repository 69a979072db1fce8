"""Mechanisms of known epsilon, and what bounds on it and their verdicts say: none may lie above, a broken one must show."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Self

import numpy as np
import scipy.optimize
import torch
from numpy.typing import NDArray
from scipy.stats import norm
from torch import nn

from gradleak.auditing import record_of
from gradleak.audits.privacy import finding_of_audit
from gradleak.core import Batch, Objective, Release, derive_seed
from gradleak.defenses import DPSGD, LaplaceNoise
from gradleak.models import linear_model
from gradleak.privacy import (
    AuditResult,
    CorrectedThresholdEpsilon,
    EpsilonEstimator,
    GaussianFitEpsilon,
    HypothesisPair,
    MembershipPair,
    NullPair,
    OneRunEpsilon,
    SplitThresholdEpsilon,
    TradeOff,
    TrialScores,
    audit_pair,
    gaussian_dp_epsilon,
)
from gradleak.protocols import FedSGD
from gradleak.results import Evidence, Thresholds
from gradleak.results.findings.privacy import Claim
from studies.null_cells import Count, Judged
from studies.store import Store
from studies.study import Say

Floats = NDArray[np.float64]
DELTA, CONFIDENCE = 1e-5, 0.95
TRIALS = (100, 500, 2000)
# A leak of twice the stated epsilon or more is a matter of trials; so many show it.
BROKEN_TRIALS = 50_000
DRAWN, CLAIMED = "drawn", "claimed"


@dataclass(frozen=True, kw_only=True)
class Mechanism(HypothesisPair):
    """Two hypotheses whose ε(δ) is known.

    Attributes:
        scale: factor on the noise; below 1 the mechanism is broken.
    """

    scale: float = 1.0

    @property
    @abstractmethod
    def title(self) -> str:
        """Name in tables."""

    @abstractmethod
    def epsilon(self) -> float:
        """ε(δ) as it is drawn, exactly."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """Facts for the estimators: whether what is released is two Gaussians of one covariance."""
        return {"law": DRAWN}

    def estimators(self) -> Sequence[EpsilonEstimator]:
        """Bounds that are looked at."""
        setting: dict[str, Any] = {"delta": DELTA, "confidence": CONFIDENCE}
        return (
            SplitThresholdEpsilon(**setting),
            CorrectedThresholdEpsilon(**setting),
            OneRunEpsilon(**setting),
            OneRunEpsilon(curve=TradeOff.GAUSSIAN, **setting),
            GaussianFitEpsilon(**setting),
        )

    def trials(self, count: int, *, generator: torch.Generator) -> dict[str, TrialScores]:
        """One statistic of so many releases under each hypothesis."""
        draws = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        null, alternative = self._draw(count, draws)
        return {"statistic": TrialScores(null=null, alternative=alternative)}

    def broken(self) -> Self:
        """The same with half of the noise."""
        return replace(self, scale=self.scale / 2.0)

    def _draw(self, count: int, draws: np.random.Generator) -> tuple[Floats, Floats]:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class SameLaw(Mechanism):
    """One law under both hypotheses: ε = 0.

    Attributes:
        law: "normal", "cauchy" for heavy tails, "coin" for ties.
    """

    law: str = "normal"

    @property
    def title(self) -> str:
        """Name in tables."""
        return f"one law twice, {self.law}"

    def epsilon(self) -> float:
        """0."""
        return 0.0

    @property
    def facts(self) -> Mapping[str, Any]:
        """Two Gaussians a distance of 0 apart, or not Gaussian."""
        return {} if self.law == "normal" else {"law": DRAWN}

    def _draw(self, count: int, draws: np.random.Generator) -> tuple[Floats, Floats]:
        laws: dict[str, Callable[[int], Floats]] = {
            "normal": draws.standard_normal,
            "cauchy": draws.standard_cauchy,
            "coin": lambda size: draws.integers(2, size=size).astype(np.float64),
        }
        return laws[self.law](count), laws[self.law](count)


@dataclass(frozen=True, kw_only=True)
class LaplaceShift(Mechanism):
    """Laplace noise of scale 1/ε₀ on a number that differs by 1: δ(ε) = 1 − exp((ε − ε₀)/2).

    Attributes:
        pure: ε₀, at δ = 0.
    """

    pure: float = 1.0

    @property
    def title(self) -> str:
        """Name in tables."""
        return f"Laplace, ε₀ = {self.pure:g}"

    def epsilon(self) -> float:
        """ε₀ + 2 ln(1 − δ)."""
        return self.pure / self.scale + 2.0 * math.log1p(-DELTA)

    def _draw(self, count: int, draws: np.random.Generator) -> tuple[Floats, Floats]:
        null, alternative = draws.laplace(scale=self.scale / self.pure, size=(2, count))
        return null, 1.0 + alternative


@dataclass(frozen=True, kw_only=True)
class RandomizedResponse(Mechanism):
    """A bit that is told as it is with probability e^ε₀/(1 + e^ε₀): all trials tie.

    Attributes:
        pure: ε₀, at δ = 0; a broken mechanism has twice that.
    """

    pure: float = 1.0

    @property
    def title(self) -> str:
        """Name in tables."""
        return f"randomized response, ε₀ = {self.pure:g}"

    @property
    def honest(self) -> float:
        """Probability of a true answer."""
        return 1.0 / (1.0 + math.exp(-self.pure / self.scale))

    def epsilon(self) -> float:
        """ln((p − δ)/(1 − p))."""
        return math.log((self.honest - DELTA) / (1.0 - self.honest))

    def _draw(self, count: int, draws: np.random.Generator) -> tuple[Floats, Floats]:
        told = (draws.random((2, count)) < self.honest).astype(np.float64)
        return 1.0 - told[0], told[1]


@dataclass(frozen=True, kw_only=True)
class SampledGaussian(Mechanism):
    """A unit that takes part with probability q and then moves Gaussian noise by μ: ε(δ) of the mixture, either way round.

    Attributes:
        mu: μ in standard deviations.
        rate: q.
    """

    mu: float = 1.0
    rate: float = 0.5

    @property
    def title(self) -> str:
        """Name in tables."""
        return f"sampled Gaussian, μ = {self.mu:g}, q = {self.rate:g}"

    def epsilon(self) -> float:
        """The larger of the two roots of δ(ε) = δ."""
        mu, rate = self.mu / self.scale, self.rate

        def threshold(likelihood: float) -> float:
            return (math.log((likelihood - 1.0 + rate) / rate) + mu**2 / 2.0) / mu

        def more(epsilon: float) -> float:
            # Where the alternative is e^ε times as likely.
            above = threshold(math.exp(epsilon))
            mixed = (1.0 - rate) * norm.sf(above) + rate * norm.sf(above - mu)
            return float(mixed - math.exp(epsilon) * norm.sf(above)) - DELTA

        def less(epsilon: float) -> float:
            # Where it is e^−ε times as likely, which it is nowhere for a large ε.
            if math.exp(-epsilon) <= 1.0 - rate:
                return -DELTA
            below = threshold(math.exp(-epsilon))
            mixed = (1.0 - rate) * norm.cdf(below) + rate * norm.cdf(below - mu)
            return float(norm.cdf(below) - math.exp(epsilon) * mixed) - DELTA

        return max(float(scipy.optimize.brentq(excess, 1e-9, 100.0)) for excess in (more, less))

    def _draw(self, count: int, draws: np.random.Generator) -> tuple[Floats, Floats]:
        null, alternative = draws.standard_normal((2, count))
        return null, alternative + self.mu / self.scale * (draws.random(count) < self.rate)


@dataclass(frozen=True, kw_only=True)
class Canaries(Mechanism):
    """Canaries of one run: unit vectors, each added by a coin of its own to one sum with Gaussian noise of std 1/μ.

    All 2n scores come out of one release; in fewer dimensions than canaries they depend on each other.

    Attributes:
        mu: μ of each canary.
        dimensions: of the sum; None for as many as canaries, each along an axis of its own.
    """

    mu: float = 1.0
    dimensions: int | None = None

    @property
    def title(self) -> str:
        """Name in tables."""
        where = "orthogonal" if self.dimensions is None else f"{self.dimensions} dimensions"
        return f"canaries of one run, {where}, μ = {self.mu:g}"

    def epsilon(self) -> float:
        """ε(δ) of one canary, whatever the others do."""
        return gaussian_dp_epsilon(self.mu / self.scale, DELTA)

    def estimators(self) -> Sequence[EpsilonEstimator]:
        """Estimators that take trials which depend on each other."""
        setting: dict[str, Any] = {"delta": DELTA, "confidence": CONFIDENCE, "coins": True}
        return OneRunEpsilon(**setting), OneRunEpsilon(curve=TradeOff.GAUSSIAN, **setting)

    @property
    def facts(self) -> Mapping[str, Any]:
        """Gaussian, a canary."""
        return {}

    def _draw(self, count: int, draws: np.random.Generator) -> tuple[Floats, Floats]:
        heads = draws.random(2 * count) < 0.5
        noise = self.scale / self.mu * draws.standard_normal(self.dimensions or 2 * count)
        scores: Floats = heads + noise if self.dimensions is None else self._dependent(heads, noise, draws)
        return scores[~heads], scores[heads]

    @staticmethod
    def _dependent(heads: NDArray[np.bool_], noise: Floats, draws: np.random.Generator) -> Floats:
        canaries = draws.standard_normal((len(heads), len(noise)))
        canaries /= np.linalg.norm(canaries, axis=1, keepdims=True)
        scores: Floats = canaries @ (heads @ canaries + noise)
        return scores


@dataclass(frozen=True, kw_only=True)
class Released(Mechanism):
    """Gradients of a small model as they are really released, of a batch with one example or another in its place.

    Attributes:
        std: of the noise of DP-SGD on the sum, for a clipping norm of 1.
        twice: whether both hypotheses are the first one, so that ε is 0.
        law: "Gaussian", or "Laplace" for noise of which no epsilon is known but that of no difference.
    """

    std: float = 1.0
    twice: bool = False
    law: str = "Gaussian"

    @property
    def title(self) -> str:
        """Name in tables."""
        what = "DP-SGD" if self.law == "Gaussian" else "gradients under Laplace noise"
        return f"{what}, one hypothesis twice" if self.twice else f"{what}, noise {self.std:g}"

    @property
    def pair(self) -> HypothesisPair:
        """The hypotheses."""
        return _pair(self)

    def epsilon(self) -> float:
        """0, or that of these two batches."""
        if self.twice:
            return 0.0
        (found,) = self.pair.theory(delta=DELTA)
        assert found.value is not None
        return found.value

    @property
    def facts(self) -> Mapping[str, Any]:
        """Facts that the pair tells."""
        return self.pair.facts if self.law == "Gaussian" else {"law": DRAWN}

    def trials(self, count: int, *, generator: torch.Generator) -> dict[str, TrialScores]:
        """The statistics of the pair."""
        return dict(self.pair.trials(count, generator=generator))


@cache
def _pair(of: Released) -> HypothesisPair:
    std = of.std * of.scale
    generator = torch.Generator().manual_seed(0)
    rows = Batch(torch.rand(4, 6, generator=generator), torch.tensor([0, 1, 0, 1]))
    pair = MembershipPair(
        objective=Objective.from_module(_model(generator)),
        release=Release(
            FedSGD(),
            [DPSGD(clip_norm=1.0, noise_std=std, noise="sum") if of.law == "Gaussian" else LaplaceNoise(scale=std)],
        ),
        example=rows.example(0),
        replacement=rows.example(1),
        others=Batch(rows.inputs[2:], rows.targets[2:]),
    )
    return NullPair(pair=pair) if of.twice else pair


def _model(generator: torch.Generator) -> nn.Module:
    model = linear_model(features=6, classes=2)
    for parameter in model.parameters():
        nn.init.normal_(parameter, generator=generator)
    return model


NULLS: Sequence[Mechanism] = (
    SameLaw(law="normal"),
    SameLaw(law="cauchy"),
    SameLaw(law="coin"),
    Released(twice=True),
    Released(twice=True, law="Laplace"),
    Canaries(mu=1e-9),
    Canaries(mu=1e-9, dimensions=64),
)
PRIVATE: Sequence[Mechanism] = (
    Released(std=2.0),
    Released(std=0.7),
    LaplaceShift(pure=0.5),
    LaplaceShift(pure=2.0),
    RandomizedResponse(pure=1.0),
    RandomizedResponse(pure=3.0),
    SampledGaussian(),
    Canaries(),
    Canaries(mu=2.0, dimensions=64),
)
"""Mechanisms of a known epsilon above 0."""


def null_bounds(runs: int, *, seed: int, store: Store, say: Say) -> list[Judged]:
    """Verdicts on claims that hold, of every mechanism and number of trials so many times; `noted` holds the bounds.

    Args:
        runs: repetitions.
        seed: of all draws.
        store: of single runs.
        say: is told what is done.
    """
    found = []
    for mechanism in (*NULLS, *PRIVATE):
        for count in TRIALS:
            found += _kept(mechanism, mechanism, count, runs, seed, store)
        say(f"epsilon, {mechanism.title}: {runs} runs of {', '.join(map(str, TRIALS))} trials")
    return found


def broken_claims(runs: int, *, seed: int, store: Store, say: Say) -> list[Judged]:
    """Verdicts on mechanisms with half of the noise that they claim.

    Args:
        runs: repetitions of each.
        seed: of all draws.
        store: of single runs.
        say: is told what is done.
    """
    found = []
    # Canaries that cover each other tell too little of each.
    for mechanism in (one for one in PRIVATE if getattr(one, "dimensions", None) is None):
        found += _kept(mechanism, mechanism.broken(), BROKEN_TRIALS, runs, seed, store)
        say(f"epsilon, {mechanism.title} with half of its noise: {runs} runs")
    return found


def by_method(verdicts: Sequence[Judged]) -> Iterator[Count]:
    """Number of bounds of each method that lie above the claim, each at its confidence and on every statistic.

    Args:
        verdicts: verdicts on claims.
    """
    values: dict[str, list[bool]] = {}
    for one in verdicts:
        claimed = one.noted[CLAIMED] or 0.0
        for name, value in one.noted.items():
            if name != CLAIMED and value is not None:
                values.setdefault(name.partition(" on ")[0], []).append(value > claimed)
    for name, above in values.items():
        yield Count(name=name, hits=sum(above), trials=len(above))


def _kept(claimed: Mechanism, real: Mechanism, count: int, runs: int, seed: int, store: Store) -> list[Judged]:
    epsilon = claimed.epsilon()
    found = []
    for run in range(runs):
        key = {"null": "epsilon", "of": repr(real), "claimed": epsilon, "trials": count, "seed": seed, "run": run}
        found.append(store.kept(key, Judged, partial(judged, real, claimed.title, epsilon, count, key)))
    return found


def judged(real: Mechanism, title: str, claimed: float, count: int, key: Mapping[str, Any]) -> Judged:
    """The verdict on a claim, with the threshold at it.

    Args:
        real: what is drawn.
        title: of what is claimed.
        claimed: ε at δ.
        count: trials a hypothesis.
        key: holds the seed and the number of the run.
    """
    estimators = real.estimators()
    seed = derive_seed(key["seed"], "null epsilon", repr(real), str(count), str(key["run"]))
    pair = audit_pair(real, estimators=estimators, trials=count, delta=DELTA, seed=seed)
    result = AuditResult(kind="own", audit={}, estimators=estimators, pairs=[pair], seed=seed)
    claim = Claim(epsilon=claimed, delta=DELTA, of="as stated")
    thresholds = Thresholds(epsilon=max(claimed, 1e-9))
    verdict = record_of([finding_of_audit(result, claim=claim)], thresholds=thresholds).verdicts[0]
    bounds = {
        f"{_name(estimator)} on {statistic}": score.value
        for statistic, scores in pair.scores.items()
        for estimator, score in zip(estimators, scores, strict=True)
        if score.evidence is Evidence.LOWER_BOUND
    }
    return Judged(
        group=title,
        planted=real.scale < 1.0,
        verdict=verdict.verdict,
        reason=verdict.reason,
        noted={CLAIMED: claimed, **bounds},
    )


def _name(estimator: EpsilonEstimator) -> str:
    gaussian = getattr(estimator, "curve", None) is TradeOff.GAUSSIAN
    return f"{type(estimator).__name__}{', Gaussian' if gaussian else ''}"


__all__ = ["NULLS", "PRIVATE", "Mechanism", "SampledGaussian", "broken_claims", "by_method", "null_bounds"]

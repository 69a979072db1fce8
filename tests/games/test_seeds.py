"""Seeds with other rows and other shares of the values, put together."""

from __future__ import annotations

import numpy as np

from gradleak.games.information import fano_advantage
from gradleak.games.reading import Knows
from gradleak.games.result import GameResult, SeedResult
from gradleak.results import Evidence, Leakier, Outcome, Score


def bound(nats: float | None) -> Score:
    return Score(
        name="information_bound",
        value=nats,
        unit="nat",
        leakier=Leakier.HIGHER,
        evidence=Evidence.UPPER_BOUND,
        outcome=Outcome.CONVERGED if nats is not None else Outcome.UNSUPPORTED,
        note="" if nats is not None else "no noise",
    )


def seed_result(seed: int, share: float, nats: float | None, *, drawn: int = 0) -> SeedResult:
    random, law = np.random.default_rng(seed), np.array([share, 1 - share])
    truth = random.choice(2, 100, p=law)
    return SeedResult(
        seed=seed,
        outcome=Outcome.CONVERGED,
        truth=truth,
        log_posteriors={Knows.STATIC: [np.log(random.dirichlet([5, 5], 100))]},
        details={Knows.STATIC: [{}]},
        prior=law,
        blind=float(law.max()),
        utility=None,
        rows={},
        law=law,
        drawn=drawn + random.permuted(np.tile(np.arange(20), (100, 1)), axis=1)[:, :4] + 20 * truth[:, None],
        bound=bound(nats),
    )


def result(*runs: SeedResult) -> GameResult:
    return GameResult(
        kind="property",
        game={},
        population="p",
        values=["a", "b"],
        observed=[0],
        adversaries=[Knows.STATIC],
        runs=runs,
        jobs=1,
        seconds=0.0,
    )


def test_the_bound_of_several_seeds_holds_for_each_of_them() -> None:
    """The same nats allow more where one value is rare: the mean of the shares would hide that."""
    runs = [seed_result(0, 0.9, 0.05), seed_result(1, 0.5, 0.06)]
    by_evidence = [score for score in result(*runs).information() if score.evidence is Evidence.UPPER_BOUND]
    information, allowed = by_evidence
    each = [fano_advantage(run.law, run.bound).value for run in runs if run.law is not None and run.bound is not None]
    assert information.value == 0.06
    assert allowed.value == max(value for value in each if value is not None)


def test_a_seed_without_a_bound_leaves_none() -> None:
    information, allowed = result(seed_result(0, 0.5, 0.05), seed_result(1, 0.5, None)).information()[:2]
    assert information.value is None
    assert allowed.value is None
    assert allowed.outcome is Outcome.UNSUPPORTED


def test_seeds_of_the_same_rows_share_their_chance() -> None:
    same = result(seed_result(0, 0.5, 0.1), seed_result(1, 0.5, 0.1)).score("advantage")
    other = result(seed_result(0, 0.5, 0.1), seed_result(1, 0.5, 0.1, drawn=1000)).score("advantage")
    assert (same.details["shared"], other.details["shared"]) == (1.0, 0.0)
    assert same.details["covers"] == "rows and trials"
    low, high = same.details["unclipped_interval"]
    assert high - low > np.diff(other.details["unclipped_interval"]) > 0

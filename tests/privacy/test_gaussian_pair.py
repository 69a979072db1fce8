"""Pairs under Gaussian noise: against the laws that their statistics have, and against drawing whole vectors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from tests.privacy.setting import plain

from gradleak.privacy import GaussianPair
from gradleak.results import InputError, Outcome

# Of tests that hold their hypothesis one in a thousand falls below.
CHANCE = 1e-3


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_statistics_of_a_known_shift_have_their_laws() -> None:
    entries, std, length = 50, 0.2, 0.5
    direction = torch.nn.functional.normalize(torch.randn(entries, generator=generator(1), dtype=torch.float64), dim=0)
    null = torch.randn(entries, generator=generator(2), dtype=torch.float64)
    pair = GaussianPair(null=null, alternatives=(null + length * direction)[None], std=std)
    found = pair.trials(4000, generator=generator(3))
    mu = length / std
    ratio, distance = found["likelihood_ratio"], found["distance"]
    # The log of the ratio of two normals mu apart is normal itself, and the squared distance chi-square.
    assert stats.kstest(ratio.null, stats.norm(-(mu**2) / 2, mu).cdf).pvalue > CHANCE
    assert stats.kstest(ratio.alternative, stats.norm(mu**2 / 2, mu).cdf).pvalue > CHANCE
    assert stats.kstest((distance.null / std) ** 2, stats.chi2(entries).cdf).pvalue > CHANCE
    assert stats.kstest((distance.alternative / std) ** 2, stats.ncx2(entries, mu**2).cdf).pvalue > CHANCE
    # Both come from the same releases: what lies far along d lies far.
    assert stats.spearmanr(ratio.alternative, distance.alternative).statistic > 0.1


@pytest.mark.parametrize("case", ["mixture", "dependent", "layers", "two noises", "few entries"])
def test_reduced_trials_have_the_law_of_whole_vectors(case: str) -> None:
    entries = 3 if case == "few entries" else 24
    null = torch.randn(entries, generator=generator(4), dtype=torch.float64)
    moved = torch.randn(4, entries, generator=generator(5), dtype=torch.float64) / math.sqrt(entries)
    if case == "dependent":
        moved[2], moved[3] = 2 * moved[0] - moved[1], 0.0
    std, other = torch.full((entries,), 0.4, dtype=torch.float64), torch.full((entries,), 0.4, dtype=torch.float64)
    if case == "layers":
        std[:10] = other[:10] = 0.9
    if case == "two noises":
        std[:7], other = 0.7, std * 1.2
    pair = GaussianPair(
        null=null,
        alternatives=null + moved,
        std=std if case in ("layers", "two noises") else 0.4,
        alternative_std=other if case == "two noises" else None,
    )
    assert pair.one_law is (case != "two noises")
    found = pair.trials(4000, generator=generator(6))
    twin = plain(null, null + moved, (std, other), 4000, seed=7)
    for name, scores in twin.items():
        assert stats.ks_2samp(found[name].null, scores.null).pvalue > CHANCE, name
        assert stats.ks_2samp(found[name].alternative, scores.alternative).pvalue > CHANCE, name


def test_equal_hypotheses_have_a_ratio_of_one_and_an_epsilon_of_zero() -> None:
    pair = GaussianPair(null=torch.ones(5), alternatives=torch.ones(2, 5), std=0.1)
    found = pair.trials(500, generator=generator())
    assert not found["likelihood_ratio"].null.any()
    assert not found["likelihood_ratio"].alternative.any()
    assert stats.ks_2samp(found["distance"].null, found["distance"].alternative).pvalue > CHANCE
    (score,) = pair.theory(delta=1e-5)
    assert (score.value, score.evidence.value) == (0.0, "exact")


def test_the_expected_ratio_of_densities_is_one() -> None:
    pair = GaussianPair(null=torch.zeros(6), alternatives=torch.eye(6)[:3] * 0.5, std=0.7)
    ratio = pair.trials(40_000, generator=generator())["likelihood_ratio"]
    assert np.exp(ratio.null).mean() == pytest.approx(1.0, abs=0.02)
    assert np.exp(-ratio.alternative).mean() == pytest.approx(1.0, abs=0.02)


def test_the_same_generator_gives_the_same_trials() -> None:
    pair = GaussianPair(null=torch.zeros(4), alternatives=torch.ones(1, 4), std=1.0)
    one, two = (pair.trials(10, generator=generator(8))["distance"].null for _ in range(2))
    assert (one == two).all()
    assert pair.facts["distances"] == [2.0]


def test_noise_that_differs_has_no_closed_form() -> None:
    pair = GaussianPair(null=torch.zeros(4), alternatives=torch.zeros(1, 4), std=1.0, alternative_std=2.0)
    (score,) = pair.theory(delta=1e-5)
    assert score.value is None
    assert score.outcome is Outcome.UNSUPPORTED


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"null": torch.zeros(2, 2)}, "expected null"),
        ({"alternatives": torch.zeros(0, 3)}, "at least one"),
        ({"alternatives": torch.zeros(1, 4)}, "expected 3 entries"),
        ({"null": torch.tensor([0.0, math.nan, 0.0])}, "NaN"),
        ({"std": 0.0}, "positive"),
        ({"std": torch.ones(4)}, r"one number or \(3,\)"),
        ({"alternative_std": torch.tensor([1.0, 1.0, -1.0])}, "positive"),
    ],
    ids=str,
)
def test_what_is_no_pair_is_refused(changes: dict[str, object], message: str) -> None:
    given: dict[str, object] = {"null": torch.zeros(3), "alternatives": torch.ones(1, 3), "std": 1.0}
    with pytest.raises(InputError, match=message):
        GaussianPair(**(given | changes))  # type: ignore[arg-type]

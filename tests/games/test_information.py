from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
import torch
from numpy.typing import NDArray
from torch import nn

import gradleak as gl
from gradleak.audits.inference import finding_of_game
from gradleak.games.information import (
    channel_information,
    channel_std,
    entropy_of,
    fano_advantage,
    fano_error,
    gaussian_channel_information,
    information_estimate,
)
from gradleak.results import Evidence, InputError, Leakier, Outcome, Score
from tests.games.setting import population, settings

Floats = NDArray[np.float64]


def objective() -> gl.Objective:
    return gl.Objective.from_module(nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2)), loss="cross_entropy")


SIZE = 6 * 4 + 4 + 4 * 2 + 2


def release(*defenses: gl.Defense) -> gl.Release:
    return gl.Release(gl.FedSGD(), list(defenses))


def number(score: Score) -> float:
    assert score.value is not None
    return score.value


# Fano


@pytest.mark.parametrize("flip", [0.01, 0.1, 0.3, 0.5])
def test_a_binary_symmetric_channel_reaches_fanos_error(flip: float) -> None:
    information = math.log(2) - scipy.special.entr([flip, 1 - flip]).sum()
    assert fano_error(math.log(2), information, 2) == pytest.approx(flip, abs=1e-9)


@pytest.mark.parametrize("classes", [3, 5, 20])
@pytest.mark.parametrize("error", [0.05, 0.4])
def test_a_symmetric_channel_of_m_values_reaches_it(classes: int, error: float) -> None:
    row = np.full(classes, error / (classes - 1))
    row[0] = 1 - error
    information = math.log(classes) - scipy.special.entr(row).sum()
    assert fano_error(math.log(classes), information, classes) == pytest.approx(error, abs=1e-9)


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_it_is_the_smallest_error_of_a_search(classes: int) -> None:
    grid = np.linspace(0, 1, 200_001)
    left = scipy.special.entr(grid) + scipy.special.entr(1 - grid) + grid * math.log(classes - 1)
    for entropy in np.linspace(0.05, math.log(classes), 5):
        for information in np.linspace(0, 1.2 * entropy, 6):
            found, needed = fano_error(entropy, information, classes), entropy - information
            assert (left[grid < found - 1e-5] < needed).all()
            assert np.interp(found, grid, left) >= needed - 1e-5


def test_it_is_sharper_than_the_papers_bound() -> None:
    for classes in (3, 6):
        entropy = math.log(classes)
        for information in (0.0, 0.1, 0.3):
            paper = (entropy - information - math.log(2)) / math.log(classes - 1)
            assert fano_error(entropy, information, classes) > paper


@pytest.mark.parametrize("prior", [[0.5, 0.5], [0.9, 0.1], [0.2, 0.3, 0.5], [0.7, 0.1, 0.1, 0.1]])
def test_no_guess_errs_less_than_it(prior: Sequence[float]) -> None:
    """Random channels, their information exact and their best guess by Bayes' rule."""
    random = np.random.default_rng(len(prior))
    law = np.array(prior)
    for _ in range(200):
        channel = random.dirichlet(np.full(5, random.choice([0.1, 1.0, 10.0])), size=len(law))
        joint = law[:, None] * channel
        information = entropy_of(law) + entropy_of(joint.sum(axis=0)) - entropy_of(joint.ravel())
        error = 1 - joint.max(axis=0).sum()
        bound = fano_error(entropy_of(law), max(information, 0.0), len(law), blind=float(law.max()))
        assert bound <= error + 1e-9
        advantage = (1 - error - law.max()) / (1 - law.max())
        assert advantage <= number(fano_advantage(law, upper(information))) + 1e-9


def upper(nats: float) -> Score:
    return Score(
        name="information_bound",
        value=nats,
        unit="nat",
        leakier=Leakier.HIGHER,
        evidence=Evidence.UPPER_BOUND,
    )


def test_nothing_known_leaves_no_advantage_and_all_leaves_all() -> None:
    for prior in ([0.5, 0.5], [0.8, 0.2], [1 / 6] * 6):
        assert number(fano_advantage(prior, upper(0.0))) == pytest.approx(0.0, abs=1e-7)
        full = fano_advantage(prior, upper(entropy_of(prior)))
        assert number(full) == 1.0
        assert "vacuous" in full.note


def test_advantage_grows_with_information_and_keeps_its_evidence() -> None:
    values = [number(fano_advantage([0.6, 0.3, 0.1], upper(nats))) for nats in np.linspace(0.2, 0.9, 8)]
    assert values == sorted(values)
    assert fano_advantage([0.5, 0.5], upper(0.1)).evidence is Evidence.UPPER_BOUND


def test_values_that_never_occur_do_not_count() -> None:
    assert number(fano_advantage([0.5, 0.5, 0.0], upper(0.3))) == number(fano_advantage([0.5, 0.5], upper(0.3)))
    certain = fano_advantage([1.0, 0.0], upper(0.3))
    assert (certain.value, certain.outcome) == (None, Outcome.NOT_INFORMATIVE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"entropy": 0.5, "information": -0.1, "classes": 2}, "at least 0 nats"),
        ({"entropy": 0.8, "information": 0.1, "classes": 2}, "at most log 2"),
        ({"entropy": 0.5, "information": 0.1, "classes": 1}, "classes"),
        ({"entropy": 0.5, "information": 0.1, "classes": 2, "blind": 0.3}, "blind"),
    ],
)
def test_numbers_out_of_range_are_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        fano_error(**arguments)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="probabilities"):
        entropy_of([0.5, 0.6])


# The Gaussian channel


def mixture_information(means: Sequence[float], weights: Sequence[float], std: float) -> float:
    """I(a; m_a + N(0, std²)) by numerical integration."""

    def density(x: float) -> float:
        return float(np.dot(weights, scipy.stats.norm.pdf(x, means, std)))

    reach = max(map(abs, means)) + 10 * std
    mixed, _ = scipy.integrate.quad(lambda x: float(scipy.special.entr(density(x))), -reach, reach, limit=300)
    return mixed - 0.5 * math.log(2 * math.pi * math.e * std**2)


@pytest.mark.parametrize("std", [0.3, 1.0, 4.0])
@pytest.mark.parametrize(
    ("means", "weights"), [((-1, 1), (0.5, 0.5)), ((-1, 0.2, 1), (0.3, 0.3, 0.4)), ((1, -1), (0.9, 0.1))]
)
def test_the_bound_holds_for_mixtures_on_a_line(means: Sequence[float], weights: Sequence[float], std: float) -> None:
    exact = mixture_information(means, weights, std)
    bound = channel_information(1.0, std, 1)
    assert 0 < exact <= bound
    if std == 4.0 and weights == (0.5, 0.5):
        # Under much noise two opposite values use the whole channel.
        assert exact == pytest.approx(bound, rel=0.05)


def test_the_bound_holds_over_rounds_whose_map_is_chosen_by_earlier_ones() -> None:
    """Two releases of one secret; the second map turns where the first observation pointed."""
    std, random, trials = 1.0, np.random.default_rng(0), 400_000
    secret = random.choice([-1.0, 1.0], trials)
    first = secret + std * random.standard_normal(trials)
    sign = np.where(first > 0, 1.0, -1.0)
    second = sign * secret + std * random.standard_normal(trials)
    # Given the first observation the posterior log-odds add up, as the second map is known then.
    odds = 2 * (first + sign * second) / std**2
    log_posterior = -np.logaddexp(0, -secret * odds)
    information = math.log(2) + float(log_posterior.mean())
    assert information <= channel_information(1.0, std, 1, releases=2)
    assert information > channel_information(1.0, std, 1) * 0.8


def test_more_entries_approach_a_limit() -> None:
    values = [channel_information(2.0, 0.5, size) for size in (1, 10, 1000, 10**7)]
    assert values == sorted(values)
    assert values[-1] == pytest.approx(2.0**2 / (2 * 0.5**2), rel=1e-5)


@pytest.mark.parametrize(("size", "releases"), [(1, 1), (3922, 10)])
def test_the_std_is_that_of_the_information(size: int, releases: int) -> None:
    std = channel_std(0.6, 2.0, size, releases=releases)
    assert channel_information(2.0, std, size, releases=releases) == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("defenses", "norm", "std"),
    [
        ([gl.DPSGD(clip_norm=2.0, noise_std=0.1, noise="per_example")], 2.0, 0.1 / 4),
        ([gl.DPSGD(clip_norm=2.0, noise_std=0.1, noise="sum")], 2.0, 0.1 / 16),
        ([gl.DPSGD(clip_norm=2.0, noise_std=0.1, noise="sum", expected_batch_size=8)], 4.0, 0.1 / 8),
        ([gl.ClipPerExample(1.5), gl.GaussianNoise(std=0.3), gl.GaussianNoise(std=0.4)], 1.5, 0.5),
        ([gl.Clip(1.0), gl.GaussianNoise(std=0.5), gl.Prune(0.9)], 1.0, 0.5),
        ([gl.Sign(), gl.GaussianNoise(std=2.0)], math.sqrt(SIZE), 2.0),
        # The better of two places: noise behind a tight clip, then more behind a loose one.
        ([gl.Clip(1.0), gl.GaussianNoise(std=0.5), gl.Clip(5.0), gl.GaussianNoise(std=0.5)], 1.0, 0.5),
    ],
)
def test_norm_and_noise_are_those_of_the_release(defenses: list[gl.Defense], norm: float, std: float) -> None:
    score = gaussian_channel_information([release(*defenses)] * 3, objective(), examples=16)
    assert score.evidence is Evidence.UPPER_BOUND
    assert (score.details["norm"], score.details["noise_std"], score.details["size"]) == pytest.approx(
        (norm, std, SIZE)
    )
    assert number(score) == pytest.approx(3 * SIZE / 2 * math.log(1 + norm**2 / (SIZE * std**2)))


def test_the_norm_it_states_is_that_of_updates_that_are_drawn() -> None:
    generator = torch.Generator().manual_seed(0)
    loss = objective()
    rows = gl.Batch(30 * torch.randn(16, 6, generator=generator), torch.randint(0, 2, (16,), generator=generator))
    for defenses in (
        [gl.DPSGD(clip_norm=0.5, noise_std=1e-9, noise="sum")],
        [gl.Clip(0.5), gl.GaussianNoise(std=1e-9)],
    ):
        mean = release(*defenses).mean(loss, loss.params, rows)
        stated = gaussian_channel_information([release(*defenses)], loss, examples=16).details["norm"]
        assert float(loss.flatten(mean).norm()) <= stated * (1 + 1e-5)


@pytest.mark.parametrize(
    "defenses",
    [
        [],
        [gl.GaussianNoise(std=1.0)],
        [gl.Clip(1.0)],
        [gl.Prune(0.9)],
        [gl.Clip(1.0), gl.defenses.LaplaceNoise(scale=1.0)],
        [gl.GaussianNoise(std=1.0), gl.Clip(1.0)],
    ],
)
def test_without_a_bounded_norm_and_gaussian_noise_there_is_no_bound(defenses: list[gl.Defense]) -> None:
    score = gaussian_channel_information([release(*defenses)], objective(), examples=4, prior=[0.5, 0.5])
    assert (score.value, score.outcome) == (None, Outcome.UNSUPPORTED)
    assert "bound on the norm" in score.note
    assert fano_advantage([0.5, 0.5], score).outcome is Outcome.UNSUPPORTED


def test_local_steps_have_no_bound_but_a_clipped_update_has() -> None:
    protocol = gl.FedAvg(learning_rate=0.1, epochs=2)
    inside = gl.Release(protocol, [gl.DPSGD(clip_norm=1.0, noise_std=1.0, noise="sum")])
    assert gaussian_channel_information([inside], objective(), examples=4).outcome is Outcome.UNSUPPORTED
    behind = gl.Release(protocol, [gl.Clip(1.0), gl.GaussianNoise(std=1.0)])
    assert gaussian_channel_information([behind], objective(), examples=4).value is not None


def test_the_papers_setting_is_vacuous_and_says_from_where_on_it_is_not() -> None:
    prior = [0.33, 0.67]

    def bound(std: float) -> Score:
        defense = gl.DPSGD(clip_norm=2.0, noise_std=std, noise="per_example")
        return gaussian_channel_information([release(defense)] * 10, objective(), examples=16, prior=prior)

    paper = bound(0.1)
    assert number(paper) == pytest.approx(entropy_of(prior))
    assert "vacuous" in paper.note
    assert number(fano_advantage(prior, paper)) == 1.0
    # On the mean of 16 gradients a quarter of σ is left.
    enough = 4 * paper.details["std_needed"]
    assert number(fano_advantage(prior, bound(1.01 * enough))) < 1.0
    assert number(fano_advantage(prior, bound(0.99 * enough))) == 1.0


# The estimate


def odds_of(
    random: np.random.Generator, trials: int, std: float, prior: Sequence[float]
) -> tuple[Floats, NDArray[np.int64]]:
    """Exact log-posteriors of a secret of ±1 behind Gaussian noise."""
    truth = (random.random(trials) < prior[1]).astype(np.int64)
    seen = 2 * truth - 1 + std * random.standard_normal(trials)
    likelihood = -np.square(seen[:, None] - np.array([-1.0, 1.0])) / (2 * std**2)
    return likelihood + np.log(prior), truth


@pytest.mark.parametrize("prior", [[0.5, 0.5], [0.8, 0.2]])
def test_the_true_posterior_finds_the_information(prior: Sequence[float]) -> None:
    exact = mixture_information([-1, 1], prior, 1.2)
    logs, truth = odds_of(np.random.default_rng(1), 20_000, 1.2, prior)
    score = information_estimate(logs, truth, prior)
    assert score.evidence is Evidence.ESTIMATE
    assert score.interval is not None
    assert score.interval[0] <= exact <= score.interval[1]
    assert number(score) == pytest.approx(exact, abs=0.02)
    assert score.details["exponents"] == pytest.approx([1.0, 1.0], abs=0.1)


def test_its_interval_covers_the_information() -> None:
    exact, hits = mixture_information([-1, 1], [0.5, 0.5], 1.5), 0
    for seed in range(100):
        logs, truth = odds_of(np.random.default_rng(seed), 300, 1.5, [0.5, 0.5])
        score = information_estimate(logs, truth, [0.5, 0.5], resamples=200)
        assert score.interval is not None
        hits += score.interval[0] <= exact <= score.interval[1]
    assert hits >= 88


def test_posteriors_that_are_too_sure_are_tempered() -> None:
    """Ten rounds that all say the same, multiplied as if each were new."""
    prior = [0.5, 0.5]
    logs, truth = odds_of(np.random.default_rng(2), 4000, 1.0, prior)
    sure = np.log(prior) + 10 * (logs - np.log(prior))
    once, ten = information_estimate(logs, truth, prior), information_estimate(sure, truth, prior)
    assert ten.details["untempered"] < 0 < number(ten)
    assert number(ten) == pytest.approx(number(once), abs=1e-3)
    assert ten.details["exponents"] == pytest.approx([0.1, 0.1], abs=0.02)


def test_a_worse_adversary_shows_less() -> None:
    prior = [0.5, 0.5]
    logs, truth = odds_of(np.random.default_rng(3), 4000, 1.0, prior)
    worse = logs + 3 * np.random.default_rng(4).standard_normal(logs.shape)
    assert number(information_estimate(worse, truth, prior)) < number(information_estimate(logs, truth, prior))


def test_nothing_shown_is_nothing() -> None:
    random = np.random.default_rng(5)
    prior = [0.3, 0.7]
    truth = (random.random(2000) < 0.7).astype(np.int64)
    score = information_estimate(random.standard_normal((2000, 2)), truth, prior)
    assert 0 <= number(score) < 0.005
    # Nothing but the prior: no gain in any trial.
    assert number(information_estimate(np.tile(np.log(prior), (2000, 1)), truth, prior)) == pytest.approx(
        0.0, abs=1e-12
    )
    assert fano_advantage(prior, score).evidence is Evidence.ESTIMATE


def test_all_shown_is_the_entropy() -> None:
    truth = np.arange(600) % 3
    logs = np.where(np.arange(3) == truth[:, None], 0.0, -60.0)
    assert number(information_estimate(logs, truth, [1 / 3] * 3)) == pytest.approx(math.log(3), abs=1e-9)


def test_estimates_without_data_have_a_word() -> None:
    few = information_estimate(np.zeros((3, 2)), np.zeros(3, dtype=np.int64), [0.5, 0.5])
    assert (few.value, few.outcome) == (None, Outcome.NOT_RESOLVABLE)
    broken = information_estimate(np.full((9, 2), -np.inf), np.zeros(9, dtype=np.int64), [0.5, 0.5])
    assert (broken.value, broken.outcome) == (None, Outcome.NOT_FINITE)
    with pytest.raises(InputError, match="positive probabilities"):
        information_estimate(np.zeros((9, 2)), np.zeros(9, dtype=np.int64), [1.0, 0.0])


# In a game


@pytest.mark.parametrize("side", [False, True])
def test_a_game_states_what_its_updates_may_hold_and_what_an_adversary_shows(side: bool) -> None:
    defended = release(gl.DPSGD(clip_norm=1.0, noise_std=8.0, noise="per_example"))
    game = gl.PropertyGame(population(), **settings(release=defended, trials=200, shadow_batches=200, side=side))
    result = game.play(seed=1)
    found = {(score.name, score.evidence.value): score for score in result.information("adaptive")}
    shown = found["information_estimate", "estimate"]
    assert 0 <= number(shown) <= entropy_of(result.runs[0].law)  # type: ignore[arg-type]
    reached = result.score("advantage", "adaptive")
    # With side information H(a) and p* are no longer what an adversary starts from.
    assert (("information_bound", "upper_bound") in found) is not side
    if not side:
        bound = found["fano_advantage", "upper_bound"]
        assert found["information_bound", "upper_bound"].details["noise_std"] == pytest.approx(8 / math.sqrt(8))
        assert reached.details["unclipped_interval"][0] <= number(bound) < 1.0
        scores = finding_of_game(result).scores
        names = [score.name for score in scores if "adversary" in score.about and "round" not in score.about]
        assert names.count("fano_advantage") == 2 * len(result.adversaries)


def test_an_undefended_game_has_an_estimate_and_no_bound() -> None:
    result = gl.PropertyGame(population(shift=3.0), **settings(trials=200, shadow_batches=200, rounds=1)).play()
    bound, fano, shown, estimate = result.information()
    assert (bound.outcome, fano.outcome) == (Outcome.UNSUPPORTED, Outcome.UNSUPPORTED)
    assert number(shown) > 0.3
    assert number(estimate) > 0.5

"""The chance of any attacker to rebuild an example under differential privacy, held against the best attackers there are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import binomtest, norm
from torch import Tensor, nn

from gradleak.core import Batch, Domain, Objective, Release, Vocabulary
from gradleak.defenses import DPSGD, Clip, ClipPerExample, GaussianNoise, LaplaceNoise, Prune
from gradleak.protocols import FedAvg, FedSGD, SecureAggregation
from gradleak.results import Evidence, InputError, Leakier, Outcome
from gradleak.risk import ReconstructionProbability
from gradleak.risk.reconstruction_probability import success_bound

SIZE = 20
UNIT = Domain(shape=(SIZE,), kind="tabular")


def _objective() -> Objective:
    """A linear layer of zeros: the gradients of different unit vectors are orthogonal and of one length."""
    model = nn.Linear(SIZE, 2, bias=False)
    nn.init.zeros_(model.weight)
    return Objective.from_module(model).to(torch.float64)


def _private(std: float, *, clip_norm: float = 0.5, **fields: Any) -> DPSGD:
    return DPSGD(clip_norm=clip_norm, noise_std=std, noise="sum", **fields)


def _best_of(candidates: int, mu: float) -> float:
    """The chance of the Bayes-optimal attacker on so many orthogonal means of length μ under unit noise."""
    density = lambda t: norm.pdf(t - mu) * norm.cdf(t) ** (candidates - 1)  # noqa: E731
    return float(quad(density, -12, mu + 12)[0])


def test_the_bound_is_a_likelihood_ratio_test() -> None:
    """The event of probability κ under N(0, 1) that N(μ, 1) makes most likely is a half line."""
    for mu, kappa in ((0.3, 0.01), (1.0, 0.2), (2.5, 1e-6)):
        assert success_bound(mu, kappa) == pytest.approx(norm.sf(norm.isf(kappa) - mu), rel=1e-9)
    assert success_bound(0.0, 0.125) == pytest.approx(0.125)
    assert success_bound(3.0, 1.0) == 1.0


@pytest.mark.parametrize("candidates", [2, 10, 100, 1000])
@pytest.mark.parametrize("mu", [0.05, 0.5, 1.0, 2.0, 4.0])
def test_the_best_attacker_on_equally_distant_candidates_stays_below_and_comes_near(candidates: int, mu: float) -> None:
    best, bound = _best_of(candidates, mu), success_bound(mu, 1 / candidates)
    assert best <= bound
    if candidates > 2:  # two candidates lie 1.41 apart and not 2: the reference between them is nearer than "nothing"
        assert best >= 0.85 * bound


@pytest.mark.parametrize(("points", "gap"), [(8, 0.2), (50, 1.0), (8, 2.0)])
def test_the_best_attacker_on_a_toy_prior_stays_below(points: int, gap: float) -> None:
    """Random means in a ball, drawn with unequal shares; the attacker takes the largest posterior."""
    generator = np.random.default_rng(points)
    means = generator.normal(size=(points, 3))
    means *= gap / np.linalg.norm(means, axis=1).max()
    shares = generator.dirichlet(np.ones(points))
    trials = 40_000
    truth = generator.choice(points, size=trials, p=shares)
    seen = means[truth] + generator.normal(size=(trials, 3))
    posterior = np.log(shares) - ((seen[:, None] - means) ** 2).sum(2) / 2
    rate = float((posterior.argmax(1) == truth).mean())
    assert rate - 4 * math.sqrt(rate / trials) <= success_bound(gap, float(shares.max()))


def _rate(release: Release, rounds: int, trials: int) -> float:
    """How often the best attacker on real releases of one of SIZE unit vectors finds which one it was."""
    objective, generator = _objective(), torch.Generator().manual_seed(1)
    label = torch.tensor([0])
    eye = torch.eye(SIZE, dtype=torch.float64)
    means = torch.stack(
        [objective.flatten(release.mean(objective, objective.params, Batch(row[None], label))) for row in eye]
    )
    hits = 0
    for trial in range(trials):
        truth = trial % SIZE
        batch = Batch(eye[truth][None], label)
        seen = sum(objective.flatten(release(objective, batch, generator).tensors) for _ in range(rounds))
        assert isinstance(seen, Tensor)
        hits += int((means @ seen).argmax()) == truth
    return hits / trials


@pytest.mark.slow
@pytest.mark.parametrize(("rounds", "std"), [(1, 0.5 / 1.5), (4, 1.0 / 1.5)])
def test_real_releases_are_told_apart_as_often_as_theory_says_and_never_more_often_than_the_bound(
    rounds: int, std: float
) -> None:
    release = Release(FedSGD(), [_private(std)])
    score = ReconstructionProbability(candidates=SIZE, rounds=rounds)(_objective(), release, domain=UNIT)
    assert score.details["mu"] == pytest.approx(1.5)
    trials = 1000
    rate, theory = _rate(release, rounds, trials), _best_of(SIZE, 1.5)
    error = math.sqrt(theory * (1 - theory) / trials)
    assert abs(rate - theory) < 4 * error
    assert score.value is not None
    assert theory <= score.value < theory / 0.85
    assert rate <= score.value + 4 * error


def test_the_score_says_what_it_is() -> None:
    score = ReconstructionProbability(candidates=1000)(_objective(), Release(FedSGD(), [_private(1.0)]))
    assert (score.evidence, score.unit, score.leakier) == (Evidence.UPPER_BOUND, "probability", Leakier.HIGHER)
    assert score.value == pytest.approx(norm.cdf(0.5 + norm.ppf(1e-3)))
    facts = score.details
    assert (facts["mu"], facts["kappa"], facts["rounds"], facts["hidden"]) == (0.5, 1e-3, 1, "example")
    assert facts["prior"]["origin"] == "one of 1000 candidates, each as likely, any two more than 0.2 apart (RMSE)"
    epsilon, delta = facts["epsilon"], facts["delta"]  # what it is at that δ, by the formula of Balle and Wang
    assert norm.cdf(0.25 - epsilon / 0.5) - math.exp(epsilon) * norm.cdf(-0.25 - epsilon / 0.5) == pytest.approx(delta)


def test_rounds_and_local_steps_compose() -> None:
    once = ReconstructionProbability(candidates=50)
    nine = ReconstructionProbability(candidates=50, rounds=9)
    plain = Release(FedSGD(), [_private(1.0)])
    assert nine(_objective(), plain).value == pytest.approx(
        once(_objective(), Release(FedSGD(), [_private(1.0 / 3)])).value
    )
    local = Release(FedAvg(learning_rate=0.1, epochs=4), [_private(1.0)])
    assert once(_objective(), local).details["mu"] == pytest.approx(2 * once(_objective(), plain).details["mu"])


def test_a_batch_counts_every_guess_at_every_example() -> None:
    four = ReconstructionProbability(candidates=1000)(_objective(), Release(FedSGD(), [_private(1.0)]), batch_size=4)
    each = norm.cdf(0.5 + norm.ppf(4e-3))  # each of four claims may be paired with the example
    assert four.details["each_example"] == pytest.approx(each)
    assert four.value == pytest.approx(4 * each)
    assert "at least one of the 4 examples" in four.note
    many = ReconstructionProbability(candidates=3)(_objective(), Release(FedSGD(), [_private(1.0)]), batch_size=4)
    assert many.value == 1.0


def test_copies_move_the_sum_together() -> None:
    once = ReconstructionProbability(candidates=1000)
    release = Release(FedSGD(), [_private(1.0)])
    score = once(_objective(), release, batch_size=4, copies=3)
    assert score.details["each_example"] == pytest.approx(norm.cdf(3 * 0.5 + norm.ppf(4e-3)))
    assert "stands there 3 times" in score.note
    client = Release(FedSGD(), [Clip(0.5), GaussianNoise(std=1.0)])
    assert once(_objective(), client, batch_size=4, copies=3) == once(_objective(), client, batch_size=4)
    with pytest.raises(InputError, match="at most the number of examples, 4, got 5"):
        once(_objective(), release, batch_size=4, copies=5)


def test_a_hidden_client_hides_its_examples() -> None:
    release = Release(FedSGD(), [Clip(0.5), GaussianNoise(std=1.0)])
    score = ReconstructionProbability(candidates=1000)(_objective(), release, batch_size=4)
    assert score.details["hidden"] == "client"
    assert score.value == pytest.approx(norm.cdf(0.5 + norm.ppf(16e-3)))
    assert "the whole update of the client is hidden" in score.note


@pytest.mark.parametrize(
    "defenses",
    [
        [],
        [GaussianNoise(std=1.0)],
        [ClipPerExample(0.5)],
        [GaussianNoise(std=1.0), Clip(0.5)],
        [Clip(0.5), LaplaceNoise(scale=1.0)],
        [Prune(0.99)],
    ],
)
def test_no_guarantee_no_number(defenses: list[Any]) -> None:
    score = ReconstructionProbability(candidates=1000)(_objective(), Release(FedSGD(), defenses))
    assert (score.value, score.outcome) == (None, Outcome.NOT_INFORMATIVE)
    assert "no differential privacy" in score.note


def test_a_client_behind_secure_aggregation_is_not_hidden_by_the_noise_on_the_sum() -> None:
    protocol = SecureAggregation(protocol=FedSGD(), examples=(1, 1))
    release = Release(protocol, [Clip(0.5), GaussianNoise(std=1.0)])
    assert ReconstructionProbability(candidates=1000)(_objective(), release, batch_size=2).value is None


def test_public_examples_of_a_label_count_alone() -> None:
    eye = torch.eye(SIZE, dtype=torch.float64)
    near = torch.cat([eye[:8], eye[:1].expand(8, SIZE)])  # eight of label 1 are the same
    public = Batch(near, torch.tensor([0] * 8 + [1] * 8), UNIT)
    release = Release(FedSGD(), [_private(50.0)])
    one_of_eight = binomtest(1, 8, alternative="less").proportion_ci(0.95, method="exact").high
    for label, kappa in ((0, one_of_eight), (1, 1.0)):
        facts = ReconstructionProbability(public=public)(_objective(), release, targets=torch.tensor([label])).details
        assert facts["prior"]["origin"] == f"drawn like 8 with the label {label} of the public examples"
        assert facts["kappa"] == pytest.approx(kappa)
    both = ReconstructionProbability(public=public)(_objective(), release, targets=torch.tensor([0, 1]))
    assert both.details["prior"]["examples"] == 8
    assert both.value == 1.0
    whole = ReconstructionProbability(public=public.inputs)(_objective(), release, targets=torch.tensor([1]))
    assert whole.details["prior"]["origin"] == "drawn like the 16 public examples"
    assert whole.details["prior"]["domain"] == "guessed from the public examples"
    missing = ReconstructionProbability(public=public)(_objective(), release, targets=torch.tensor([7]))
    assert missing.value is None
    assert "fewer than two public examples have the label 7" in missing.note


def test_distances_are_pixel_errors() -> None:
    """Two halves whose members differ by 30 of 255 in every entry: within η = 0.1 of a point between them, not of 0.05."""
    first = torch.zeros((10, SIZE), dtype=torch.float64)
    public = torch.cat([first, first + 30.0])
    domain = Domain(shape=(SIZE,), high=255.0, kind="tabular")
    release = Release(FedSGD(), [_private(50.0)])
    for within, found in ((0.1, 20), (0.05, 10)):
        measure = ReconstructionProbability(public=public, within=within)
        kappa = measure(_objective(), release, domain=domain).details["kappa"]
        assert (kappa == 1.0) is (found == 20)
    with pytest.raises(InputError, match="inputs: expected"):
        measure(_objective(), release, domain=Domain(shape=(3,)))


def test_more_candidates_than_fit_are_no_prior() -> None:
    measure = ReconstructionProbability(candidates=50)
    single = Domain(shape=(1,), kind="tabular")
    objective = Objective.from_module(nn.Linear(1, 2))
    score = measure(objective, Release(FedSGD(), [_private(1.0)]), domain=single)
    assert score.value is None
    assert "no 50 candidates more than 0.2 apart fit" in score.note
    assert measure(_objective(), Release(FedSGD(), [_private(1.0)]), domain=UNIT).value is not None


@pytest.mark.parametrize("std", [1e-9, 1e-3, 1e9])
def test_extremes_of_noise_are_numbers(std: float) -> None:
    score = ReconstructionProbability(candidates=1000)(_objective(), Release(FedSGD(), [_private(std)]))
    assert score.value == pytest.approx(1.0 if std < 1 else 1e-3, rel=1e-6)
    assert score.details["epsilon"] >= 0.0


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"candidates": 10, "public": torch.zeros(3, 2)},
        {"public": "digits"},
        {"public": torch.zeros(1, 2)},
        {"public": torch.full((4, 2), math.nan)},
        {"candidates": 1},
        {"candidates": 10, "within": 1.0},
    ],
)
def test_bad_fields_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="expected"):
        ReconstructionProbability(**fields)


def test_of_sentences_a_guess_may_be_right_for_as_many_as_share_its_places() -> None:
    """At each place a guess is right for one candidate at most, so that half of the words are in place for two of them."""
    tokens = Domain.tokens(Vocabulary(size=400, padding=0), 8)
    for within, each in ((0.4, 1), (0.5, 2), (2 / 3, 3), (0.8, 5)):
        measure = ReconstructionProbability(candidates=300, within=within)
        score = measure(_objective(), Release(FedSGD(), [_private(4.0)]), batch_size=2, domain=tokens)
        assert score.details["kappa"] == pytest.approx(2 * each / 300)
        prior = score.details["prior"]
        assert "no two have the same word at a place" in prior["origin"]
        assert f"each of the 2 claims on a batch is within {within:g} of at most {each} of them" in prior["origin"]
        assert (prior["claims"], prior["right_for"]) == (2, each)
    for measure, reason in (
        (ReconstructionProbability(candidates=400), "no 400 sentences that agree at no place fit 399 words"),
        (ReconstructionProbability(public=torch.ones(3, 8)), "public ones are no prior for it; state candidates"),
    ):
        score = measure(_objective(), Release(FedSGD(), [_private(4.0)]), domain=tokens)
        assert (score.value, score.outcome) == (None, Outcome.NOT_INFORMATIVE)
        assert reason in score.note

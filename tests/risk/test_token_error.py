"""Bounds on the errors of a decoder of tokens, against an exact decoder that is played."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.optimize import brentq
from scipy.special import entr, ndtr
from tests.tokens import VOCABULARY, sentences, tiny
from torch import Tensor

from gradleak.core import Batch, Exposure, Objective, Release
from gradleak.defenses import Clip, GaussianNoise, LaplaceNoise
from gradleak.protocols import FedAvg, FedSGD
from gradleak.reporting.words import score_title
from gradleak.results import Evidence, InputError, Outcome
from gradleak.risk.token_error import TokenDistances, TokenError

CANDIDATES = tuple(range(3, 15))


def exposure(*defenses: object, causal: bool = False, classes: int | None = 2) -> Exposure:
    model = tiny(causal=causal, classes=classes).double()
    language = classes is None
    objective = Objective.from_module(model, loss="causal_lm" if language else "cross_entropy")
    return Exposure(objective, sentences(6, language=language, length=6), Release(FedSGD(), list(defenses)))  # type: ignore[arg-type]


def means(case: Exposure, place: int, words: tuple[int, ...]) -> Tensor:
    found = []
    for word in words:
        ids = case.batch.inputs.clone()
        ids[0, place] = word
        found.append(
            Exposure(case.objective, Batch(ids, case.batch.targets, case.batch.domain), case.release).released_mean()
        )
    return torch.stack(found).detach()


def played(points: Tensor, std: float, *, plays: int, seed: int) -> tuple[float, float]:
    """Errors of the decoder that takes the nearest release: for drawn candidates, and for the first one."""
    # Noise acts through the span of the differences alone.
    basis = torch.linalg.svd(points - points.mean(dim=0), full_matrices=False)[2]
    flat = points @ basis.T
    generator = torch.Generator().manual_seed(seed)

    def error(truth: Tensor) -> float:
        noise = torch.randn(plays, flat.shape[1], generator=generator, dtype=torch.float64)
        return float((torch.cdist(flat[truth] + std * noise, flat).argmin(dim=1) != truth).double().mean())

    drawn = torch.randint(len(points), (plays,), generator=generator)
    return error(drawn), error(torch.zeros(plays, dtype=torch.int64))


def test_two_points_in_noise_are_told_apart_as_the_textbook_says() -> None:
    pair = TokenDistances(distances=torch.tensor([[0.0, 2.0], [2.0, 0.0]], dtype=torch.float64), truth=1)
    expected = ndtr(-1.0 / 0.5)
    assert pair.best_error(0.5) == pytest.approx(expected, rel=1e-12)
    assert pair.least_error(0.5) == pytest.approx(expected, rel=1e-12)
    smallest = pair.smallest_std(0.1)
    assert smallest is not None
    assert ndtr(-1.0 / smallest) == pytest.approx(0.1, rel=1e-9)
    assert pair.best_error(0.0) == 0.0
    equal = TokenDistances(distances=torch.zeros(2, 2, dtype=torch.float64), truth=0)
    assert (equal.best_error(0.0), equal.smallest_std(0.3)) == (0.5, 0.0)


@pytest.mark.parametrize("defenses", [(), (Clip(max_norm=0.05),)], ids=["plain", "clipped"])
@pytest.mark.parametrize("place", [1, 3])
def test_an_exact_decoder_errs_between_the_bounds(defenses: tuple[object, ...], place: int) -> None:
    """Played 4,000 times at each of four noise levels; the intervals are of 4.5 standard deviations."""
    case = exposure(*defenses)
    found = TokenError(candidates=CANDIDATES).distances(case, 0, place)
    words = tuple(dict.fromkeys([int(case.batch.inputs[0, place]), *CANDIDATES]))
    points = means(case, place, words)
    assert torch.allclose(found.distances, torch.cdist(points, points), rtol=1e-9, atol=1e-12)
    plays = 4000
    typical = float(found.distances[found.distances > 0].median())
    for std in (0.05 * typical, 0.2 * typical, 0.5 * typical, 2.0 * typical):
        error, errs = played(points, std, plays=plays, seed=place)
        slack = 4.5 * math.sqrt(max(error * (1 - error), 1 / plays) / plays)
        assert found.least_error(std) - slack <= error <= found.mean_error(std) + slack
        assert errs <= found.best_error(std) + 4.5 * math.sqrt(max(errs * (1 - errs), 1 / plays) / plays)


def test_scores_say_which_bound_they_are() -> None:
    case = exposure(GaussianNoise(std=0.05))
    best, least, noise = TokenError(candidates=CANDIDATES).scores(case)
    assert [score.name for score in (best, least, noise)] == [
        "token_error_bound",
        "least_token_error",
        "noise_std_for_token_error",
    ]
    assert (best.evidence, least.evidence, noise.evidence) == (
        Evidence.UPPER_BOUND,
        Evidence.LOWER_BOUND,
        Evidence.UPPER_BOUND,
    )
    assert best == TokenError(candidates=CANDIDATES)(case)
    assert best.value is not None
    assert least.value is not None
    assert 0 <= least.value <= 0.5
    assert best.n == len(best.details["per_place"]) == 4  # [CLS] and [SEP] are not counted
    noisier = TokenError(candidates=CANDIDATES)(exposure(GaussianNoise(std=0.5)))
    assert noisier.value is not None
    assert noisier.value > best.value
    quiet = TokenError(candidates=CANDIDATES).scores(exposure())
    assert [score.value for score in quiet[:2]] == [0.0, 0.0]
    other = TokenError(candidates=CANDIDATES).scores(exposure(LaplaceNoise(scale=0.1)))
    assert [(score.value, score.outcome) for score in other] == [(None, Outcome.UNSUPPORTED)]
    pair = TokenError(candidates=(3,), most_places=1).scores(case)
    assert pair[0].evidence is Evidence.EXACT
    assert (pair[2].value, pair[2].outcome) == (None, Outcome.UNSUPPORTED)  # guessing between two errs half of the time


def test_mini_batches_need_no_derivative() -> None:
    """Two sentences in two local steps: no derivative by embeddings is taken, of which a part of the batch has none."""
    protocol = FedAvg(learning_rate=0.1, epochs=1, batch_size=1)
    release = Release(protocol, [GaussianNoise(std=0.05)])
    case = Exposure(Objective.from_module(tiny().double()), sentences(6, 5, length=6), release)
    settings = TokenError(candidates=CANDIDATES, most_places=3)
    found = settings.scores(case)
    row, place = found[0].details["places"][0]
    words = tuple(dict.fromkeys([int(case.batch.inputs[row, place]), *CANDIDATES]))
    points = means(case, place, words)
    expected = TokenDistances(distances=torch.cdist(points, points) / 0.05, truth=0)
    assert [score.details["per_place"][0] for score in found[:2]] == pytest.approx(
        [expected.best_error(1.0), expected.least_error(1.0)], rel=1e-6
    )


def test_the_prior_is_told_with_every_number_that_rests_on_it() -> None:
    _, least, noise = TokenError(candidates=CANDIDATES, most_places=2).scores(exposure(GaussianNoise(std=0.05)))
    for score in (least, noise):
        assert score.details["under_prior"] == f"uniform over {least.details['candidates']} candidates"
        assert str(least.details["candidates"]) in score.note
        assert "prior: uniform over" in score_title(score)


def test_means_say_of_how_many_places_and_which_of_them_is_worst() -> None:
    best, least, noise = TokenError(candidates=CANDIDATES, most_places=2).scores(exposure(GaussianNoise(std=0.05)))
    for score in (best, least):
        assert "on average over the places that were looked at (2 of 4)" in score.note
        assert score.details["of_places"] == 4
    assert "at any of the places that were looked at (2 of 4)" in noise.note
    at_places = best.details["per_place"]
    worst = at_places.index(min(at_places))
    row, place = best.details["places"][worst]
    assert best.details["worst_place"] == {"sentence": row, "place": place, "value": min(at_places)}
    assert f"at the worst place at most {min(at_places):.2g}" in best.note


def test_the_noise_that_is_asked_for_keeps_decoders_above_the_threshold() -> None:
    """Asked of a release with noise and of one without; at that noise the exact decoder is above the threshold."""
    settings = TokenError(candidates=CANDIDATES, threshold=0.7)
    plain = exposure()
    quiet, noisy = (settings.scores(case)[-1] for case in (plain, exposure(GaussianNoise(std=0.05))))
    assert quiet.value is not None
    assert noisy.value == pytest.approx(quiet.value, rel=1e-9)
    at_it = settings.scores(exposure(GaussianNoise(std=quiet.value)))[1]
    assert min(at_it.details["per_place"]) == pytest.approx(0.7, rel=1e-6)
    for row, place in quiet.details["places"]:
        words = tuple(dict.fromkeys([int(plain.batch.inputs[row, place]), *CANDIDATES]))
        error = played(means(plain, place, words), quiet.value, plays=4000, seed=place)[0]
        assert error > 0.7


def test_fano_bounds_decoders_from_below_where_two_points_do_not() -> None:
    """Four equal releases: guessing errs three times of four; far apart nothing is left."""
    nearly = TokenDistances(distances=1e-6 * (1 - torch.eye(4, dtype=torch.float64)), truth=0)
    assert nearly.least_error(1.0) == pytest.approx(0.75, abs=1e-4)
    assert nearly.least_error(1.0) <= 0.75
    far = TokenDistances(distances=1e3 * (1 - torch.eye(4, dtype=torch.float64)), truth=0)
    assert far.least_error(1.0) == pytest.approx(0.0, abs=1e-12)
    equal = TokenDistances(distances=torch.zeros(4, 4, dtype=torch.float64), truth=0)
    assert equal.smallest_std(0.7) == 0.0


def test_fano_takes_the_mean_squared_distance_from_the_center() -> None:
    """Twelve releases at random, solved again with SciPy: I <= mean ‖g − center‖² / 2σ²."""
    draw = torch.Generator().manual_seed(0)
    points = torch.randn(12, 3, generator=draw, dtype=torch.float64)
    std = 2.0
    found = TokenDistances(distances=torch.cdist(points, points), truth=0)
    information = float((points - points.mean(0)).square().sum(1).mean()) / (2 * std**2)

    def left(error: float) -> float:
        return float(entr([error, 1 - error]).sum()) + error * math.log(11) - math.log(12) + information

    want = brentq(left, 1e-12, 11 / 12, xtol=1e-14)
    assert want > float(found.confusions(std).max(dim=1).values.mean())
    assert found.least_error(std) == pytest.approx(want, abs=1e-9)


def test_the_linear_form_is_an_estimate_that_is_right_for_words_close_by() -> None:
    """Candidates whose embeddings differ little: the difference of releases is linear, without the table of words."""
    model = tiny().double()
    with torch.no_grad():
        base = model.words.weight[5].clone()
        for word in range(5, 10):
            model.words.weight[word] = base + 1e-4 * torch.randn(
                len(base), generator=torch.Generator().manual_seed(word)
            )
    model.words.weight.requires_grad_(False)
    ids = torch.tensor([[1, 5, 12, 2]])
    batch = Batch(ids, torch.tensor([1]), sentences(4, length=4).domain)
    case = Exposure(Objective.from_module(model), batch, Release(FedSGD(), [GaussianNoise(std=1e-5)]))
    settings = {"candidates": tuple(range(5, 10))}
    true = TokenError(**settings).distances(case, 0, 1)
    linear = TokenError(linear=True, **settings).distances(case, 0, 1)
    assert (true.exact, linear.exact) == (True, False)
    torch.testing.assert_close(linear.distances, true.distances, rtol=1e-2, atol=1e-12)
    assert {score.evidence for score in TokenError(linear=True, **settings).scores(case)} == {Evidence.ESTIMATE}


def test_a_language_model_predicts_the_candidate_too() -> None:
    case = exposure(classes=None, causal=True)
    found = TokenError(candidates=(3, 4)).distances(case, 0, 2)
    ids = case.batch.inputs.clone()
    true = int(ids[0, 2])
    other = 4 if true != 4 else 3
    ids[0, 2] = other
    changed = Exposure(case.objective, Batch(ids, ids, case.batch.domain), case.release).released_mean()
    words = list(dict.fromkeys([true, 3, 4]))
    assert float(found.distances[0, words.index(other)]) == pytest.approx(
        float((changed - case.released_mean()).norm()), rel=1e-9
    )


def test_its_cost_grows_with_places_and_entries_and_the_square_of_candidates() -> None:
    batch = exposure().batch
    few, many = (TokenError(most_places=2, most_candidates=count) for count in (2, 6))
    one = TokenError(most_places=1, most_candidates=2)
    assert few.extra_cost(batch) == many.extra_cost(batch) == 2 * one.extra_cost(batch)
    assert few.extra_seconds(batch, 200) == pytest.approx(2 * few.extra_seconds(batch, 100))
    assert 3 < many.extra_seconds(batch, 100) / few.extra_seconds(batch, 100) < 9


def test_refuses_what_is_not_text() -> None:
    case = exposure()
    with pytest.raises(InputError, match="at least one id"):
        TokenError(candidates=())
    with pytest.raises(InputError, match="besides the true token"):
        TokenError(candidates=(int(case.batch.inputs[0, 1]),)).distances(case, 0, 1)
    with pytest.raises(InputError, match=r"above 0 and below 0\.9\d*, which guessing among 1\d candidates has"):
        TokenError(candidates=CANDIDATES).distances(case, 0, 1).smallest_std(0.95)
    image = Exposure(
        Objective.from_module(torch.nn.Linear(3, 2)), Batch(torch.rand(1, 3), torch.tensor([0])), Release(FedSGD())
    )
    with pytest.raises(InputError, match="a batch of ids with a domain of tokens"):
        TokenError()(image)
    assert VOCABULARY.size == 40

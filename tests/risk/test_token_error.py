"""Bounds on the errors of a decoder of tokens, against an exact decoder that is played."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.special import ndtr
from tests.tokens import VOCABULARY, sentences, tiny
from torch import Tensor

from gradleak.core import Batch, Exposure, Objective, Release
from gradleak.defenses import Clip, GaussianNoise, LaplaceNoise
from gradleak.protocols import FedSGD
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
    # Noise acts through the span of the differences alone.
    basis = torch.linalg.svd(points - points.mean(dim=0), full_matrices=False)[2]
    flat = points @ basis.T
    generator = torch.Generator().manual_seed(place)
    plays = 4000
    typical = float(found.distances[found.distances > 0].median())
    for std in (0.05 * typical, 0.2 * typical, 0.5 * typical, 2.0 * typical):
        truth = torch.randint(len(words), (plays,), generator=generator)
        seen = flat[truth] + std * torch.randn(plays, flat.shape[1], generator=generator, dtype=torch.float64)
        decoded = torch.cdist(seen, flat).argmin(dim=1)
        error = float((decoded != truth).double().mean())
        slack = 4.5 * math.sqrt(max(error * (1 - error), 1 / plays) / plays)
        assert found.least_error(std) - slack <= error <= found.mean_error(std) + slack
        at_truth = flat[0] + std * torch.randn(plays, flat.shape[1], generator=generator, dtype=torch.float64)
        errs = float((torch.cdist(at_truth, flat).argmin(dim=1) != 0).double().mean())
        assert errs <= found.best_error(std) + 4.5 * math.sqrt(max(errs * (1 - errs), 1 / plays) / plays)


def test_scores_say_which_bound_they_are() -> None:
    case = exposure(GaussianNoise(std=0.05))
    best, least = TokenError(candidates=CANDIDATES)(case)
    assert (best.evidence, least.evidence) == (Evidence.UPPER_BOUND, Evidence.LOWER_BOUND)
    assert best.value is not None
    assert least.value is not None
    assert 0 <= least.value <= 0.5
    assert best.n == len(best.details["per_place"]) == 4  # [CLS] and [SEP] are not counted
    noisier = TokenError(candidates=CANDIDATES)(exposure(GaussianNoise(std=0.5)))
    assert noisier[0].value is not None
    assert noisier[0].value > best.value
    assert [score.value for score in TokenError(candidates=CANDIDATES)(exposure())] == [0.0, 0.0]
    other = TokenError(candidates=CANDIDATES)(exposure(LaplaceNoise(scale=0.1)))
    assert [(score.value, score.outcome) for score in other] == [(None, Outcome.UNSUPPORTED)] * 2


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
    assert {score.evidence for score in TokenError(linear=True, **settings)(case)} == {Evidence.ESTIMATE}


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


def test_refuses_what_is_not_text() -> None:
    case = exposure()
    with pytest.raises(InputError, match="at least one id"):
        TokenError(candidates=())
    with pytest.raises(InputError, match="besides the true token"):
        TokenError(candidates=(int(case.batch.inputs[0, 1]),)).distances(case, 0, 1)
    with pytest.raises(InputError, match=r"between 0 and 0\.5"):
        TokenError(candidates=CANDIDATES).distances(case, 0, 1).smallest_std(0.7)
    assert VOCABULARY.size == 40

"""Scores of sentences on ids, against values of rouge-score 0.1.2 and nltk 3.10 and against hand-counted ones."""

from __future__ import annotations

import pytest
import torch

from gradleak.results import InputError
from gradleak.scoring.text import (
    Guessers,
    Overlap,
    bag_overlap,
    feature_mse,
    google_bleu,
    rouge_l,
    rouge_n,
    score_sentence,
    score_sentences,
)

CLS, SEP = 101, 102

# Truth, claim, then what rouge-score says (recall, precision, F for ROUGE-1, -2, -L, tokens split at blanks) and `sentence_gleu`.
ORACLE = [
    (
        [11, 6, 9, 7, 9, 7],
        [3, 5, 7, 9, 5, 8, 6],
        [
            (0.5, 0.42857142857142855, 0.4615384615384615),
            (0.2, 0.16666666666666666, 0.1818181818181818),
            (0.3333333333333333, 0.2857142857142857, 0.30769230769230765),
        ],
        0.18181818181818182,
    ),
    (
        [3, 11, 6, 2, 0, 8, 2, 10, 11, 9, 6],
        [7, 0, 8, 6, 10, 9, 3, 0, 5, 8, 2, 10],
        [
            (0.6363636363636364, 0.5833333333333334, 0.6086956521739131),
            (0.3, 0.2727272727272727, 0.28571428571428564),
            (0.45454545454545453, 0.4166666666666667, 0.43478260869565216),
        ],
        0.2619047619047619,
    ),
]


@pytest.mark.parametrize(("truth", "claim", "rouge", "bleu"), ORACLE)
def test_the_values_are_those_of_the_usual_packages(
    truth: list[int], claim: list[int], rouge: list[tuple[float, float, float]], bleu: float
) -> None:
    ours = [rouge_n(truth, claim, 1), rouge_n(truth, claim, 2), rouge_l(truth, claim)]
    for overlap, expected in zip(ours, rouge, strict=True):
        assert (overlap.recall, overlap.precision, overlap.f) == pytest.approx(expected, abs=1e-12)
    assert google_bleu(truth, claim) == pytest.approx(bleu, abs=1e-12)


def test_the_script_of_a_language_does_not_matter() -> None:
    assert rouge_n([30001, 30002], [30001, 30002], 1) == Overlap(recall=1.0, precision=1.0)
    assert google_bleu([5], [5]) == 1.0
    assert google_bleu([5], []) == 0.0


def test_what_is_not_claimed_is_neither_right_nor_wrong() -> None:
    truth, claim = [1, 2, 3, 4], [1, -1, 3, -1]
    assert rouge_n(truth, claim, 1) == Overlap(recall=0.5, precision=1.0)
    assert rouge_n(truth, claim, 2) == Overlap(recall=0.0, precision=0.0)
    assert rouge_l(truth, claim) == Overlap(recall=0.5, precision=1.0)
    assert bag_overlap([truth], [claim]) == Overlap(recall=0.5, precision=1.0)


def test_a_bag_counts_repeated_words_as_often_as_they_stand_there() -> None:
    assert bag_overlap([[1, 1, 2], [3]], [[1, 2, 3, 3]]) == Overlap(recall=0.75, precision=0.75)


def test_special_tokens_do_not_help() -> None:
    truth = [CLS, 7, 8, SEP]
    score = score_sentence(truth, [CLS, 9, 9, SEP], apart={CLS, SEP})
    assert (score.in_place, score.rouge_1.recall, score.exact, score.tokens) == (0.0, 0.0, False, 2)
    assert score_sentence(truth, [CLS, 7, 8, SEP], apart={CLS, SEP}).exact
    assert score_sentence(truth, [CLS, 7, 8, SEP, 0], apart={CLS, SEP, 0}).exact
    assert not score_sentence(truth, [CLS, 7, 8, 9], apart={CLS, SEP}).exact
    assert not score_sentence(truth, None, apart={CLS, SEP}).exact


@pytest.mark.parametrize(
    ("truth", "claim"),
    [
        ([-1, -1, CLS, 5, 6, 7, SEP], [-1, -1, CLS, 5, 6, 7, SEP]),
        ([CLS, 5, -1, 6, 7, SEP, -1], [CLS, 5, -1, 6, 7, SEP]),
        ([0, 0, CLS, 5, 0, 6, 7, SEP], [-1, -1, CLS, 5, -1, 6, 7, SEP]),
        ([-1, CLS, 5, -1, 6, 7, SEP], [0, CLS, 5, 0, 6, 7, SEP]),
    ],
)
def test_padding_counts_nowhere_wherever_it_stands(truth: list[int], claim: list[int]) -> None:
    apart = {CLS, SEP, 0}
    whole = Overlap(recall=1.0, precision=1.0)
    score = score_sentence(truth, claim, apart=apart)
    assert (score.exact, score.in_place, score.tokens, score.google_bleu) == (True, 1.0, 3, 1.0)
    assert (score.rouge_1, score.rouge_2, score.rouge_l) == (whole, whole, whole)
    assert score_sentences([truth], [claim], apart=apart).sentences == (score,)
    # A word at a place of padding is one too many.
    added = [9 if one in (-1, 0) else one for one in claim]
    assert not score_sentence(truth, added, apart=apart).exact
    assert score_sentence(truth, added, apart=apart).rouge_1 == Overlap(recall=1.0, precision=3 / (3 + added.count(9)))


def test_a_truth_has_no_word_at_places_of_none() -> None:
    truth, claim = [-1, 1, -1, 2, 3], [1, 2, 3]
    for overlap in (rouge_n(truth, claim, 1), rouge_n(truth, claim, 2), rouge_l(truth, claim)):
        assert overlap == Overlap(recall=1.0, precision=1.0)
    assert google_bleu(truth, claim) == 1.0
    assert bag_overlap([truth], [claim]) == Overlap(recall=1.0, precision=1.0)


def test_sentences_are_paired_with_the_claims_that_fit_them_best() -> None:
    truths = [[1, 2, 3], [4, 5, 6], [7, 8]]
    found = score_sentences(truths, [[4, 5, 9], [7, 8], [1, 2, 3], [3, 2, 1]])
    assert found.pairing.claim_of == (2, 0, 1)
    assert [score.exact for score in found.sentences] == [True, False, True]
    assert found.sentences[1].in_place == pytest.approx(2 / 3)
    nothing = score_sentences(truths, [])
    assert nothing.pairing.claim_of == (None, None, None)
    assert [score.in_place for score in nothing.sentences] == [0.0, 0.0, 0.0]


def test_feature_error_is_a_mean_square() -> None:
    assert feature_mse(torch.zeros(2, 2), torch.tensor([[1.0, 0.0], [0.0, 1.0]])) == 0.5
    with pytest.raises(InputError, match=r"features of shape \(2, 2\)"):
        feature_mse(torch.zeros(2, 2), torch.zeros(2))


def test_guessers_reach_what_their_knowledge_gives() -> None:
    """Of 10 words, one is half of all: the most frequent word is in place in half of the places, and nothing beats it."""
    public = [[0, 1, 0, 2, 0, 3], [0, 4, 0, 5, 0, 6]]
    truths = [[0, 7, 0, 8], [0, 0, 9, 9]]
    guessers = Guessers(public=public, size=10)
    levels = guessers.levels(truths, generator=torch.Generator().manual_seed(0))
    assert levels.means["most frequent word"]["in_place"] == 0.5
    assert levels.means["unigram draw"]["in_place"] == pytest.approx(0.25, abs=0.03)
    assert levels.means["random words"]["in_place"] == pytest.approx(0.1, abs=0.03)
    # 0 1 0 1 against 0 7 0 8 and 0 0 9 9.
    assert levels.means["bigram greedy"]["in_place"] == pytest.approx((0.5 + 0.25) / 2)
    assert levels.best("in_place")[0] == "most frequent word"
    # Words 7, 8 and 9 are not public, so that public guessers get two of four places at best; uniform words get three of
    # four in less than 1 % of draws.
    assert levels.limit == 0.5
    known = guessers.levels(truths, generator=torch.Generator().manual_seed(0), bag_known=True)
    assert known.means["bag in random order"]["rouge_1"] == 1.0
    assert known.means["bag in random order"]["in_place"] == pytest.approx((0.375 + 0.5) / 2, abs=0.05)


def test_guessers_need_text() -> None:
    with pytest.raises(InputError, match="at least one token"):
        Guessers(public=[[]], size=3)
    with pytest.raises(InputError, match="sentences of at least one token"):
        Guessers(public=[[1]], size=3).levels([[]], generator=torch.Generator())

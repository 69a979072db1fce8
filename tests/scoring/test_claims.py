"""Scores of claimed sentences by hand, their blind guess and luck."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.tokens import VOCABULARY, sentences, tiny
from torch import Tensor

from gradleak.core import Batch, Domain, Objective, Reconstruction, Vocabulary
from gradleak.results import Evidence, InputError, Leakier, Outcome, Score
from gradleak.scoring import blind_scores, check_truth, luck_of, score_claim, score_tokens
from gradleak.scoring.claims import last_features
from gradleak.scoring.text import BAG_GUESSERS

IDS = torch.tensor([[1, 5, 6, 7, 8, 2, -1], [1, 9, 9, 10, 2, -1, -1]])
BATCH = Batch(IDS, torch.tensor([0, 1]), Domain.tokens(VOCABULARY, 7))


def claimed(
    tokens: Tensor | None = None, bag: Tensor | None = None, outcome: Outcome = Outcome.CONVERGED
) -> dict[str, Score]:
    found = Reconstruction(inputs=None, targets=None, loss=None, outcome=outcome, tokens=tokens, bag=bag)
    return {score.name: score for score in score_tokens(found, BATCH)}


def test_sentences_are_paired_and_scored_by_ordinary_tokens() -> None:
    # In the other order: the second whole, of the first one word wrong and one left open.
    scores = claimed(torch.tensor([[1, 9, 9, 10, 2, -1, -1], [1, 5, 4, -1, 8, 2, -1]]))
    assert scores["token_error"].value == 0.0
    assert scores["token_error"].details["per_example"] == [0.5, 0.0]
    assert scores["token_error"].details["claim_of"] == [1, 0]
    assert scores["exact_hits"].value == 0.5
    assert scores["exact_hits"].details["per_example"] == [False, True]
    assert scores["rouge_1"].details["recall"] == [0.5, 1.0]
    assert scores["bag_recall"].value == pytest.approx(5 / 7)  # 5 8 9 9 10 of 5 6 7 8 9 9 10
    assert scores["bag_precision"].value == pytest.approx(5 / 6)
    assert scores["bag_recall"].details == {"aggregation": "share", "words": 7, "different": 6, "different_named": 4}
    assert all(score.evidence is Evidence.ATTACK for score in scores.values())


def test_a_bag_alone_has_no_error_and_a_score_of_its_own() -> None:
    scores = claimed(bag=torch.tensor([2, 5, 6, 9, 12]))
    assert scores["token_error"].value is None
    assert scores["token_error"].outcome is Outcome.UNSUPPORTED
    assert scores["bag_recall"].value == pytest.approx(3 / 7)
    assert scores["bag_precision"].value == pytest.approx(3 / 4)


def test_features_are_compared_in_front_of_the_last_layer() -> None:
    objective = Objective.from_module(tiny())
    right = Reconstruction(inputs=None, targets=None, loss=None, outcome=Outcome.CONVERGED, tokens=IDS.flip(0))
    (score,) = [one for one in score_claim(right, BATCH, objective=objective) if one.name == "feature_mse"]
    assert score.details["per_example"] == pytest.approx([0.0, 0.0])
    other = IDS.clone()
    other[0, 2], other[1] = 11, -1
    wrong = replace(right, tokens=other)
    scores = {one.name: one for one in score_claim(wrong, BATCH, objective=objective)}
    truth, claim = last_features(objective, IDS[:1]), last_features(objective, other[:1])
    assert truth.shape == (1, 16)
    assert scores["feature_mse"].value == pytest.approx(float((truth - claim).double().square().mean()))
    assert scores["feature_mse"].details["per_example"][1] is None
    assert (scores["feature_mse"].leakier, scores["feature_mse"].unit) == (Leakier.LOWER, "feature²")
    assert "feature_mse" not in {one.name for one in score_claim(wrong, BATCH)}


def test_guessers_who_know_the_bag_have_every_word_and_not_the_order() -> None:
    luck = luck_of(BATCH, BATCH.domain, IDS[:1], generator=torch.Generator().manual_seed(0), within=0.5, share=1.0)
    plain, told = luck.details["guessers"], luck.details["bag_guessers"]
    assert told["rouge_1"]["value"] == 1.0
    assert told["rouge_1"]["which"] in BAG_GUESSERS
    # The public sentence is the first of the batch itself: its chain of followers has all of that, and none of the other.
    assert plain["in_place"] == {"which": "bigram greedy", "value": 0.5}
    assert told["in_place"]["value"] >= plain["in_place"]["value"]


@pytest.mark.parametrize("outcome", [Outcome.NOT_IDENTIFIABLE, Outcome.NO_SIGNAL])
def test_nothing_claimed_is_no_value(outcome: Outcome) -> None:
    for tokens in (None, torch.full((2, 7), -1)):
        scores = claimed(tokens, outcome=outcome)
        assert {score.value for score in scores.values()} == {None}


@pytest.mark.parametrize(
    "ids",
    [
        [[-1, -1, 1, 5, 6, 7, 2]],  # padded in front
        [[1, 5, -1, 6, 7, 2, -1]],  # within and behind
        [[0, 0, 1, 5, 6, 7, 2]],  # by the id of padding, without a mask
        [[1, 5, 6, 7, 2, 0, 0]],
    ],
)
def test_padding_changes_no_score(ids: list[list[int]]) -> None:
    def scored(rows: list[list[int]]) -> tuple[dict[str, Score], float, float]:
        batch = Batch(torch.tensor(rows), torch.tensor([0]), Domain.tokens(VOCABULARY, len(rows[0])))
        check_truth(batch)
        said = batch.inputs.masked_fill(batch.inputs == 0, -1)
        found = Reconstruction(inputs=None, targets=None, loss=None, outcome=Outcome.CONVERGED, tokens=said)
        objective = Objective.from_module(tiny())
        luck = luck_of(
            batch, batch.domain, None, generator=torch.Generator().manual_seed(0), within=0.5, share=1.0
        ).value
        scores = {score.name: score for score in score_tokens(found, batch, objective)}
        return scores, luck, blind_scores(batch)[0].value

    (padded, luck, blind), (plain, plain_luck, plain_blind) = scored(ids), scored([[1, 5, 6, 7, 2]])
    assert {name: score.value for name, score in padded.items()} == {name: score.value for name, score in plain.items()}
    assert padded["exact_hits"].value == padded["rouge_l"].value == padded["google_bleu"].value == 1.0
    assert padded["bag_recall"].details == plain["bag_recall"].details
    assert (luck, blind) == (plain_luck, plain_blind)


def test_the_blind_adversary_has_the_most_frequent_word_of_a_sentence() -> None:
    (score,) = blind_scores(BATCH)
    assert score.details["per_example"] == pytest.approx([0.75, 1 / 3])
    assert (score.name, score.evidence) == ("token_error", Evidence.EXACT)
    single = Batch(torch.tensor([[1, 5, 2]]), torch.tensor([0]), Domain.tokens(VOCABULARY, 3))
    assert blind_scores(single)[0].value == 1.0


def test_luck_is_what_guessers_reach_in_one_of_a_hundred_draws() -> None:
    batch = sentences(8, 8)
    found = luck_of(batch, batch.domain, None, generator=torch.Generator().manual_seed(0), within=0.5, share=1.0)
    # Six words of 37: the best of two random guesses has 1/6 in place in some of 100 draws, hardly ever 4/6.
    assert 0.3 < found.value < 1.0
    known = luck_of(
        batch, batch.domain, batch.inputs, generator=torch.Generator().manual_seed(0), within=0.5, share=1.0
    )
    assert known.value == pytest.approx(0.0)  # who has the sentence among public ones guesses it


def test_claims_are_scored_by_the_kind_of_the_truth() -> None:
    found = Reconstruction(inputs=None, targets=None, loss=None, outcome=Outcome.CONVERGED, tokens=IDS)
    assert score_claim(found, BATCH)[0].name == "token_error"
    row = Batch(torch.rand(1, 3), torch.tensor([0]), Domain(shape=(3,), kind="tabular"))
    pixels = Reconstruction(inputs=row.inputs, targets=None, loss=None, outcome=Outcome.CONVERGED)
    assert score_claim(pixels, row)[0].name == "mse"


def test_a_sentence_without_a_word_is_refused() -> None:
    check_truth(BATCH)
    with pytest.raises(InputError, match="expected at least one word in every sentence"):
        check_truth(Batch(torch.tensor([[1, 2, 0]]), torch.tensor([0]), Domain.tokens(VOCABULARY, 3)))


def test_unknown_words_count_nowhere() -> None:
    vocabulary = Vocabulary.of_lines(["a b c d e"], special=True)  # 4 is "<other>", 5 to 9 are a to e
    batch = Batch(torch.tensor([[1, 5, 4, 6, 4, 7, 2]]), torch.tensor([0]), Domain.tokens(vocabulary, 7))
    found = Reconstruction(
        inputs=None, targets=None, loss=None, outcome=Outcome.CONVERGED, tokens=torch.tensor([[1, 5, 4, -1, 4, -1, -1]])
    )
    scores = {score.name: score.value for score in score_tokens(found, batch)}
    assert scores["token_error"] == pytest.approx(2 / 3)  # of the words a, b and c the first alone
    assert (scores["bag_recall"], scores["bag_precision"]) == (pytest.approx(1 / 3), 1.0)

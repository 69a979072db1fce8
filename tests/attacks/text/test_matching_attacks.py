"""Attacks that match gradients over the embeddings of sentences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradleak.attacks import (
    LAMP,
    TAG,
    Adam,
    Attack,
    Embeddings,
    GaussNewton,
    Inversion,
    InvertingGradients,
    SearchStage,
)
from gradleak.attacks.inversion.sentences import OPEN, Sentences
from gradleak.core import (
    Batch,
    Defense,
    Domain,
    HonestButCurious,
    Knowledge,
    Objective,
    Protocol,
    Reconstruction,
    Release,
    Update,
    Vocabulary,
)
from gradleak.defenses import Clip, ClipPerExample, GaussianNoise, Prune
from gradleak.models import transformer
from gradleak.protocols import FedAvg, FedSGD
from gradleak.results import KnowledgeError, Outcome, UnsupportedError
from tests.tokens import VOCABULARY, sentences, tiny


def released(
    model: nn.Module,
    batch: Batch,
    *,
    protocol: Protocol | None = None,
    defenses: tuple[Defense, ...] = (),
    loss: str = "cross_entropy",
    **threat: Any,
) -> tuple[Update, Knowledge]:
    objective, release = Objective.from_module(model, loss=loss), Release(protocol or FedSGD(), defenses)
    update = release(objective, batch, torch.Generator().manual_seed(0))
    return update, HonestButCurious(**threat).disclose(objective, release, batch)


def attacked(attack: Attack, update: Update, knowledge: Knowledge, seed: int = 0) -> Reconstruction:
    return attack(update, knowledge, generator=torch.Generator().manual_seed(seed))


def short(std: float, *, causal: bool = True, frozen: bool = True) -> tuple[nn.Module, Batch]:
    """A small model at some scale of its weights, and a sentence of four words."""
    model = transformer(words=60, length=4, width=24, blocks=1, causal=causal, std=std)
    model.word.weight.requires_grad_(not frozen)
    batch = Batch(torch.tensor([[7, 41, 23, 9]]), torch.tensor([1]), Domain.tokens(Vocabulary(size=60), 4))
    return model, batch


@pytest.mark.parametrize("std", [0.02, 0.2])
def test_tag_finds_words_at_any_scale_of_the_weights(std: float) -> None:
    model, batch = short(std)
    found = attacked(TAG(iterations=110), *released(model, batch))
    assert int((found.tokens == batch.inputs).sum()) >= 2
    assert found.plain_gradients == 3 * 111
    assert found.details["information"][-1] == "4 of 4 places to be found"


def test_the_same_generator_gives_the_same_bits() -> None:
    model, batch = short(0.1)
    update, knowledge = released(model, batch)
    first, again = (attacked(TAG(iterations=5), update, knowledge) for _ in range(2))
    assert torch.equal(first.inputs, again.inputs)
    assert first.loss == again.loss


def test_words_are_those_of_the_rows_that_moved_where_the_table_is_shared() -> None:
    batch = sentences(7)
    update, knowledge = released(tiny(), batch)
    found = attacked(TAG(iterations=1), update, knowledge)
    assert set(found.tokens[0].tolist()) <= {-1, *batch.inputs[0].tolist()}
    free = attacked(TAG(iterations=1, from_table=False), update, knowledge)
    assert not set(free.tokens[0].tolist()) <= {-1, *batch.inputs[0].tolist()}
    assert found.details["relative_residual"] == free.details["relative_residual"]


def test_what_is_known_of_a_sentence_is_its_special_tokens_and_its_length_alone() -> None:
    update, knowledge = released(tiny(), sentences(7))
    assert Sentences.of(knowledge).known.tolist() == [[1, *[OPEN] * 7]]
    # The rows of places of a single sentence tell its length.
    assert Sentences.of(knowledge, update).known.tolist() == [[1, *[OPEN] * 5, 2, -1]]
    update, knowledge = released(tiny(), sentences(5, 7))
    assert Sentences.of(knowledge, update).known.tolist() == [[1, *[OPEN] * 7]] * 2
    knowledge = replace(knowledge, lengths=torch.tensor([5, 7]))
    assert Sentences.of(knowledge).known.tolist() == [[1, *[OPEN] * 3, 2, -1, -1, -1], [1, *[OPEN] * 5, 2, -1]]


@pytest.mark.parametrize(
    ("protocol", "defenses"),
    [
        (FedSGD(), ()),
        (FedSGD(), (Clip(0.05),)),
        (FedSGD(), (Prune(0.5),)),
        (FedAvg(learning_rate=0.1, epochs=3), ()),
        (FedAvg(learning_rate=0.1, epochs=2), (Clip(0.01), GaussianNoise(std=1e-12))),
    ],
)
@pytest.mark.parametrize("lengths", [(8,), (5, 8)])
def test_the_true_embeddings_explain_the_update(
    protocol: Protocol, defenses: tuple[Defense, ...], lengths: tuple[int, ...]
) -> None:
    """Also where a clip or local steps make every tensor depend on the table, of which nothing is compared."""
    batch = sentences(*lengths)
    objective = Objective.from_module(tiny().double())
    # Different words: as the attack computes the share of the table.
    ids = torch.where(batch.inputs >= 0, torch.arange(3, 3 + batch.inputs.numel()).reshape_as(batch.inputs), -1)
    batch = Batch(ids, batch.targets, Domain.tokens(Vocabulary(size=40, padding=0), 8))
    release = Release(protocol, defenses)
    update = release(objective, batch, torch.Generator().manual_seed(0))
    knowledge = HonestButCurious(lengths=True).disclose(objective, release, batch)
    found = Sentences.of(knowledge, update)
    assert found.update is not None
    assert found.knowledge.objective is not None
    inputs = Batch(objective.embed(batch.inputs), batch.targets)
    made = found.knowledge.release.mean(found.knowledge.objective, found.knowledge.objective.params, inputs)
    hidden = {name for defense in found.knowledge.defenses or () for name in getattr(defense, "names", ())}
    assert hidden == ({"words.weight"} if defenses or isinstance(protocol, FedAvg) else set())
    for name, tensor in found.update.tensors.items():
        if name not in hidden:
            torch.testing.assert_close(made[name], tensor, rtol=1e-6, atol=1e-9)


def test_labels_are_recovered_or_optimized() -> None:
    model, batch = short(0.1)
    update, knowledge = released(model, batch, targets=False)
    assert attacked(TAG(iterations=1), update, knowledge).details["labels"] == "recovered"
    search = Inversion(variables=Embeddings(), stages=(SearchStage(optimizer=Adam(), iterations=1),), labels="optimize")
    found = attacked(search, update, knowledge)
    assert found.details["labels"] == "optimized"
    assert found.targets.shape == (1, 2)


def test_sentences_and_numbers_are_refused_where_the_other_is_searched() -> None:
    model, batch = short(0.1)
    _, knowledge = released(model, batch)
    assert "Embeddings" in str(Inversion().refusal(knowledge))
    assert "ids of tokens" in str(InvertingGradients().refusal(knowledge))
    numbers = replace(knowledge, domain=Domain(shape=(4,), kind="tabular"))
    assert "the examples are no tokens" in str(TAG().refusal(numbers))
    assert "got Embeddings" in str(Inversion(variables=Embeddings()).refusal(numbers))


def test_padding_under_defenses_of_single_examples_is_refused_before_anything_is_computed() -> None:
    update, knowledge = released(tiny(), sentences(5, 8), defenses=(ClipPerExample(0.1),), lengths=True)
    with pytest.raises(UnsupportedError, match="expected sentences of one length"):
        attacked(TAG(), update, knowledge)


def language(*, tied: bool = False, loss: str = "causal_lm", **threat: Any) -> tuple[Update, Knowledge, Batch]:
    """A decoder that predicts words, and a sentence of four, which are its targets."""
    model = transformer(words=60, length=4, width=24, blocks=1, causal=True, classes=0, tied=tied, std=0.2)
    model.word.weight.requires_grad_(tied)
    ids = torch.tensor([[7, 41, 23, 9]])
    batch = Batch(ids, ids, Domain.tokens(Vocabulary(size=60), 4))
    return *released(model, batch, loss=loss, **threat), batch


@pytest.mark.parametrize("tied", [False, True])
def test_targets_that_are_words_are_found_with_them(tied: bool) -> None:
    update, knowledge, batch = language(tied=tied)
    found = attacked(TAG(iterations=110), update, knowledge)
    assert torch.equal(found.tokens, batch.inputs)
    assert found.details["labels"] == "words"
    assert torch.equal(found.targets[:, 1:].argmax(dim=-1), batch.inputs[:, 1:])
    torch.testing.assert_close(found.targets.sum(dim=-1), torch.ones(1, 4))


def test_the_last_word_is_a_target_alone() -> None:
    """Its row of places does not move, and it is known where targets are told."""
    update, knowledge, batch = language()
    assert bool((update.tensors["place.weight"][3] == 0).all())
    untold = Sentences.of(knowledge, update)
    assert untold.foretold
    assert untold.known.tolist() == [[OPEN] * 4]
    assert untold.unread.tolist() == [False, False, False, True]
    told = Sentences.of(replace(knowledge, targets=batch.targets), update)
    assert told.known.tolist() == [[OPEN, OPEN, OPEN, 9]]
    assert not told.unread.any()


def test_probabilities_of_words_are_the_targets_that_they_stand_for() -> None:
    """The loss of a language model is the same for ids and for their probabilities, zero where none counts."""
    batch = sentences(5, 7, language=True)
    objective = Objective.from_module(tiny(classes=None, causal=True).double(), loss="causal_lm")
    counted = batch.targets >= 0
    shares = nn.functional.one_hot(batch.targets.clamp(min=0), 40).double() * counted[..., None]
    losses = [objective.loss(objective.params, Batch(batch.inputs, targets)) for targets in (batch.targets, shares)]
    torch.testing.assert_close(*losses)


def test_gauss_newton_reads_words_that_are_their_own_targets() -> None:
    update, knowledge, batch = language()
    found = attacked(GaussNewton(warm_iterations=80), update, knowledge)
    assert torch.equal(found.tokens, batch.inputs)
    assert found.outcome is Outcome.CONVERGED
    assert found.details["labels"] == "words"
    # Three places by embeddings, the last by its target.
    assert len(found.details["word_errors"]) == 4
    assert max(found.details["word_errors"]) < 1e-12
    limited = GaussNewton(max_plain_gradients=150)
    assert attacked(limited, update, knowledge).plain_gradients <= limited.estimate(knowledge) == 150


@pytest.mark.parametrize("attack", [TAG(), LAMP(), GaussNewton()], ids=lambda attack: attack.name)
def test_masked_words_that_nobody_told_are_refused(attack: Attack) -> None:
    _, knowledge, _ = language(loss="masked_lm")
    with pytest.raises(KnowledgeError, match=r"are its secret.*disclose targets"):
        attack._refuse(knowledge)
    assert attack.refusal(language(loss="masked_lm", targets=True)[1]) is None


@pytest.mark.parametrize(("causal", "std"), [(False, 0.02), (True, 0.2)])
def test_gauss_newton_reads_a_sentence_exactly_from_a_random_start(causal: bool, std: float) -> None:
    """The mean of an embedding is not determined behind a LayerNorm, and tells no two words apart."""
    model, batch = short(std, causal=causal)
    update, knowledge = released(model, batch)
    found = attacked(GaussNewton(), update, knowledge)
    assert torch.equal(found.tokens, batch.inputs)
    assert found.bag.tolist() == [7, 9, 23, 41]
    assert found.outcome is Outcome.CONVERGED
    assert found.details["words_explain"]
    assert max(found.details["word_errors"]) < 1e-12


def test_a_word_with_a_twin_is_not_identifiable() -> None:
    """Where the null space of the derivative holds the difference of two words, nothing tells them apart."""
    model, batch = short(0.2, causal=False)
    with torch.no_grad():
        model.word.weight[50] = model.word.weight[23] + 0.3
    found = attacked(GaussNewton(), *released(model, batch))
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    assert found.details["open_places"] == 1
    assert found.details["word_errors"][2] == pytest.approx(0.5)
    assert "at 1 of 4 places other words explain it as well" in found.note
    assert found.tokens[0, [0, 1, 3]].tolist() == [7, 41, 9]


class Unordered(nn.Module):
    """Attention without places, read by its mean: no order of words shows."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.query, self.key = nn.Embedding(60, 12), nn.Linear(12, 12), nn.Linear(12, 12)
        self.wide, self.head = nn.Linear(12, 24), nn.Linear(24, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        x = x + (self.query(x) @ self.key(x).transpose(1, 2)).softmax(-1) @ x
        return self.head(torch.tanh(self.wide(x)).mean(1))


def test_words_in_an_order_that_does_not_show_are_not_identifiable() -> None:
    with torch.random.fork_rng():
        torch.random.default_generator.manual_seed(0)
        model = Unordered()
    model.words.requires_grad_(False)
    update, knowledge = released(model, short(0.2)[1])
    found = attacked(GaussNewton(), update, knowledge)
    assert found.tokens.sort().values.tolist() == [[7, 9, 23, 41]]
    assert found.details["words_explain"]
    assert (found.outcome, "in another order" in found.note) == (Outcome.NOT_IDENTIFIABLE, True)


def test_what_is_no_word_is_not_said_to_be_read() -> None:
    """The true word is kept out of the vocabulary that the adversary has."""
    model, batch = short(0.2, causal=False)
    update, knowledge = released(model, batch)
    knowledge = replace(knowledge, domain=Domain.tokens(Vocabulary(size=60, special={23: None}), 4))
    found = attacked(GaussNewton(starts=1), update, knowledge)
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    assert "the words nearest to them do not" in found.note


def test_noise_bounds_the_errors_of_words() -> None:
    model, batch = short(0.2, causal=False)
    errors = []
    for std in (1e-4, 0.2):
        update, knowledge = released(model, batch, defenses=(GaussianNoise(std=std),))
        found = attacked(GaussNewton(starts=1), update, knowledge)
        errors.append(max(found.details["word_errors"]))
        assert found.outcome is (Outcome.CONVERGED if std < 1e-3 else Outcome.NOT_IDENTIFIABLE)
    assert errors[0] < 1e-6 < 0.01 < errors[1]


def test_gauss_newton_keeps_to_its_limit_and_costs_what_it_says() -> None:
    model, batch = short(0.2)
    update, knowledge = released(model, batch)
    attack = GaussNewton(max_plain_gradients=500)
    found = attacked(attack, update, knowledge)
    assert found.plain_gradients <= attack.estimate(knowledge) == 500
    assert found.outcome is Outcome.BUDGET_SPENT
    assert found.tokens.shape == (1, 4)


def test_sentences_of_one_model_are_searched_side_by_side() -> None:
    model, batch = short(0.2)
    objective, release = Objective.from_module(model), Release(FedSGD())
    batches = [batch, replace(batch, inputs=batch.inputs.flip(1))]
    updates = [release(objective, one, torch.Generator().manual_seed(0)) for one in batches]
    known = [HonestButCurious(targets=True).disclose(objective, release, one) for one in batches]
    generators = [torch.Generator().manual_seed(seed) for seed in range(2)]
    found = TAG(iterations=2).many(updates, known, generators=generators)
    assert [one.details["group"] for one in found] == [2, 2]


def test_a_search_that_ends_beside_the_right_words_goes_on_from_them() -> None:
    model, batch = short(0.2, causal=False)
    update, knowledge = released(model, batch)
    # Seven steps of one start are not enough to explain the update, and enough to read the words.
    found = attacked(GaussNewton(starts=1, max_steps=7), update, knowledge)
    assert len(found.details["start_losses"]) == 2
    assert found.details["start_losses"][0] > 1e-6 > found.details["start_losses"][1]
    assert found.outcome is Outcome.CONVERGED
    assert torch.equal(found.tokens, batch.inputs)


@pytest.mark.parametrize(
    ("ids", "language"), [([[1]], False), ([[1, 2]], False), ([[1, 2]], True)], ids=["one", "both", "predicted"]
)
def test_sentences_of_special_tokens_alone_leave_nothing_to_be_found(ids: list[list[int]], language: bool) -> None:
    batch = Batch(torch.tensor(ids), torch.tensor(ids if language else [1]), Domain.tokens(VOCABULARY, len(ids[0])))
    loss = "causal_lm" if language else "cross_entropy"
    model = tiny(causal=language, classes=None if language else 2, size=400)
    update, knowledge = released(model, batch, loss=loss, targets=not language)
    found = attacked(GaussNewton(max_steps=2, warm_iterations=2, starts=1), update, knowledge)
    assert found.outcome is not Outcome.CONVERGED
    assert found.tokens is not None
    assert int(found.tokens[0, 0]) == 1


def test_an_update_of_which_nothing_that_is_matched_is_left_has_no_signal() -> None:
    """What is left is in a row of the table that no word of a guess has."""
    model, batch = short(0.02, frozen=False)
    update, knowledge = released(model, batch)
    kept = {name: torch.zeros_like(one) for name, one in update.tensors.items()}
    kept["word.weight"][0] = 1e-3
    found = attacked(GaussNewton(max_steps=2), replace(update, tensors=kept), knowledge)
    assert found.outcome is Outcome.NO_SIGNAL
    assert "this is no evidence of safety" in found.note


def test_the_cost_of_a_model_that_shares_its_table_alone_is_known() -> None:
    """At the embeddings nothing is shared, and the draws of random layers are looked for all the same."""
    model, batch = short(0.2, frozen=False)
    model.requires_grad_(False)
    model.word.weight.requires_grad_(True)
    _, knowledge = released(model, batch)
    assert GaussNewton(max_steps=2).estimate(knowledge) > 0.0

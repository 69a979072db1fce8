"""Sentences from spans of gradients, behind a small decoder and a small encoder."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import Tensor, nn

from gradleak.attacks.text.encoder_block import read_encoder_block
from gradleak.attacks.text.encoder_sentences import nonnegative_least_squares
from gradleak.attacks.text.prefixes import spans_of
from gradleak.attacks.text.readers import Reach, Taps, find_readers, outer_layers, span_of
from gradleak.attacks.text.span_search import SpanSearch, matching_sentences
from gradleak.core import (
    Batch,
    Defense,
    Domain,
    HonestButCurious,
    Knowledge,
    Objective,
    Reconstruction,
    Release,
    Update,
    Vocabulary,
)
from gradleak.defenses import Clip, GaussianNoise, Prune
from gradleak.models import Transformer, transformer
from gradleak.protocols import FedSGD
from gradleak.results import Outcome, UnsupportedError

WORDS, LENGTH, WIDTH = 120, 10, 48
VOCABULARY = Vocabulary(size=WORDS, padding=0, special={1: 0, 2: -1})


def sentences(*lengths: int, seed: int = 0) -> Tensor:
    """Ids as words are frequent, between the first and the last token; -1 behind."""
    generator = torch.Generator().manual_seed(seed)
    weights = 1.0 / torch.arange(1, WORDS - 2)
    ids = torch.full((len(lengths), max(lengths)), -1)
    for row, length in enumerate(lengths):
        ids[row, 0], ids[row, length - 1] = 1, 2
        ids[row, 1 : length - 1] = 3 + torch.multinomial(weights, length - 2, replacement=True, generator=generator)
    return ids


def network(*, causal: bool, classes: int = 2, blocks: int = 2) -> Transformer:
    return transformer(
        words=WORDS,
        length=LENGTH,
        width=WIDTH,
        blocks=blocks,
        heads=4,
        causal=causal,
        classes=classes,
        tied=not classes,
        std=0.15,
        generator=torch.Generator().manual_seed(0),
    )


def seen(
    model: nn.Module, ids: Tensor, *defenses: Defense, loss: str = "cross_entropy", targets: Tensor | None = None
) -> tuple[Update, Knowledge]:
    objective = Objective.from_module(model, loss=loss)
    labels = targets if targets is not None else torch.arange(len(ids)) % 2
    batch = Batch(ids, labels, Domain.tokens(VOCABULARY, ids.shape[1]))
    release = Release(FedSGD(), list(defenses))
    update = release(objective, batch, torch.Generator().manual_seed(1))
    return update, HonestButCurious().disclose(objective, release, batch)


def attack(update: Update, knowledge: Knowledge, **settings: int) -> Reconstruction:
    return SpanSearch(**settings)(update, knowledge, generator=torch.Generator().manual_seed(0))


def rows(found: Tensor | None) -> set[tuple[int, ...]]:
    return set() if found is None else {tuple(row[row >= 0].tolist()) for row in found}


@pytest.mark.parametrize("lengths", [(7,), (10, 6, 8, 4)], ids=["one", "four"])
@pytest.mark.parametrize("causal", [True, False], ids=["decoder", "encoder"])
def test_every_sentence_is_claimed_and_no_other(causal: bool, lengths: tuple[int, ...]) -> None:
    ids = sentences(*lengths)
    found = attack(*seen(network(causal=causal), ids))
    assert rows(found.tokens) == rows(ids)
    assert found.outcome is Outcome.CONVERGED
    assert found.details["complete"]
    assert found.plain_gradients > 0


def test_a_language_model_gives_all_but_the_last_token() -> None:
    ids = sentences(9, 6, 7)
    found = attack(
        *seen(network(causal=True, classes=0), ids, loss="causal_lm", targets=ids.masked_fill(ids < 0, -100))
    )
    assert rows(found.tokens) == {row[:-1] for row in rows(ids)}
    assert "only predicted, and not claimed" in found.note


@pytest.mark.parametrize("causal", [True, False], ids=["decoder", "encoder"])
def test_clipping_changes_nothing_and_noise_and_pruning_leave_nothing_wrong(causal: bool) -> None:
    ids = sentences(8, 6)
    assert rows(attack(*seen(network(causal=causal), ids, Clip(max_norm=0.01))).tokens) == rows(ids)
    for defense in (GaussianNoise(std=0.1), Prune(ratio=0.9)):
        found = attack(*seen(network(causal=causal), ids, defense))
        assert rows(found.tokens) <= rows(ids)
        assert found.tokens is not None or "nothing is claimed" in found.note


def test_of_more_sentences_than_the_batch_has_those_that_match_are_claimed() -> None:
    ids = sentences(8, 6)
    update, known = seen(network(causal=True), ids)
    assert known.objective is not None
    model = known.objective.parts(nn.Module)[0]
    spans = spans_of(find_readers(model, WORDS, LENGTH), update.tensors, eps=torch.finfo(torch.float32).eps)
    true, false = [list(row) for row in sorted(rows(ids))], [[1, 9, 4, 2], [1, 3, 3, 3, 2], [1, 7, 2]]
    chosen, rivals, passed = matching_sentences([*false, *true], 2, spans, update, known.objective)
    assert [list(sentence) for sentence in chosen] == true
    assert not rivals
    assert passed == 2 * sum(len(sentence) for sentence in (*false, *true))  # once for each class


@pytest.mark.parametrize("causal", [True, False], ids=["decoder", "encoder"])
def test_no_certificate_where_sentences_of_the_batch_are_equal(causal: bool) -> None:
    found = attack(*seen(network(causal=causal), sentences(7)[[0, 0]]))
    assert rows(found.tokens) == rows(sentences(7))
    assert (found.outcome, found.details["complete"]) == (Outcome.NOT_IDENTIFIABLE, False)
    assert "the batch has 2 sentences" in found.note


def test_no_certificate_where_a_sentence_begins_another() -> None:
    found = attack(*seen(network(causal=True), torch.tensor([[1, 9, 8, 7, -1, -1], [1, 9, 8, 7, 6, 5]])))
    assert (rows(found.tokens), found.outcome) == ({(1, 9, 8, 7, 6, 5)}, Outcome.NOT_IDENTIFIABLE)
    assert ", or its beginning, or left no trace" in found.note


@pytest.mark.parametrize("causal", [True, False], ids=["decoder", "encoder"])
@pytest.mark.parametrize("size", [1, 2])
def test_no_certificate_where_two_words_have_one_embedding(causal: bool, size: int) -> None:
    model = network(causal=causal)
    with torch.no_grad():
        model.word.weight[33] = model.word.weight[20]
    model.word.weight.requires_grad_(False)
    ids = torch.tensor([[1, 10, 33, 30, 2], [1, 11, 12, 20, 2]])[:size]
    found = attack(*seen(model, ids))
    assert found.tokens is not None
    assert rows(found.tokens.where(found.tokens != 33, 20)) == rows(ids.where(ids != 33, 20))
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    assert "fit the spans as well" in found.note


def test_no_certificate_where_an_encoder_does_not_tell_two_places_apart() -> None:
    model = network(causal=False)
    with torch.no_grad():
        model.place.weight[3] = model.place.weight[2]
    found = attack(*seen(model, torch.tensor([[1, 10, 33, 30, 7, 2]])))
    assert rows(found.tokens) <= {(1, 10, 33, 30, 7, 2), (1, 10, 30, 33, 7, 2)}
    assert (found.outcome, "another order" in found.note) == (Outcome.NOT_IDENTIFIABLE, True)


def test_no_certificate_where_the_dimensions_of_tokens_end_without_a_gap() -> None:
    """With weights this small a wrong sentence passes, and a token that is lost makes the counts agree."""
    model = transformer(words=WORDS, length=12, width=48, heads=4, std=0.02, generator=torch.Generator().manual_seed(0))
    ids = torch.full((4, 9), -1)
    for row, words in enumerate([[76], [27, 81, 82], [54, 82, 27], [55, 49, 27, 44, 31, 72, 72, 25]]):
        ids[row, : len(words) + 1] = torch.tensor([1, *words])
    update, known = seen(model, ids, targets=torch.tensor([0, 1, 1, 0]))
    found = attack(update, replace(known, batch_size=None, targets=None))
    assert found.outcome is Outcome.NOT_IDENTIFIABLE or rows(found.tokens) == rows(ids)


def test_as_many_tokens_as_numbers_are_refused_before_anything_is_computed() -> None:
    ids = sentences(*[LENGTH] * 6)
    update, known = seen(network(causal=True), ids)
    objective, domain = known.objective, known.domain
    told = Knowledge(objective=objective, domain=domain, lengths=torch.tensor([LENGTH] * 6))
    assert "needs fewer tokens than a token has numbers (48), got 55" in str(SpanSearch().refusal(told))
    assert SpanSearch().refusal(known) is None
    found = attack(update, known)
    assert (found.tokens, found.outcome) == (None, Outcome.NOT_IDENTIFIABLE)


def test_a_padded_batch_behind_an_untrained_encoder_is_claimed_whole() -> None:
    """Weights as BERT starts with attend nearly alike whatever the number of heads, which has to be the right one."""
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        model = transformer(words=WORDS, length=12, width=32, heads=4, std=0.02, generator=generator).double()
        ids = torch.randint(3, WORDS, (2, 9), generator=generator)
        ids[1, 5:] = -1
        assert read_encoder_block(model, find_readers(model, WORDS, 9), WORDS, 9).heads == 4
        found = attack(*seen(model, ids))
        assert rows(found.tokens) == rows(ids)
        assert found.outcome is Outcome.CONVERGED


def test_an_encoder_of_another_structure_is_refused_by_name() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
    model = nn.Sequential(nn.Embedding(50, 16), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)).eval()
    with pytest.raises(UnsupportedError, match="an encoder that normalizes before attention"):
        read_encoder_block(model, find_readers(model, 50, 8), 50, 8)


def test_layers_are_found_whatever_they_are_built_of() -> None:
    """torch's own encoder layer holds query, key and value in one weight and calls no layer for its output."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.Sequential(nn.Embedding(50, 16), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)).eval()
    readers = find_readers(model, 50, 8)
    assert [(reader.weights, reader.reach) for reader in readers[:3]] == [
        (("1.layers.0.self_attn.in_proj_weight",), Reach.OWN),
        (("1.layers.0.linear1.weight",), Reach.ALL),
        (("1.layers.0.linear2.weight",), Reach.ALL),
    ]
    block = read_encoder_block(model, readers, 50, 8)
    assert (block.heads, block.names) == (2, ("1.layers.0.self_attn.out_proj.weight", "1.layers.0.linear2.weight"))
    ids = torch.tensor([[4, 9, 1, 7]])
    x, hidden = Taps(model=model).inputs(ids, ["1.layers.0.self_attn", "1.layers.0.linear2"])
    torch.testing.assert_close(block.hidden(x[0].double(), block.context(x[0].double())).float(), hidden[0])


class Adapted(nn.Module):
    """A frozen layer and an adapter of low rank, as peft builds it: nothing is added before the first step."""

    def __init__(self, base: nn.Linear, rank: int, *, trained: bool) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = (
            nn.Linear(base.in_features, rank, bias=False),
            nn.Linear(rank, base.out_features, bias=False),
        )
        generator = torch.Generator().manual_seed(int(1e6 * float(base.weight[0, 0].abs())))
        for layer, std in ((self.down, 0.2), (self.up, 0.1 if trained else 0.0)):
            layer.weight.data.copy_(std * torch.randn(layer.weight.shape, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def adapted(rank: int, *, causal: bool, trained: bool, names: tuple[str, ...] = ("query", "value")) -> Transformer:
    """A frozen network with adapters, and a head that is trained."""
    # Of the last block a head reads one place, so that its attention does not span all tokens.
    model = network(causal=causal, blocks=3).requires_grad_(False)
    for block in model.blocks:
        for name in names:
            setattr(block, name, Adapted(getattr(block, name), rank, trained=trained))
    model.head.requires_grad_(True)
    return model


@pytest.mark.parametrize("trained", [True, False], ids=["trained", "before the first step"])
@pytest.mark.parametrize("causal", [True, False], ids=["decoder", "encoder"])
def test_adapters_of_low_rank_spell_sentences_shorter_than_their_rank(causal: bool, trained: bool) -> None:
    for rank, lengths in ((8, (6,)), (16, (8, 6))):
        ids = sentences(*lengths)
        found = attack(*seen(adapted(rank, causal=causal, trained=trained), ids))
        assert rows(found.tokens) == rows(ids)
        assert found.outcome is Outcome.CONVERGED


def test_two_adapters_have_room_for_twice_their_rank_once_they_are_trained() -> None:
    ids = sentences(9, seed=3)
    assert rows(attack(*seen(adapted(6, causal=False, trained=True), ids)).tokens) == rows(ids)
    found = attack(*seen(adapted(6, causal=False, trained=False), ids))
    assert (found.tokens, found.outcome) == (None, Outcome.NOT_IDENTIFIABLE)
    assert "as many tokens as numbers" in found.note


def test_adapters_of_the_whole_block_give_batches_behind_an_encoder() -> None:
    ids = sentences(10, 6, 8)
    everywhere = ("query", "key", "value", "out", "up", "down")
    found = attack(*seen(adapted(32, causal=False, trained=True, names=everywhere), ids))
    assert rows(found.tokens) == rows(ids)
    assert found.outcome is Outcome.CONVERGED


def test_adapters_of_low_rank_are_read_as_layers_of_their_own() -> None:
    model = nn.Sequential(nn.Embedding(30, 16), Adapted(nn.Linear(16, 16), 4, trained=True))
    readers = find_readers(model, 30, 8)
    assert [(reader.weights, reader.width) for reader in readers] == [
        (("1.base.weight", "1.down.weight"), 16),
        (("1.up.weight",), 4),
    ]
    assert [layers for _, layers in outer_layers(model, readers)] == [("1",)]


def test_the_rank_of_a_gradient_is_the_number_of_its_inputs() -> None:
    """Rows that differ by orders of magnitude count alike; a whole gap decides, not a fixed tolerance."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(20, 64, generator=generator, dtype=torch.float64)
    outputs = torch.randn(96, 20, generator=generator, dtype=torch.float64)
    outputs[:48] *= 1e-4
    clean = span_of((outputs @ inputs).float(), eps=torch.finfo(torch.float32).eps)
    assert clean.rank == 20
    assert float(clean.residuals(inputs).max()) < clean.tolerance
    assert float(clean.residuals(torch.randn(50, 64, generator=generator, dtype=torch.float64)).min()) > 0.5
    outputs[:48] *= 1e4
    noisy = outputs @ inputs + 0.01 * torch.randn(96, 64, generator=generator, dtype=torch.float64)
    assert span_of(noisy, eps=1e-16, std=0.01).rank == 20
    assert span_of(torch.randn(96, 64, generator=generator), eps=1e-7).full


def test_the_rank_stands_where_terms_that_cancel_leave_more_than_rounding() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(14, 64, generator=generator, dtype=torch.float64)
    outputs = torch.randn(128, 14, generator=generator, dtype=torch.float64) * torch.logspace(0, -3, 14)
    rounding = 1e-5 * torch.randn(128, 64, generator=generator, dtype=torch.float64)
    found = span_of(outputs @ inputs + rounding, eps=torch.finfo(torch.float32).eps)
    assert found.rank == 14
    assert float(found.residuals(inputs).max()) < found.tolerance


def test_nonnegative_least_squares_agrees_with_scipy() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        matrix, goal = rng.normal(size=(30, 12)), rng.normal(size=30)
        expected, _ = scipy.optimize.nnls(matrix, goal)
        np.testing.assert_allclose(nonnegative_least_squares(matrix, goal), expected, atol=1e-9)

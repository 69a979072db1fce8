"""Tokens in the nouns: batches of ids, losses of language models, tables found, and the loss at embeddings."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tests.tokens import PLACES, SIZE, VOCABULARY, WIDTH, TinyTransformer, sentences, tiny
from torch import nn

from gradleak.core import (
    Batch,
    Domain,
    DomainKind,
    HonestButCurious,
    Objective,
    Release,
    Vocabulary,
    describe,
    example_gradients,
)
from gradleak.protocols import FedSGD
from gradleak.results import InputError, UnsupportedError


def test_the_gradient_of_a_padded_batch_is_that_of_plain_autograd_with_a_mask() -> None:
    model, batch = tiny(), sentences(5, 8)
    objective = Objective.from_module(model)
    gradient = objective.gradient(objective.params, batch)
    ids, mask = batch.inputs.clamp(min=0), (batch.inputs >= 0).long()
    F.cross_entropy(model(ids, mask), batch.targets).backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(gradient[name], parameter.grad, atol=1e-7), name


def test_what_stands_beyond_the_end_of_a_sentence_changes_nothing() -> None:
    objective = Objective.from_module(tiny().double())
    short = sentences(5, 5, length=5)
    long = Batch(torch.cat([short.inputs, torch.full((2, 3), -1)], dim=1), short.targets)
    first, second = (objective.gradient(objective.params, one) for one in (short, long))
    for name in first:
        assert torch.allclose(first[name], second[name], atol=1e-12), name


def test_each_example_has_a_gradient_of_its_own() -> None:
    objective, batch = Objective.from_module(tiny().double()), sentences(5, 8, 7)
    rows = example_gradients(objective, objective.params, batch)
    for place in range(3):
        alone = objective.gradient(objective.params, batch.example(place))
        for name, row in rows.items():
            assert torch.allclose(row[place], alone[name], atol=1e-12), (place, name)


def test_gradients_of_sentences_are_taken_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is called once for all of them, though padding is data that vmap does not show."""
    calls, forward = [], TinyTransformer.forward

    @functools.wraps(forward)
    def counted(*args: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return forward(*args, **named)

    monkeypatch.setattr(TinyTransformer, "forward", counted)
    objective, batch = Objective.from_module(tiny()), sentences(5, 8, 7)
    # Whether examples mix is tried at calls 1, 2 and 4.
    for _ in range(2):
        example_gradients(objective, objective.params, batch)
    calls.clear()
    example_gradients(objective, objective.params, batch)
    assert len(calls) == 1


def test_a_causal_model_is_held_against_the_next_token_and_reads_what_it_is_given() -> None:
    model, batch = tiny(classes=None, causal=True), sentences(8, 6, language=True)
    objective = Objective.from_module(model, loss="causal_lm")
    logits = model(batch.inputs.clamp(min=0), (batch.inputs >= 0).long())
    counted = [(row, place) for row, length in ((0, 8), (1, 6)) for place in range(length - 1)]
    by_hand = torch.stack(
        [-logits[row, place].log_softmax(0)[batch.inputs[row, place + 1]] for row, place in counted]
    ).mean()
    assert torch.allclose(objective.loss(objective.params, batch), by_hand, atol=1e-6)


def test_a_masked_model_counts_the_places_with_a_target_alone() -> None:
    model, batch = tiny(classes=None), sentences(8)
    targets = torch.full((1, 8), -100)
    targets[0, 3] = 7
    objective = Objective.from_module(model, loss="masked_lm")
    by_hand = -model(batch.inputs)[0, 3].log_softmax(0)[7]
    assert torch.allclose(objective.loss(objective.params, replace(batch, targets=targets)), by_hand, atol=1e-6)


def test_targets_of_another_form_are_refused_for_language_models() -> None:
    objective = Objective.from_module(tiny(classes=None), loss="masked_lm")
    with pytest.raises(InputError, match=r"expected ids \(1, 8\), one a place.*go with loss='cross_entropy'"):
        objective.check(sentences(8))


@pytest.mark.parametrize("loss", ["causal_lm", "masked_lm"])
@pytest.mark.parametrize("language", [True, False])
def test_a_classifier_is_refused_for_its_logits_whatever_the_targets(loss: str, language: bool) -> None:
    objective = Objective.from_module(tiny(), loss=loss)
    with pytest.raises(InputError, match=r"expected a model with logits \(b, T, V\).*got outputs \(1, 2\)"):
        objective.check(sentences(8, language=language))


def test_logits_of_an_output_object_are_taken() -> None:
    class Output:
        def __init__(self, logits: torch.Tensor) -> None:
            self.logits = logits

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = tiny()

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> Output:
            return Output(self.inner(input_ids, attention_mask))

    batch = sentences(5, 8)
    found, plain = Objective.from_module(Wrapped()), Objective.from_module(tiny())
    assert torch.equal(found.loss(found.params, batch), plain.loss(plain.params, batch))
    assert found.classifier(batch.domain).weight == "inner.head.weight"


def test_the_tables_of_a_model_are_found_once_for_a_length(monkeypatch: pytest.MonkeyPatch) -> None:
    objective, lengths = Objective.from_module(tiny()), []
    found = Objective.outputs
    monkeypatch.setattr(
        Objective, "outputs", lambda self, tensors, ids: lengths.append(ids.shape[1]) or found(self, tensors, ids)
    )
    tables = [objective.token_tables(length) for length in (3, 4, 3, 4)]
    assert lengths == [3, 3, 4, 4]
    assert all(one == tables[0] for one in tables)


def test_tables_are_found_from_what_is_computed() -> None:
    found = Objective.from_module(tiny()).token_tables()
    assert (found.word, found.position, found.offset, found.others) == ("words.weight", "positions.weight", 0, ())
    assert (found.size, found.width, found.tied, found.shared) == (SIZE, WIDTH, False, True)
    assert Objective.from_module(tiny(classes=None)).token_tables().tied
    frozen = tiny()
    frozen.words.weight.requires_grad_(False)
    assert not Objective.from_module(frozen).token_tables().shared
    assert Objective.from_module(nn.Linear(8, 2)).token_tables() is None


def test_an_offset_of_places_and_token_types_are_found() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.types, self.places = nn.Embedding(2, 4), nn.Embedding(20, 4)
            self.words, self.head = nn.Embedding(9, 4, padding_idx=1), nn.Linear(4, 2)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            places = torch.cumsum((ids != 1).long(), dim=1) + 1
            return self.head((self.words(ids) + self.places(places) + self.types(torch.zeros_like(ids))).mean(1))

    found = Objective.from_module(Shifted()).token_tables(6)
    assert (found.word, found.position, found.offset, found.others) == (
        "words.weight",
        "places.weight",
        2,
        ("types.weight",),
    )


@pytest.mark.parametrize("language", [False, True])
def test_at_embeddings_the_loss_and_its_gradient_are_those_of_the_ids(language: bool) -> None:
    loss = "causal_lm" if language else "cross_entropy"
    objective = Objective.from_module(tiny(classes=None if language else 2, causal=language).double(), loss=loss)
    batch = sentences(8, 6, language=language)
    at, embedded = objective.at_embeddings(batch.inputs), objective.embed(batch.inputs)
    floats = Batch(embedded, batch.targets)
    assert embedded.shape == (2, 8, WIDTH)
    by_ids, by_floats = objective.gradient(objective.params, batch), at.gradient(at.params, floats)
    for name, tensor in by_ids.items():
        assert torch.allclose(tensor, by_floats[name], atol=1e-12), name
    moved = floats.with_inputs(embedded.flip(-1))
    assert not torch.allclose(at.loss(at.params, moved), at.loss(at.params, floats))


def test_the_gradient_at_embeddings_has_the_derivative_that_differences_say() -> None:
    objective = Objective.from_module(tiny().double())
    batch = sentences(6, length=6)
    at, place = objective.at_embeddings(batch.inputs), objective.embed(batch.inputs)
    direction = torch.randn(place.shape, generator=torch.Generator().manual_seed(1), dtype=place.dtype)

    def gradient(embeddings: torch.Tensor) -> torch.Tensor:
        return at.flatten(at.gradient(at.params, Batch(embeddings, batch.targets)))

    _, derivative = torch.func.jvp(gradient, (place,), (direction,))
    step = 1e-5
    differences = (gradient(place + step * direction) - gradient(place - step * direction)) / (2 * step)
    assert torch.allclose(derivative, differences, atol=1e-7)
    assert float(derivative.norm()) > 1e-3


def test_without_ids_the_lookup_gives_the_table_nothing() -> None:
    objective = Objective.from_module(tiny().double())
    batch = sentences(6, length=6)
    blind = objective.at_embeddings()
    floats = Batch(objective.embed(batch.inputs), batch.targets)
    gradient, truth = blind.gradient(blind.params, floats), objective.gradient(objective.params, batch)
    assert not gradient["words.weight"].any()
    assert all(torch.allclose(gradient[name], truth[name], atol=1e-12) for name in truth if name != "words.weight")


def test_embeddings_for_another_batch_and_models_without_a_table_are_refused() -> None:
    objective, batch = Objective.from_module(tiny()), sentences(8, 8)
    at = objective.at_embeddings(batch.inputs)
    with pytest.raises(UnsupportedError, match=r"ids of shape \(2, 8\), got \(1, 8, 16\)"):
        at.loss(at.params, Batch(objective.embed(batch.inputs)[:1], batch.targets[:1]))
    with pytest.raises(UnsupportedError, match=r"looks ids up in an nn\.Embedding"):
        Objective.from_module(nn.Linear(8, 2)).at_embeddings()


def test_ids_are_allowed_for_tokens_alone_and_have_to_be_of_the_vocabulary() -> None:
    ids, targets = torch.tensor([[1, 5, 2]]), torch.tensor([0])
    with pytest.raises(InputError, match=r"ids of tokens need a domain"):
        Batch(ids, targets).validate()
    with pytest.raises(InputError, match=r"inputs.float\(\) / 255"):
        Batch(torch.zeros(1, 1, 4, 4, dtype=torch.uint8), targets).validate()
    with pytest.raises(InputError, match="expected whole numbers, the ids of tokens"):
        Batch(ids.float(), targets, Domain.tokens(VOCABULARY, 3))
    for wrong in (SIZE, -2):
        with pytest.raises(InputError, match=rf"expected ids from 0 to {SIZE - 1}"):
            Batch(torch.tensor([[1, wrong, 2]]), targets, Domain.tokens(VOCABULARY, 3)).validate()
    assert Batch(ids, targets, Domain.tokens(VOCABULARY, 3)).validate().to(torch.float64).inputs.dtype == torch.int64


def test_lengths_leave_out_hidden_places_and_padding() -> None:
    batch = Batch(
        torch.tensor([[1, 5, 2, -1, -1], [1, 5, 6, 2, 0]]), torch.tensor([0, 1]), Domain.tokens(VOCABULARY, 5)
    )
    assert batch.lengths.tolist() == [3, 4]
    with pytest.raises(InputError, match="expected ids of tokens"):
        Batch(torch.rand(1, 3), torch.tensor([0]), Domain(shape=(3,), kind="tabular")).lengths  # noqa: B018


def test_a_model_without_a_mask_refuses_places_without_a_token() -> None:
    model = nn.Sequential(nn.Embedding(SIZE, 4), nn.Flatten(), nn.Linear(4 * 8, 2))
    with pytest.raises(InputError, match="takes no attention_mask"):
        Objective.from_module(model).check(sentences(5))


def test_an_encoding_becomes_a_batch() -> None:
    encoding = {
        "input_ids": torch.tensor([[1, 5, 2, 0], [1, 7, 8, 2]]),
        "attention_mask": torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]]),
        "token_type_ids": torch.zeros(2, 4, dtype=torch.int64),
    }
    batch = Batch.from_encoding(encoding, torch.tensor([0, 1]), vocabulary=VOCABULARY)
    assert batch.inputs.tolist() == [[1, 5, 2, -1], [1, 7, 8, 2]]
    assert batch.declared_domain().kind is DomainKind.TOKENS
    assert Batch.from_encoding(encoding).targets.tolist() == [[1, 5, 2, -100], [1, 7, 8, 2]]
    labeled = Batch.from_encoding({**encoding, "labels": torch.tensor([1, 0])})
    assert labeled.targets.tolist() == [1, 0]
    encoding["token_type_ids"][0, 1] = 1
    with pytest.raises(InputError, match="got token_type_ids that say something"):
        Batch.from_encoding(encoding)
    with pytest.raises(
        InputError, match="expected input_ids with an attention_mask and nothing else, got pixel_values"
    ):
        Batch.from_encoding({"pixel_values": torch.zeros(1, 3)})


def test_a_domain_of_tokens_has_no_pixels() -> None:
    domain = Domain.tokens(VOCABULARY, 8)
    for asked in (domain.to_pixels, domain.from_pixels, domain.bounds, domain.pixel_scale):
        with pytest.raises(UnsupportedError, match="ids of tokens, which have no range, no pixels and no derivative"):
            asked(torch.zeros(1, 8))
    assert not set(domain.middle(torch.zeros(())).flatten().tolist()) & {0, 1, 2}
    assert describe(domain)["vocabulary"]["words"][0] == "[PAD]"
    assert "vocabulary" not in describe(Domain(shape=(3,)))
    with pytest.raises(InputError, match="expected a vocabulary for tokens and for nothing else"):
        Domain(shape=(3,), kind="tokens")


def test_long_vocabularies_stand_in_records_as_a_checksum() -> None:
    described = describe(Vocabulary(words=tuple(f"w{place}" for place in range(100))))
    assert described["words"].startswith("list[100], checksum ")
    assert described["size"] == 100


def test_lengths_reach_the_adversary_through_knowledge_alone() -> None:
    objective, batch = Objective.from_module(tiny()), sentences(5, 8)
    release = Release(FedSGD())
    told = HonestButCurious(lengths=True).disclose(objective, release, batch)
    assert told.lengths.tolist() == [5, 8]
    assert HonestButCurious().disclose(objective, release, batch).lengths is None
    assert PLACES == 12


def test_a_number_in_place_of_a_vocabulary_is_refused_with_what_to_write() -> None:
    with pytest.raises(InputError, match=r"expected a Vocabulary, got int; write Vocabulary\(size=\.\.\.\)"):
        Domain.tokens(50, 6)  # type: ignore[arg-type]

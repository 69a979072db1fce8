"""U69: what a table of words gives away, and what is left once it is hidden."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn

from gradleak.attacks import GaussNewton, SignRule, used_rows
from gradleak.core import Batch, Domain, DomainKind, Exposure, HonestButCurious, Objective, Release, Vocabulary
from gradleak.datasets.sentences import one_hot, one_hot_domain, words_of_rows
from gradleak.defenses import GaussianNoise
from gradleak.models import TokenEmbedding, text_classifier
from gradleak.protocols import FedSGD
from gradleak.results import Outcome
from gradleak.risk import GaussianReconstructionError, Sensitivity, VisibleLayers, measure_visible, what_ifs

WORDS = Vocabulary(
    words=(
        "<other>",
        "the",
        "a",
        "doctor",
        "patient",
        "told",
        "that",
        "her",
        "his",
        "disease",
        "is",
        "rare",
        "common",
        "nurse",
        "of",
        "and",
        ".",
        "heart",
        "test",
        "was",
    )
)
SENTENCE = "The doctor told her patient that the disease is rare."
LENGTH, WIDTH = 12, 6
RELEASE = Release(FedSGD())


def dense() -> nn.Sequential:
    """Embedding, and a first layer that has a weight for every position."""
    generator = torch.Generator().manual_seed(0)
    parts = OrderedDict(
        embedding=TokenEmbedding(len(WORDS), WIDTH),
        flatten=nn.Flatten(),
        fc1=nn.Linear(LENGTH * WIDTH, 16),
        act=nn.Tanh(),
        fc2=nn.Linear(16, 2),
    )
    model = nn.Sequential(parts)
    for name, parameter in model.named_parameters():
        scale = 1.0 if name.startswith("embedding") else 0.1
        parameter.data = scale * torch.randn(parameter.shape, generator=generator)
    return model.double()


class Averaging(nn.Module):
    """Embedding, the mean over positions, and a head: what lies behind the table sees no words but their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = TokenEmbedding(len(WORDS), WIDTH)
        self.fc = nn.Linear(WIDTH, 2)

    def forward(self, rows: Tensor) -> Tensor:
        return self.fc(self.embedding(rows).mean(dim=2))


def exposure_of(model: nn.Module, length: int = LENGTH) -> Exposure:
    rows = one_hot(WORDS, SENTENCE, length=length).double()[None]
    return Exposure(
        Objective.from_module(model), Batch(rows, torch.tensor([1]), one_hot_domain(WORDS, length)), RELEASE
    )


def behind(model: nn.Sequential, exposure: Exposure) -> Exposure:
    """The model behind the embedding, whose inputs are embedded words: an attacker who has the table can look there."""
    table = model.get_parameter("embedding.weight").detach()
    rest = nn.Sequential(OrderedDict(list(model.named_children())[1:]))
    reach = float(table.abs().max())
    domain = Domain(
        shape=(WIDTH, exposure.inputs.shape[0] // len(WORDS)), low=-reach, high=reach, kind=DomainKind.SIGNAL
    )
    embedded = (exposure.batch.inputs @ table).transpose(1, 2)
    return Exposure(Objective.from_module(rest), Batch(embedded, exposure.batch.targets, domain), RELEASE)


def words_of(embedded: Tensor, table: Tensor) -> list[str]:
    """The nearest word of every position; the end of a sentence is a row of zeros."""
    rows = torch.cat([table, torch.zeros_like(table[:1])])
    nearest = torch.cdist(embedded.T, rows).argmin(dim=1).tolist()
    return [WORDS.words[place] for place in nearest if place < len(table)]


def test_the_table_names_the_words_and_hidden_it_names_none() -> None:
    exposure = exposure_of(dense())
    update = RELEASE(exposure.objective, exposure.batch, torch.Generator().manual_seed(0))
    known = HonestButCurious().disclose(exposure.objective, RELEASE, exposure.batch)
    told = used_rows(update, known)["embedding.weight"].rows
    assert told is not None
    assert {WORDS.words[place] for place in told.tolist()} == set(words_of_rows(WORDS, exposure.batch.inputs[0]))
    visible = VisibleLayers.all_but_embedding(exposure.objective)
    hidden = used_rows(visible.update(update), visible.knowledge(known))["embedding.weight"]
    assert (hidden.rows, hidden.outcome) == (None, Outcome.NOT_IDENTIFIABLE)
    assert hidden.note == "embedding.weight is not shared"


def test_without_the_table_a_dense_layer_gives_the_sentence_away_in_order() -> None:
    """The first linear layer's gradient is δ xᵀ with x the embedded words: hiding the table alone is worse than nothing."""
    model = dense()
    exposure = exposure_of(model)
    visible = VisibleLayers.all_but_embedding(exposure.objective)
    update = visible.update(RELEASE(exposure.objective, exposure.batch, torch.Generator().manual_seed(0)))
    rest = behind(model, exposure)
    known = HonestButCurious().disclose(rest.objective, RELEASE, rest.batch)
    assert SignRule()(update, known).targets is not None
    claim = GaussNewton()(update, known, generator=torch.Generator().manual_seed(2))
    assert claim.inputs is not None
    found = words_of(claim.inputs[0], model.get_parameter("embedding.weight").detach())
    assert found == ["the", "doctor", "told", "her", "patient", "that", "the", "disease", "is", "rare", "."]


def test_risk_of_the_visible_part_without_the_table() -> None:
    """A position that enters all weights leaves the derivative as many directions as entries; a mean leaves those of a word."""
    sharp = Release(FedSGD(), [GaussianNoise(std=1e-3)])
    wide = dense()
    exposure = behind(wide, exposure_of(wide))
    measure = GaussianReconstructionError(std=1e-3)
    dense_score = measure(Exposure(exposure.objective, exposure.batch, sharp))
    assert dense_score.outcome is not Outcome.NOT_IDENTIFIABLE
    whole = exposure_of(Averaging().double())
    visible = VisibleLayers.all_but_embedding(whole.objective)
    mean_score = measure(visible.exposure(Exposure(whole.objective, whole.batch, sharp)))
    assert mean_score.outcome is Outcome.NOT_IDENTIFIABLE
    # Of 12 positions and 20 words at most the mean word, in as many directions as a word has numbers.
    assert mean_score.details["rank"] <= WIDTH


def test_the_what_if_lists_risk_with_and_without_the_table() -> None:
    length = 20
    model = text_classifier(words=len(WORDS), length=length, width=4, activation="tanh").double()
    exposure = exposure_of(model, length)
    sets = {
        name: one
        for name, one in what_ifs(exposure.objective, one_hot_domain(WORDS, length)).items()
        if "embedding" in name
    }
    sets["everything"] = VisibleLayers(names=tuple(exposure.objective.params))
    profile = measure_visible(exposure, sets, Sensitivity())
    assert profile.groups["all but the embedding"][0] == "conv1.weight"
    parts = profile.scores["everything"].details["values"]
    left = profile.scores["all but the embedding"].details["values"]
    assert left == pytest.approx({name: value for name, value in parts.items() if name != "embedding.weight"})

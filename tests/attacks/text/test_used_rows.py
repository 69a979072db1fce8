"""The words of a batch from the table of an embedding, against the words that stand in it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gradleak.attacks import used_rows
from gradleak.core import Batch, HonestButCurious, Knowledge, Objective, Release, Update
from gradleak.defenses import Clip, GaussianNoise, LaplaceNoise
from gradleak.models import TokenEmbedding
from gradleak.protocols import FedAvg, FedSGD
from gradleak.results import InputError, KnowledgeError, Outcome

WORDS, LENGTH, WIDTH = 40, 6, 8
TOKENS = torch.tensor([[3, 17, 3, 8, 29, 11], [5, 17, 30, 8, 2, 2]])
USED = sorted(set(TOKENS.flatten().tolist()))


def network() -> nn.Sequential:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(
        TokenEmbedding(WORDS, WIDTH), nn.Flatten(), nn.Linear(LENGTH * WIDTH, 12), nn.Tanh(), nn.Linear(12, 2)
    )
    for parameter in model.parameters():
        parameter.data = 0.5 * torch.randn(parameter.shape, generator=generator)
    return model.double()


def seen(release: Release, *, defenses: bool = True) -> tuple[Update, Knowledge]:
    objective = Objective.from_module(network())
    batch = Batch(nn.functional.one_hot(TOKENS, WORDS).double(), torch.tensor([0, 1]))
    update = release(objective, batch, torch.Generator().manual_seed(1))
    return update, HonestButCurious(domain=False, defenses=defenses).disclose(objective, release, batch)


@pytest.mark.parametrize(
    "release",
    [
        Release(FedSGD()),
        Release(FedAvg(learning_rate=0.1, epochs=2, batch_size=1)),
        Release(FedSGD(), [Clip(max_norm=0.1)]),
    ],
    ids=["gradient", "local training", "clipped"],
)
def test_without_noise_it_names_every_word_and_no_other(release: Release) -> None:
    found = used_rows(*seen(release))["0.weight"]
    assert found.rows is not None
    assert found.rows.tolist() == USED
    assert found.outcome is Outcome.CONVERGED


def test_under_noise_it_names_what_noise_cannot_explain() -> None:
    found = used_rows(*seen(Release(FedSGD(), [GaussianNoise(std=1e-4)])))["0.weight"]
    assert found.rows is not None
    assert found.rows.tolist() == USED
    hidden = used_rows(*seen(Release(FedSGD(), [GaussianNoise(std=10.0)])))["0.weight"]
    assert hidden.outcome is Outcome.NO_SIGNAL


def test_false_alarms_are_as_rare_as_asked() -> None:
    """A table of noise alone names a word in about one table of five."""
    objective = Objective.from_module(network())
    knowledge = Knowledge(
        objective=objective, protocol=FedSGD(), defenses=(GaussianNoise(std=0.3),), batch_size=2, assumed=None
    )
    generator = torch.Generator().manual_seed(4)
    named = 0
    for _ in range(200):
        noise = {
            name: 0.3 * torch.randn(p.shape, generator=generator, dtype=torch.float64)
            for name, p in objective.params.items()
        }
        named += used_rows(Update(tensors=noise), knowledge, false_alarms=0.2)["0.weight"].rows is not None
    assert 20 <= named <= 60  # 40 expected, std 5.7


def test_what_does_not_tell_is_a_word() -> None:
    found = used_rows(*seen(Release(FedSGD(), [GaussianNoise(std=1e-4)]), defenses=False))["0.weight"]
    assert (found.rows, found.outcome) == (None, Outcome.NOT_IDENTIFIABLE)
    assert "every row of 0.weight moves" in found.note
    laplace = used_rows(*seen(Release(FedSGD(), [LaplaceNoise(scale=1e-4)])))["0.weight"]
    assert "not Gaussian" in laplace.note


def test_a_table_that_is_tied_to_the_output_moves_everywhere() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(7, 4)
            self.out = nn.Linear(4, 7, bias=False)
            self.out.weight = self.table.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return self.out(self.table.weight[:2].mean(dim=0) + tokens @ self.table.weight)

    model = Tied()
    model.table.weight.data = torch.randn((7, 4), generator=torch.Generator().manual_seed(0))
    objective = Objective.from_module(model)
    batch = Batch(torch.eye(7)[:1], torch.tensor([1]))
    update = Release(FedSGD())(objective, batch, torch.Generator().manual_seed(0))
    knowledge = HonestButCurious(domain=False).disclose(objective, Release(FedSGD()), batch)
    assert used_rows(update, knowledge)["table.weight"].outcome is Outcome.NOT_IDENTIFIABLE


def test_refuses_a_model_without_a_table() -> None:
    objective = Objective.from_module(nn.Linear(3, 2))
    update = Update(tensors={name: torch.ones_like(p) for name, p in objective.params.items()})
    with pytest.raises(InputError, match=r"expected a model with an nn\.Embedding layer"):
        used_rows(update, Knowledge(objective=objective))
    with pytest.raises(KnowledgeError, match="used_rows needs objective"):
        used_rows(update, Knowledge())


def test_noise_on_a_table_that_is_tied_to_the_output_names_no_word() -> None:
    """The head moves rows of other words far above the noise."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(12, 4)
            self.out = nn.Linear(4, 12, bias=False)
            self.out.weight = self.table.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return self.out(torch.tanh((tokens @ self.table.weight).mean(dim=1)))

    model = Tied().double()
    model.table.weight.data = torch.randn((12, 4), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    objective, release = Objective.from_module(model), Release(FedSGD(), [GaussianNoise(std=1e-2)])
    batch = Batch(nn.functional.one_hot(torch.tensor([[3, 5, 7]]), 12).double(), torch.tensor([2]))
    update = release(objective, batch, torch.Generator().manual_seed(0))
    found = used_rows(update, HonestButCurious(domain=False).disclose(objective, release, batch))["table.weight"]
    assert (found.rows, found.outcome) == (None, Outcome.NOT_IDENTIFIABLE)
    assert "another layer" in found.note


def test_decay_that_spares_a_row_of_padding_names_no_word() -> None:
    """Decay moves every row but the one that padding keeps at zero."""
    objective = Objective.from_module(
        nn.Sequential(nn.Embedding(12, 4, padding_idx=0), nn.Flatten(), nn.Linear(12, 2)).double()
    )
    decayed = {name: 0.01 * tensor for name, tensor in objective.params.items()}
    decayed["0.weight"][[3, 5]] += 0.3
    found = used_rows(Update(tensors=decayed), Knowledge(objective=objective))["0.weight"]
    assert (found.rows, found.outcome) == (None, Outcome.NOT_IDENTIFIABLE)


def test_a_table_of_zeros_names_its_words() -> None:
    model = nn.Sequential(nn.Embedding(12, 4), nn.Flatten(), nn.Linear(12, 2)).double()
    nn.init.zeros_(model[0].weight)
    objective = Objective.from_module(model)
    moved = {name: torch.zeros_like(tensor) for name, tensor in objective.params.items()}
    moved["0.weight"][[3, 5]] = 0.3
    found = used_rows(Update(tensors=moved), Knowledge(objective=objective))["0.weight"]
    assert found.rows is not None
    assert found.rows.tolist() == [3, 5]

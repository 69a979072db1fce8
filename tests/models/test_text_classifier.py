"""The text network, against a lookup of integer tokens in plain torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.core import Batch, Domain, DomainKind, Exposure, Objective, Release
from gradleak.models import text_classifier
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedSGD
from gradleak.results import InputError

pytestmark = pytest.mark.usefixtures("global_rng_unchanged")

WORDS, LENGTH, CLASSES = 9, 24, 3
# Index 0 fills up in the twin, which looks integers up; word j of the model is its j + 1.
TOKENS = torch.tensor([[3, 1, 4, 1, 5] + [0] * 19, [2] * 24, [8, 9, 7] + [0] * 21])
TARGETS = torch.tensor([0, 2, 1])


def one_hot() -> Tensor:
    return F.one_hot(TOKENS, WORDS + 1)[:, :, 1:].double()


def looked_up(p: dict[str, Tensor], tokens: Tensor) -> Tensor:
    table = torch.cat([p["embedding.weight"].new_zeros(1, p["embedding.weight"].shape[1]), p["embedding.weight"]])
    x = F.embedding(tokens, table, padding_idx=0).transpose(1, 2)
    for number in (1, 2):
        x = F.max_pool1d(F.relu(F.conv1d(x, p[f"conv{number}.weight"], p[f"conv{number}.bias"])), 2)
    x = F.relu(F.linear(x.flatten(1), p["fc1.weight"], p["fc1.bias"]))
    return F.linear(x, p["fc2.weight"], p["fc2.bias"])


def test_gradients_are_those_of_a_lookup_with_padding() -> None:
    model = text_classifier(classes=CLASSES, words=WORDS, length=LENGTH, width=6).double()
    leaves = {name: value.detach().requires_grad_() for name, value in model.named_parameters()}
    expected = looked_up(leaves, TOKENS)
    torch.testing.assert_close(model(one_hot()), expected)
    found = torch.autograd.grad(F.cross_entropy(model(one_hot()), TARGETS), list(model.parameters()))
    twin = torch.autograd.grad(F.cross_entropy(expected, TARGETS), list(leaves.values()))
    torch.testing.assert_close(found, twin)


def test_the_gradient_of_the_table_names_the_words() -> None:
    model = text_classifier(classes=CLASSES, words=WORDS, length=LENGTH)
    objective = Objective.from_module(model)
    gradient = objective.gradient(objective.params, Batch(one_hot()[:1].float(), TARGETS[:1]))
    told = gradient["embedding.weight"].abs().sum(dim=1).nonzero()[:, 0] + 1
    assert told.tolist() == [1, 3, 4, 5]


def test_the_release_is_differentiable_in_the_tokens() -> None:
    model = text_classifier(classes=CLASSES, words=WORDS, length=LENGTH, width=2, activation="tanh").double()
    # Soft tokens: equal positions would tie in the poolings, where there is no derivative.
    soft = torch.rand(1, LENGTH, WORDS, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    batch = Batch(soft, TARGETS[:1], Domain(shape=(LENGTH, WORDS), kind=DomainKind.SIGNAL))
    exposure = Exposure(Objective.from_module(model), batch, Release(FedSGD()))
    operator = GradientJacobian(exposure)
    direction = torch.randn(LENGTH * WORDS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    step = 1e-6
    flat = batch.inputs.reshape(-1)
    difference = (exposure.mean(flat + step * direction) - exposure.mean(flat - step * direction)) / (2 * step)
    torch.testing.assert_close(operator.matmat(direction[:, None])[:, 0], difference, rtol=1e-5, atol=1e-8)
    assert float(difference.norm()) > 0


def test_sizes_of_layers_follow_from_the_filters_of_the_paper() -> None:
    sizes = {name: p.numel() for name, p in text_classifier(words=500, length=32, width=32).named_parameters()}
    assert sizes["embedding.weight"] == 500 * 32
    assert (sizes["conv1.weight"], sizes["conv2.weight"]) == (16 * 32 * 3, 16 * 16 * 8)
    # 32 positions: 30 behind the first convolution, pooled to 15; 8 behind the second, pooled to 4
    assert (sizes["fc1.weight"], sizes["fc2.weight"]) == (50 * 16 * 4, 2 * 50)


@pytest.mark.parametrize("length", [20, 21, 33])
def test_every_length_that_is_taken_works(length: int) -> None:
    assert text_classifier(words=5, length=length)(torch.zeros(2, length, 5)).shape == (2, 2)


def test_unfit_settings_are_refused() -> None:
    with pytest.raises(InputError, match="expected length of at least 20, got 19"):
        text_classifier(length=19)
    with pytest.raises(InputError, match="activation: expected one of sigmoid, tanh"):
        text_classifier(activation="step")
    with pytest.raises(InputError, match="words"):
        text_classifier(words=0)

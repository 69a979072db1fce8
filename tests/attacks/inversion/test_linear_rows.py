"""Rows of a first linear layer: examples to round-off where a row has one alone, and nothing certain where none has."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from gradleak.attacks import LinearRows
from gradleak.core import Batch, Defense, Domain, DomainKind, HonestButCurious, Reconstruction
from gradleak.defenses import Clip, ClipPerExample, ClipPerLayer, GaussianNoise, Prune
from gradleak.models import initialize_default, lenet_i2f, mlp
from gradleak.protocols import FedAvg
from gradleak.results import Outcome, UnsupportedError
from tests.attacks.setting import Setting, rows, setting, small_net

WIDE = Domain(shape=(40,), kind=DomainKind.TABULAR)


def _wide(*targets: int, seed: int = 0) -> Batch:
    inputs = torch.rand(len(targets), 40, generator=torch.Generator().manual_seed(seed))
    return Batch(inputs, torch.tensor(targets), WIDE)


def _relu(seed: int = 0, hidden: tuple[int, ...] = (256,), classes: int = 4) -> nn.Module:
    stream = torch.Generator().manual_seed(seed)
    return mlp(features=40, hidden=hidden, classes=classes, activation="relu", generator=stream)


def _run(case: Setting) -> Reconstruction:
    return LinearRows()(case.update, case.knowledge, generator=torch.Generator().manual_seed(1))


def _error(case: Setting, found: Reconstruction) -> float:
    """Largest distance of a true example from the claim that is nearest to it."""
    assert found.inputs is not None
    return float(torch.cdist(case.truth.inputs.double(), found.inputs.double()).min(dim=1).values.max())


class _Behind(nn.Module):
    """A model that no attack from the head down reads: pooling, GELU, and a normalized example."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(12, 16), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.gelu(self.first((x - 0.3) / 2.0))
        return self.last(nn.functional.max_pool1d(hidden, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_example_is_read_whatever_the_model_does_behind(dtype: torch.dtype) -> None:
    case = setting(initialize_default(_Behind(), generator=torch.Generator().manual_seed(0)), rows(1), dtype=dtype)
    found = _run(case)
    assert found.outcome is Outcome.CONVERGED
    assert _error(case, found) < 100 * torch.finfo(dtype).eps
    assert found.plain_gradients == 1
    assert found.targets is not None
    assert found.targets.tolist() == [1]


@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("size", [2, 5, 8])
def test_a_batch_behind_relus_is_read_to_round_off(size: int, dtype: torch.dtype, within: float) -> None:
    targets = [place % 4 for place in range(size)]
    case = setting(_relu(hidden=(512,)), _wide(*targets), dtype=dtype)
    found = _run(case)
    assert found.outcome is Outcome.CONVERGED
    assert _error(case, found) < within
    assert sorted(found.targets.tolist()) == sorted(targets)
    assert 1 < found.plain_gradients <= LinearRows().estimate(case.knowledge) == 10 * 4 + 6


def test_examples_are_named_certain_one_by_one() -> None:
    case = setting(_relu(hidden=(128,), seed=2), _wide(*(place % 4 for place in range(9))), dtype=torch.float32)
    found = _run(case)
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    certain = found.details["certain"]
    assert certain == 2
    assert f"{certain} of 9 examples stand alone" in found.note
    apart = torch.cdist(found.inputs[:certain].double(), case.truth.inputs.double()).min(dim=1).values
    assert float(apart.max()) < 1e-5


def test_claims_stand_where_disclosed_labels_do() -> None:
    case = setting(_relu(hidden=(512,)), _wide(3, 0, 2), threat=HonestButCurious(targets=True))
    found = _run(case)
    assert found.targets.tolist() == [3, 0, 2]
    assert float((found.inputs - case.truth.inputs).abs().max()) < 1e-10


def test_units_that_are_never_silent_hide_a_batch() -> None:
    case = setting(small_net("tanh"), rows(1, 2))
    found = _run(case)
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    assert found.details["certain"] == 0
    assert "0 of 2 examples stand alone" in found.note


def test_mixtures_that_agree_are_not_taken_for_examples() -> None:
    # Of two classes every unit passes back the same multiple: all rows in which both examples are active agree.
    case = setting(_relu(hidden=(12,), classes=2), _wide(0, 1))
    found = _run(case)
    right = float(torch.cdist(found.inputs.double(), case.truth.inputs.double()).min(dim=1).values.max()) < 1e-9
    assert found.outcome is not Outcome.CONVERGED or right
    model = _relu(hidden=())
    nn.init.zeros_(model[0].weight)
    nn.init.zeros_(model[0].bias)
    found = _run(setting(model, _wide(0, 0)))
    assert found.outcome is not Outcome.CONVERGED


@pytest.mark.parametrize("defense", [Clip(0.01), ClipPerExample(0.01), ClipPerLayer(0.01)])
def test_clipping_leaves_quotients_as_they_are(defense: Defense) -> None:
    case = setting(_relu(hidden=(512,)), _wide(0, 1, 2), defenses=[defense])
    found = _run(case)
    assert _error(case, found) < 1e-10
    assert found.outcome is Outcome.CONVERGED
    assert found.details["certain"] == 0


def test_local_steps_leave_the_quotient_of_one_example() -> None:
    case = setting(small_net("relu"), rows(2), protocol=FedAvg(epochs=4, learning_rate=0.1, batch_size=1))
    found = _run(case)
    assert found.outcome is Outcome.CONVERGED
    assert _error(case, found) < 1e-10


@pytest.mark.parametrize("count", [1, 3])
def test_nothing_is_certain_under_noise(count: int) -> None:
    case = setting(_relu(hidden=(512,)), _wide(*range(count)), defenses=[GaussianNoise(std=1e-6)])
    found = _run(case)
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    assert "under noise nothing that was read is certain" in found.note
    assert _error(case, found) < 0.05


def test_an_update_that_is_not_what_it_is_taken_for_is_not_certain() -> None:
    pruned = setting(_relu(), _wide(1), defenses=[Prune(0.5)])
    found = _run(replace(pruned, knowledge=replace(pruned.knowledge, defenses=None)))
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    doubled = setting(_relu(classes=2), _wide(0, 1))
    found = _run(replace(doubled, knowledge=replace(doubled.knowledge, batch_size=1)))
    assert found.outcome is Outcome.NOT_IDENTIFIABLE


@pytest.mark.parametrize(
    ("model", "batch", "defenses", "says"),
    [
        (lenet_i2f(size=12), None, (), "patches of it that do not overlap, got 0.weight reads patches that overlap"),
        (nn.Sequential(nn.Linear(12, 3, bias=False)), rows(1), (), "needs a bias beside 0.weight"),
        (small_net(), rows(1), (Prune(0.5),), "needs sums of gradients, clipped at most"),
        (nn.Sequential(nn.Tanh(), nn.Linear(12, 3)), rows(1), (), "needs a linear layer on the example itself"),
    ],
    ids=["convolution", "no bias", "pruned", "bent first"],
)
def test_what_it_cannot_read_is_refused_by_name(
    model: nn.Module, batch: Batch | None, defenses: tuple[Defense, ...], says: str
) -> None:
    image = Batch(torch.rand(1, 1, 12, 12), torch.tensor([1]), Domain.image(channels=1, height=12, width=12))
    case = setting(model, batch or image, defenses=defenses)
    with pytest.raises(UnsupportedError, match=says):
        _run(case)

"""Models of malicious servers are reported, honest ones are not; planted ones are read first, so that each plant works."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.risk.server_models import (
    HONEST,
    PLANTS,
    Planted,
    bins,
    built,
    convnet,
    digits,
    honest,
    layers_of,
    planted,
    read,
)
from torch import nn

from gradleak.core import Batch, Domain, Objective, Vocabulary
from gradleak.datasets import mnist_digits
from gradleak.models import transformer
from gradleak.results import Evidence, InputError, UnsupportedError
from gradleak.risk import ServerModel, check_server_model

# Thresholds were chosen with seeds 1 and 2; counts are of others.
HELD_OUT = (101, 102, 103)
# A plant works if so much of a private batch is read.
WORKS = 0.1


def check(model: nn.Module, rows: Batch, loss: str = "cross_entropy", **options: int) -> ServerModel:
    return check_server_model(Objective.from_module(model, loss=loss), rows, **options)


def reading(made: Planted) -> ServerModel:
    assert read(made) >= WORKS
    return check(made.model, made.rows[1])


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("bins", "alone in the difference of two rows that point the same way, such as"),
        ("biases for one", "of 128 live rows are open for at most 2 of them"),
    ],
)
def test_a_planted_layer_is_named_with_what_makes_it_readable(kind: str, told: str) -> None:
    made = planted(kind, HELD_OUT[0])
    found = reading(made)
    assert found.readable
    assert len(found.reasons) == 1
    assert told in found.reasons[0]
    assert found.reasons[0].startswith("layer 1: ")
    assert found.advice.startswith("Do not compute a gradient on this model: refuse the round. layer 1: ")
    layer = found.layers[0]
    # The share that is said to be alone is about the one that the attack reads.
    assert abs(max(layer.alone, layer.between) - read(made)) < 0.2
    assert found.score.value == max(max(one.alone, one.between) for one in found.layers)
    assert (found.score.evidence, found.score.n) == (Evidence.ESTIMATE, 517)


def test_a_head_and_a_shut_layer_are_named() -> None:
    model = built(lambda: layers_of(64, 32, 24, 10), 3)
    with torch.no_grad():
        model[5].weight[:7] = 0.0
        model[5].weight[8:] = 0.0
        model[5].bias[:] = 50.0
        model[5].bias[7] = 0.0
    (first, second) = check(model, digits()[1]).reasons
    assert first.startswith("layer 3: 100% of the gradient that gets through is of one class, which ")
    assert second.startswith("layer 1: ")
    with torch.no_grad():
        model = built(lambda: layers_of(64, 32, 24, 10), 3)
        model[3].bias -= 0.9 * model[1:4](model[0](digits()[1].inputs)).amax()
    found = check(model, digits()[1])
    assert any("get a gradient through, at most 2 of a batch of 32" in reason for reason in found.reasons)


def test_honest_models_are_silent_and_stay_as_they_are() -> None:
    for kind in ("MLP, untrained", "convolutions, untrained", "census, untrained", "transformer, untrained"):
        model, rows, loss = honest(kind, HELD_OUT[0])
        before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
        found = check(model, rows, loss)
        assert found.reasons == (), kind
        assert found.advice == ""
        assert not found.readable
        assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
        assert torch.equal(state, torch.get_rng_state())
        assert all(parameter.grad is None for parameter in model.parameters())


def test_the_numbers_of_a_layer_that_is_counted_by_hand() -> None:
    """Sixteen rows, each open for one of sixteen kinds of input, of which 96 rows hold six each."""
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(16))
        model[0].bias.fill_(-0.5)
        model[2].weight.copy_(torch.randn(3, 16, generator=torch.Generator().manual_seed(0)))
    rows = Batch(torch.eye(16).repeat(6, 1), (torch.arange(16) % 3).repeat(6))
    found = check(model, rows)
    (layer,) = found.layers
    assert (layer.name, layer.rows, layer.live, layer.between) == ("0", 16, 16, 0.0)
    assert layer.examples_per_row == pytest.approx(2.0)  # 6 of 96 are 2 of 32
    # None of the five others of its kind is among 31 of 95: the product of (64 - k) / (95 - k), k = 0 to 4.
    assert layer.alone == pytest.approx(0.132, abs=0.05)


def test_the_batch_is_at_least_32_and_at_most_half_of_the_rows() -> None:
    model, rows, _ = honest("MLP, untrained", 1)
    few = Batch(rows.inputs[:80], rows.targets[:80])
    assert [check(model, few, batch_size=size).batch_size for size in (1, 36, 500)] == [32, 36, 40]


def test_what_cannot_be_looked_at_is_refused() -> None:
    model, rows, _ = honest("MLP, untrained", 1)
    with pytest.raises(InputError, match="public rows: expected at least 64, of which shares can be told, got 8"):
        check(model, Batch(rows.inputs[:8], rows.targets[:8]))
    with torch.no_grad():
        model[5].weight.fill_(float("inf"))
    with pytest.raises(InputError, match="expected a finite number"):
        check(model, rows)

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
            return self.layer(x.flatten(1)), 0

    objective = Objective.from_module(Two(), loss=lambda out, wanted: nn.functional.cross_entropy(out[0], wanted))
    with pytest.raises(UnsupportedError, match="expected one tensor of finite numbers as its output"):
        check_server_model(objective, rows)


def test_batch_norm_in_train_mode_is_looked_at_in_batches() -> None:
    model = built(lambda: convnet(nn.BatchNorm2d), 5)
    found = check_server_model(Objective.from_module(model, mode="train"), digits()[1])
    assert [layer.name for layer in found.layers] == ["0", "4", "9"]
    assert not found.readable


@pytest.mark.parametrize("classes", [2, 0])
def test_tokens_are_looked_at_as_they_are(classes: int) -> None:
    ids = torch.randint(200, (96, 12), generator=torch.Generator().manual_seed(4))
    rows = Batch(ids, ids[:, 0] % 2 if classes else ids, Domain.tokens(Vocabulary(size=200), 12))
    model = transformer(classes=classes, causal=not classes)
    loss = "cross_entropy" if classes else next_word
    found = check_server_model(Objective.from_module(model, loss=loss), rows)
    assert len(found.layers) > 6
    assert not found.readable


def next_word(outputs: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


@pytest.mark.slow
def test_95_of_100_planted_models_are_found() -> None:
    """20 kinds and three seeds that no threshold was chosen on."""
    missed, idle = [], []
    for kind in PLANTS:
        for seed in HELD_OUT:
            made = planted(kind, seed)
            if read(made) < WORKS:
                idle.append((kind, seed))
            elif not check(made.model, made.rows[1]).readable:
                missed.append((kind, seed))
    count = len(PLANTS) * len(HELD_OUT)
    print(f"planted: {count - len(idle)} of {count} work, {count - len(idle) - len(missed)} of them found")  # noqa: T201
    assert count == 60
    assert idle == []
    assert len(missed) <= 0.05 * count, missed


@pytest.mark.slow
def test_larger_images() -> None:
    rows = mnist_digits(count=1024, seed=1)
    model = built(lambda: layers_of(784, 256, 10), 7)
    public = Batch(rows.inputs[512:], rows.targets[512:])
    assert not check(model, public).readable
    made = Planted(model, (Batch(rows.inputs[:512], rows.targets[:512]), public), model[1])
    found = reading(bins(made, model[3], torch.Generator().manual_seed(7), guessed=True, direction="normal"))
    assert "point the same way" in found.advice


@pytest.mark.slow
def test_honest_models_raise_no_alarm() -> None:
    """Trained and untrained, with dead units and pruned layers among them."""
    alarms = []
    for kind in HONEST:
        model, rows, loss = honest(kind, HELD_OUT[0])
        if check(model, rows, loss).readable:
            alarms.append(kind)
    print(f"honest: {len(HONEST)} looked at, {len(alarms)} alarms")  # noqa: T201
    assert len(HONEST) >= 20
    assert alarms == []

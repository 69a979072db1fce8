"""The gate names the cause of an update that differs in one thing, and never a wrong protocol as one that would fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradleak.audits.released import check_update
from gradleak.core import Batch, Mode, Objective, Release, Update, UpdateKind
from gradleak.protocols import FedAvg, FedSGD, LocalAdam


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn_orders(examples: int, epochs: int, seed: int = 0) -> list[list[int]]:
    source = generator(seed)
    return [torch.randperm(examples, generator=source).tolist() for _ in range(epochs)]


def client(dtype: torch.dtype = torch.float64) -> Objective:
    torch_model = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 10), nn.Tanh(), nn.Linear(10, 5))
    with torch.no_grad():
        for place, parameter in enumerate(torch_model.parameters()):
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator(place)))
    return Objective.from_module(torch_model.to(dtype))


def batch(dtype: torch.dtype = torch.float64) -> Batch:
    return Batch(torch.rand(8, 20, generator=generator(1)).to(dtype), torch.arange(8) % 5)


BASES = {
    "mini-batches": FedAvg(learning_rate=0.1, epochs=3, batch_size=2),
    "whole batch": FedAvg(learning_rate=0.2, epochs=4),
    "momentum": FedAvg(learning_rate=0.05, epochs=2, batch_size=4, momentum=0.5),
    "proximal term": FedAvg(learning_rate=0.1, epochs=3, batch_size=4, proximal=0.5),
}
# What the client did otherwise, and what the cause has to begin with.
CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "weight decay": ({"weight_decay": 0.1}, "weight_decay=0.1 would fit"),
    "little weight decay": ({"weight_decay": 0.01}, "weight_decay=0.01 would fit"),
    "proximal": ({"proximal": 1.0}, "proximal=1 would fit"),
    "little proximal": ({"proximal": 0.2}, "proximal=0.2 would fit"),
    "learning rate": ({"learning_rate": 0.07}, "learning_rate=0.07 would fit"),
    "another momentum": ({"momentum": 0.9}, "momentum=0.9 would fit"),
    "one more epoch": ({"epochs": 5}, "epochs=5 would fit"),
    "single examples": ({"batch_size": 1}, "batch_size=1 would fit"),
    "odd mini-batches": ({"batch_size": 3}, "batch_size=3 would fit"),
}


def causes(protocol: FedAvg | LocalAdam | FedSGD, sent: Update, dtype: torch.dtype = torch.float64) -> tuple[str, ...]:
    return check_update(client(dtype), Release(protocol), batch(dtype), sent).causes


def sent_by(protocol: FedAvg | LocalAdam | FedSGD, dtype: torch.dtype = torch.float64) -> Update:
    return Release(protocol)(client(dtype), batch(dtype), generator())


@pytest.mark.parametrize(
    ("base", "change"),
    [
        ("mini-batches", "weight decay"),
        ("whole batch", "proximal"),
        ("momentum", "another momentum"),
        ("mini-batches", "one more epoch"),
        ("whole batch", "odd mini-batches"),
        # Its direction and length are those of the statement within one percent.
        ("momentum", "little weight decay"),
    ],
)
def test_the_one_thing_that_differs_is_named(base: str, change: str) -> None:
    changed, message = CHANGES[change]
    found = causes(BASES[base], sent_by(replace(BASES[base], **changed)))
    assert len(found) == 1
    assert found[0].startswith(f"a client with {message}"), found


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_nine_of_ten_causes_are_named_and_no_wrong_protocol_fits(dtype: torch.dtype) -> None:
    """80 combinations of a protocol and a cause in both precisions, each wrong in one thing."""
    named, wrong, tried = 0, [], 0
    for base in BASES.values():
        for changed, message in CHANGES.values():
            if all(getattr(base, name) == value for name, value in changed.items()):
                continue
            found = causes(base, sent_by(replace(base, **changed), dtype), dtype)
            tried += 1
            named += found[0].startswith(f"a client with {message}")
            wrong += [
                (changed, text)
                for text in found
                if "would fit" in text and not text.startswith(f"a client with {message}")
            ]
        adam = LocalAdam(learning_rate=3e-3, epochs=base.epochs, batch_size=base.batch_size)
        found = causes(base, sent_by(adam, dtype), dtype)
        tried += 1
        named += found[0].startswith("the client trained with Adam")
    assert tried == 40
    assert named >= 0.9 * tried
    assert not wrong


def test_weights_in_place_of_their_change_are_recognized() -> None:
    base, model = BASES["mini-batches"], client()
    change = sent_by(base)
    whole = Update(
        tensors={name: model.params[name].detach() - tensor for name, tensor in change.tensors.items()},
        kind=UpdateKind.DELTA,
    )
    (cause,) = causes(base, whole)
    assert cause.startswith("these are the client's weights, not their change: subtract them from the model")


def test_accumulation_over_unequal_micro_batches_is_recognized() -> None:
    model, private = client(), batch()
    total: dict[str, Tensor] = {}
    for place in (slice(0, 3), slice(3, 8)):
        piece = model.gradient(model.params, Batch(private.inputs[place], private.targets[place]))
        total = {name: total.get(name, torch.zeros(())) + tensor / 2 for name, tensor in piece.items()}
    (cause,) = causes(FedSGD(), Update(tensors=total))
    assert cause.startswith("gradient accumulation over micro-batches of 3 + 5, the mean of their unequal means")


def test_an_example_that_was_left_out_shows_in_the_weights() -> None:
    model, private = client(), batch()
    rest = model.gradient(model.params, Batch(private.inputs[1:], private.targets[1:]))
    (cause,) = causes(FedSGD(), Update(tensors=rest))
    weights = [float(word.rstrip(",")) for word in cause.removeprefix("the examples weigh ").split()[:8]]
    assert weights[0] == pytest.approx(0.0, abs=1e-9)
    assert weights[1:] == pytest.approx([1 / 7] * 7, rel=1e-2)


def test_weight_decay_in_a_gradient_is_recognized() -> None:
    model = client()
    plain = sent_by(FedSGD())
    decayed = {name: tensor + 0.1 * model.params[name].detach() for name, tensor in plain.tensors.items()}
    (cause,) = causes(FedSGD(), Update(tensors=decayed))
    assert cause.startswith("the client added weight decay of about 0.1 to its gradient")


@pytest.mark.slow
def test_shuffled_mini_batches_are_told_from_other_causes() -> None:
    base = BASES["mini-batches"]
    shuffled = sent_by(replace(base, order=drawn_orders(8, base.epochs, seed=5)))
    (cause,) = causes(base, shuffled)
    assert cause.startswith("shuffled mini-batches fit")
    replayed = replace(base, order=drawn_orders(8, base.epochs, seed=5))
    assert check_update(client(), Release(replayed), batch(), shuffled).status == "consistent"
    other = replace(base, learning_rate=0.1, epochs=6, weight_decay=0.3)
    assert not any("shuffled mini-batches fit" in text for text in causes(base, sent_by(other)))


def test_the_other_mode_is_named_for_local_training_too() -> None:
    torch_model = nn.Sequential(nn.Linear(20, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 5)).double()
    trained, private = Objective.from_module(torch_model, mode="train"), batch()
    base = FedAvg(learning_rate=0.1, epochs=2, batch_size=4)
    sent = Release(base)(trained, private, generator())
    found = check_update(trained.in_mode(Mode.EVAL), Release(base), private, sent).causes
    assert found == ("the client ran in train mode, the audit in eval mode",)

"""The gate for clients that shuffle: right updates pass, updates wrong in one thing do not, and it says when it cannot tell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradleak.audits.released import GateStatus, check_update
from gradleak.audits.released.orders import ORDERS, POWER, Cause, Orders, powers, wrong_causes
from gradleak.core import Batch, Objective, Release, Update, UpdateKind
from gradleak.protocols import FedAvg, LocalAdam

CLIENT = FedAvg(learning_rate=0.1, epochs=2, batch_size=2, shuffled=True)
# What a client may do otherwise, beside what the gate itself tries.
OTHERWISE: dict[str, dict[str, Any]] = {
    "weight decay": {"weight_decay": 0.1},
    "proximal": {"proximal": 1.0},
    "a quarter more": {"learning_rate": 0.125},
    "an epoch more": {"epochs": 3},
    "single examples": {"batch_size": 1},
    "pairs of pairs": {"batch_size": 4},
}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def model(seed: int = 0, gain: float = 0.4) -> Objective:
    net = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 5)).double()
    with torch.no_grad():
        for place, parameter in enumerate(net.parameters()):
            parameter.copy_(gain * torch.randn(parameter.shape, generator=generator(10 * seed + place)))
    return Objective.from_module(net)


def batch(seed: int = 1) -> Batch:
    return Batch(torch.rand(8, 20, generator=generator(seed), dtype=torch.float64), torch.arange(8) % 5)


def whole(rows: Tensor) -> Orders:
    return Orders(rows=rows, sketch=lambda row: row)


def test_an_update_of_another_drawn_order_is_consistent_and_a_wrong_one_is_not() -> None:
    one = replace(CLIENT, epochs=1)
    release = Release(one)
    sent = release(model(), batch(), generator(5))
    assert check_update(model(), release, batch(), sent).status is GateStatus.CONSISTENT
    decayed = Release(replace(one, weight_decay=0.1))(model(), batch(), generator(5))
    found = check_update(model(), release, batch(), decayed)
    assert found.status is GateStatus.INCONSISTENT
    assert found.causes[0].startswith(f"none of {ORDERS} drawn orders")
    assert "would fit" not in found.causes[0]


@pytest.mark.slow
def test_whole_weights_and_a_reversed_sign_are_named_for_clients_that_shuffle() -> None:
    release, client = Release(CLIENT), model()
    sent = release(client, batch(), generator(5))
    turned = Update(tensors={name: -tensor for name, tensor in sent.tensors.items()}, kind=UpdateKind.DELTA)
    (cause,) = check_update(client, release, batch(), turned).causes
    assert cause.startswith("the sign is reversed")
    weights = Update(
        tensors={name: client.params[name] - tensor for name, tensor in sent.tensors.items()}, kind=UpdateKind.DELTA
    )
    (cause,) = check_update(client, release, batch(), weights).causes
    assert cause.startswith("these are the client's weights, not their change")


@pytest.mark.slow
def test_where_orders_change_an_update_too_much_the_gate_cannot_tell() -> None:
    """Steps so long that an order decides where the client ends."""
    release, client = Release(replace(CLIENT, learning_rate=3.0, epochs=1)), model(gain=1.5)
    found = check_update(client, release, batch(), release(client, batch(), generator(5)))
    assert found.status is GateStatus.CANNOT_TELL
    assert "refused would be, of each: " in found.causes[0]


@pytest.mark.slow
def test_orders_that_would_explain_much_are_no_cause() -> None:
    """Long steps: an update of a client without momentum, which did not shuffle, lies among those of drawn orders."""
    stated, client = replace(CLIENT, learning_rate=1.0, momentum=0.9, shuffled=False), model(gain=1.5)
    sent = Release(replace(stated, momentum=0.0))(client, batch(), generator(5))
    orders = Orders.of(Release(replace(stated, shuffled=True)), client, batch())
    assert orders.hold(client.flatten(sent.tensors))
    found = check_update(client, Release(stated), batch(), sent)
    assert found.status is GateStatus.INCONSISTENT
    assert not any("fit" in text for text in found.causes)


def test_an_exchangeable_update_is_refused_about_once_in_a_hundred_times() -> None:
    """Points of a few directions and a little of all: one of 100 is the most unusual of them."""
    source, refused = generator(3), 0
    for _ in range(30):
        along = torch.randn(100, 5, generator=source, dtype=torch.float64)
        points = along @ torch.randn(5, 40, generator=source, dtype=torch.float64)
        points += 1e-3 * torch.randn(100, 40, generator=source, dtype=torch.float64)
        refused += not whole(points[:ORDERS]).hold(points[ORDERS])
    # Binomial(30, 0.01) is at most 3 with a probability of 0.9998.
    assert refused <= 3


def test_a_step_off_the_span_of_orders_is_seen_where_their_distance_hides_it() -> None:
    source = generator(4)
    points = torch.zeros(101, 40, dtype=torch.float64)
    points[:, :5] = torch.randn(101, 5, generator=source, dtype=torch.float64)
    orders, other = whole(points[:ORDERS]), points[ORDERS].clone()
    assert orders.hold(other)
    other[20] = 0.1
    assert not orders.hold(other)
    assert not orders.hold(points[:ORDERS].mean(dim=0))  # whole batches end at the mean
    assert not orders.hold(100 * points[ORDERS])


def test_clients_that_are_too_large_to_hold_are_sketched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradleak.audits.released.orders.MOST_BYTES", ORDERS * 8 * 64)
    release = Release(replace(CLIENT, epochs=1))
    orders = Orders.of(release, model(), batch())
    assert orders.rows.shape == (ORDERS, 64)
    here = Cause(text="", objective=model(), release=release, batch=batch())
    assert orders.power(replace(here, release=Release(replace(CLIENT, weight_decay=0.1)))) == 1.0
    assert orders.power(here) <= 0.1


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [1, 2, 5])
def test_false_refusals_and_power_of_the_gate_for_clients_that_shuffle(epochs: int) -> None:
    """Of right updates few are refused, of those wrong in one thing nearly all: 10 clients, 20 updates each."""
    refused, power = 0, dict[str, list[float]]()
    for client in range(10):
        release = Release(replace(CLIENT, epochs=epochs))
        here = Cause(text="", objective=model(client), release=release, batch=batch(client + 100))
        rows, fresh = torch.stack(list(here.drawn(2 * ORDERS, 7))), list(here.drawn(20, 8))
        source = generator(client)
        for row in fresh:
            refused += not whole(rows[torch.randperm(len(rows), generator=source)[:ORDERS]]).hold(row)
        if client < 2:
            orders = whole(rows[:ORDERS])
            changed = {name: replace(release.protocol, **change) for name, change in OTHERWISE.items()}
            causes = wrong_causes(release, here.objective, here.batch)
            causes += [replace(here, text=name, release=Release(protocol)) for name, protocol in changed.items()]
            adam = LocalAdam(learning_rate=0.01, epochs=epochs, batch_size=2, shuffled=True)
            causes.append(replace(here, text="Adam", release=Release(adam)))
            for cause in causes:
                power.setdefault(cause.text, []).append(orders.power(cause) or 0.0)
    # Binomial(200, 0.01) is at most 7 with a probability of 0.999.
    assert refused <= 7
    assert all(min(found) >= POWER for found in power.values())


def test_the_gate_tries_six_wrong_clients() -> None:
    found = powers(
        Release(replace(CLIENT, epochs=1)), model(), batch(), whole(torch.randn(ORDERS, model().size).double())
    )
    assert list(found) == [
        "twice the learning rate",
        "epochs=2",
        "whole batches in place of mini-batches",
        "batch_size=4",
        "momentum=0.9",
        "another example in one place of the batch",
    ]

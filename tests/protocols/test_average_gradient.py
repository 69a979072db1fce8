"""The average gradient: exact for one step, wrong by the order that it states, weights by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from gradleak.core import Batch, Objective, Protocol, Release, UpdateKind
from gradleak.defenses import Clip, ClipPerExample
from gradleak.protocols import FedAvg, FedSGD, LocalAdam, SecureAggregation, average_gradient
from gradleak.protocols.average_gradient import AverageGradient, proportional
from gradleak.results import InputError, UnsupportedError

GENERATOR = torch.Generator().manual_seed(4)
BATCH = Batch(torch.rand(5, 6, generator=GENERATOR, dtype=torch.float64), torch.tensor([0, 2, 1, 1, 0]))


def objective(mode: str = "eval") -> Objective:
    layers = [nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)]
    with torch.random.fork_rng():
        torch.random.set_rng_state(torch.Generator().manual_seed(1).get_state())
        model = nn.Sequential(*(layer for layer in layers))
    return Objective.from_module(model.double(), mode=mode)


def flat(client: Objective, protocol: Protocol, batch: Batch = BATCH) -> Tensor:
    return client.flatten(protocol.mean(client, client.params, batch))


def stand_in(protocol: FedAvg, examples: int = 5, together: bool = False) -> AverageGradient:
    return AverageGradient(protocol=protocol, examples=examples, together=together)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_for_one_step_it_is_the_delta(mode: str) -> None:
    client, protocol = objective(mode), FedAvg(learning_rate=0.3)
    for together in (True, False):
        torch.testing.assert_close(
            flat(client, stand_in(protocol, together=together)), flat(client, protocol), rtol=1e-12, atol=1e-15
        )


@pytest.mark.parametrize(
    ("settings", "mode"),
    [
        ({"epochs": 4}, "eval"),
        ({"epochs": 4, "momentum": 0.9}, "eval"),
        ({"epochs": 3, "batch_size": 2, "momentum": 0.5}, "eval"),
        ({"epochs": 2, "batch_size": 3}, "eval"),
        ({"epochs": 2, "batch_size": 3}, "train"),
        ({"epochs": 4}, "train"),
    ],
    ids=repr,
)
def test_the_error_falls_in_proportion_to_the_learning_rate(settings: dict[str, float], mode: str) -> None:
    client = objective(mode)
    errors = []
    # BatchNorm of two or three examples bends so sharply that the order shows at small steps only.
    for rate in (1e-2, 5e-3, 2.5e-3) if mode == "eval" else (1e-5, 5e-6, 2.5e-6):
        protocol = FedAvg(learning_rate=rate, **settings)
        delta = flat(client, protocol)
        errors.append(float((flat(client, stand_in(protocol)) - delta).norm() / delta.norm()))
    assert errors[0] < 0.2
    for larger, smaller in pairwise(errors):
        assert smaller == pytest.approx(larger / 2, rel=0.1)


def test_the_papers_mean_over_the_batch_misses_a_smaller_last_mini_batch() -> None:
    """Two of five examples weigh less than the fifth, which is alone in its step: no learning rate mends that."""
    client = objective()
    protocol = FedAvg(learning_rate=1e-5, epochs=2, batch_size=2)
    delta = flat(client, protocol)
    weighted = flat(client, stand_in(protocol))
    paper = 6e-5 * flat(client, FedSGD())
    assert float((weighted - delta).norm() / delta.norm()) < 1e-3
    assert float((paper - delta).norm() / delta.norm()) > 0.05


def test_weights_by_hand() -> None:
    """v₁ = g₁, v₂ = m g₁ + g₂, v₃ = m² g₁ + m g₂ + g₃; their sum has 1 + m + m², 1 + m and 1."""
    protocol = FedAvg(learning_rate=0.1, epochs=1, batch_size=2, momentum=0.5)
    places, weights = zip(*protocol.mini_batch_weights(5), strict=True)
    assert places == (slice(0, 2), slice(2, 4), slice(4, 5))
    assert weights == pytest.approx((0.175, 0.15, 0.1))
    (whole,) = FedAvg(learning_rate=0.1, epochs=3, momentum=0.5).mini_batch_weights(5)
    assert whole == (slice(0, 5), pytest.approx(0.175 + 0.15 + 0.1))
    even = FedAvg(learning_rate=0.1, epochs=4, batch_size=2).mini_batch_weights(4)
    assert [weight for _, weight in even] == pytest.approx([0.4, 0.4])
    assert sum(weight for _, weight in even) == pytest.approx(
        0.1 * FedAvg(learning_rate=1, epochs=4, batch_size=2).steps(4)
    )
    assert proportional(even)
    assert not proportional(protocol.mini_batch_weights(5))


def test_the_batch_as_a_whole_is_the_sum_of_its_mini_batches() -> None:
    client = objective()
    four = Batch(BATCH.inputs[:4], BATCH.targets[:4])
    protocol = FedAvg(learning_rate=0.1, epochs=3, batch_size=2)
    merged = stand_in(protocol, 4, together=True)
    torch.testing.assert_close(
        flat(client, merged, four), flat(client, stand_in(protocol, 4), four), rtol=1e-12, atol=1e-15
    )
    assert merged.gradient_scale() == pytest.approx(0.6)
    assert stand_in(protocol, 4).gradient_scale() is None
    with pytest.raises(InputError, match="together: expected mini-batches of one weight an example"):
        stand_in(protocol, 5, together=True)


def test_defenses_act_at_the_scale_of_the_delta() -> None:
    client, protocol = objective(), FedAvg(learning_rate=0.1, epochs=4)
    plain = flat(client, FedSGD())
    clipped = Release(stand_in(protocol, together=True), [Clip(0.05)]).mean(client, client.params, BATCH)
    assert float(0.4 * plain.norm()) > 0.05
    torch.testing.assert_close(client.flatten(clipped), 0.05 * plain / plain.norm())
    loose = Release(stand_in(protocol, together=True), [Clip(float(plain.norm()) / 2)])
    torch.testing.assert_close(client.flatten(loose.mean(client, client.params, BATCH)), 0.4 * plain)
    by_example = Release(stand_in(FedAvg(learning_rate=0.1)), [ClipPerExample(0.1)])
    exact = Release(FedAvg(learning_rate=0.1), [ClipPerExample(0.1)])
    torch.testing.assert_close(
        client.flatten(by_example.mean(client, client.params, BATCH)),
        client.flatten(exact.mean(client, client.params, BATCH)),
        rtol=1e-12,
        atol=1e-15,
    )


def test_what_defenses_make_of_a_gradient_includes_the_factor() -> None:
    client = objective()
    release = Release(stand_in(FedAvg(learning_rate=0.1, epochs=4), together=True), [Clip(0.05)])
    after = release.after_gradient
    assert after is not None
    found = after(client.gradient(client.params, BATCH))
    expected = release.mean(client, client.params, BATCH)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name])
    assert Release(stand_in(FedAvg(learning_rate=0.1, batch_size=2))).after_gradient is None


def test_the_average_of_an_update_is_no_longer_called_a_delta_nor_the_gradient() -> None:
    client = objective()
    protocol = FedAvg(learning_rate=0.01, epochs=3, batch_size=2)
    update = Release(protocol)(client, BATCH, torch.Generator())
    average = average_gradient(update, protocol, 5)
    assert average.kind is UpdateKind.GRADIENT
    assert average.provenance["approximation"] == "a delta divided by 0.09"
    for name, tensor in update.tensors.items():
        torch.testing.assert_close(average.tensors[name], tensor / (0.01 * 9))
    gradient = Release(FedSGD())(client, BATCH, torch.Generator())
    assert average_gradient(gradient, FedSGD(), 5) is gradient


def test_weight_decay_is_taken_out_of_an_average_and_put_into_a_stand_in() -> None:
    client = objective()
    protocol = FedAvg(learning_rate=1e-5, epochs=3, weight_decay=0.5, momentum=0.5)
    update = Release(protocol)(client, BATCH, torch.Generator())
    gradient = client.gradient(client.params, BATCH)
    average = average_gradient(update, protocol, 5, client.params)
    for name, tensor in average.tensors.items():
        torch.testing.assert_close(tensor, gradient[name], rtol=1e-3, atol=1e-4)
    with pytest.raises(InputError, match="expected params for a protocol with weight decay"):
        average_gradient(update, protocol, 5)
    for together in (False, True):
        reading = stand_in(protocol, together=together)
        assert reading.gradient_scale() is None
        for name, tensor in reading.mean(client, client.params, BATCH).items():
            torch.testing.assert_close(tensor, update.tensors[name], rtol=1e-3, atol=1e-9)


def test_clients_that_decay_their_weights_share_the_weighted_decay() -> None:
    inside = FedAvg(learning_rate=0.1, epochs=2, weight_decay=0.5)
    both = SecureAggregation(protocol=inside, examples=[1, 4])
    assert both.decay(5) == pytest.approx(inside.decay(5)) == pytest.approx(0.1)
    assert FedSGD().decay(5) == LocalAdam(weight_decay=0.1).decay(5) == 0.0


def test_adam_is_refused_by_name() -> None:
    with pytest.raises(
        UnsupportedError, match=r"got LocalAdam, whose update is not a multiple of a gradient; match the unr"
    ):
        AverageGradient(protocol=LocalAdam(), examples=5).mini_batch_weights(5)
    update = Release(LocalAdam())(objective(), BATCH, torch.Generator())
    with pytest.raises(UnsupportedError, match="got LocalAdam"):
        average_gradient(update, LocalAdam(), 5)


def test_without_momentum_nothing_is_dampened() -> None:
    """As in torch, whose dampening is of the velocity."""
    plain, dampened = (FedAvg(learning_rate=0.01, epochs=2, weight_decay=0.1, dampening=one) for one in (0.0, 0.5))
    assert dampened.mini_batch_weights(3) == plain.mini_batch_weights(3) == [(slice(0, 3), 0.02)]
    assert dampened.decay(3) == plain.decay(3)

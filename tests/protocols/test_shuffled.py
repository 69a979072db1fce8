"""Clients that shuffle: what they draw, what an adversary who does not know it computes, and how attacks read it."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
import torch
from torch import nn

import gradleak as gl
from gradleak.core import Batch, Domain, HonestButCurious, NotGaussian, Objective, Release
from gradleak.defenses import DPSGD, ClipPerExample
from gradleak.protocols import FedAvg, FedSGD, LocalAdam, SecureAggregation
from gradleak.results import Evidence, InputError

CLIENT = FedAvg(learning_rate=0.05, epochs=2, batch_size=2, shuffled=True)
DOMAIN = Domain(shape=(6,), kind="tabular")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def client(**options: str) -> Objective:
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    with torch.no_grad():
        for place, parameter in enumerate(net.parameters()):
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator(place)))
    return Objective.from_module(net, **options)


def batch(examples: int = 4) -> Batch:
    inputs = torch.rand(examples, 6, generator=generator(9), dtype=torch.float64)
    return Batch(inputs, torch.arange(examples) % 3, DOMAIN)


def flat(protocol: object, seed: int = 0, defenses: tuple[object, ...] = (), examples: int = 4) -> torch.Tensor:
    objective = client()
    return objective.flatten(Release(protocol, defenses)(objective, batch(examples), generator(seed)).tensors)


@pytest.mark.parametrize("protocol", [CLIENT, LocalAdam(epochs=2, batch_size=2, shuffled=True)], ids=repr)
def test_an_update_is_that_of_orders_that_the_generator_drew(protocol: FedAvg | LocalAdam) -> None:
    source = generator(3)
    orders = [torch.randperm(4, generator=source).tolist() for _ in range(2)]
    known = replace(protocol, shuffled=False, order=orders)
    assert torch.equal(flat(protocol, 3), flat(known))
    assert not torch.allclose(flat(protocol, 3), flat(protocol, 4), rtol=1e-6)


def test_a_client_that_takes_whole_batches_has_no_order() -> None:
    whole = replace(CLIENT, batch_size=None)
    assert torch.equal(flat(whole), flat(replace(whole, shuffled=False)))
    assert whole.chance(4) is None
    assert replace(CLIENT, batch_size=9).chance(4) is None
    assert whole.note(4) == ""


def test_orders_that_are_known_and_not_known_do_not_go_together() -> None:
    with pytest.raises(InputError, match=r"FedAvg.shuffled: expected orders that nobody knows .* got both"):
        FedAvg(learning_rate=0.1, batch_size=1, shuffled=True, order=[[0, 1]])


@pytest.mark.parametrize("defenses", [(), (ClipPerExample(0.3),)], ids=["plain", "clipped"])
def test_the_mean_is_that_over_all_orders_to_first_order(defenses: tuple[object, ...]) -> None:
    """Halving the learning rate quarters what is left, for mini-batches of 2 and 1 examples."""
    objective, three = client(), batch(3)

    def error(rate: float) -> float:
        one = FedAvg(learning_rate=rate, epochs=1, batch_size=2, shuffled=True)
        ways = [
            objective.flatten(
                Release(replace(one, shuffled=False, order=[list(order)]), defenses).mean(
                    objective, objective.params, three
                )
            )
            for order in permutations(range(3))
        ]
        mean = objective.flatten(Release(one, defenses).mean(objective, objective.params, three))
        return float((mean - torch.stack(ways).mean(dim=0)).norm() / mean.norm())

    assert error(0.02) < 0.01
    assert error(0.01) / error(0.02) == pytest.approx(0.5, abs=0.05)


def test_a_constant_divisor_counts_a_mini_batch_as_what_it_holds() -> None:
    """DP-SGD by an expected batch size: one epoch of 2 + 2 sums up to twice the mean of four."""
    noisy = DPSGD(clip_norm=100.0, noise_std=1e-9, noise="sum", expected_batch_size=2)
    one, objective = replace(CLIENT, epochs=1, learning_rate=1e-5), client()
    found = objective.flatten(Release(one, [noisy]).mean(objective, objective.params, batch()))
    gradient = objective.flatten(objective.gradient(objective.params, batch()))
    torch.testing.assert_close(found, 2e-5 * gradient, rtol=1e-3, atol=1e-10)


def test_the_first_order_reading_takes_the_batch_as_a_whole() -> None:
    ((place, weight),) = CLIENT.mini_batch_weights(5)
    assert (place.start, place.stop) == (0, 5)
    assert weight == pytest.approx(0.05 * 6)


def test_nothing_about_a_shuffled_client_is_called_exact() -> None:
    release = Release(CLIENT)
    law = release.noise(client(), examples=4)
    assert isinstance(law, NotGaussian)
    assert "the client shuffles its examples" in law.reason
    exposure = gl.Exposure(client(), batch(), release)
    score = gl.InversionInfluence()(exposure, delta=torch.ones(client().size, dtype=torch.float64))
    assert score.evidence is Evidence.ESTIMATE
    assert "an estimate: the client shuffles" in score.note
    ordered = gl.Exposure(client(), batch(), Release(replace(CLIENT, shuffled=False)))
    assert gl.Sensitivity()(ordered).evidence is Evidence.EXACT
    assert gl.Sensitivity()(exposure).evidence is Evidence.ESTIMATE
    assert gl.GaussianReconstructionError(std=0.1)(exposure).value is None


def test_every_client_of_an_aggregation_draws_orders_of_its_own() -> None:
    together = SecureAggregation(protocol=CLIENT, examples=[4, 4])
    assert isinstance(together.chance(8), NotGaussian)
    assert not torch.allclose(flat(together, 1, examples=8), flat(together, 2, examples=8), rtol=1e-6)
    assert SecureAggregation(protocol=FedSGD(), examples=[4, 4]).chance(8) is None


def test_the_adversary_knows_that_the_client_shuffles_and_not_how() -> None:
    release = Release(CLIENT)
    update = release(client(), batch(), generator(1))
    knowledge = HonestButCurious(targets=True).disclose(client(), release, batch())
    assert knowledge.protocol == CLIENT
    found = gl.InvertingGradients(iterations=2)(update, knowledge, generator=generator())
    assert "the order of the examples is not known" in found.note


def test_copies_of_the_examples_by_epoch_are_paired_and_averaged() -> None:
    release = Release(CLIENT)
    update = release(client(), batch(), generator(1))
    knowledge = HonestButCurious(targets=True).disclose(client(), release, batch())
    attack = gl.attacks.DLFA(iterations=150, total_variation=0.0, learning_rate=0.05)
    found = attack(update, knowledge, generator=generator(2))
    assert found.inputs.shape == batch().inputs.shape
    assert torch.equal(found.targets, batch().targets)
    assert found.details["epochs"] == 2
    assert found.details["epochs_apart"] < 0.2
    assert "labels: disclosed" in found.details["information"]
    assert found.plain_gradients == attack.estimate(knowledge) == 3 * 151 * 2
    start = attack.__class__(iterations=1, total_variation=0.0)(update, knowledge, generator=generator(2))
    assert found.details["relative_residual"] < 0.5 * start.details["relative_residual"]


def test_recovered_labels_are_said_to_be_so() -> None:
    release = Release(replace(CLIENT, learning_rate=1e-4))
    update = release(client(), batch(), generator(1))
    knowledge = HonestButCurious().disclose(client(), release, batch())
    found = gl.attacks.DLFA(iterations=2)(update, knowledge, generator=generator(2))
    assert found.details["labels"] == "recovered"
    assert "labels were disclosed" not in found.note


def test_a_known_order_needs_no_copies() -> None:
    release = Release(replace(CLIENT, shuffled=False))
    update = release(client(), batch(), generator(1))
    knowledge = HonestButCurious(targets=True).disclose(client(), release, batch())
    found = gl.attacks.DLFA(iterations=3)(update, knowledge, generator=generator(2))
    plain = gl.InvertingGradients(iterations=3)(update, knowledge, generator=generator(2))
    assert torch.equal(found.inputs, plain.inputs)

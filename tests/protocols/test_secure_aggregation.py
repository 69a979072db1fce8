from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from tests.defenses.setting import batch, generator, gradients, objective

from gradleak.attacks import GaussNewton
from gradleak.audits.released import check_update
from gradleak.core import Batch, DiagonalGaussian, Exposure, HonestButCurious, Mode, NotGaussian, Release, UpdateKind
from gradleak.defenses import DPSGD, ClipPerExample
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedAvg, FedSGD, LocalAdam, SecureAggregation
from gradleak.results import InputError
from gradleak.risk import GaussianReconstructionError

CLIENTS = {"clinic": batch(2, seed=1), "hospital": batch(3, seed=2), "practice": batch(1, seed=3)}


def flat(release: Release, data: Batch) -> torch.Tensor:
    known = objective()
    return known.flatten(release(known, data, generator()).tensors)


@pytest.mark.parametrize(
    "protocol", [FedSGD(), FedAvg(learning_rate=0.1, epochs=2, batch_size=2), LocalAdam(epochs=2)], ids=repr
)
@pytest.mark.parametrize("weights", [None, {"clinic": 0.5, "hospital": 0.1, "practice": 2.0}])
def test_it_is_the_weighted_sum_of_what_each_client_computes(protocol: Any, weights: dict[str, float] | None) -> None:
    aggregation, union = SecureAggregation.of(protocol, CLIENTS, weights=weights, clients=10)
    expected = torch.zeros(objective().size, dtype=torch.float64)
    for name, data in CLIENTS.items():
        expected += (weights or {k: v.size / 6 for k, v in CLIENTS.items()})[name] * flat(Release(protocol), data)
    torch.testing.assert_close(flat(Release(aggregation), union), expected)
    assert aggregation.kind is protocol.kind


def test_weights_are_applied_once() -> None:
    """U30."""
    aggregation, union = SecureAggregation.of(FedSGD(), CLIENTS)
    assert aggregation.shares == pytest.approx([2 / 6, 3 / 6, 1 / 6])
    # Gradients of mean losses weighed by their numbers of examples are the gradient of all of them.
    torch.testing.assert_close(flat(Release(aggregation), union), gradients(union).mean(dim=0))
    known = objective()
    twice, _ = SecureAggregation.of(FedSGD(), CLIENTS, weights={"clinic": 2 / 6, "hospital": 3 / 6, "practice": 1 / 6})
    assert twice.shares == pytest.approx(aggregation.shares)
    update = Release(aggregation)(known, union, generator())
    wrong, _ = SecureAggregation.of(
        FedSGD(), CLIENTS, weights={"clinic": 4 / 36, "hospital": 9 / 36, "practice": 1 / 36}
    )
    assert check_update(known, Release(aggregation), union, update).status.value == "consistent"
    assert check_update(known, Release(wrong), union, update).status.value == "inconsistent"


def test_the_record_names_those_who_took_part_and_holds_no_data() -> None:
    """U30."""
    aggregation, union = SecureAggregation.of(FedSGD(), CLIENTS, clients=10)
    update = Release(aggregation)(objective(), union, generator())
    described = json.loads(json.dumps(update.provenance["release"]))["protocol"]
    assert described["participants"] == ["clinic", "hospital", "practice"]
    assert (described["examples"], described["clients"]) == ([2, 3, 1], 10)
    assert aggregation.note(6) == "3 of 10 clients take part, and only their weighted sum is seen"
    assert not any(isinstance(value, torch.Tensor) for value in vars(aggregation).values())


def test_an_adversary_who_matches_it_looks_for_all_examples_at_once() -> None:
    data = {"a": batch(1, seed=1), "b": batch(1, seed=2)}
    aggregation, union = SecureAggregation.of(FedSGD(), data)
    known, release = objective(), Release(aggregation)
    knowledge = HonestButCurious(targets=True).disclose(known, release, union)
    assert knowledge.batch_size == 2
    found = GaussNewton()(release(known, union, generator()), knowledge, generator=generator())
    assert found.inputs is not None
    assert found.inputs.shape == union.inputs.shape


def test_the_more_clients_the_less_every_one_gives_away() -> None:
    """U30: the leakage over the number of clients that take part."""
    known, errors, ranks = objective(), [], []
    for count in (1, 2, 4):
        clients = {f"client {place}": batch(1, seed=10 + place) for place in range(count)}
        aggregation, union = SecureAggregation.of(FedSGD(), clients)
        exposure = Exposure(known, union, Release(aggregation))
        operator = GradientJacobian(exposure)
        score = GaussianReconstructionError(std=1e-3, unit="pixel_rmse")(exposure, operator=operator)
        assert score.value is not None
        errors.append(score.value)
        ranks.append(operator.rank / union.inputs.numel())
    assert errors == sorted(errors)
    assert errors[-1] > 3 * errors[0]


def test_every_client_adds_its_own_noise() -> None:
    aggregation, union = SecureAggregation.of(FedSGD(), CLIENTS)
    known = objective()
    for noise, stds in (("sum", [0.1 / 2, 0.1 / 3, 0.1 / 1]), ("per_example", [0.1 / 2**0.5, 0.1 / 3**0.5, 0.1])):
        release = Release(aggregation, [DPSGD(clip_norm=0.5, noise_std=0.1, noise=noise)])
        law = release.noise(known, examples=6)
        assert isinstance(law, DiagonalGaussian)
        expected = sum((w * s) ** 2 for w, s in zip(aggregation.shares, stds, strict=True)) ** 0.5
        assert list(law.std.values()) == pytest.approx([expected] * 4)
        random = generator()
        drawn = torch.stack([known.flatten(release(known, union, random).tensors) for _ in range(80)])
        mean = known.flatten(release.mean(known, known.params, union))
        assert float((drawn - mean).std()) == pytest.approx(expected, rel=0.03)
    local, _ = SecureAggregation.of(FedAvg(learning_rate=0.1, epochs=2), CLIENTS)
    noisy = Release(local, [DPSGD(clip_norm=0.5, noise_std=0.1, noise="sum")])
    assert isinstance(noisy.noise(known, examples=6), NotGaussian)
    assert Release(aggregation, [ClipPerExample(0.5)]).noise(known, examples=6) is None


def test_batch_statistics_stay_with_each_client() -> None:
    known = objective().in_mode(Mode.TRAIN)
    aggregation, union = SecureAggregation.of(FedSGD(), CLIENTS)
    assert known.flatten(Release(aggregation)(known, union, generator()).tensors).shape == (known.size,)


def test_what_it_costs_and_which_gradients_it_sums() -> None:
    aggregation, _ = SecureAggregation.of(FedAvg(learning_rate=0.1, epochs=3, batch_size=2), CLIENTS)
    assert aggregation.plain_gradients(6) == pytest.approx(3.0)
    weights = aggregation.mini_batch_weights(6)
    assert weights is not None
    assert [(place.start, place.stop) for place, _ in weights] == [(0, 2), (2, 4), (4, 5), (5, 6)]
    assert [weight for _, weight in weights] == pytest.approx([0.3 * w for w in (2 / 6, 3 / 6, 3 / 6, 1 / 6)])
    adam, _ = SecureAggregation.of(LocalAdam(), CLIENTS)
    assert adam.mini_batch_weights(6) is None
    assert "one step of Adam" in adam.note(6)
    assert adam.kind is UpdateKind.DELTA


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"examples": []}, r"examples: expected at least one client, got none"),
        ({"examples": [1, 0]}, r"examples\[1\]: expected a whole number of at least 1, got 0"),
        ({"participants": ["a"]}, r"expected 2 different names, one a client, got \['a'\]"),
        ({"participants": ["a", "a"]}, r"expected 2 different names"),
        ({"weights": [1.0]}, r"expected 2 positive numbers, got \[1.0\]"),
        ({"weights": [1.0, -1.0]}, r"weights\[1\]: expected a finite positive number, got -1.0"),
        ({"clients": 1}, r"expected at least the 2 that take part, got 1"),
        ({"protocol": "FedSGD"}, r"protocol: expected a Protocol, got 'FedSGD'"),
        ({"protocol": SecureAggregation(protocol=FedSGD(), examples=[1])}, r"got SecureAggregation"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SecureAggregation(**({"protocol": FedSGD(), "examples": [1, 2]} | arguments))


def test_batches_that_do_not_fit_are_refused() -> None:
    aggregation, _ = SecureAggregation.of(FedSGD(), CLIENTS)
    with pytest.raises(InputError, match=r"a batch of the 6 examples of all clients \(2, 3, 1\), got 4"):
        Release(aggregation)(objective(), batch(4), generator())
    with pytest.raises(InputError, match=r"at least one client"):
        SecureAggregation.of(FedSGD(), {})
    other = Batch(torch.zeros(1, 2), torch.zeros(1, dtype=torch.long))
    with pytest.raises(InputError, match=r"one shape and domain, got shapes \[\(2,\), \(6,\)\]"):
        SecureAggregation.of(FedSGD(), {"a": batch(1), "b": other})

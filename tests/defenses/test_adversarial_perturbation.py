from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.defenses.setting import CLASSES, FEATURES, batch, generator, objective
from torch import nn

from gradleak.attacks import GaussNewton
from gradleak.core import Batch, Domain, Exposure, HonestButCurious, Release
from gradleak.defenses import AdversarialPerturbation, GaussianNoise, train_sensitive_classifier
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedSGD
from gradleak.results import InputError, UnsupportedError


def linear(values: int = 2, seed: int = 3) -> nn.Linear:
    layer = nn.utils.skip_init(nn.Linear, objective().size, values).double()
    for parameter in layer.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator(seed), dtype=torch.float64))
    return layer.requires_grad_(False)


def sensitive(data: Batch, values: list[int]) -> Batch:
    return replace(data, sensitive=torch.tensor(values))


def by_numpy(flat: np.ndarray[Any, Any], layer: nn.Linear, shares: list[float], way: int, steps: int = 5) -> Any:
    """PGD by hand: the gradient of the cross entropy of a linear classifier is Wᵀ(p − q)."""
    weight, bias = layer.weight.numpy(), layer.bias.numpy()
    change = np.zeros_like(flat)
    for _ in range(steps):
        logits = weight @ (flat + change) + bias
        p = np.exp(logits - logits.max())
        slope = weight.T @ (p / p.sum() - np.array(shares))
        change = np.clip(change + way * 0.002 * np.sign(slope), -0.005, 0.005)
    return flat + change


@pytest.mark.parametrize(
    ("values", "shares", "target", "way"),
    [([1, 1, 1, 1], [0.0, 1.0], None, 1), ([1, 1, 1, 0], [0.25, 0.75], None, 1), ([1, 1, 1, 1], [1.0, 0.0], 0, -1)],
)
def test_it_is_projected_gradient_ascent_on_the_true_value_or_descent_on_the_target(
    values: list[int], shares: list[float], target: int | None, way: int
) -> None:
    known, layer = objective(), linear()
    release = Release(FedSGD(), [AdversarialPerturbation(classifier=layer, target=target)])
    data = sensitive(batch(4), values)
    plain = known.flatten(Release(FedSGD())(known, data, generator()).tensors)
    found = known.flatten(release(known, data, generator()).tensors)
    assert np.allclose(found.numpy(), by_numpy(plain.numpy(), layer, shares, way), rtol=0, atol=1e-14)
    assert float((found - plain).abs().max()) == pytest.approx(0.005)


def test_it_makes_the_classifier_err() -> None:
    known, layer = objective(), linear()
    data = sensitive(batch(4), [1] * 4)

    def probability(release: Release, value: int) -> float:
        flat = known.flatten(release(known, data, generator()).tensors)
        return float(layer(flat).softmax(dim=0)[value])

    plain, strong = Release(FedSGD()), {"gamma": 0.5, "alpha": 0.1}
    untargeted = Release(FedSGD(), [AdversarialPerturbation(classifier=layer, **strong)])
    targeted = Release(FedSGD(), [AdversarialPerturbation(classifier=layer, target=0, **strong)])
    assert probability(untargeted, 1) < 1e-3 < probability(plain, 1)
    assert probability(targeted, 0) > max(0.99, probability(plain, 0))


def test_the_derivative_of_the_release_stays() -> None:
    known, data = objective(), sensitive(batch(2), [1, 1])
    release = Release(FedSGD(), [AdversarialPerturbation(classifier=linear())])
    defended = GradientJacobian(Exposure(known, data, release))
    torch.testing.assert_close(
        defended.dense(), GradientJacobian(Exposure(known, data, Release(FedSGD()))).dense(), rtol=1e-9, atol=1e-12
    )


def test_it_moves_the_noise_before_it_too() -> None:
    known, data = objective(), sensitive(batch(2), [1, 1])
    release = Release(FedSGD(), [GaussianNoise(std=0.1), AdversarialPerturbation(classifier=linear())])
    law = release.noise(known)
    assert "passes through AdversarialPerturbation" in getattr(law, "reason", "")
    noisy = Release(FedSGD(), [GaussianNoise(std=0.1)])(known, data, generator()).tensors
    found = release(known, data, generator()).tensors
    assert float((known.flatten(found) - known.flatten(noisy)).abs().max()) == pytest.approx(0.005)


def test_an_adversary_who_knows_it_goes_by_its_largest_change() -> None:
    known, data = objective(), sensitive(batch(1), [1])
    release = Release(FedSGD(), [AdversarialPerturbation(classifier=linear())])
    update = release(known, data, generator())
    errors = {}
    for adaptive in (False, True):
        knowledge = HonestButCurious(targets=True, defenses=adaptive).disclose(known, release, data)
        found = GaussNewton()(update, knowledge, generator=generator())
        assert found.inputs is not None
        errors[adaptive] = float((found.inputs - data.inputs).abs().max())
    assert "the bounds that AdversarialPerturbation leave of every entry" in found.details["information"]
    assert errors[False] < 0.5
    assert errors[True] < 0.5
    gap = known.flatten(release.mean(known, known.params, replace(data, inputs=found.inputs)))
    assert float((gap - known.flatten(update.tensors)).abs().max()) < 2 * 0.005 + 1e-6


def test_behind_noise_it_is_refused_before_anything_is_computed() -> None:
    known, data = objective(), sensitive(batch(1), [1])
    release = Release(FedSGD(), [AdversarialPerturbation(classifier=linear()), GaussianNoise(std=1e-3)])
    update = release(known, data, generator())
    knowledge = HonestButCurious(targets=True).disclose(known, release, data)
    with pytest.raises(UnsupportedError, match=r"AdversarialPerturbation before GaussianNoise; it reads the sensitive"):
        GaussNewton()(update, knowledge, generator=generator())


def public_rows(count: int, seed: int) -> Batch:
    """Rows whose first entry gives the sensitive value away."""
    random = generator(seed)
    values = torch.randint(2, (count,), generator=random)
    inputs = 0.3 * torch.randn(count, FEATURES, generator=random, dtype=torch.float64)
    inputs[:, 0] += 2.0 * values - 1.0
    targets = (values + torch.randint(2, (count,), generator=random)) % CLASSES
    return Batch(inputs, targets, Domain(shape=(FEATURES,), low=-10, high=10, kind="tabular"), values)


def test_a_classifier_trained_on_public_rows_reads_private_updates_until_they_are_perturbed() -> None:
    known, plain = objective(), Release(FedSGD())
    model = train_sensitive_classifier(
        known, plain, public_rows(200, 1), batch_size=8, updates=128, learning_rate=3e-3, generator=generator()
    )
    again = train_sensitive_classifier(
        known, plain, public_rows(200, 1), batch_size=8, updates=128, learning_rate=3e-3, generator=generator()
    )
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert not any(parameter.requires_grad for parameter in model.parameters())
    rows = public_rows(400, 2)
    assert rows.sensitive is not None

    def accuracy(release: Release) -> float:
        right = 0
        assert rows.sensitive is not None
        for number in range(60):
            places = (rows.sensitive == number % 2).nonzero().flatten()[number // 2 * 5 :][:8]
            data = Batch(rows.inputs[places], rows.targets[places], rows.domain, rows.sensitive[places])
            flat = known.flatten(release(known, data, generator()).tensors).float()
            right += int(model(flat[None]).argmax()) == number % 2
        return right / 60

    defended = Release(FedSGD(), [AdversarialPerturbation(classifier=model, gamma=0.2, alpha=0.05)])
    assert accuracy(plain) > 0.9
    assert accuracy(defended) < 0.4


def test_faults_are_named() -> None:
    known, defense = objective(), AdversarialPerturbation(classifier=linear())
    with pytest.raises(UnsupportedError, match=r"expected a batch with its sensitive variable, got none"):
        Release(FedSGD(), [defense])(known, batch(2), generator())
    with pytest.raises(InputError, match=r"Batch.sensitive: expected values from 0 to 1.*, got 0 to 4"):
        Release(FedSGD(), [defense])(known, sensitive(batch(2), [0, 4]), generator())
    with pytest.raises(InputError, match=r"target: expected a value from 0 to 1, got 2"):
        Release(FedSGD(), [replace(defense, target=2)])(known, batch(2), generator())
    with pytest.raises(
        InputError, match=r"expected a torch.nn.Module, got 'net'; train_sensitive_classifier makes one"
    ):
        AdversarialPerturbation(classifier="net")  # type: ignore[arg-type]
    for arguments, message in (({"gamma": -1}, "gamma"), ({"alpha": 0}, "alpha"), ({"steps": 0}, "steps")):
        with pytest.raises(InputError, match=message):
            AdversarialPerturbation(classifier=linear(), **arguments)
    with pytest.raises(InputError, match=r"public rows with their sensitive variable, got none"):
        train_sensitive_classifier(known, Release(FedSGD()), batch(4), batch_size=2, generator=generator())
    with pytest.raises(InputError, match=r"at least two values"):
        train_sensitive_classifier(
            known, Release(FedSGD()), sensitive(batch(4), [1] * 4), batch_size=2, generator=generator()
        )

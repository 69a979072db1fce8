from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tests.defenses.setting import FEATURES, batch, generator
from torch import nn

from gradleak.attacks import GaussNewton
from gradleak.audits.released import check_update
from gradleak.core import Exposure, HonestButCurious, Mode, Objective, Release
from gradleak.defenses import BottleneckLayer, BottleneckModel, BottleneckOutput, ClipPerExample, VariationalBottleneck
from gradleak.models import initialize_default
from gradleak.operators import GradientJacobian, check_derivative
from gradleak.protocols import FedSGD
from gradleak.results import InputError, Outcome

DEFENSE = VariationalBottleneck(beta=0.05, width=5)


def model(defense: VariationalBottleneck = DEFENSE) -> BottleneckModel:
    encoder = nn.Sequential(nn.utils.skip_init(nn.Linear, FEATURES, 7), nn.Tanh())
    decoder = nn.Sequential(nn.utils.skip_init(nn.Linear, defense.width, 3))
    for part in (encoder, decoder):
        initialize_default(part, generator=generator(4))
    return defense.insert(encoder, decoder, features=7, generator=generator(5)).double()


def objective(seed: int = 0, mode: str = "train") -> Objective:
    return Objective.from_module(model(), loss=DEFENSE.loss(), mode=mode, mask_seed=seed)


def test_the_divergence_is_that_of_two_normal_laws() -> None:
    layer = BottleneckLayer(7, 5, generator=generator()).double()
    z = torch.randn(3, 7, generator=generator(1), dtype=torch.float64)
    _, found = layer(z)
    mean, std = layer.mean(z), (layer.log_variance(z) / 2).exp()
    one, zero = torch.ones_like(std), torch.zeros_like(std)
    expected = torch.distributions.kl_divergence(
        torch.distributions.Normal(mean, std), torch.distributions.Normal(zero, one)
    ).sum(dim=1)
    torch.testing.assert_close(found, expected)


def test_what_passes_has_the_mean_and_spread_of_the_encoder() -> None:
    layer = BottleneckLayer(7, 5, generator=generator()).double()
    z = torch.randn(1, 7, generator=generator(1), dtype=torch.float64)
    with torch.random.fork_rng(devices=[]):
        torch.random.set_rng_state(generator(2).get_state())
        drawn = layer(z.expand(20_000, 7))[0]
    mean, std = layer.mean(z)[0], (layer.log_variance(z) / 2).exp()[0]
    assert bool(((drawn.mean(dim=0) - mean).abs() < 5 * std / 20_000**0.5).all())
    torch.testing.assert_close(drawn.std(dim=0), std, rtol=0.03, atol=0)
    assert torch.equal(layer.eval()(z)[0][0], mean)


def test_the_loss_adds_its_share_of_the_divergence() -> None:
    outputs = torch.randn(4, 3, generator=generator(), dtype=torch.float64)
    divergence, targets = torch.tensor([1.0, 2.0, 3.0, 4.0]).double(), torch.tensor([0, 1, 2, 0])
    given = BottleneckOutput(outputs, divergence)
    assert float(DEFENSE.loss()(given, targets)) == pytest.approx(float(F.cross_entropy(outputs, targets)) + 0.05 * 2.5)
    with pytest.raises(InputError, match=r"loss: expected one of cross_entropy"):
        DEFENSE.loss("hinge")


def test_an_objective_draws_its_noise_from_the_mask_seed_alone() -> None:
    before = torch.random.get_rng_state()
    updates = [Release(FedSGD(), [DEFENSE])(objective(seed), batch(3), generator()).tensors for seed in (0, 0, 1)]
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(updates[0][name], updates[1][name]) for name in updates[0])
    assert not torch.equal(updates[0]["layer.mean.weight"], updates[2]["layer.mean.weight"])
    narrow = Release(FedSGD())(objective().to(torch.float32), batch(3), generator()).tensors
    for name, tensor in updates[0].items():
        torch.testing.assert_close(narrow[name].double(), tensor, rtol=1e-3, atol=1e-5)


def test_the_gradient_is_that_of_plain_autograd() -> None:
    data, plain = batch(3), model().train()
    with torch.random.fork_rng(devices=[]):
        torch.random.set_rng_state(generator(0).get_state())
        loss = DEFENSE.loss()(plain(data.inputs), data.targets)
    expected = torch.autograd.grad(loss, list(plain.parameters()))
    found = Release(FedSGD(), [DEFENSE])(objective(), data, generator()).tensors
    for tensor, reference in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(tensor, reference)


def test_the_derivative_of_the_release_is_right_for_the_draw() -> None:
    exposure = Exposure(objective(), batch(2), Release(FedSGD(), [DEFENSE]))
    found = check_derivative(exposure, generator=generator())
    assert found.outcome is Outcome.CONVERGED
    other = Exposure(objective(1), batch(2), Release(FedSGD(), [DEFENSE]))
    assert not torch.allclose(GradientJacobian(exposure).dense(), GradientJacobian(other).dense(), rtol=0.05)


def test_it_goes_with_defenses_of_single_examples() -> None:
    release = Release(FedSGD(), [DEFENSE, ClipPerExample(0.1)])
    known = objective()
    assert float(known.flatten(release(known, batch(3), generator()).tensors).norm()) <= 0.1


def test_a_release_that_names_it_without_having_it_is_refused() -> None:
    release = Release(FedSGD(), [DEFENSE])
    plain = Objective.from_module(nn.Sequential(nn.Linear(FEATURES, 3)).double())
    with pytest.raises(InputError, match=r"one BottleneckLayer of width 5, got none; build the model with"):
        release(plain, batch(2), generator())
    with pytest.raises(InputError, match=r"one BottleneckLayer of width 4, got widths \[5\]"):
        Exposure(objective(), batch(2), Release(FedSGD(), [replace(DEFENSE, width=4)]))
    with pytest.raises(InputError, match=r"a loss with beta = 0.5, got 0.05"):
        Release(FedSGD(), [replace(DEFENSE, beta=0.5)])(objective(), batch(2), generator())
    unpaid = Objective.from_module(model(), loss=lambda given, y: F.cross_entropy(given.outputs, y), mode="train")
    with pytest.raises(InputError, match=r"a loss with beta = 0.05, got .*<lambda>"):
        release(unpaid, batch(2), generator())
    with pytest.raises(InputError, match=r"expected mode='train', got 'eval'.* adds no noise"):
        release(objective(mode=Mode.EVAL), batch(2), generator())
    with pytest.raises(InputError, match=r"before all others, got VariationalBottleneck after ClipPerExample"):
        Release(FedSGD(), [ClipPerExample(1.0), DEFENSE])


def test_a_model_that_trains_with_it_learns() -> None:
    data, plain = batch(30, seed=6), model().train()
    optimizer, loss = torch.optim.Adam(plain.parameters(), lr=0.03), DEFENSE.loss()
    first = float(loss(plain(data.inputs), data.targets).detach())
    for _ in range(150):
        optimizer.zero_grad()
        value = loss(plain(data.inputs), data.targets)
        value.backward()
        optimizer.step()
    plain.eval()
    assert float(loss(plain(data.inputs), data.targets).detach()) < 0.7 * first
    assert float((plain(data.inputs).outputs.argmax(dim=1) == data.targets).double().mean()) > 0.8


@pytest.mark.parametrize(("field", "value"), [("beta", -1.0), ("beta", float("inf")), ("width", 0), ("width", 2.5)])
def test_what_makes_no_sense_is_refused(field: str, value: float) -> None:
    with pytest.raises(InputError, match=rf"VariationalBottleneck.{field}: expected"):
        replace(DEFENSE, **{field: value})


def test_the_adversary_does_not_get_the_draw() -> None:
    data, known, release = batch(1), objective(), Release(FedSGD(), [DEFENSE])
    update = release(known, data, generator())
    knowledge = HonestButCurious(targets=True).disclose(known, release, data)
    assert knowledge.objective is not None
    assert knowledge.objective.mask_seed != known.mask_seed
    assert knowledge.objective.params is known.params
    assert check_update(known, release, data, update).status.value == "consistent"
    found = GaussNewton(starts=1, max_steps=10)(update, knowledge, generator=generator())
    assert found.inputs is None or float((found.inputs - data.inputs).abs().max()) > 1e-2
    unlisted = HonestButCurious(targets=True).disclose(known, Release(FedSGD()), data)
    assert unlisted.objective is knowledge.objective
    opened = HonestButCurious(targets=True, masks=True).disclose(known, release, data)
    told = GaussNewton()(update, opened, generator=generator())
    assert told.inputs is not None
    assert float((told.inputs - data.inputs).abs().max()) < 1e-6, "with the draw it would be read exactly"

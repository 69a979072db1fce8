"""SCAFFOLD against its algorithm written out, and accumulation over micro-batches."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import gradleak as gl
from gradleak.accounting import Accounting
from gradleak.audits.released import check_update
from gradleak.core import Batch, DiagonalGaussian, Domain, HonestButCurious, Objective, Release, UpdateKind
from gradleak.defenses import DPSGD
from gradleak.protocols import AccumulatedGradient, FedAvg, FedSGD, Scaffold
from gradleak.results import InputError, UnsupportedError

DOMAIN = Domain(shape=(6,), kind="tabular")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def client() -> Objective:
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    with torch.no_grad():
        for place, parameter in enumerate(net.parameters()):
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator(place)))
    return Objective.from_module(net)


def batch(examples: int = 4, seed: int = 9) -> Batch:
    inputs = torch.rand(examples, 6, generator=generator(seed), dtype=torch.float64)
    return Batch(inputs, torch.arange(examples) % 3, DOMAIN)


def test_two_rounds_of_two_clients_are_those_of_the_algorithm() -> None:
    """Karimireddy et al. 2020, algorithm 1, option II, by hand: x, c and both c_i after every round."""
    objective, rate, steps = client(), 0.1, 4
    x = {name: tensor.detach().clone() for name, tensor in objective.params.items()}
    zero = {name: torch.zeros_like(tensor) for name, tensor in x.items()}
    server, controls = dict(zero), [dict(zero), dict(zero)]
    local = FedAvg(learning_rate=rate, epochs=2, batch_size=2)
    for _ in range(2):
        moved, changes = [], []
        for number in range(2):
            private, y, control = batch(seed=number), dict(x), controls[number]
            for step in range(steps):
                place = slice(2 * (step % 2), 2 * (step % 2) + 2)
                g = objective.gradient(y, Batch(private.inputs[place], private.targets[place]))
                y = {n: y[n] - rate * (g[n] - control[n] + server[n]) for n in y}
            new = {n: control[n] - server[n] + (x[n] - y[n]) / (steps * rate) for n in y}
            found = Scaffold.with_controls(local, server, control).mean(objective, x, private)
            for name in x:
                torch.testing.assert_close(found[name], x[name] - y[name], rtol=1e-10, atol=1e-14)
            moved.append({n: y[n] - x[n] for n in y})
            changes.append({n: new[n] - control[n] for n in y})
            controls[number] = new
        x = {n: x[n] + (moved[0][n] + moved[1][n]) / 2 for n in x}
        server = {n: server[n] + (changes[0][n] + changes[1][n]) / 2 for n in server}


def corrected() -> tuple[Scaffold, Objective]:
    objective = client()
    zero: dict[str, Tensor] = {name: torch.zeros_like(tensor) for name, tensor in objective.params.items()}
    some = {name: 0.1 * torch.ones_like(tensor) for name, tensor in zero.items()}
    return Scaffold.with_controls(FedAvg(learning_rate=0.1, epochs=2), some, zero), objective


def test_without_control_variates_it_is_fedavg() -> None:
    objective = client()
    plain, first = FedAvg(learning_rate=0.1, epochs=2), Scaffold(learning_rate=0.1, epochs=2)
    means = [Release(one).mean(objective, objective.params, batch()) for one in (plain, first)]
    assert all(torch.equal(means[0][name], means[1][name]) for name in means[0])
    assert first.mini_batch_weights(4) == plain.mini_batch_weights(4)


def test_the_gate_and_unrolled_attacks_follow_control_variates_and_the_average_gradient_refuses_them() -> None:
    protocol, objective = corrected()
    release = Release(protocol)
    one = Batch(batch().inputs[:1], batch().targets[:1], DOMAIN)
    update = release(objective, one, generator())
    assert check_update(objective, release, one, update).status == "consistent"
    assert check_update(objective, Release(FedAvg(learning_rate=0.1, epochs=2)), one, update).status == "inconsistent"
    knowledge = HonestButCurious(targets=True).disclose(objective, release, one)
    found = gl.GaussNewton()(update, knowledge, generator=generator(1))
    assert float((found.inputs - one.inputs).abs().max()) < 1e-6
    assert "audit that as FedSGD, too" in found.note
    average = gl.InvertingGradients(iterations=2, local_training="average_gradient")
    with pytest.raises(UnsupportedError, match="got Scaffold, whose update is not a multiple of a gradient"):
        average(update, knowledge, generator=generator(1))


def test_controls_that_do_not_fit_are_refused() -> None:
    objective = client()
    with pytest.raises(InputError, match="expected one number for each of 53 shared entries, got 1"):
        Scaffold(learning_rate=0.1, correction=[1.0]).mean(objective, objective.params, batch())
    with pytest.raises(InputError, match="expected control variates of the same names and shapes"):
        Scaffold.with_controls(FedAvg(learning_rate=0.1), {"a": torch.zeros(1)}, {"b": torch.zeros(1)})


def test_unequal_micro_batches_are_what_a_training_loop_accumulates() -> None:
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    private = batch()
    for place in (slice(0, 3), slice(3, 4)):
        loss = nn.functional.cross_entropy(net(private.inputs[place]), private.targets[place])
        (loss / 2).backward()
    objective = Objective.from_module(net)
    release = Release(AccumulatedGradient(micro_batches=[3, 1]))
    update = release(objective, private, generator())
    assert update.kind is UpdateKind.GRADIENT
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(update.tensors[name], parameter.grad)
    assert check_update(objective, release, private, update).status == "consistent"
    (cause,) = check_update(objective, Release(FedSGD()), private, update).causes
    assert "state AccumulatedGradient(micro_batches=[3, 1])" in cause
    knowledge = HonestButCurious(targets=True).disclose(objective, release, private)
    found = gl.InvertingGradients(iterations=300, total_variation=0.0)(update, knowledge, generator=generator(2))
    wrong = HonestButCurious(targets=True).disclose(objective, Release(FedSGD()), private)
    other = gl.InvertingGradients(iterations=300, total_variation=0.0)(update, wrong, generator=generator(2))
    assert found.details["relative_residual"] < other.details["relative_residual"]


def test_noise_of_micro_batches_adds_up_and_their_sizes_have_to() -> None:
    noisy = Release(AccumulatedGradient(micro_batches=[3, 1]), [DPSGD(clip_norm=1.0, noise_std=0.6, noise="sum")])
    law = noisy.noise(client(), examples=4)
    assert isinstance(law, DiagonalGaussian)
    assert law.level == pytest.approx((0.1**2 + 0.3**2) ** 0.5)
    scores = {score.name: score for score in Accounting(delta=1e-5)(noisy, client(), 4)}
    assert scores["gaussian_epsilon"].evidence == "upper_bound"
    with pytest.raises(InputError, match=r"add up to the 5 examples of the batch, got 3 \+ 1 = 4"):
        noisy.mean(client(), client().params, batch(5))

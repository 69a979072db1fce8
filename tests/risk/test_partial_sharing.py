"""Clients that share a part: BatchNorm trained and kept (FedBN), adapters on a frozen base, and what an attack makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import gradleak as gl
from gradleak.audits.released import check_update
from gradleak.core import Batch, Domain, HonestButCurious, Objective, Release
from gradleak.defenses import Clip
from gradleak.protocols import FedAvg, FedSGD
from gradleak.results import InputError
from gradleak.risk import VisibleLayers

LOCAL = FedAvg(learning_rate=0.1, epochs=2, batch_size=4)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def fed_bn() -> nn.Sequential:
    net = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)).double()
    with torch.no_grad():
        for place, parameter in enumerate(net.parameters()):
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator(place)))
    return net


def batch(examples: int = 8) -> Batch:
    inputs = torch.rand(examples, 6, generator=generator(9), dtype=torch.float64)
    return Batch(inputs, torch.arange(examples) % 3, Domain(shape=(6,), kind="tabular"))


def test_what_a_client_of_fedbn_sends_is_its_delta_without_batch_norm_which_it_trained_as_well() -> None:
    net, private = fed_bn(), batch()
    whole = Objective.from_module(net, mode="train")
    sent = VisibleLayers.all_but_norms(whole)
    release = sent.release(whole, Release(LOCAL))
    update = release(sent.objective(whole), private, generator())
    start = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net.train()
    for _ in range(2):
        for place in (slice(0, 4), slice(4, 8)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(private.inputs[place]), private.targets[place]).backward()
            optimizer.step()
    assert list(update.tensors) == ["0.weight", "0.bias", "3.weight", "3.bias"]
    for name, parameter in net.named_parameters():
        if name in update.tensors:
            torch.testing.assert_close(update.tensors[name], start[name] - parameter.detach())
    # A client that does not train them goes another way.
    frozen = Release(LOCAL)(sent.objective(whole), private, generator())
    assert not torch.allclose(frozen.tensors["0.weight"], update.tensors["0.weight"], rtol=1e-4)


def test_gate_and_attack_read_it() -> None:
    """One example, evaluation mode: rebuilt from what is sent."""
    whole, private = Objective.from_module(fed_bn()), batch(1)
    sent = VisibleLayers.all_but_norms(whole)
    release, objective = sent.release(whole, Release(replace(LOCAL, batch_size=None))), sent.objective(whole)
    update = release(objective, private, generator())
    assert check_update(objective, release, private, update).status == "consistent"
    knowledge = HonestButCurious(targets=True).disclose(objective, release, private)
    found = gl.GaussNewton()(update, knowledge, generator=generator(1))
    assert float((found.inputs - private.inputs).abs().max()) < 1e-6


def test_shuffled_and_clipped_clients_share_a_part_too() -> None:
    whole, private = Objective.from_module(fed_bn()), batch()
    sent = VisibleLayers.all_but_norms(whole)
    objective = sent.objective(whole)
    shuffled = sent.release(whole, Release(replace(LOCAL, shuffled=True)))
    assert "the client shuffles" in shuffled.noise(objective, examples=8).reason
    draws = [objective.flatten(shuffled(objective, private, generator(seed)).tensors) for seed in (1, 2)]
    assert not torch.allclose(draws[0], draws[1], rtol=1e-6)
    clipped = sent.release(whole, Release(LOCAL, [Clip(1e-3)]))
    made = objective.flatten(clipped(objective, private, generator()).tensors)
    assert float(made.norm()) == pytest.approx(1e-3)


class Adapted(nn.Module):
    """A linear layer with a low-rank adapter; its own weights stay."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.base = nn.Linear(inside, outside)
        self.base.requires_grad_(False)
        self.down, self.up = nn.Linear(inside, 2, bias=False), nn.Linear(2, outside, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        made: Tensor = self.base(inputs) + self.up(self.down(inputs))
        return made


def test_adapters_alone_are_shared_and_their_rows_alone_are_in_the_derivative() -> None:
    net = nn.Sequential(Adapted(6, 8), nn.Tanh(), Adapted(8, 3)).double()
    objective, private = Objective.from_module(net), batch(1)
    assert list(objective.params) == ["0.down.weight", "0.up.weight", "2.down.weight", "2.up.weight"]
    update = Release(FedAvg(learning_rate=0.1, epochs=2))(objective, private, generator())
    assert list(update.tensors) == list(objective.params)
    operator = gl.GradientJacobian(gl.Exposure(objective, private, Release(FedSGD())))
    assert operator.shape == (objective.size, 6)
    assert torch.equal(net[0].base.weight, objective.frozen["0.base.weight"])


def test_a_model_without_normalization_keeps_nothing() -> None:
    with pytest.raises(InputError, match="tensors of a normalization layer, got none"):
        VisibleLayers.all_but_norms(Objective.from_module(nn.Linear(3, 2)))

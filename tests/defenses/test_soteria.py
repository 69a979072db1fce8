"""Soteria: which columns go, what closed forms see, and that knowing it undoes it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.attacks.setting import rows, setting, small_net
from tests.defenses.setting import batch, generator, network, objective

from gradleak.attacks import GaussNewton
from gradleak.core import Bounds, Exposure, HonestButCurious, Objective, Release
from gradleak.defenses import Soteria
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedSGD
from gradleak.results import InputError, UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")


def _gone(examples: int, share: float) -> list[int]:
    """The columns of layer "2" that go, by a loop of plain autograd and percentiles of numpy."""
    model, data = network(), batch(examples)
    ratios = np.zeros(8)
    for row in data.inputs:
        hidden = row.clone().requires_grad_()
        values = torch.tanh(model[0](hidden[None]))[0]
        for unit in range(8):
            (slope,) = torch.autograd.grad(values[unit], hidden, retain_graph=True)
            ratios[unit] += float(slope.norm() / values[unit].detach().abs())
    return sorted(np.argsort(ratios)[: int(share * 8)].tolist())


@pytest.mark.parametrize(("examples", "share"), [(1, 0.5), (4, 0.75), (2, 0.0)])
def test_the_columns_with_the_smallest_ratios_go_and_all_else_stays(examples: int, share: float) -> None:
    loss, data = objective(), batch(examples)
    plain = Release(FedSGD())(loss, data, generator()).tensors
    update = Release(FedSGD(), [Soteria(layer="2", share=share)])(loss, data, generator()).tensors
    zero = (update["2.weight"] == 0).all(dim=0).nonzero().flatten().tolist()
    assert zero == _gone(examples, share)
    kept = [place for place in range(8) if place not in zero]
    assert torch.equal(update["2.weight"][:, kept], plain["2.weight"][:, kept])
    assert all(torch.equal(update[name], plain[name]) for name in plain if name != "2.weight")


def test_closed_forms_see_the_rows_of_a_that_are_left() -> None:
    loss, data = objective(), batch(1)
    release = Release(FedSGD(), [Soteria(layer="2", share=0.5)])
    left = loss.flatten(release(loss, data, generator()).tensors) != 0
    whole = GradientJacobian(Exposure(loss, data, Release(FedSGD()))).dense()
    seen = GradientJacobian(Exposure(loss, data, release)).dense()
    torch.testing.assert_close(seen[left], whole[left])
    assert not bool(seen[~left].any())


def test_bounds_hold_the_truth_and_are_open_only_where_columns_went() -> None:
    loss, data = objective(), batch(3)
    plain = Release(FedSGD())(loss, data, generator()).tensors
    defense = Soteria(layer="2", share=0.5)
    update = Release(FedSGD(), [defense])(loss, data, generator()).tensors
    found = defense.before(Bounds.of(update))
    for name, tensor in plain.items():
        assert bool(((found.lower[name] <= tensor) & (tensor <= found.upper[name])).all())
        assert int((~found.known(name)).sum()) == (4 * 3 if name == "2.weight" else 0)
    other = Soteria(layer="9").before(Bounds.of(update))
    assert all(torch.equal(other.lower[name], update[name]) for name in update)


def test_who_knows_it_rebuilds_what_who_does_not_cannot() -> None:
    errors = []
    for told in (True, False):
        defenses = [Soteria(layer="4", share=0.75)]
        case = setting(small_net(), rows(1), defenses=defenses, threat=HonestButCurious(targets=True, defenses=told))
        attack = GaussNewton(starts=1, max_steps=12)
        found = attack(case.update, case.knowledge, generator=generator(3))
        errors.append(case.error(found.inputs))
        if told:
            assert "the bounds that Soteria leave of every entry" in found.details["information"]
    assert errors[0] < 1e-20 < 1e-3 < errors[1]


def test_layers_that_are_none_are_refused() -> None:
    loss, data = objective(), batch(2)
    with pytest.raises(InputError, match=r"Soteria\.layer: expected a linear layer of the model, one of '0', '2'"):
        Release(FedSGD(), [Soteria(layer="1")])(loss, data, generator())
    with pytest.raises(InputError, match="share"):
        Soteria(layer="2", share=1.0)

    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = network()[0]
            self.head = network()[2]

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.head(self.layer(inputs) + self.layer(-inputs))

    with pytest.raises(UnsupportedError, match="is called once, with one vector an example, got 2 calls"):
        Release(FedSGD(), [Soteria(layer="layer")])(Objective.from_module(Twice()), data, generator())

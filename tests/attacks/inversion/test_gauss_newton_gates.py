"""ReLU networks with free gates: the same release at the truth, exact derivatives, and inputs found exactly."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gradleak.attacks import GaussNewton
from gradleak.attacks.inversion.gauss_newton.gates import GateSystem, gate_system
from gradleak.attacks.inversion.gauss_newton.residual_system import Cost
from gradleak.attacks.inversion.problem import LabelPolicy, Problem
from gradleak.attacks.inversion.variables import Pixels
from gradleak.core import Batch, Defense, Domain, HonestButCurious, Protocol
from gradleak.defenses import Clip, ClipPerExample, GaussianNoise
from gradleak.models import lenet_dlg
from gradleak.protocols import FedAvg, FedSGD
from gradleak.results import Outcome
from tests.attacks.setting import Setting, rows, setting, small_net

SEEDS = range(6)


def _generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _problem(case: Setting) -> Problem:
    return Problem.pose(case.update, case.knowledge, pixels=Pixels(), policy=LabelPolicy.RECOVER, dtype=torch.float64)


def _system(case: Setting) -> GateSystem:
    system = gate_system(_problem(case), 2**30, Cost(), 4096)
    assert system is not None
    return system


def _point(seed: int = 1) -> Tensor:
    return torch.rand(12, generator=_generator(seed), dtype=torch.float64)


def _release_with_gates(net: nn.Sequential, x: Tensor, label: int, gates: Tensor) -> Tensor:
    """The gradient of the MLP by the chain rule, written out, with given gates in the backward pass."""
    first, second, last = net[0], net[2], net[4]
    first_gates, second_gates = gates[:32], gates[32:]
    h1 = (first.weight @ x + first.bias).clamp(min=0)
    h2 = (second.weight @ h1 + second.bias).clamp(min=0)
    error = (last.weight @ h2 + last.bias).softmax(0)
    error[label] -= 1
    back2 = second_gates * (last.weight.T @ error)
    back1 = first_gates * (second.weight.T @ back2)
    parts = [torch.outer(back1, x), back1, torch.outer(back2, h1), back2, torch.outer(error, h2), error]
    return torch.cat([part.reshape(-1) for part in parts])


def test_the_release_with_gates_is_the_chain_rule_with_gates() -> None:
    net = small_net("relu").double()
    case = setting(net, rows(1))
    system = _system(case)
    assert system.units == 48
    flat = system.refresh(_point())
    assert len(flat) == 12 + 12
    gates = torch.rand(12, generator=_generator(3), dtype=torch.float64)
    ours = system.mean(torch.cat([flat[:12], gates]))
    whole = system.gates.clone()
    whole[system.free] = gates
    with torch.no_grad():
        expected = _release_with_gates(net, flat[:12], 1, whole)
    torch.testing.assert_close(ours, expected)


def test_at_the_truth_the_update_is_explained_by_its_own_gates() -> None:
    case = setting(small_net("relu"), rows(1))
    system = _system(case)
    flat = system.refresh(case.truth.inputs.reshape(-1))
    assert system.residual(flat).norm() < 1e-14
    torch.testing.assert_close(flat[12:], flat[12:].round())


def test_the_derivative_by_inputs_and_gates_is_exact() -> None:
    case = setting(small_net("relu"), rows(1))
    system = _system(case)
    flat = system.refresh(_point())
    flat = torch.cat([flat[:12], 0.2 + 0.6 * flat[12:]])
    columns = system.jacobians(flat[None])[0][1]
    step = 1e-6
    for place in range(len(flat)):
        move = torch.zeros_like(flat)
        move[place] = step
        central = (system.mean(flat + move) - system.mean(flat - move)) / (2 * step)
        torch.testing.assert_close(columns[place], central, rtol=1e-6, atol=1e-8)


def test_gates_are_given_back_when_they_are_settled_and_far_from_switching() -> None:
    system = _system(setting(small_net("relu"), rows(1)))
    flat = system.refresh(_point())
    first = system.free.clone()
    assert int(first.sum()) == 12
    # Elsewhere other units are near to switching; gates that agree with their unit are let go, others stay.
    moved = torch.cat([_point(9), flat[12:]])
    moved[12] = 0.5
    again = system.refresh(moved)
    kept = first.nonzero()[0, 0]
    assert bool(system.free[kept])
    assert 12 <= int(system.free.sum()) < 24
    assert len(again) == 12 + int(system.free.sum())
    assert float(again[12:][system.free.nonzero()[:, 0] == kept]) == 0.5


def _solved(net: nn.Module, seed: int, *, free_gates: bool) -> bool:
    case = setting(net, rows(seed % 3, seed=seed))
    attack = GaussNewton(starts=1, free_gates=free_gates, peel=False)
    found = attack(case.update, case.knowledge, generator=_generator(seed))
    explained = found.outcome is Outcome.CONVERGED
    # An explained update is an input that was found, and the other way round.
    assert explained == (case.error(found.inputs) < 1e-20)
    assert (found.details["gate_steps"] > 0) == free_gates
    return explained


@pytest.mark.parametrize("seed", SEEDS)
def test_where_a_relu_network_is_a_chain_the_first_start_is_read_layer_by_layer(seed: int) -> None:
    case = setting(small_net("relu", seed=seed), rows(seed % 3, seed=seed))
    found = GaussNewton()(case.update, case.knowledge, generator=_generator(seed))
    assert found.outcome is Outcome.CONVERGED
    assert "its start was read layer by layer" in found.note
    assert case.error(found.inputs) < 1e-24
    assert (found.details["starts"], found.details["gate_steps"]) == (1, 0)
    assert found.plain_gradients < 100


@pytest.mark.parametrize(
    ("activation", "labels", "defenses"),
    [("tanh", (1,), []), ("relu", (0, 2), []), ("relu", (1,), [Clip(max_norm=1e3)])],
    ids=["no rectifier", "batch", "clipped"],
)
def test_where_nothing_is_read_the_option_changes_no_bit(
    activation: str, labels: tuple[int, ...], defenses: list[Defense]
) -> None:
    threat = HonestButCurious(targets=True)
    case = setting(small_net(activation), rows(*labels), defenses=defenses, threat=threat)
    one, other = (
        GaussNewton(max_steps=3, starts=1, peel=peel)(case.update, case.knowledge, generator=_generator())
        for peel in (True, False)
    )
    assert torch.equal(one.inputs, other.inputs)
    assert (one.note, one.plain_gradients, one.details) == (other.note, other.plain_gradients, other.details)


def test_table_rows_are_found_behind_relu_networks() -> None:
    with_gates = [_solved(small_net("relu", seed=seed), seed, free_gates=True) for seed in SEEDS]
    without = [_solved(small_net("relu", seed=seed), seed, free_gates=False) for seed in SEEDS]
    assert sum(with_gates) >= 5
    assert sum(with_gates) > sum(without)


class _InPlaceAndLeaky(nn.Module):
    """In-place and functional rectifiers, leaky and not."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        plain = small_net("relu", seed=seed)
        self.first, self.second, self.last = plain[0], plain[2], plain[4]
        self.leaky = nn.LeakyReLU(0.1, inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.leaky(self.second(torch.relu(self.first(x)))))


def test_leaky_and_in_place_rectifiers_have_gates_too() -> None:
    case = setting(_InPlaceAndLeaky(3), rows(1, seed=3))
    system = _system(case)
    assert system.units == 48
    torch.testing.assert_close(system.mean(system.refresh(_point())), system.problem.mean(_point(), torch.tensor([1])))
    found = GaussNewton(starts=2, warm_iterations=0)(case.update, case.knowledge, generator=_generator())
    assert found.outcome is Outcome.CONVERGED
    assert case.error(found.inputs) < 1e-20


@pytest.mark.parametrize(
    ("activation", "protocol", "defenses"),
    [
        ("tanh", FedSGD(), []),
        ("relu", FedAvg(learning_rate=0.1, epochs=2), []),
        ("relu", FedSGD(), [ClipPerExample(1.0)]),
    ],
)
def test_where_gates_do_not_apply_the_network_is_taken_as_it_is(
    activation: str, protocol: Protocol, defenses: list[Defense]
) -> None:
    case = setting(small_net(activation), rows(1), protocol=protocol, defenses=defenses)
    found = GaussNewton(max_steps=2, starts=1)(case.update, case.knowledge, generator=_generator())
    assert found.details["free_gates"] is None
    assert found.details["gate_steps"] == 0


class _SideEffect(nn.Module):
    """Rectifies in place and never looks at what the call returns."""

    def __init__(self) -> None:
        super().__init__()
        plain = small_net("relu")
        self.first, self.second, self.last = plain[0], plain[2], plain[4]

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        hidden.relu_()
        return self.last(torch.relu(self.second(hidden)))


def test_a_network_that_the_method_would_change_gets_no_gates() -> None:
    case = setting(_SideEffect(), rows(1))
    assert gate_system(_problem(case), 2**30, Cost(), 4096) is None


def test_gates_go_with_clipping_and_noise() -> None:
    case = setting(small_net("relu", seed=3), rows(1, seed=3), defenses=[Clip(0.5), GaussianNoise(std=1e-5)])
    found = GaussNewton(warm_iterations=50)(case.update, case.knowledge, generator=_generator())
    assert found.details["gate_steps"] > 0
    assert found.outcome is Outcome.CONVERGED
    assert case.error(found.inputs) < 1e-3


def test_a_batch_is_found_behind_a_relu_network() -> None:
    case = setting(small_net("relu", seed=3), rows(0, 2, seed=3), threat=HonestButCurious(targets=True))
    found = GaussNewton(starts=6, warm_iterations=0)(case.update, case.knowledge, generator=_generator())
    assert found.outcome is Outcome.CONVERGED
    assert case.error(found.inputs) < 1e-16


def test_a_color_image_behind_a_relu_lenet_is_found_beyond_200_db() -> None:
    domain = Domain.image(channels=3, height=8, width=8)
    image = torch.rand(1, 3, 8, 8, generator=_generator(4))
    case = setting(
        lenet_dlg(size=8, activation="relu", generator=_generator(4)), Batch(image, torch.tensor([3]), domain)
    )
    found = GaussNewton(starts=1)(case.update, case.knowledge, generator=_generator(4))
    assert found.outcome is Outcome.CONVERGED
    assert found.details["free_gates"] == 72
    assert case.error(found.inputs) < 1e-20

"""The gate on steps of Opacus: its noise passes, a step without much of it does not, and the weights do not change by it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from gradleak.attacks import GaussNewton
from gradleak.auditing import Gate
from gradleak.core import Objective
from gradleak.results import LeakRefusedError, UnsupportedError
from tests.integrations.cases import network, rows

opacus = pytest.importorskip("opacus", reason="opacus is not installed; make test-integrations runs this")
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]


def private(multiplier: float, clipping: str = "flat", batch: int = 4) -> tuple[Any, Any, Any, Any]:
    data, criterion = rows(16), nn.CrossEntropyLoss()
    torch.manual_seed(1)
    adaptive = {
        "target_unclipped_quantile": 0.5,
        "clipbound_learning_rate": 0.2,
        "max_clipbound": 10.0,
        "min_clipbound": 0.1,
        "unclipped_num_std": 2.0,
    }
    model = network()
    made = opacus.PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(data.inputs, data.targets), batch_size=batch
        ),
        noise_multiplier=multiplier,
        max_grad_norm=[1.0] * 4 if clipping == "per_layer" else 1.0,
        clipping="flat" if clipping == "ghost" else clipping,
        grad_sample_mode="ghost" if clipping == "ghost" else "hooks",
        criterion=criterion,
        poisson_sampling=False,
        **(adaptive if clipping == "adaptive" else {}),
    )
    return (made[0], made[1], made[2], made[3]) if clipping == "ghost" else (made[0], made[1], criterion, made[2])


def step(multiplier: float, clipping: str = "flat", batch: int = 4, action: str | None = "refuse") -> tuple[Any, Any]:
    from gradleak.integrations.opacus import StepGate

    model, optimizer, criterion, loader = private(multiplier, clipping, batch)
    inputs, targets = next(iter(loader))
    torch.manual_seed(5)
    judge = None
    if action is not None:
        attacks = {"gauss_newton": GaussNewton(max_steps=12, starts=1)}
        gate = Gate(on_leak=action, budget="120s", attacks=attacks)
        judge = StepGate(gate, model, optimizer, domain=rows(1).domain)
        judge.sees(inputs, targets)
    optimizer.zero_grad()
    criterion(model(inputs), targets).backward()
    optimizer.step()
    return judge, [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("clipping", ["flat", "ghost", "adaptive"])
def test_noise_passes_and_the_weights_are_those_without_a_gate(clipping: str) -> None:
    judge, gated = step(1.0, clipping)
    (decision,) = judge.decisions
    assert (decision.passes, decision.leaks) == (True, False), decision
    assert decision.reason == "no_attack_had_a_chance"
    _, plain = step(1.0, clipping, action=None)
    assert all(map(torch.equal, gated, plain))


def test_one_example_under_next_to_no_noise_is_refused() -> None:
    judge, gated = step(1e-6, batch=1, action="warn")
    assert judge.decisions[0].leaks is True, judge.decisions
    _, plain = step(1e-6, batch=1, action=None)
    assert all(map(torch.equal, gated, plain))
    with pytest.raises(LeakRefusedError):
        step(1e-6, batch=1)


def test_the_release_is_what_opacus_makes() -> None:
    from gradleak.core import Batch
    from gradleak.integrations.opacus import release_of

    model, optimizer, criterion, loader = private(1e-9)
    inputs, targets = next(iter(loader))
    objective = Objective.from_module(model)
    release = release_of(optimizer)
    mean = release.mean(objective, objective.params, Batch(inputs, targets))
    seen: dict[str, Any] = {}
    optimizer.attach_step_hook(lambda one: seen.update({n: p.grad.clone() for n, p in model.named_parameters()}))
    criterion(model(inputs), targets).backward()
    optimizer.step()
    for name, tensor in mean.items():
        assert torch.allclose(seen[f"_module.{name}"], tensor, atol=1e-5), name
    with pytest.raises(UnsupportedError, match="one a layer"):
        release_of(private(1.0, "per_layer")[1])


def test_epsilons_agree() -> None:
    from gradleak.integrations.opacus import epsilons

    accountant = opacus.accountants.PRVAccountant()
    accountant.history = [(1.1, 0.01, 1000)]
    (ours,) = epsilons(accountant.history, delta=1e-5)
    theirs = accountant.get_epsilon(1e-5)
    assert ours.value == pytest.approx(theirs, rel=0.02)

"""The gate on steps of Opacus: its noise passes, a step without much of it does not, and the weights do not change by it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from gradleak.accounting import mechanism_of
from gradleak.attacks import GaussNewton
from gradleak.auditing import Gate
from gradleak.core import Batch, GaussianMechanism, Objective
from gradleak.defenses import ClipTensorsPerExample
from gradleak.results import InputError, LeakRefusedError, UnsupportedError
from tests.integrations.cases import network, rows

opacus = pytest.importorskip("opacus", reason="opacus is not installed; make test-integrations runs this")
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]
CLIPPINGS = ["flat", "per_layer", "ghost", "adaptive"]


NORMS = [0.3, 0.05, 0.4, 0.1]


def private(multiplier: float, clipping: str = "flat", batch: int = 4) -> tuple[Any, Any, Any, Any]:
    data, criterion = rows(16), nn.CrossEntropyLoss()
    torch.manual_seed(1)
    engine = opacus.PrivacyEngine()
    settings: dict[str, Any] = {"clipping": clipping, "max_grad_norm": 1.0}
    if clipping == "per_layer":
        settings["max_grad_norm"] = NORMS
    elif clipping.endswith("adaptive"):
        bounds = {"max_clipbound": 10.0, "min_clipbound": 0.1}
        settings |= {"target_unclipped_quantile": 0.5, "clipbound_learning_rate": 0.2, **bounds}
    if clipping.startswith("ghost"):
        settings |= {"clipping": "flat", "grad_sample_mode": "ghost", "criterion": criterion}
    if clipping == "adaptive":
        settings |= {"unclipped_num_std": 2.0}
    elif clipping == "ghost adaptive":
        from opacus.utils.adaptive_clipping.adaptive_clipping_utils import PrivacyEngineAdaptiveClipping

        engine = PrivacyEngineAdaptiveClipping()
    model = network()
    made = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(data.inputs, data.targets), batch_size=batch
        ),
        noise_multiplier=multiplier,
        poisson_sampling=False,
        **settings,
    )
    return (made[0], made[1], made[2], made[3]) if len(made) == 4 else (made[0], made[1], criterion, made[2])


def step(
    multiplier: float, clipping: str = "flat", batch: int = 4, action: str | None = "refuse", look: Any = None
) -> tuple[Any, Any]:
    """The gate, if there is one, and the weights after a step; `look` sees the optimizer and the model in its middle."""
    from gradleak.integrations.opacus import StepGate

    model, optimizer, criterion, loader = private(multiplier, clipping, batch)
    inputs, targets = next(iter(loader))
    torch.manual_seed(5)
    judge = None
    if look is not None:
        optimizer.attach_step_hook(lambda one: look(one, model, Batch(inputs, targets)))
    if action is not None:
        attacks = {"gauss_newton": GaussNewton(max_steps=12, starts=1)}
        gate = Gate(on_leak=action, budget="120s", attacks=attacks)
        judge = StepGate(gate, model, optimizer, domain=rows(1).domain)
        judge.sees(inputs, targets)
    optimizer.zero_grad()
    criterion(model(inputs), targets).backward()
    optimizer.step()
    return judge, [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("clipping", CLIPPINGS)
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


@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_the_release_is_what_opacus_makes(clipping: str) -> None:
    """Without noise, to the 1e-6 that Opacus adds to each norm; with it, by the standard deviation of what is left."""
    from gradleak.integrations.opacus import release_of

    seen: dict[str, Any] = {}

    def look(optimizer: Any, model: Any, data: Batch) -> None:
        objective = Objective.from_module(network())
        release = release_of(optimizer, model)
        seen["mean"] = release.mean(objective, objective.params, data)
        seen["made"] = {name.removeprefix("_module."): one.grad.clone() for name, one in model.named_parameters()}
        seen["law"] = release.noise(objective, examples=4)

    step(1e-9, clipping, action=None, look=look)
    for name, tensor in seen["mean"].items():
        torch.testing.assert_close(seen["made"][name], tensor, rtol=1e-5, atol=1e-8)
    assert min(float(tensor.norm()) for tensor in seen["mean"].values()) > 0.01
    step(1.0, clipping, action=None, look=look)
    drawn = torch.cat([(seen["made"][name] - tensor).reshape(-1) for name, tensor in seen["mean"].items()])
    # 1,210 entries: the std of their std is 2 %.
    assert float(drawn.std()) == pytest.approx(seen["law"].level, rel=0.1)


def test_clipping_per_layer_costs_the_epsilon_of_its_whole_norm() -> None:
    from gradleak.integrations.opacus import release_of

    model, optimizer, _, _ = private(1.1, "per_layer")
    release = release_of(optimizer, model)
    found = mechanism_of(release, Objective.from_module(network()), 4)
    assert isinstance(found, GaussianMechanism)
    assert found.sensitivity == pytest.approx(sum(norm**2 for norm in NORMS) ** 0.5)
    assert found.std == pytest.approx(1.1 * found.sensitivity)
    assert found.loose == ""
    with pytest.raises(InputError, match=r"got none; use release_of\(optimizer, model\)"):
        release_of(optimizer)
    with pytest.raises(InputError, match="got another one"):
        release_of(optimizer, network())
    optimizer.max_grad_norms = [0.5] * 4
    optimizer.max_grad_norm = 1.0
    assert release_of(optimizer).defenses[0] == ClipTensorsPerExample(1.0)


def test_adaptive_ghost_clipping_clips_no_example_and_is_refused_by_name() -> None:
    """Opacus 1.6 makes (Σ clip factors)·(mean gradient) there, since its criterion gives one loss for the batch."""
    from gradleak.core.example_gradients import example_gradients

    seen: dict[str, Any] = {}

    def look(optimizer: Any, model: Any, data: Batch) -> None:
        objective = Objective.from_module(network())
        each = example_gradients(objective, objective.params, data)
        norms = torch.cat([tensor.reshape(8, -1) for tensor in each.values()], dim=1).norm(dim=1)
        factor = float((float(optimizer.max_grad_norm) / norms).clamp(max=1.0).mean())
        seen["apart"] = [
            float((one.grad - factor * each[name.removeprefix("_module.")].mean(dim=0)).abs().max())
            for name, one in model.named_parameters()
        ]

    step(1e-9, "ghost adaptive", 8, action=None, look=look)
    assert max(seen["apart"]) < 1e-6
    with pytest.raises(
        UnsupportedError, match=r"got adaptive ghost clipping, which in Opacus 1\.6 scales the mean gradient"
    ):
        step(0.5, "ghost adaptive", 8)


def test_optimizers_of_several_workers_and_without_noise_are_refused_by_name() -> None:
    from opacus.optimizers import DistributedDPOptimizer

    from gradleak.integrations.opacus import release_of

    made = torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    assert made is None
    try:
        plain = torch.optim.SGD(network().parameters(), lr=0.1)
        numbers = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": 4}
        optimizer = DistributedDPOptimizer(plain, **numbers)
        assert release_of(optimizer).defenses == release_of(private(1.0)[1]).defenses
        optimizer.world_size = 2
        with pytest.raises(UnsupportedError, match="got DistributedDPOptimizer, whose noise is on the sum over all"):
            release_of(optimizer)
    finally:
        torch.distributed.destroy_process_group()
    with pytest.raises(InputError, match="expected a noise multiplier above 0"):
        release_of(private(0.0)[1])


def test_epsilons_agree() -> None:
    from gradleak.integrations.opacus import epsilons

    accountant = opacus.accountants.PRVAccountant()
    accountant.history = [(1.1, 0.01, 1000)]
    (ours,) = epsilons(accountant.history, delta=1e-5)
    theirs = accountant.get_epsilon(1e-5)
    assert ours.value == pytest.approx(theirs, rel=0.02)

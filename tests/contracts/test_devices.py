"""What every exported attack and measure does on another device, a fake one (`tests.fake_device`): as on the processor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.attacks.setting import rows, setting, small_net
from tests.contracts import test_attacks, test_labels, test_measures, test_token_attacks
from tests.fake_device import FAKE, FakeDevice
from tests.games.setting import population, settings
from tests.games.test_user import game as users
from tests.risk.cases import color
from torch import Tensor

from gradleak.attacks import Attack, LabelAttack
from gradleak.auditing.device import on_device
from gradleak.core import Reconstruction
from gradleak.defenses import Clip, GaussianNoise
from gradleak.games import AttributeGame, DistributionGame, InferenceGame, PropertyGame, UserGame
from gradleak.protocols import FedAvg, FedSGD
from gradleak.risk import Measure

PROTOCOLS = {"defended": (FedSGD(), 1e-3), "local steps": (FedAvg(learning_rate=0.1, epochs=2, batch_size=1), 0.0)}


def generator(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def on_both(case: Any, call: Callable[..., Any]) -> tuple[Any, Any]:
    here = call(*case)
    with FakeDevice():
        return here, call(*on_device(case, FAKE))


def claim(found: Reconstruction) -> dict[str, Any]:
    numbers = {name: value for name, value in found.details.items() if isinstance(value, int | float)}
    tensors = {"inputs": found.inputs, "targets": found.targets, "tokens": found.tokens}
    placed = {name: tensor.cpu() for name, tensor in tensors.items() if isinstance(tensor, Tensor)}
    return {"outcome": found.outcome, "steps": len(found.history), **numbers, **placed}


def close(there: dict[str, Any], here: dict[str, Any]) -> None:
    assert there.keys() == here.keys()
    for name, value in here.items():
        if isinstance(value, Tensor):
            torch.testing.assert_close(there[name], value, rtol=1e-4, atol=1e-5, equal_nan=True)
        else:
            assert there[name] == (
                pytest.approx(value, rel=1e-4, abs=1e-6, nan_ok=True) if isinstance(value, float) else value
            )


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("attack", test_attacks.EXAMPLES.values(), ids=lambda attack: attack.name)
def test_an_attack(attack: Attack, protocol: str) -> None:
    kind, std = PROTOCOLS[protocol]
    alone = isinstance(attack, test_attacks.ONE_EXAMPLE)
    if alone and not std:
        pytest.skip("reads one gradient, and no local steps")
    defenses = ([Clip(max_norm=1.0)] if std and not alone else []) + ([GaussianNoise(std=std)] if std else [])
    threat = test_attacks._threat(attack)
    case = setting(
        small_net(),
        rows(1) if alone else rows(1, 2),
        threat=threat,
        protocol=kind,
        defenses=defenses,
        dtype=torch.float32,
    )
    here, there = on_both((case.update, case.knowledge), lambda *given: claim(attack(*given, generator=generator())))
    close(there, here)


@pytest.mark.slow
@pytest.mark.parametrize("attack", test_token_attacks.EXAMPLES.values(), ids=lambda attack: attack.name)
def test_an_attack_on_tokens(attack: Attack) -> None:
    case = test_token_attacks.case(test_token_attacks.sentences(6))
    here, there = on_both(case, lambda *given: claim(attack(*given, generator=generator())))
    close(there, here)


@pytest.mark.slow
@pytest.mark.parametrize("kind", test_labels.EXAMPLES, ids=lambda kind: kind.name)
def test_a_label_attack(kind: type[LabelAttack]) -> None:
    here, there = on_both(test_labels._case(kind), lambda *given: kind()(*given))
    assert torch.equal(there.counts.cpu(), here.counts)
    assert there.outcome is here.outcome


@pytest.mark.slow
@pytest.mark.parametrize("kind", test_measures.MEASURES, ids=lambda kind: kind.__name__)
def test_a_measure(kind: type[Measure]) -> None:
    measure = test_measures._build(kind)
    exposure = test_measures._exposed(measure, color(generator()))
    delta = torch.randn(exposure.objective.size, generator=generator(), dtype=torch.float64)

    def call(exposure: Any, delta: Tensor) -> Any:
        score = measure(exposure, delta=delta) if measure.needs_delta else measure(exposure)
        return score.value, score.outcome

    here, there = on_both((exposure, delta), call)
    assert there == (here[0] if here[0] is None else pytest.approx(here[0], rel=1e-8), here[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [PropertyGame, AttributeGame, DistributionGame, UserGame], ids=lambda kind: kind.__name__
)
def test_a_game(kind: type[InferenceGame]) -> None:
    small = {"rounds": 1, "trials": 60, "shadow_batches": 60}
    game = users(**(small | {"shadow_batches": 30})) if kind is UserGame else kind(population(), **settings(**small))

    def play(game: InferenceGame) -> dict[str, float | None]:
        return {f"{score.name} {score.details.get('round')}": score.value for score in game.play(0).scores()}

    here, there = on_both((game,), play)
    assert there.keys() == here.keys()
    for name, value in here.items():
        # A tree turns on the last bit of a feature.
        assert there[name] == (None if value is None else pytest.approx(value, abs=0.05)), name


# The instrument finds what it is there for.
FAULTS: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "another tensor": (lambda x: x + torch.ones(3), "expected all tensors to be on the same device"),
    "under vmap": (torch.func.vmap(lambda x: x * torch.arange(2).sum(0, keepdim=True)), "on the same device"),
    "numpy": (lambda x: x.numpy(), "can't convert privateuseone:0 device type tensor to numpy"),
    "a generator": (lambda x: torch.rand(3, generator=generator(), device=x.device), "device type for generator"),
    "an index": (lambda x: torch.eye(3)[x.long()], "indices should be either on cpu or on the same device"),
    "a stack": (lambda x: torch.stack([x[0], torch.tensor(1.0)]), "on the same device"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_tensor_that_is_left_behind_is_found(fault: str) -> None:
    compute, said = FAULTS[fault]
    with FakeDevice(), pytest.raises((RuntimeError, TypeError), match=said):
        compute(torch.zeros(3).to(FAKE))


def test_what_a_device_lets_pass_is_let_pass() -> None:
    with FakeDevice():
        x = torch.rand(3, 3, generator=generator()).to(FAKE)
        assert (x * torch.tensor(2.0) + torch.eye(3, device=x.device))[torch.tensor([0])].device == FAKE
        assert torch.func.jacrev(lambda row: (row @ x).tanh())(x[0]).device == FAKE
        assert x.cpu().numpy().shape == (3, 3)
        assert x.device == FAKE
        assert x.new_zeros(1).to(torch.float64).device == FAKE

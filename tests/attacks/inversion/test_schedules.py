"""Schedules against those of torch.optim."""

from __future__ import annotations

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, MultiStepLR

from gradleak.attacks import Constant, CosineDecay, Schedule, StepDecay
from gradleak.results import InputError


def _factors(make, steps: int) -> list[float]:
    """The learning rates that a scheduler of torch gives to `steps` steps, from a rate of 1."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler: LRScheduler = make(optimizer)
    factors = []
    for _ in range(steps):
        factors.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return factors


def _found(schedule: Schedule, steps: int) -> list[float]:
    return [schedule(step, steps) for step in range(steps)]


@pytest.mark.parametrize("steps", [1, 7, 100])
@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_cosine_decay_is_that_of_torch(steps: int, floor: float) -> None:
    expected = _factors(lambda o: CosineAnnealingLR(o, T_max=steps, eta_min=floor), steps)
    assert _found(CosineDecay(floor=floor), steps) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("steps", [8, 80, 1001])
def test_step_decay_is_that_of_torch_at_the_milestones_of_inverting_gradients(steps: int) -> None:
    milestones = [steps // 2.667, steps // 1.6, steps // 1.142]  # as its published code has them
    exact = [int(steps * share) for share in (3 / 8, 5 / 8, 7 / 8)]
    assert milestones == pytest.approx(exact, abs=1)
    expected = _factors(lambda o: MultiStepLR(o, milestones=exact, gamma=0.1), steps)
    assert _found(StepDecay(), steps) == pytest.approx(expected, rel=1e-9)


def test_warm_up_is_linear_and_the_cosine_begins_at_its_end() -> None:
    steps, warm = 200, 50
    found = _found(CosineDecay(warm_up=warm / steps), steps)
    assert found[:warm] == pytest.approx([(step + 1) / (warm + 1) for step in range(warm)])
    assert found[warm:] == pytest.approx(_factors(lambda o: CosineAnnealingLR(o, T_max=steps - warm), steps - warm))
    assert found[0] > 0
    assert max(found) == found[warm] == 1.0


def test_no_schedule_is_one() -> None:
    assert _found(Constant(), 3) == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: CosineDecay(warm_up=1.0),
        lambda: CosineDecay(floor=-0.1),
        lambda: StepDecay(milestones=(0.0, 0.5)),
        lambda: StepDecay(factor=0.0),
    ],
)
def test_numbers_out_of_range_are_refused(make) -> None:
    with pytest.raises(InputError, match="expected"):
        make()

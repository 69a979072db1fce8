"""Lockstep optimizers against torch.optim, row by row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradleak.attacks import CMAES, LBFGS, Adam, CosineDecay, StepDecay
from gradleak.results import InputError


def _value(z: Tensor, row: int) -> Tensor:
    """A different smooth, badly scaled function for every row."""
    scales = torch.linspace(1, 10 + 5 * row, z.numel(), dtype=z.dtype)
    return 0.5 * (scales * (z - row).square()).sum() + (0.3 * z).cos().sum()


def _slopes(z: Tensor) -> Tensor:
    return torch.stack([torch.func.grad(_value)(point, row) for row, point in enumerate(z)])


def _lockstep(optimizer, start: Tensor, evaluations: int, iterations: int) -> list[Tensor]:
    steps = optimizer.begin(start, iterations)
    z, path = start, []
    for evaluation in range(evaluations):
        change = steps.direction(_slopes(z), evaluation)
        steps.moved(change)
        z = z + change
        path.append(z)
    return path


def _torch_path(make, start: Tensor, row: int, calls: int) -> list[Tensor]:
    point = start.clone().requires_grad_()
    optimizer, path = make([point]), []

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = _value(point, row)
        point.grad = torch.autograd.grad(value, point)[0]
        return value

    for _ in range(calls):
        optimizer.step(closure)
        path.append(point.detach().clone())
    return path


def _start(rows: int = 3, width: int = 12) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_lbfgs_visits_the_points_of_torch() -> None:
    start = _start()
    path = _lockstep(LBFGS(history=5, inner_steps=4), start, 16, 4)
    for row in range(3):
        expected = _torch_path(
            lambda p: torch.optim.LBFGS(p, lr=1, max_iter=4, history_size=5, tolerance_grad=0, tolerance_change=0),
            start[row],
            row,
            4,
        )
        for call, point in enumerate(expected):
            torch.testing.assert_close(path[4 * call + 3][row], point, rtol=1e-8, atol=1e-8)


def test_a_row_does_not_depend_on_its_neighbors() -> None:
    start = _start()
    together = _lockstep(LBFGS(history=5), start, 12, 1)[-1]
    alone = _lockstep(LBFGS(history=5), start[:1], 12, 1)[-1]
    torch.testing.assert_close(together[:1], alone, rtol=1e-12, atol=1e-12)


def test_lbfgs_forgets_a_row_that_is_reset() -> None:
    start = _start()
    optimizer = LBFGS(history=5)
    steps = optimizer.begin(start, 1)
    z = start
    for evaluation in range(6):
        change = steps.direction(_slopes(z), evaluation)
        steps.moved(change)
        z = z + change
    steps.reset(torch.tensor([False, True, False]))
    change = steps.direction(_slopes(z), 6)
    first = optimizer.begin(z, 1).direction(_slopes(z), 0)
    torch.testing.assert_close(change[1], first[1])
    assert not torch.allclose(change[0], first[0])


def test_adam_visits_the_points_of_torch() -> None:
    start = _start()
    path = _lockstep(Adam(learning_rate=0.05), start, 30, 30)
    for row in range(3):
        expected = _torch_path(lambda p: torch.optim.Adam(p, lr=0.05), start[row], row, 30)
        for found, point in zip(path, expected, strict=True):
            torch.testing.assert_close(found[row], point, rtol=1e-9, atol=1e-9)


def test_signed_adam_takes_the_sign_first_and_decays_at_the_milestones() -> None:
    start = _start(1)
    optimizer = Adam(learning_rate=0.1, signed=True, schedule=StepDecay())
    steps = optimizer.begin(start, 80)
    gradient = torch.full_like(start, 7.0)
    sizes = [float(steps.direction(gradient, evaluation).abs().max()) for evaluation in range(80)]
    # With a constant sign both moments are 1 after bias correction, so that the step is the learning rate.
    expected = [0.1] * 30 + [0.01] * 20 + [0.001] * 20 + [0.0001] * 10
    assert sizes == pytest.approx(expected, rel=1e-6)


def test_senseless_settings_are_refused() -> None:
    with pytest.raises(InputError, match="positive"):
        Adam(learning_rate=0.0)
    with pytest.raises(InputError, match="ascending"):
        StepDecay(milestones=(0.5, 0.2))
    with pytest.raises(InputError, match=r"LBFGS.history: expected a whole number of at least 1"):
        LBFGS(history=0)
    with pytest.raises(InputError, match=r"Adam.learning_rate: expected a finite positive number, got '0.1'"):
        Adam(learning_rate="0.1")
    with pytest.raises(InputError, match=r"StepDecay.milestones\[0\]: .* got 'x'"):
        StepDecay(milestones=("x",))
    with pytest.raises(InputError, match=r"StepDecay.milestones: expected a list of numbers between 0 and 1, got 0.5"):
        StepDecay(milestones=0.5)
    for betas in (("a", 2), (2.0, -1.0), 0.9, (0.9,)):
        with pytest.raises(InputError, match=r"Adam.betas.*: expected (two numbers|a number) from 0 to below 1"):
            Adam(betas=betas)
    with pytest.raises(InputError, match=r"CosineDecay.warm_up: .* got True"):
        CosineDecay(warm_up=True)
    with pytest.raises(InputError, match=r"CMAES.population: expected a whole number of at least 2, got nan"):
        CMAES(population=float("nan"))

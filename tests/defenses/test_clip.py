from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from gradleak.defenses import Clip
from gradleak.results import InputError

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch, on its first jvp


def norm(update: dict[str, Tensor]) -> float:
    return float(torch.cat([tensor.double().reshape(-1) for tensor in update.values()]).norm())


UPDATE = {"a": torch.tensor([[3.0, 0.0]], dtype=torch.float64), "b": torch.tensor([4.0], dtype=torch.float64)}


def test_the_norm_is_that_of_all_tensors_together() -> None:
    clipped = Clip(1.0).mean(UPDATE)
    assert clipped["a"].tolist() == [[pytest.approx(0.6), 0.0]]
    assert clipped["b"].tolist() == [pytest.approx(0.8)]
    assert norm(clipped) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("max_norm", [5.0, 5.1, 1e6])
def test_below_the_norm_nothing_changes_in_any_bit(max_norm: float) -> None:
    clipped = Clip(max_norm).mean(UPDATE)
    assert all(torch.equal(clipped[name], UPDATE[name]) for name in UPDATE)


def flat(vector: Tensor, max_norm: float) -> Tensor:
    clipped = Clip(max_norm).mean({"a": vector[:2].reshape(1, 2), "b": vector[2:]})
    return torch.cat([tensor.reshape(-1) for tensor in clipped.values()])


def test_the_derivative_is_the_analytic_one() -> None:
    g = torch.randn(7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    unit = g / g.norm()
    biting = 0.3 * float(g.norm())
    expected = biting / g.norm() * (torch.eye(7, dtype=torch.float64) - torch.outer(unit, unit))
    for jacobian in (torch.func.jacrev, torch.func.jacfwd):
        torch.testing.assert_close(jacobian(lambda v: flat(v, biting))(g), expected, rtol=1e-12, atol=1e-14)
        idle = jacobian(lambda v: flat(v, 2 * float(g.norm())))(g)
        assert torch.equal(idle, torch.eye(7, dtype=torch.float64))


def test_a_zero_update_stays_zero_with_a_finite_derivative() -> None:
    zero = torch.zeros(4, dtype=torch.float64)
    assert torch.equal(flat(zero, 1.0), zero)
    for jacobian in (torch.func.jacrev, torch.func.jacfwd):
        assert torch.equal(jacobian(lambda v: flat(v, 1.0))(zero), torch.eye(4, dtype=torch.float64))
    hessian = torch.func.hessian(lambda v: flat(v, 1.0).sum())(zero)
    assert bool(torch.isfinite(hessian).all())


def test_each_row_under_vmap_is_clipped_by_its_own_norm() -> None:
    rows = torch.tensor([[3.0, 4.0, 0.0], [0.1, 0.0, 0.0], [0.0, 0.0, 0.0]])
    clipped = torch.func.vmap(lambda row: flat(row, 1.0))(rows)
    torch.testing.assert_close(clipped, torch.tensor([[0.6, 0.8, 0.0], [0.1, 0.0, 0.0], [0.0, 0.0, 0.0]]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_neither_overflows_nor_changes_dtype(dtype: torch.dtype) -> None:
    update = {"a": torch.full((1000,), 300.0, dtype=dtype)}  # the sum of squares is 9e7, past float16
    clipped = Clip(10.0).mean(update)
    assert clipped["a"].dtype == dtype
    assert norm(clipped) == pytest.approx(10.0, rel=1e-2)


def test_draw_is_the_mean_and_there_is_no_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    drawn, mean = Clip(1.0).draw(UPDATE, generator), Clip(1.0).mean(UPDATE)
    assert all(torch.equal(drawn[name], mean[name]) for name in UPDATE)
    assert torch.equal(generator.get_state(), before)
    assert Clip(1.0).noise(UPDATE) is None


@pytest.mark.parametrize("max_norm", [0.0, -1.0, float("nan"), float("inf"), "1.0", None])
def test_impossible_norms_are_refused(max_norm: Any) -> None:
    with pytest.raises(InputError, match=r"Clip.max_norm: expected a finite positive number, got"):
        Clip(max_norm)

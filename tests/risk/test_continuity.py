from __future__ import annotations

import pytest
import torch

from gradleak.risk.bayesian_cramer_rao import LARGEST_JUMP
from gradleak.risk.setting_measure import largest_jump

START, END = torch.tensor([-1.0], dtype=torch.float64), torch.tensor([2.0], dtype=torch.float64)


@pytest.mark.parametrize("function", [torch.sin, lambda x: torch.exp(20 * x), torch.abs, torch.relu])
def test_smooth_functions_and_kinks_do_not_jump(function: object) -> None:
    assert callable(function)
    assert largest_jump(function, START, END) < LARGEST_JUMP / 10


@pytest.mark.parametrize("size", [1.0, 1e-3])
def test_finds_a_jump_and_its_size(size: float) -> None:
    found = largest_jump(lambda x: x + size * (x > 0.123), START, END)
    assert found == pytest.approx(size / (3 + size), rel=0.01)  # of the whole variation


def test_a_constant_does_not_jump() -> None:
    assert largest_jump(torch.ones_like, START, END) == 0.0

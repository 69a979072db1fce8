"""Models whose code asks for lower precisions, computed in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.core import Batch, Objective


class _Model(nn.Module):
    def __init__(self, function: Callable[[_Model, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.recurrent, self.linear, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(3, 4), nn.Linear(4, 2)
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.function(self, x))


def _first_state(m: _Model, x: Tensor) -> Tensor:
    state = torch.zeros(1, x.shape[0], 4), torch.full((1, x.shape[0], 4), 0.5)
    return m.recurrent(x, state)[0][:, -1]


def _masks(m: _Model, x: Tensor) -> Tensor:
    kept = (torch.arange(x.shape[1]) > 0).float()
    weights = F.softmax(x.sum(-1), dim=-1, dtype=torch.float32) * kept
    picked = F.one_hot(torch.arange(x.shape[1]) % 3, 3).float() @ m.linear.weight.T
    return (weights[..., None] * (m.linear(x) + picked)).sum(1).float()


def _casts(m: _Model, x: Tensor) -> Tensor:
    hidden = m.linear(x.mean(1)).to(torch.float32).type(torch.float32)
    return m.inner(hidden.half().to(dtype=torch.bfloat16)).float() + torch.ones(4, dtype=torch.float32)


def _twin(m: _Model, x: Tensor) -> Tensor:
    return m.inner(m.linear(x.mean(1))) + 1.0


def _objective(function: Callable[[_Model, Tensor], Tensor]) -> Objective:
    module, generator = _Model(function), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_(-0.5, 0.5, generator=generator)
    return Objective.from_module(module)


def _batch() -> Batch:
    inputs = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return Batch(inputs, torch.tensor([0, 1]))


@pytest.mark.parametrize("function", [_first_state, _masks, _casts])
def test_values_have_float64_throughout(function: Callable[[_Model, Tensor], Tensor]) -> None:
    objective, batch = _objective(function).to(torch.float64), _batch()
    loss = objective.loss(objective.params, batch)
    assert loss.dtype == torch.float64
    assert float(loss.float()) != float(loss)
    step = 1e-9  # far below what float32 sees of a loss near 1
    moved = objective.loss(objective.params, batch.with_inputs(batch.inputs + step))
    slope = torch.func.grad(lambda x: objective.loss(objective.params, batch.with_inputs(x)))(batch.inputs)
    assert float(moved - loss) / step == pytest.approx(float(slope.sum()), rel=1e-4)


def test_casts_in_between_change_nothing() -> None:
    cast, twin = (_objective(function).to(torch.float64) for function in (_casts, _twin))
    torch.testing.assert_close(
        cast.gradient(cast.params, _batch()), twin.gradient(twin.params, _batch()), rtol=1e-14, atol=1e-16
    )


@pytest.mark.parametrize("fails", [False, True])
def test_the_default_dtype_is_put_back(fails: bool) -> None:
    def function(m: _Model, x: Tensor) -> Tensor:
        if fails:
            raise ZeroDivisionError
        return m.linear(x.mean(1)) + torch.ones(4)

    objective = _objective(function).to(torch.float64)
    if fails:
        with pytest.raises(ZeroDivisionError):
            objective.loss(objective.params, _batch())
    else:
        objective.loss(objective.params, _batch())
    assert torch.get_default_dtype() == torch.float32


def test_an_objective_in_its_own_precision_casts_as_it_is_told() -> None:
    seen = []

    def function(m: _Model, x: Tensor) -> Tensor:
        seen.append(x.half().dtype)
        return m.linear(x.mean(1))

    objective, batch = _objective(function), _batch().to(torch.float32)
    objective.loss(objective.params, batch)
    assert seen.pop() == torch.float16
    wide = objective.to(torch.float64)
    wide.loss(wide.params, batch.to(torch.float64))
    assert seen.pop() == torch.float64
    back = wide.to(torch.float32)
    back.loss(back.params, batch)
    assert seen.pop() == torch.float16

"""Custom functions that declare that their backward cannot be differentiated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.operators.models import Cube, between, exposure_of
from torch import Tensor
from torch.autograd.function import once_differentiable

from gradleak.core import Exposure, Release
from gradleak.defenses import ClipPerExample
from gradleak.operators import GradientJacobian, check_derivative
from gradleak.operators.once_differentiable import once_differentiable_functions
from gradleak.protocols import FedAvg, FedSGD
from gradleak.results import Outcome, UnsupportedError
from gradleak.risk import GradientNorm, Vulnerability


class OnceTanh(torch.autograd.Function):
    """tanh in the old form."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * (1 - x.tanh() ** 2)


class OnceSine(torch.autograd.Function):
    """sin in the form for transforms."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * x.cos()


@pytest.mark.parametrize("function", [OnceTanh, OnceSine])
@pytest.mark.parametrize("release", [None, Release(FedAvg(learning_rate=0.1, epochs=2))])
def test_they_are_refused_by_name_and_not_left_out(function: Any, release: Release | None) -> None:
    exposure = exposure_of(between(function.apply), (4,))
    exposure = replace(exposure, release=release) if release else exposure
    assert once_differentiable_functions(exposure) == (function.__name__,)
    wanted = rf"got {function.__name__}, whose backward is marked once_differentiable"
    ones = torch.ones(8, 1, dtype=torch.float64)
    for product in (
        lambda a: a.matmat(ones),
        lambda a: a.adjoint_matmat(torch.ones(a.shape[0], 1, dtype=torch.float64)),
        lambda a: a.normal(ones),
        lambda a: a.gram(),
        lambda a: a.dense(),
        lambda a: Vulnerability()(exposure, operator=a),
    ):
        with pytest.raises(UnsupportedError, match=wanted):
            product(GradientJacobian(exposure))
    found = check_derivative(exposure, generator=torch.Generator().manual_seed(0))
    assert found.outcome is Outcome.UNSUPPORTED
    assert "once_differentiable" in found.note
    assert GradientNorm()(exposure).value == pytest.approx(float(exposure.released_mean().norm()))


def test_a_defense_of_examples_takes_them_one_by_one_where_vmap_fails() -> None:
    exposure = exposure_of(between(OnceSine.apply), (4,))
    wide = replace(exposure, release=Release(FedSGD(), [ClipPerExample(1e6)]))
    torch.testing.assert_close(wide.released_mean(), exposure.released_mean())


def test_other_functions_are_not() -> None:
    exposure: Exposure = exposure_of(between(Cube.apply), (4,))
    assert once_differentiable_functions(exposure) == ()

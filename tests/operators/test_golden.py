"""Second derivatives that can be written down: linear, logistic and softmax regression."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gradleak.core import Batch, Exposure, Objective, Release
from gradleak.operators import AdjointRoute, GradientJacobian, Route
from gradleak.protocols import FedSGD


def _exposure(inputs: Tensor, targets: Tensor, outputs: int, loss: str) -> Exposure:
    generator = torch.Generator().manual_seed(1)
    model = nn.Linear(inputs.shape[1], outputs).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-1, 1, generator=generator)
    return Exposure(Objective.from_module(model, loss=loss), Batch(inputs, targets), Release(FedSGD()))


def _by_hand(exposure: Exposure, residual: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """A for L = (1/b) Σ ℓ(W x + c, y), from r = ∂ℓ/∂z (b, o) and H = ∂²ℓ/∂z² (b, o, o).

    ∂L/∂W = (1/b) Σ r xᵀ and ∂L/∂c = (1/b) Σ r, with dr = H W dx.
    """
    weight = exposure.objective.params["weight"].numpy()
    x = exposure.batch.inputs.numpy()
    (b, n), o = x.shape, weight.shape[0]
    columns = np.zeros((o * n + o, b, n))
    for i in range(b):
        change = slope[i] @ weight  # (o, n): dr/dx
        weights = np.einsum("ok,j->ojk", change, x[i]) + np.einsum("o,jk->ojk", residual[i], np.eye(n))
        columns[: o * n, i] = weights.reshape(o * n, n) / b
        columns[o * n :, i] = change / b
    return columns.reshape(o * n + o, b * n)


def _linear() -> tuple[Exposure, np.ndarray]:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(3, 4, generator=generator).double(), torch.randn(3, 2, generator=generator).double()
    exposure = _exposure(x, y, 2, "mse")
    z = exposure.objective.outputs(exposure.objective.params, x)
    # The mean runs over the outputs too.
    return exposure, _by_hand(exposure, (z - y).numpy(), np.broadcast_to(np.eye(2), (3, 2, 2)))


def _logistic() -> tuple[Exposure, np.ndarray]:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(3, 4, generator=generator).double(), torch.tensor([[1.0], [0.0], [1.0]]).double()
    exposure = _exposure(x, y, 1, "bce_with_logits")
    p = 1 / (1 + np.exp(-exposure.objective.outputs(exposure.objective.params, x).numpy()))
    return exposure, _by_hand(exposure, p - y.numpy(), (p * (1 - p))[:, :, None])


def _softmax() -> tuple[Exposure, np.ndarray]:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(3, 4, generator=generator).double(), torch.tensor([2, 0, 2])
    exposure = _exposure(x, y, 3, "cross_entropy")
    z = exposure.objective.outputs(exposure.objective.params, x).numpy()
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    slope = np.stack([np.diag(row) - np.outer(row, row) for row in p])
    return exposure, _by_hand(exposure, p - np.eye(3)[y.numpy()], slope)


@pytest.mark.parametrize("case", [_linear, _logistic, _softmax])
@pytest.mark.parametrize("route", [None, *Route])
def test_closed_forms(case: object, route: Route | None) -> None:
    """U44: second derivatives against formulas, not against autograd."""
    exposure, want = case()  # type: ignore[operator]
    operator = GradientJacobian(exposure, route=route)
    np.testing.assert_allclose(operator.dense(), want, rtol=1e-12, atol=1e-14)
    left = torch.randn(want.shape[0], 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for adjoint in (None, *AdjointRoute):
        fresh = GradientJacobian(exposure, route=route, adjoint=adjoint)
        np.testing.assert_allclose(fresh.adjoint_matmat(left), want.T @ left.numpy(), rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(operator.gram_spectrum(), np.linalg.eigvalsh(want.T @ want), rtol=1e-9, atol=1e-14)

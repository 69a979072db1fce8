"""Solvers for (AᵀA + εI)⁻¹Aᵀδ and traces on the 28x28 LeNet, and the ghost Gram on an MLP, all in float64."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from benchmarks.measure import Row, plain_gradient, ratio, seconds
from benchmarks.operators import lenet_exposure
from gradleak.core import Batch, Exposure, Objective, Release
from gradleak.linalg import (
    LSMR,
    ConjugateGradient,
    Gram,
    HutchPlusPlus,
    InverseSolver,
    LanczosQuadrature,
    LeastSquaresDescent,
    NeumannSeries,
    TraceSolver,
    lobpcg,
)
from gradleak.models import mlp
from gradleak.operators import GradientJacobian, Route
from gradleak.protocols import FedSGD
from gradleak.risk import InversionInfluence


def mlp_exposure(features: int, *hidden: int, examples: int = 1) -> Exposure:
    """A tanh network of linear layers with ten classes, and random inputs."""
    generator = torch.Generator().manual_seed(0)
    model = mlp(features=features, classes=10, hidden=hidden, activation="tanh", generator=generator).double()
    x = torch.rand(examples, features, generator=generator, dtype=torch.float64)
    return Exposure(Objective.from_module(model), Batch(x, torch.arange(examples)), Release(FedSGD()))


def run() -> Iterator[Row]:
    yield from _inverses()
    yield from _traces()
    yield from _ghost()


def _inverses() -> Iterator[Row]:
    exposure = lenet_exposure()
    plain = plain_gradient(exposure.objective, exposure.batch)
    generator = torch.Generator().manual_seed(1)
    delta = 1e-3 * torch.randn(exposure.objective.size, generator=generator, dtype=torch.float64)
    exact = InversionInfluence(epsilon=1.0)(exposure, delta=delta).value
    assert exact is not None
    # A residual of 1e-4 gives the norm to better than 1e-6 by conjugate gradients: its error is of second order.
    solvers: list[tuple[InverseSolver, float | None]] = [
        (ConjugateGradient(tolerance=1e-4), 60.0),
        (LSMR(tolerance=1e-5), None),
        (NeumannSeries(scale=None, tolerance=1e-6), None),
        (LeastSquaresDescent(tolerance=1e-6), None),
    ]
    for solver, aim in solvers:
        measure = InversionInfluence(epsilon=1.0, solver=solver)
        score = measure(exposure, delta=delta)
        assert score.value is not None
        error = abs(score.value / exact - 1)
        assert error < 1e-6, f"{solver.label}: relative error {error:.1e}"
        cost = ratio(lambda measure=measure: measure(exposure, delta=delta), plain, 3)  # type: ignore[misc]
        yield Row(name=f"I²F at ε = 1 to 1e-6, {solver.label}", ratio=cost, aim=aim)


def _traces() -> Iterator[Row]:
    exposure = lenet_exposure()
    plain = plain_gradient(exposure.objective, exposure.batch)
    values = GradientJacobian(exposure).gram_spectrum()
    exact = float((1 / (values + 1.0)).sum())
    solvers: tuple[TraceSolver, ...] = (LanczosQuadrature(steps=16), HutchPlusPlus())
    for solver in solvers:
        found = solver.estimate(Gram(GradientJacobian(exposure)), 1.0, None)
        assert found.value is not None
        name = f"tr (AᵀA + I)⁻¹, {solver.label} (error {found.value / exact - 1:+.0e})"
        cost = ratio(lambda solver=solver: solver.estimate(Gram(GradientJacobian(exposure)), 1.0, None), plain, 1)  # type: ignore[misc]
        yield Row(name=name, ratio=cost)
    top = ratio(
        lambda: lobpcg(Gram(GradientJacobian(exposure)), generator=torch.Generator().manual_seed(0), tolerance=1e-4),
        plain,
        3,
    )
    yield Row(name="λmax to 1e-4, LOBPCG", ratio=top)


def _ghost() -> Iterator[Row]:
    exposure = mlp_exposure(784, 1024, 1024)
    plain = plain_gradient(exposure.objective, exposure.batch)
    yield Row(name="AᵀA, MLP 784-1024-1024-10, ghost", ratio=ratio(lambda: GradientJacobian(exposure).gram(), plain, 3))
    yield _share("AᵀA, MLP 784-1024-1024-10", exposure, aim=1 / 3)
    yield _share("AᵀA, MLP 100-128-10, 4 examples", mlp_exposure(100, 128, examples=4))


def _share(name: str, exposure: Exposure, aim: float | None = None) -> Row:
    """The ghost route as a share of the route that the operator would take without it, which takes half a minute."""
    without = Route(GradientJacobian(exposure).route)
    ghost = seconds(lambda: GradientJacobian(exposure).gram(), 3)
    start = time.process_time()
    GradientJacobian(exposure, route=without).gram()
    return Row(
        name=f"{name}, ghost / {without.value}", ratio=ghost / (time.process_time() - start), aim=aim, unit="times"
    )

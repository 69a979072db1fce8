"""Derivatives, spectra and influence on the 28x28 LeNet in float64."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.measure import Row, plain_gradient, ratio
from gradleak.core import Batch, Exposure, Objective, Release
from gradleak.linalg import ConjugateGradient
from gradleak.models import lenet_i2f
from gradleak.models.initialize import initialize_uniform
from gradleak.operators import GradientJacobian, dense_jacobian
from gradleak.protocols import FedSGD
from gradleak.risk import InversionInfluence


def lenet_exposure() -> Exposure:
    """The I²F LeNet with uniform weights and one random image."""
    generator = torch.Generator().manual_seed(0)
    model = initialize_uniform(lenet_i2f(), generator=generator).double()
    image = torch.rand(1, 1, 28, 28, generator=generator, dtype=torch.float64)
    return Exposure(Objective.from_module(model), Batch(image, torch.tensor([3])), Release(FedSGD()))


def run() -> Iterator[Row]:
    exposure = lenet_exposure()
    plain = plain_gradient(exposure.objective, exposure.batch)
    point, function = exposure.inputs, exposure.mean
    generator = torch.Generator().manual_seed(1)
    tangent = torch.randn(784, 1, generator=generator, dtype=torch.float64)
    block = torch.randn(784, 64, generator=generator, dtype=torch.float64)
    cotangent = torch.randn(exposure.objective.size, 1, generator=generator, dtype=torch.float64)
    delta = 1e-3 * cotangent[:, 0]

    kept = GradientJacobian(exposure)
    yield Row(
        name="one JVP, fresh", ratio=ratio(lambda: torch.func.jvp(function, (point,), (tangent[:, 0],)), plain, 15)
    )
    yield Row(name="one JVP, graph kept", ratio=ratio(lambda: kept.matmat(tangent), plain, 15))
    yield Row(
        name="one VJP, fresh", ratio=ratio(lambda: torch.func.vjp(function, point)[1](cotangent[:, 0]), plain, 15)
    )
    yield Row(name="one VJP, graph kept", ratio=ratio(lambda: kept.adjoint_matmat(cotangent), plain, 15))
    yield Row(name="block of 64 JVPs, a column", ratio=ratio(lambda: kept.matmat(block), plain) / 64)
    yield Row(name="block of 64 JVPs", ratio=ratio(lambda: kept.matmat(block), plain))
    yield Row(name="λmax by block Lanczos", ratio=ratio(lambda: GradientJacobian(exposure).largest_eigenvalue(), plain))
    yield Row(name="A, dense (17,038 x 784)", ratio=ratio(lambda: dense_jacobian(function, point), plain))
    yield Row(
        name="whole spectrum of AᵀA", ratio=ratio(lambda: GradientJacobian(exposure).gram_spectrum(), plain), aim=700
    )
    # A residual of 1e-4 gives the norm to better than 1e-6: its error is of second order.
    by_iteration = InversionInfluence(epsilon=1.0, solver=ConjugateGradient(tolerance=1e-4))
    exact = InversionInfluence(epsilon=1.0)(exposure, delta=delta).value
    found = by_iteration(exposure, delta=delta).value
    assert exact is not None
    assert found is not None
    assert abs(found / exact - 1) < 1e-6
    yield Row(
        name="I²F at ε = 1 to 1e-6, conjugate gradients",
        ratio=ratio(lambda: by_iteration(exposure, delta=delta), plain),
        aim=60,
    )

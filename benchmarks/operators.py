"""Derivatives, spectra and influence on the 28x28 LeNet in float64, and λmax of ResNet-18 on a 3x32x32 image."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import torch

from benchmarks.measure import Row, plain_gradient, ratio
from gradleak.core import Batch, Exposure, Objective, Release
from gradleak.linalg import ConjugateGradient
from gradleak.models import lenet_i2f, resnet18
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


def resnet_exposure(dtype: torch.dtype) -> Exposure:
    """ResNet-18 in eval mode and one random 3x32x32 image."""
    generator = torch.Generator().manual_seed(0)
    model = resnet18(generator=generator)
    image = torch.rand(1, 3, 32, 32, generator=generator)
    return Exposure(Objective.from_module(model), Batch(image, torch.tensor([3])), Release(FedSGD())).to(dtype)


def resnet_rows() -> Iterator[Row]:
    """Cost and peak memory of λmax; run alone, since the peak is that of the process."""
    for dtype in (torch.float32, torch.float64):
        exposure = resnet_exposure(dtype)
        plain = plain_gradient(exposure.objective, exposure.batch)
        name = str(dtype).removeprefix("torch.")

        def single(exposure: Exposure = exposure, dtype: torch.dtype = dtype) -> float:
            operator = GradientJacobian(exposure, dtype=dtype)
            return float(operator.largest_eigenvalue(tolerance=1e-4, certify=False).values[0])

        def certified(exposure: Exposure = exposure, dtype: torch.dtype = dtype) -> float:
            return float(GradientJacobian(exposure, dtype=dtype).largest_eigenvalue(tolerance=1e-4).values[0])

        before = _resident_peak()
        single()
        grown = (_resident_peak() - before) / 1e6
        yield Row(name=f"λmax of ResNet-18 to 1e-4, single, {name}", ratio=ratio(single, plain, 3), aim=60)
        yield Row(name=f"its growth of peak memory, {name}", ratio=grown, unit="MB")
        if dtype is torch.float32:
            assert abs(single() / certified() - 1) < 1e-4
            yield Row(name=f"λmax of ResNet-18, multiplicity certified, {name}", ratio=ratio(certified, plain, 1))
    yield Row(name="peak memory of the process", ratio=_resident_peak() / 1e6, unit="MB")


def _resident_peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run() -> Iterator[Row]:
    yield from resnet_rows()
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
        name="whole spectrum of AᵀA", ratio=ratio(lambda: GradientJacobian(exposure).gram_spectrum(), plain), aim=250
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

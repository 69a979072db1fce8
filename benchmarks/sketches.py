"""λmax and I²F from fewer products, from part of the layers, and from samples of rows: which of them pays.

On ResNet-18 (3x32x32): what a product with AᵀA costs by set of tensors, what share of λmax the set holds, and bounds by
few products. On the 28x28 LeNet, whose A is held: how far λmax of an unbiased sample of AᵀA is from the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

import torch
from torch import Tensor

from benchmarks.measure import Row, plain_gradient, ratio
from benchmarks.operators import lenet_exposure, resnet_exposure
from gradleak.core import Exposure
from gradleak.linalg import ConjugateGradient, GaussRadau
from gradleak.operators import GradientJacobian
from gradleak.risk import InversionInfluence, LargestEigenvalue, VisibleLayers

# Samples of a kind on the LeNet.
_DRAWS = 20
_ROWS = (10, 100, 1000)
_BLOCKS = (1, 4)


def run() -> Iterator[Row]:
    yield from _products()
    yield from _bounds()
    yield from _influences()
    yield from _samples()


def tensor_sets(names: Sequence[str], sizes: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """Sets of tensors by what they are, the whole first."""
    tenth = torch.randperm(len(names), generator=torch.Generator().manual_seed(3))[: len(names) // 10]
    return {
        "all tensors": tuple(names),
        "the last layer": tuple(names[-2:]),
        "the last quarter": tuple(names[-(len(names) // 4) :]),
        "the first quarter": tuple(names[: len(names) // 4]),
        "biases and norms": tuple(name for name in names if sizes[name] == 1),
        "a random tenth": tuple(names[place] for place in sorted(tenth.tolist())),
    }


def _products() -> Iterator[Row]:
    exposure = resnet_exposure(torch.float32)
    plain = plain_gradient(exposure.objective, exposure.batch)
    params = exposure.objective.params
    block = torch.randn(exposure.inputs.numel(), 1, generator=torch.Generator().manual_seed(1))
    whole = None
    for name, members in tensor_sets(list(params), {key: one.dim() for key, one in params.items()}).items():
        operator = GradientJacobian(VisibleLayers(names=members).exposure(exposure), dtype=torch.float32)
        share = operator.shape[0] / exposure.objective.size
        yield Row(
            name=f"product with AᵀA, {name} ({share:.1%} of rows)",
            ratio=ratio(lambda operator=operator: operator.normal(block), plain, 3),  # type: ignore[misc]
        )
        largest = float(operator.largest_eigenvalue(certify=False, tolerance=1e-3).values[0])
        whole = whole or largest
        yield Row(name=f"λmax of {name}", ratio=largest / whole, unit="of that of all")


def _bounds() -> Iterator[Row]:
    exposure = resnet_exposure(torch.float32)
    plain = plain_gradient(exposure.objective, exposure.batch)

    def spent(measure: LargestEigenvalue) -> Callable[[], object]:
        return lambda: measure._measure(exposure, None, GradientJacobian(exposure, dtype=torch.float32))

    head = list(exposure.objective.params)[-1].rpartition(".")[0]
    yield Row(name="λmax, bounds 30 % apart", ratio=ratio(spent(LargestEigenvalue(tolerance=0.3)), plain, 1))
    yield Row(name="λmax, bounds 10 % apart", ratio=ratio(spent(LargestEigenvalue()), plain, 1))
    yield Row(
        name="λmax of the last layer, a lower bound", ratio=ratio(spent(LargestEigenvalue(layers=[head])), plain, 1)
    )


def _influences() -> Iterator[Row]:
    double = resnet_exposure(torch.float64)
    plain = plain_gradient(double.objective, double.batch)
    delta = 1e-3 * torch.randn(double.objective.size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for epsilon in (1.0, 1e-4):
        for label, solver in {
            "to a residual of 1e-4": ConjugateGradient(tolerance=1e-4),
            "bounds 5 % apart": GaussRadau(),
        }.items():
            measure = InversionInfluence(epsilon=epsilon, solver=solver)
            cost = ratio(lambda measure=measure: _fresh(measure, double, delta), plain, 1)  # type: ignore[misc]
            yield Row(name=f"I²F at ε = {epsilon:g}, {label}", ratio=cost)


def _fresh(measure: InversionInfluence, exposure: Exposure, delta: Tensor) -> object:
    return measure._measure(exposure, delta, GradientJacobian(exposure))


def _samples() -> Iterator[Row]:
    """λmax of unbiased samples of AᵀA over that of AᵀA, the median and how far a tenth of the draws is from it."""
    exposure = lenet_exposure()
    operator = GradientJacobian(exposure)
    matrix = operator.dense()
    truth = float(operator.gram_spectrum()[-1])
    generator = torch.Generator().manual_seed(0)
    tensors = [tensor.numel() for tensor in exposure.objective.params.values()]
    blocks = matrix.split(tensors)
    norms = torch.stack([block.square().sum() for block in blocks])
    row_norms = matrix.square().sum(dim=1)

    def uniform(count: int) -> Tensor:
        places = torch.randint(len(matrix), (count,), generator=generator)
        return matrix[places] * (len(matrix) / count) ** 0.5

    def weighted(count: int) -> Tensor:
        shares = row_norms / row_norms.sum()
        places = torch.multinomial(shares, count, replacement=True, generator=generator)
        return matrix[places] / (count * shares[places]).sqrt()[:, None]

    def projected(count: int) -> Tensor:
        return torch.randn(count, len(matrix), generator=generator, dtype=matrix.dtype) @ matrix / count**0.5

    def tensorwise(count: int) -> Tensor:
        shares = norms / norms.sum()
        places = torch.multinomial(shares, count, replacement=True, generator=generator).tolist()
        return torch.cat([blocks[place] / (count * float(shares[place])) ** 0.5 for place in places])

    kinds: list[tuple[str, Callable[[int], Tensor], Sequence[int], str]] = [
        ("uniform", uniform, _ROWS, "rows"),
        ("by norm", weighted, _ROWS, "rows"),
        ("random projection", projected, _ROWS, "sums"),
        ("by norm", tensorwise, _BLOCKS, "tensors"),
    ]
    for name, draw, counts, what in kinds:
        for count in counts:
            found = sorted(float(torch.linalg.matrix_norm(draw(count), 2)) ** 2 / truth for _ in range(_DRAWS))
            label = f"LeNet, λmax of {count:,} {what}, {name} (middle 80 %: {found[2]:.2g} to {found[-3]:.2g})"
            yield Row(name=label, ratio=median(found), unit="times the truth")

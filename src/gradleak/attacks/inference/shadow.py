"""Shadow updates with their labels, and the adversary's further knowledge."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradleak.results import InputError, check_count


def balanced_labels(count: int, classes: int, generator: torch.Generator) -> Tensor:
    """Labels of shadow batches, (count,) int64 from 0 to m − 1: each class ⌊count/m⌋ or ⌈count/m⌉ times, in random order.

    Which classes have one more is drawn. Exact balance makes the prior of a fit uniform, as `combine_rounds` takes it to
    be; labels drawn one by one are balanced only on average.

    Args:
        count: how many, at least 1.
        classes: m, at least 2.
        generator: the only source of randomness.

    Raises:
        InputError: for a number out of range.

    **Source**: Li et al. 2024, sections 4.1 and 5.1.4 (balanced training of the adversary; they draw labels).

    Examples:
        >>> labels = balanced_labels(7, 3, torch.Generator().manual_seed(0))
        >>> sorted(labels.bincount().tolist())
        [2, 2, 3]
    """
    check_count("count", count)
    check_count("classes", classes, least=2)
    device = generator.device
    whole = torch.arange(classes, device=device).repeat(count // classes)
    rest = torch.randperm(classes, generator=generator, device=device)[: count % classes]
    labels = torch.cat([whole, rest])
    return labels[torch.randperm(count, generator=generator, device=device)]


def with_side(features: NDArray[np.floating], side: NDArray[np.floating] | None) -> NDArray[np.floating]:
    """Features with what is known besides the update as more columns, (n, f + s): the adversary learns p(a | g, φ(x)).

    Args:
        features: (n, f).
        side: φ(x) of every batch, (n, s), or None for nothing; never the sensitive variable itself.

    Raises:
        InputError: for another number of rows.

    **Source**: Li et al. 2024, section 4.1. A model fitted on both, where they draw shadow rows that share φ(x).
    """
    if side is None:
        return features
    if features.ndim != 2 or side.ndim != 2 or features.shape[0] != side.shape[0]:
        raise InputError(f"with_side: expected (n, f) and (n, s), got {features.shape} and {side.shape}")
    return np.hstack([features, side])

"""Rows of a batch."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from gradleak.core import Batch


def rows_of(data: Batch, places: Tensor) -> Batch:
    """Some rows of a batch, with their sensitive variable."""
    sensitive = None if data.sensitive is None else data.sensitive[places]
    return replace(data, inputs=data.inputs[places], targets=data.targets[places], sensitive=sensitive)


__all__ = ["rows_of"]

"""Rows of a batch."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from gradleak.core import Batch


def rows_of(data: Batch, places: Tensor) -> Batch:
    """The rows of a batch at these places (k,), with their sensitive variable."""
    places = places.to(data.inputs.device)
    sensitive = None if data.sensitive is None else data.sensitive[places.to(data.sensitive.device)]
    return replace(data, inputs=data.inputs[places], targets=data.targets[places], sensitive=sensitive)

"""Public data beside private ones: no example may be in both."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from gradleak.core import Batch


def held_privately(public: Tensor, private: Iterable[Batch]) -> Tensor:
    """Mask of the public examples (n, ...) that a private batch holds too, entry by entry: (n,), boolean."""
    found = torch.zeros(public.shape[0], dtype=torch.bool, device=public.device)
    for batch in private:
        if batch.inputs.shape[1:] != public.shape[1:]:
            continue
        for example in batch.inputs.detach().to(public):
            found |= (public.detach() == example).flatten(1).all(dim=1)
    return found


def without_private(public: Batch, private: Iterable[Batch]) -> Batch:
    """Public data without the examples that a private batch holds.

    Data sets of this package are drawn from one pool, so that a draw of public examples may hit private ones.
    """
    kept = ~held_privately(public.inputs, private)
    if bool(kept.all()) or not bool(kept.any()):
        return public
    return Batch(public.inputs[kept], public.targets[kept.to(public.targets.device)], public.domain)

"""Draws of random defenses, and the layers of an update."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from gradleak.results import InputError


def normal(like: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal numbers of the shape, dtype and device of a tensor."""
    noise = torch.randn(like.shape, generator=generator, dtype=like.dtype, device=generator.device)
    return noise.to(like.device)


def uniform(like: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform numbers in [0, 1) of the shape and device of a tensor, in float32 at least."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    return torch.rand(like.shape, generator=generator, dtype=dtype, device=generator.device).to(like.device)


def laplace(like: Tensor, generator: torch.Generator) -> Tensor:
    """Numbers of the Laplace law of scale 1 (variance 2): differences of two exponential ones."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    pair = torch.empty(2, *like.shape, dtype=dtype, device=generator.device).exponential_(generator=generator)
    return (pair[0] - pair[1]).to(like.device, like.dtype)


def mean_of(updates: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The entrywise mean of updates by name, summed in float64."""
    return {
        name: torch.stack([update[name].double() for update in updates]).mean(dim=0).to(tensor.dtype)
        for name, tensor in updates[0].items()
    }


def layers(names: Iterable[str]) -> dict[str, list[str]]:
    """The names of tensors by the module that owns them, in order: weight and bias of a layer together.

    Examples:
        >>> layers(["0.weight", "0.bias", "scale"])
        {'0': ['0.weight', '0.bias'], '': ['scale']}
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.rpartition(".")[0], []).append(name)
    return groups


def check_names(setting: str, named: Iterable[str], known: Collection[str], *, what: str) -> None:
    """Refuse names in a setting that an update does not have.

    Args:
        setting: class and field.
        named: in the setting.
        known: of the update.
        what: what they name, in the plural.

    Raises:
        InputError: with both lists.
    """
    unknown = sorted(set(named) - set(known))
    if unknown:
        raise InputError(
            f"{setting}: expected names of {what}, got {', '.join(map(repr, unknown))}; the update has "
            f"{', '.join(map(repr, known))}"
        )

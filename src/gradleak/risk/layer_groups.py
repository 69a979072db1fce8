"""Groups of the shared tensors that are looked at together."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gradleak.results import Count, InputError, Settings


class Partition(StrEnum):
    """Grouping of the shared tensors: each by itself, or those of one layer together."""

    TENSOR = "tensor"
    LAYER = "layer"


@dataclass(frozen=True, kw_only=True)
class Consecutive(Settings):
    """Sets of layers that follow one another: {1, 2}, {2, 3}, and so on.

    Attributes:
        count: layers of a set; all of them together where the model has fewer.

    **Source**: Mo et al. 2021, section 6.2, for inversions, which rarely succeed from one layer.
    """

    count: Count = 2


Grouping = Partition | str | Consecutive | Mapping[str, Sequence[str]]
"""By tensor, by layer, by consecutive layers, or named groups of tensors and layers."""


def layer_groups(names: Sequence[str], by: Grouping) -> dict[str, tuple[str, ...]]:
    """The names of the tensors of every group, groups and members in the order of the model.

    A layer is what precedes the last dot of a tensor's name, "(root)" for what stands in the model itself. Normalizations
    with weights of their own count as layers.

    Args:
        names: of the shared tensors, in the order of `objective.params`.
        by: `tensor`, `layer`, `Consecutive`, or groups by name, whose members are names of tensors or of layers.

    Raises:
        InputError: for another grouping, an empty group, or a name that is neither tensor nor layer.

    Examples:
        >>> layer_groups(["0.weight", "0.bias", "2.weight"], Partition.LAYER)
        {'0': ('0.weight', '0.bias'), '2': ('2.weight',)}
        >>> layer_groups(["0.weight", "0.bias", "2.weight"], Consecutive(count=2))
        {'0 + 2': ('0.weight', '0.bias', '2.weight')}
    """
    if isinstance(by, Mapping):
        if not by or any(isinstance(members, str) or not members for members in by.values()):
            raise InputError(f"by: expected groups such as {{'head': ['9.weight', '9.bias']}}, got {by!r}")
        return {group: members_of(names, members, what=f"by: group {group!r}") for group, members in by.items()}
    layers: dict[str, tuple[str, ...]] = {}
    for name in names:
        layers[_layer(name)] = (*layers.get(_layer(name), ()), name)
    if isinstance(by, Consecutive):
        count, listed = min(by.count, len(layers)), list(layers)
        sets = [listed[start : start + count] for start in range(len(listed) - count + 1)]
        return {" + ".join(group): tuple(name for layer in group for name in layers[layer]) for group in sets}
    if by not in tuple(Partition):
        raise InputError(f"by: expected one of {', '.join(Partition)}, Consecutive or named groups, got {by!r}")
    return {name: (name,) for name in names} if Partition(by) is Partition.TENSOR else layers


def members_of(names: Sequence[str], asked: Sequence[str], *, what: str) -> tuple[str, ...]:
    """The tensors that are asked for by their own names or by those of their layers, in the order of the model.

    Args:
        names: of all tensors.
        asked: names of tensors, or of layers or blocks that hold them.
        what: who asks, for the message.

    Raises:
        InputError: for a name that is neither, with the nearest one that is.
    """
    for one in asked:
        if not any(_within(name, one) for name in names):
            known = [*names, *dict.fromkeys(_layer(name) for name in names)]
            near = difflib.get_close_matches(one, known, n=1, cutoff=0.0)[0]
            raise InputError(f"{what} names {one!r}, no shared tensor or layer; is it {near!r}?")
    return tuple(name for name in names if any(_within(name, one) for one in asked))


def _layer(name: str) -> str:
    return name.rpartition(".")[0] or "(root)"


def _within(name: str, asked: str) -> bool:
    return name == asked or name.startswith(f"{asked}.") or (asked == "(root)" and "." not in name)

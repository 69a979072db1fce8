"""Groups of the shared tensors by layer."""

from __future__ import annotations

from collections.abc import Iterable


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

"""Places of the tensors in a flat update."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from gradleak.results import InputError, check_count


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The slice of the flat update that each tensor fills; tensors follow one another in the order of `sizes`.

    Attributes:
        sizes: number of entries by name, in the order of `objective.params`.

    Raises:
        InputError: for no tensor, or one without entries.

    Examples:
        >>> layout = Layout.of({"weight": torch.zeros(2, 3), "bias": torch.zeros(2)})
        >>> layout.size, layout["bias"]
        (8, slice(6, 8, None))
    """

    sizes: Mapping[str, int]

    def __post_init__(self) -> None:
        """Check the sizes and freeze them."""
        if not self.sizes:
            raise InputError("Layout.sizes: expected at least one tensor, got none")
        for name, size in self.sizes.items():
            check_count(f"Layout.sizes[{name!r}]", size)
        object.__setattr__(self, "sizes", MappingProxyType(dict(self.sizes)))

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Layout:
        """The layout of these tensors, for instance of `objective.params` or of the tensors of an update."""
        return cls(sizes={name: tensor.numel() for name, tensor in tensors.items()})

    @property
    def size(self) -> int:
        """The number of entries of a flat update, P."""
        return sum(self.sizes.values())

    def slices(self) -> Iterator[tuple[str, slice]]:
        """Name and slice of every tensor, in order."""
        start = 0
        for name, size in self.sizes.items():
            yield name, slice(start, start + size)
            start += size

    def __getitem__(self, name: str) -> slice:
        return dict(self.slices())[name]

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """One flat update (P,) from its tensors, each row-major, in the order of the layout.

        Raises:
            InputError: for other names or sizes than those of the layout.
        """
        if {name: tensor.numel() for name, tensor in tensors.items()} != dict(self.sizes):
            raise InputError(
                f"flatten: expected tensors {dict(self.sizes)} (name and entries), got "
                f"{ {name: tensor.numel() for name, tensor in tensors.items()} }"
            )
        return torch.cat([tensors[name].reshape(-1) for name in self.sizes])

    def __reduce__(self) -> tuple[object, ...]:
        return _layout, (dict(self.sizes),)


def _layout(sizes: dict[str, int]) -> Layout:
    return Layout(sizes=sizes)

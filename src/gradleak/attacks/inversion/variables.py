"""What an inversion searches over: a flat vector and how a guess is read from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from gradleak.core import Domain


@dataclass(frozen=True, kw_only=True, eq=False)
class Space:
    """The public size of what is to be found.

    Attributes:
        domain: of one example.
        batch_size: number of examples, b.
        classes: number of classes, c, where soft labels are unknowns, else None.
        dtype: in which the search computes.
        device: on which it computes.
    """

    domain: Domain
    batch_size: int
    classes: int | None
    dtype: torch.dtype
    device: torch.device

    @property
    def inputs(self) -> int:
        """The number of input entries, b · d."""
        return self.batch_size * self.domain.size


class Start(StrEnum):
    """Where a search begins, per input entry."""

    UNIFORM = "uniform"
    NORMAL = "normal"


class Variables(ABC):
    """The unknown of one start as a flat vector z (n,)."""

    @abstractmethod
    def initialize(self, space: Space, starts: int, generator: torch.Generator) -> Tensor:
        """Starting points (s, n), all randomness from `generator`."""

    @abstractmethod
    def decode(self, space: Space, flat: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor]:
        """Inputs (b, *shape) and targets of one z (n,); pure and safe under torch.func transforms."""

    @abstractmethod
    def encode(self, space: Space, inputs: Tensor, targets: Tensor) -> Tensor:
        """The z (n,) that decodes to these inputs and targets (label probabilities of 0 excepted)."""

    @abstractmethod
    def bounds(self, space: Space) -> tuple[Tensor, Tensor]:
        """Smallest and largest allowed value of each entry, (n,) each, infinite where there is no limit."""


@dataclass(frozen=True, kw_only=True)
class Pixels(Variables):
    """The inputs themselves, in model-input units; labels are given.

    Attributes:
        start: `uniform` over the domain's valid range, or `normal`: N(0, 1) in model-input units.
        box: whether the search stays in the domain's valid range (in model-input units, so normalized).
    """

    start: Start = Start.UNIFORM
    box: bool = True

    def initialize(self, space: Space, starts: int, generator: torch.Generator) -> Tensor:
        """Random inputs (s, b · d)."""
        shape = (starts, space.batch_size, *space.domain.shape)
        draw = torch.rand if self.start is Start.UNIFORM else torch.randn
        numbers = draw(shape, generator=generator, dtype=space.dtype, device=generator.device).to(space.device)
        if self.start is Start.UNIFORM:
            numbers = space.domain.from_pixels(numbers)
        return numbers.reshape(starts, -1)

    def decode(self, space: Space, flat: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor]:
        """The inputs, and the labels that were given."""
        assert labels is not None
        return flat.reshape(space.batch_size, *space.domain.shape), labels

    def encode(self, space: Space, inputs: Tensor, targets: Tensor) -> Tensor:
        """The inputs, flat."""
        return inputs.to(space.device, space.dtype).reshape(-1)

    def bounds(self, space: Space) -> tuple[Tensor, Tensor]:
        """The domain's range, or none."""
        like = torch.zeros((), dtype=space.dtype, device=space.device)
        if not self.box:
            infinite = torch.full((space.inputs,), torch.inf, dtype=space.dtype, device=space.device)
            return -infinite, infinite
        low, high = (bound.reshape(-1).repeat(space.batch_size) for bound in space.domain.bounds(like))
        return low, high


@dataclass(frozen=True, kw_only=True)
class PixelsAndLabels(Variables):
    """The inputs followed by label logits (b · c), read as class probabilities through a softmax.

    **Source**: Zhu et al. 2019, algorithm 1, where labels are optimized together with the inputs.

    Attributes:
        pixels: how the inputs are searched.
    """

    pixels: Pixels

    def initialize(self, space: Space, starts: int, generator: torch.Generator) -> Tensor:
        """Random inputs and N(0, 1) logits, (s, b · d + b · c)."""
        inputs = self.pixels.initialize(space, starts, generator)
        logits = torch.randn(
            (starts, self._labels(space)), generator=generator, dtype=space.dtype, device=generator.device
        )
        return torch.cat([inputs, logits.to(space.device)], dim=1)

    def decode(self, space: Space, flat: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor]:
        """The inputs and class probabilities (b, c); given labels are not looked at."""
        inputs, logits = flat[: space.inputs], flat[space.inputs :]
        probabilities = logits.reshape(space.batch_size, -1).softmax(dim=1)
        return inputs.reshape(space.batch_size, *space.domain.shape), probabilities

    def encode(self, space: Space, inputs: Tensor, targets: Tensor) -> Tensor:
        """The inputs and the logarithms of the probabilities, floored at 1e-6."""
        logits = targets.to(space.device, space.dtype).clamp(min=1e-6).log()
        return torch.cat([self.pixels.encode(space, inputs, targets), logits.reshape(-1)])

    def bounds(self, space: Space) -> tuple[Tensor, Tensor]:
        """Those of the inputs; logits have none."""
        low, high = self.pixels.bounds(space)
        free = torch.full((self._labels(space),), torch.inf, dtype=space.dtype, device=space.device)
        return torch.cat([low, -free]), torch.cat([high, free])

    @staticmethod
    def _labels(space: Space) -> int:
        assert space.classes is not None
        return space.batch_size * space.classes

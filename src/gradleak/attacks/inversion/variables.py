"""Unknowns of an inversion: a flat vector, and the guess that is read from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import torch
from torch import Tensor

from gradleak.core import Domain, ImageGenerator
from gradleak.results import Settings, UnsupportedError


@dataclass(frozen=True, kw_only=True, eq=False)
class Space:
    """The public size of what is to be found.

    Attributes:
        domain: of one example.
        batch_size: number of examples, b.
        classes: number of classes, c, where soft labels are unknowns, else None.
        dtype: in which the search computes.
        device: on which it computes.
        generator: of images, in dtype and on the device of the search; None where the adversary has none.
    """

    domain: Domain
    batch_size: int
    classes: int | None
    dtype: torch.dtype
    device: torch.device
    generator: ImageGenerator | None = None

    @property
    def inputs(self) -> int:
        """The number of input entries, b · d."""
        return self.batch_size * self.domain.size


class Start(StrEnum):
    """Start of a search, per input entry."""

    UNIFORM = "uniform"
    NORMAL = "normal"


class Part(StrEnum):
    """Part of the unknowns that a stage of a search moves; labels that are unknowns move with every part."""

    ALL = "all"
    LATENTS = "latents"
    WEIGHTS = "weights"


class Code(NamedTuple):
    """The unknowns of one start by what they are; None for what there is not. Inputs are in none of them.

    Attributes:
        latents: of a generator, (b, k), as the search has them.
        weights: by how much each example's own generator weights differ from the generator's, w - w₀, (b, W).
        logits: of labels that are unknowns, (b, c).
    """

    latents: Tensor | None = None
    weights: Tensor | None = None
    logits: Tensor | None = None


class Variables(Settings, ABC):
    """The unknown of one start as a flat vector z (n,)."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts that a stage can move; `ALL` is always one."""
        return (Part.ALL,)

    @property
    def needs_generator(self) -> bool:
        """True if inputs are made by a generator."""
        return False

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

    def size(self, space: Space) -> int:
        """The number of entries n of z without those of labels."""
        return space.inputs

    def split(self, space: Space, flat: Tensor) -> Code:
        """The parts of one z (n,), views; none for variables that are no code of a generator."""
        del space, flat
        return Code()

    def make(self, space: Space, code: Code, labels: Tensor | None) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a code, as `decode` gives them for the z that it was split from.

        Raises:
            UnsupportedError: for variables that are no code of a generator.
        """
        raise UnsupportedError(f"{type(self).__name__}: expected variables with latents, got inputs themselves")

    def inputs(self, space: Space, flat: Tensor, labels: Tensor | None) -> Tensor:
        """Inputs (b, *shape) of one z (n,) whose labels are given, or None where they are unknowns."""
        assert labels is not None
        return self.decode(space, flat, labels)[0]

    def places(self, space: Space, part: Part) -> Tensor | None:
        """The places in z that a stage of that part moves, ascending; None for all."""
        del space, part
        return None


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
        return self.inputs(space, flat, labels), labels

    def inputs(self, space: Space, flat: Tensor, labels: Tensor | None) -> Tensor:
        """The unknowns themselves."""
        return flat.reshape(space.batch_size, *space.domain.shape)

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
    """The inputs (or a code of them) followed by label logits (b · c), read as class probabilities through a softmax.

    **Source**: Zhu et al. 2019, algorithm 1, where labels are optimized together with the inputs.

    Attributes:
        pixels: how the inputs are searched.
    """

    pixels: Variables

    @property
    def parts(self) -> tuple[Part, ...]:
        """Those of the inputs."""
        return self.pixels.parts

    @property
    def needs_generator(self) -> bool:
        """As the inputs."""
        return self.pixels.needs_generator

    def initialize(self, space: Space, starts: int, generator: torch.Generator) -> Tensor:
        """Random inputs and N(0, 1) logits, (s, n + b · c)."""
        inputs = self.pixels.initialize(space, starts, generator)
        logits = torch.randn(
            (starts, self._labels(space)), generator=generator, dtype=space.dtype, device=generator.device
        )
        return torch.cat([inputs, logits.to(space.device)], dim=1)

    def decode(self, space: Space, flat: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor]:
        """The inputs and class probabilities (b, c); given labels are not looked at."""
        size = self.pixels.size(space)
        probabilities = flat[size:].reshape(space.batch_size, -1).softmax(dim=1)
        return self.pixels.inputs(space, flat[:size], None), probabilities

    def encode(self, space: Space, inputs: Tensor, targets: Tensor) -> Tensor:
        """The inputs and the logarithms of the probabilities, floored at 1e-6."""
        logits = targets.to(space.device, space.dtype).clamp(min=1e-6).log()
        return torch.cat([self.pixels.encode(space, inputs, targets), logits.reshape(-1)])

    def bounds(self, space: Space) -> tuple[Tensor, Tensor]:
        """Those of the inputs; logits have none."""
        low, high = self.pixels.bounds(space)
        free = torch.full((self._labels(space),), torch.inf, dtype=space.dtype, device=space.device)
        return torch.cat([low, -free]), torch.cat([high, free])

    def size(self, space: Space) -> int:
        """Number of input entries."""
        return self.pixels.size(space)

    def split(self, space: Space, flat: Tensor) -> Code:
        """The parts of the inputs, and the logits."""
        size = self.pixels.size(space)
        code = self.pixels.split(space, flat[:size])
        return code._replace(logits=flat[size:].reshape(space.batch_size, -1))

    def make(self, space: Space, code: Code, labels: Tensor | None) -> tuple[Tensor, Tensor]:
        """As the inputs' own, with class probabilities."""
        assert code.logits is not None
        probabilities = code.logits.softmax(dim=1)
        return self.pixels.make(space, code, probabilities)

    def places(self, space: Space, part: Part) -> Tensor | None:
        """Those of the inputs, and all logits."""
        inner = self.pixels.places(space, part)
        if inner is None:
            return None
        size = self.pixels.size(space)
        logits = torch.arange(size, size + self._labels(space), device=inner.device)
        return torch.cat([inner, logits])

    @staticmethod
    def _labels(space: Space) -> int:
        assert space.classes is not None
        return space.batch_size * space.classes

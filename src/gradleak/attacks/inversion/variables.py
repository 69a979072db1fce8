"""Unknowns of an inversion: a flat vector, and the guess that is read from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import torch
from torch import Tensor

from gradleak.attacks.inversion.sentences import Sentences
from gradleak.attacks.inversion.targets import TargetForm
from gradleak.core import Domain, ImageGenerator
from gradleak.results import Settings, UnsupportedError


@dataclass(frozen=True, kw_only=True, eq=False)
class Space:
    """The public size of what is to be found.

    Attributes:
        domain: of one example.
        batch_size: number of examples, b.
        targets: form of the targets where they are unknowns, else None.
        dtype: in which the search computes.
        device: on which it computes.
        generator: of images, in dtype and on the device of the search; None where the adversary has none.
        sentences: whose embeddings are searched; None where the examples are numbers.
    """

    domain: Domain
    batch_size: int
    targets: TargetForm | None
    dtype: torch.dtype
    device: torch.device
    generator: ImageGenerator | None = None
    sentences: Sentences | None = None

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
        logits: of labels that are unknowns, (b, c), or the targets themselves.
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

    @property
    def reads_tokens(self) -> bool:
        """True if inputs are embeddings of sentences."""
        return False

    @property
    def from_table(self) -> bool:
        """True if only words whose rows of a shared table moved are claimed."""
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
    """The inputs (or a code of them) followed by the numbers of unknown targets (b · c) in the form that the loss takes.

    Class probabilities through a softmax, numbers from 0 to 1 for binary cross entropy, any numbers for a squared error.

    **Source**: Zhu et al. 2019, algorithm 1, where labels are optimized together with the inputs. The other losses are ours.

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

    @property
    def reads_tokens(self) -> bool:
        """As the inputs."""
        return self.pixels.reads_tokens

    def initialize(self, space: Space, starts: int, generator: torch.Generator) -> Tensor:
        """Random inputs and targets, (s, n + b · c)."""
        inputs = self.pixels.initialize(space, starts, generator)
        numbers = torch.randn(
            (starts, self._labels(space)), generator=generator, dtype=space.dtype, device=generator.device
        )
        return torch.cat([inputs, _form(space).start(numbers).to(space.device)], dim=1)

    def decode(self, space: Space, flat: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor]:
        """The inputs and their targets (b, c); given labels are not looked at."""
        size = self.pixels.size(space)
        return self.pixels.inputs(space, flat[:size], None), _form(space).read(flat[size:])

    def encode(self, space: Space, inputs: Tensor, targets: Tensor) -> Tensor:
        """The inputs and the numbers of the targets, of probabilities their logarithms, floored at 1e-6."""
        numbers = _form(space).flat(targets.to(space.device, space.dtype))
        return torch.cat([self.pixels.encode(space, inputs, targets), numbers])

    def bounds(self, space: Space) -> tuple[Tensor, Tensor]:
        """Those of the inputs, and of the targets."""
        ends = zip(self.pixels.bounds(space), _form(space).bounds, strict=True)
        low, high = (torch.cat([end, end.new_full((self._labels(space),), limit)]) for end, limit in ends)
        return low, high

    def size(self, space: Space) -> int:
        """Number of input entries."""
        return self.pixels.size(space)

    def split(self, space: Space, flat: Tensor) -> Code:
        """The parts of the inputs, and the logits."""
        size = self.pixels.size(space)
        code = self.pixels.split(space, flat[:size])
        return code._replace(logits=flat[size:].reshape(space.batch_size, -1))

    def make(self, space: Space, code: Code, labels: Tensor | None) -> tuple[Tensor, Tensor]:
        """As the inputs' own, with the targets."""
        assert code.logits is not None
        return self.pixels.make(space, code, _form(space).read(code.logits))

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
        return space.batch_size * _form(space).entries


def _form(space: Space) -> TargetForm:
    assert space.targets is not None
    return space.targets

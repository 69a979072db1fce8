"""What leaves the client: a protocol and the defenses on top of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradleak.core.batch import Batch
from gradleak.core.describe import describe
from gradleak.core.objective import Objective, Tensors
from gradleak.core.update import Update, UpdateKind
from gradleak.results import Citation, InputError, UnsupportedError


class Stage(StrEnum):
    """Where in the making of an update a defense acts."""

    MODEL = "model"
    BATCH = "batch"
    EXAMPLE = "example"
    UPDATE = "update"


class Guarantee(StrEnum):
    """Whether a defense is proven to bound what leaks (given its assumptions) or only hoped to help."""

    FORMAL = "formal"
    HEURISTIC = "heuristic"


@dataclass(frozen=True, kw_only=True)
class DiagonalGaussian:
    """Independent Gaussian noise on every shared entry.

    Attributes:
        std: standard deviation by parameter name.
    """

    std: Mapping[str, float]

    def added_to(self, other: DiagonalGaussian) -> DiagonalGaussian:
        """The law of the sum of two independent noises."""
        return DiagonalGaussian(std={name: (std**2 + other.std[name] ** 2) ** 0.5 for name, std in self.std.items()})


@dataclass(frozen=True, kw_only=True)
class NotGaussian:
    """The release is random, but not by additive Gaussian noise; closed-form noise measures do not apply.

    Attributes:
        reason: one sentence for the reader of a score.
    """

    reason: str


Noise = DiagonalGaussian | NotGaussian | None


class Protocol(ABC):
    """What a client computes from its batch before any update-stage defense."""

    citations: ClassVar[tuple[Citation, ...]] = ()
    kind: ClassVar[UpdateKind]

    @abstractmethod
    def mean(self, objective: Objective, params: Mapping[str, Tensor], batch: Batch) -> Tensors:
        """The update of `batch` at `params`, by parameter name; pure and safe under torch.func transforms."""


class Defense(ABC):
    """A change of the release that is meant to hide data. Authors subclass `UpdateDefense` or a later stage."""

    stage: ClassVar[Stage]
    guarantee: ClassVar[Guarantee]
    citations: ClassVar[tuple[Citation, ...]] = ()


class UpdateDefense(Defense):
    """A defense that acts once on the finished update."""

    stage: ClassVar[Stage] = Stage.UPDATE

    @abstractmethod
    def mean(self, update: Mapping[str, Tensor]) -> Tensors:
        """The deterministic part of the defense; pure, differentiable where its mathematics is."""

    @abstractmethod
    def noise(self, shapes: Mapping[str, Tensor]) -> Noise:
        """The law of the noise that `draw` adds to `mean`, None for no noise."""

    @abstractmethod
    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> Tensors:
        """One release: the defense applied to `update`, random numbers from `generator` only."""

    def carry(self, noise: DiagonalGaussian) -> Noise:
        """What Gaussian noise of an earlier defense becomes when this one is applied to it.

        The default says that it is no longer Gaussian; a defense whose mean is the identity returns it unchanged.
        """
        return NotGaussian(reason=f"Gaussian noise passes through {type(self).__name__}, which is not linear")


@dataclass(frozen=True)
class Release:
    """Protocol and defenses, in the order in which they act.

    Attributes:
        protocol: what the client computes.
        defenses: applied in order.

    Raises:
        InputError: if an element is not a protocol or a defense.
        UnsupportedError: for a defense of a stage that this version cannot apply.
    """

    protocol: Protocol
    defenses: Sequence[Defense] = ()

    def __post_init__(self) -> None:
        """Check the types and freeze the list."""
        if not isinstance(self.protocol, Protocol):
            raise InputError(f"Release.protocol: expected a Protocol, got {_what(self.protocol)}")
        if isinstance(self.defenses, Defense) or not isinstance(self.defenses, Sequence):
            raise InputError(f"Release.defenses: expected a list of defenses, got {_what(self.defenses)}; write [...]")
        object.__setattr__(self, "defenses", tuple(self.defenses))
        for defense in self.defenses:
            if not isinstance(defense, Defense):
                raise InputError(f"Release.defenses: expected Defense objects, got {_what(defense)}")
            if not isinstance(defense, UpdateDefense):
                raise UnsupportedError(
                    f"Release.defenses: {type(defense).__name__} acts at the {defense.stage.value} stage, and this "
                    "version applies defenses of the update stage only"
                )

    def mean(self, objective: Objective, params: Mapping[str, Tensor], batch: Batch) -> Tensors:
        """The released update without its noise, by name; pure, differentiable in `batch.inputs`."""
        update = self.protocol.mean(objective, params, batch)
        for defense in self._at_update:
            update = defense.mean(update)
        return update

    def noise(self, objective: Objective, params: Mapping[str, Tensor] | None = None) -> Noise:
        """The law of the noise on the released update: Gaussian, None for none, or NotGaussian with the reason."""
        shapes = objective.params if params is None else params
        total: Noise = None
        for defense in self._at_update:
            if isinstance(total, DiagonalGaussian):
                total = defense.carry(total)
            if isinstance(total, NotGaussian):
                return total
            added = defense.noise(shapes)
            if isinstance(added, DiagonalGaussian) and isinstance(total, DiagonalGaussian):
                total = total.added_to(added)
            elif added is not None:
                total = added
        return total

    def __call__(self, objective: Objective, batch: Batch, generator: torch.Generator) -> Update:
        """One release of `batch`: what the server sees.

        Args:
            objective: the client's loss, at the parameters that it shares its update for.
            batch: the private data.
            generator: the only source of randomness.

        Raises:
            InputError: if the batch does not fit the model, or there is no generator.
        """
        if not isinstance(generator, torch.Generator):
            raise InputError(f"Release: expected a torch.Generator, got {_what(generator)}; pass generator=...")
        objective.check(batch)
        batch = batch.to(objective.dtype)
        update = self.protocol.mean(objective, objective.params, batch)
        for defense in self._at_update:
            update = defense.draw(update, generator)
        return Update(
            tensors={name: tensor.detach().clone() for name, tensor in update.items()},
            kind=self.protocol.kind,
            provenance={"release": describe(self), "mode": objective.mode.value, "loss": objective.loss_name},
        )

    @property
    def _at_update(self) -> tuple[UpdateDefense, ...]:
        return tuple(defense for defense in self.defenses if isinstance(defense, UpdateDefense))

    def describe(self) -> dict[str, Any]:
        """A JSON-ready description."""
        described: dict[str, Any] = describe(self)
        return described


def _what(value: object) -> str:
    return f"the class {value.__name__} (call it)" if isinstance(value, type) else type(value).__name__

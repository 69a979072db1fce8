"""What leaves the client: a protocol and the defenses on top of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradleak.core.batch import Batch
from gradleak.core.describe import describe
from gradleak.core.example_gradients import example_gradients
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
    # Whether `mean` without defenses is `objective.gradient`: A is then a mixed derivative of the loss.
    shares_gradient: ClassVar[bool] = False

    @abstractmethod
    def mean(
        self,
        objective: Objective,
        params: Mapping[str, Tensor],
        batch: Batch,
        defenses: Sequence[ExampleDefense] = (),
    ) -> Tensors:
        """The update of `batch` at `params`, by parameter name; pure and safe under torch.func transforms.

        Args:
            objective: the client's loss.
            params: where the client starts, by name.
            batch: the private data.
            defenses: of the example stage; every gradient that the client takes goes through them: authors call
                `mean_gradient(objective, params, batch, defenses)` in place of `objective.gradient(params, batch)`.
        """


class Defense(ABC):
    """A change of the release that is meant to hide data. Authors subclass `ExampleDefense` or `UpdateDefense`.

    Attributes:
        stage: where it acts.
        guarantee: formal or heuristic.
        citations: where it comes from.
        flat: whether its derivative is zero almost everywhere (a sign, a rounding), so that closed-form measures say
            nothing and no attack can follow the derivative of the release.
    """

    stage: ClassVar[Stage]
    guarantee: ClassVar[Guarantee]
    citations: ClassVar[tuple[Citation, ...]] = ()
    flat: ClassVar[bool] = False


class ExampleDefense(Defense):
    """A deterministic defense that acts on the gradient of each example, before the mean, at every local step."""

    stage: ClassVar[Stage] = Stage.EXAMPLE

    @abstractmethod
    def mean(self, gradients: Mapping[str, Tensor]) -> Tensors:
        """The defended gradients, each row by itself; pure, differentiable where its mathematics is.

        Args:
            gradients: one a row, by name, each (b, *shape of the parameter).
        """


def mean_gradient(
    objective: Objective, params: Mapping[str, Tensor], batch: Batch, defenses: Sequence[ExampleDefense] = ()
) -> Tensors:
    """The gradient of one step by name: plain without defenses, else the mean of the defended per-example gradients.

    An example's gradient is that of the loss of the batch that holds it alone, and the mean runs over the b examples.
    For a loss that is a mean over examples, both are the same where no defense bites; for a sum the defended mean is
    1/b of the plain gradient, and for a weighted mean (class weights, ignored targets) its weights are lost.

    Args:
        objective: the client's loss.
        params: by name, where the gradient is taken.
        batch: b examples.
        defenses: of the example stage, in order.

    Raises:
        UnsupportedError: with defenses, if the model mixes examples (BatchNorm in train mode).

    Cost: one plain gradient; with defenses see `example_gradients`.
    """
    if not defenses:
        return objective.gradient(params, batch)
    gradients = example_gradients(objective, params, batch)
    for defense in defenses:
        gradients = defense.mean(gradients)
    return {name: rows.mean(dim=0) for name, rows in gradients.items()}


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

    Defenses of the example stage act on the gradient of each example in every local step, those of the update stage
    once on the finished update, so the former come first in the list. Order matters within a stage too: pruning a
    clipped update is not clipping a pruned one, and noise before a defense that is not linear is no longer Gaussian.

    Attributes:
        protocol: what the client computes.
        defenses: applied in order.

    Raises:
        InputError: if an element is not a protocol or a defense, or the order of stages is impossible.
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
            if not isinstance(defense, ExampleDefense | UpdateDefense):
                raise UnsupportedError(
                    f"Release.defenses: {type(defense).__name__} acts at the {defense.stage.value} stage, and this "
                    "version applies defenses of the example and update stages only"
                )
        for earlier, later in pairwise(self.defenses):
            if isinstance(earlier, UpdateDefense) and isinstance(later, ExampleDefense):
                raise InputError(
                    f"Release.defenses: expected defenses of single examples before those of the whole update, got "
                    f"{type(later).__name__} after {type(earlier).__name__}; the update no longer holds single "
                    f"examples, so put {type(later).__name__} first"
                )

    def mean(self, objective: Objective, params: Mapping[str, Tensor], batch: Batch) -> Tensors:
        """The released update without its noise, by name; pure, differentiable in `batch.inputs`."""
        update = self.protocol.mean(objective, params, batch, self._at_example)
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
            UnsupportedError: for a defense of single examples on a model that mixes them.
        """
        if not isinstance(generator, torch.Generator):
            raise InputError(f"Release: expected a torch.Generator, got {_what(generator)}; pass generator=...")
        objective.check(batch)
        batch = batch.to(objective.dtype)
        update = self.protocol.mean(objective, objective.params, batch, self._at_example)
        for defense in self._at_update:
            update = defense.draw(update, generator)
        for name, tensor in update.items():
            if not bool(torch.isfinite(tensor).all()):
                raise InputError(
                    f"release: expected finite numbers, got NaN or infinity in {name} ({tensor.dtype}); "
                    "check the noise level, the learning rate and the model"
                )
        return Update(
            tensors={name: tensor.detach().clone() for name, tensor in update.items()},
            kind=self.protocol.kind,
            provenance={"release": describe(self), "mode": objective.mode.value, "loss": objective.loss_name},
        )

    @property
    def after_gradient(self) -> Callable[[Tensors], Tensors] | None:
        """What the defenses make of the plain gradient; None where the release is not a function of it alone."""
        if not self.protocol.shares_gradient or self._at_example:
            return None

        def defended(update: Tensors) -> Tensors:
            for defense in self._at_update:
                update = defense.mean(update)
            return update

        return defended

    @property
    def _at_example(self) -> tuple[ExampleDefense, ...]:
        return tuple(defense for defense in self.defenses if isinstance(defense, ExampleDefense))

    @property
    def _at_update(self) -> tuple[UpdateDefense, ...]:
        return tuple(defense for defense in self.defenses if isinstance(defense, UpdateDefense))

    def describe(self) -> dict[str, Any]:
        """A JSON-ready description."""
        described: dict[str, Any] = describe(self)
        return described


def _what(value: object) -> str:
    return f"the class {value.__name__} (call it)" if isinstance(value, type) else type(value).__name__

"""Defenses: where they act, what they promise, and the law of the noise that they add."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gradleak.core.bounds import Bounds
from gradleak.core.effect import Effect, Unchanged
from gradleak.core.objective import Objective, Tensors
from gradleak.results import Citation, Settings


class Stage(StrEnum):
    """Stage in the making of an update at which a defense acts."""

    MODEL = "model"
    BATCH = "batch"
    EXAMPLE = "example"
    UPDATE = "update"


class Guarantee(StrEnum):
    """Guarantee of a defense: proven to bound what leaks (given its assumptions), or only hoped to help."""

    FORMAL = "formal"
    HEURISTIC = "heuristic"


@dataclass(frozen=True, kw_only=True)
class DiagonalGaussian:
    """Independent Gaussian noise on every shared entry.

    Attributes:
        std: standard deviation by parameter name.
    """

    std: Mapping[str, float]

    @property
    def level(self) -> float | None:
        """The standard deviation where it is the same on every tensor, else None."""
        levels = set(self.std.values())
        return levels.pop() if len(levels) == 1 else None

    def rms(self, shapes: Mapping[str, Tensor]) -> float | None:
        """The root mean square of the noise over all entries of the tensors of an update.

        Args:
            shapes: tensors of the update by name.
        """
        entries = sum(tensor.numel() for tensor in shapes.values())
        squares = sum(self.std[name] ** 2 * tensor.numel() for name, tensor in shapes.items())
        return (squares / entries) ** 0.5 if entries else 0.0

    def added_to(self, other: DiagonalGaussian) -> DiagonalGaussian:
        """The law of the sum of two independent noises."""
        return DiagonalGaussian(std={name: (std**2 + other.std[name] ** 2) ** 0.5 for name, std in self.std.items()})

    def scaled(self, factor: float) -> DiagonalGaussian:
        """The law of this noise times a number."""
        return DiagonalGaussian(std={name: abs(factor) * std for name, std in self.std.items()})


@dataclass(frozen=True, kw_only=True)
class NotGaussian:
    """The release is random, but not by additive Gaussian noise; closed-form noise measures do not apply.

    Attributes:
        reason: one sentence for the reader of a score.
    """

    reason: str

    def rms(self, shapes: Mapping[str, Tensor]) -> float | None:
        """The root mean square of the noise over all entries, None where the law does not tell.

        Args:
            shapes: tensors of the update by name.
        """
        del shapes
        return None


@dataclass(frozen=True, kw_only=True)
class Laplace(NotGaussian):
    """Independent Laplace noise on every shared entry.

    Attributes:
        scale: b of every entry; its variance is 2b².
    """

    scale: float

    def rms(self, shapes: Mapping[str, Tensor]) -> float | None:
        """√2 b."""
        del shapes
        return self.scale * 2**0.5


Noise = DiagonalGaussian | NotGaussian | None


class Defense(Settings, ABC):
    """A change of the release that is meant to hide data. Authors subclass the class of the stage at which theirs acts.

    What attackers who know it, accounting and games need to know of a defense it answers itself. Every answer has a
    default that claims nothing; a subclass that changes what a defense does answers anew.

    Attributes:
        stage: where it acts.
        guarantee: formal or heuristic.
        citations: where it comes from.
        adds_in_order: whether `draw` does no more than add, tensor after tensor, standard normal numbers from the
            generator times the std of its Gaussian law, where that is not 0; many draws are then made at once.
    """

    stage: ClassVar[Stage]
    guarantee: ClassVar[Guarantee]
    citations: ClassVar[tuple[Citation, ...]] = ()
    adds_in_order: ClassVar[bool] = False

    @property
    def flat(self) -> bool:
        """True if its derivative is zero almost everywhere (a sign, a rounding).

        Closed-form measures then say nothing, and no attack can follow the derivative of the release.
        """
        return False

    @property
    def kept_share(self) -> float | None:
        """Share of the entries that it says it lets through, for the self-test; None where it says nothing of it."""
        return None

    def effect(self, names: Iterable[str]) -> Effect:
        """Effect on an update, or on the gradient of an example; None, the default, claims nothing.

        Args:
            names: of the tensors, in order.
        """
        return None

    def seen_without(self, layers: Collection[str]) -> Defense:
        """This defense where these layers are not released; itself, unless its settings name layers.

        Args:
            layers: modules whose tensors are hidden, "" for that of parameters of the model itself.
        """
        return self


class ModelDefense(Defense):
    """A defense that is part of the model and its loss, so that the gradient itself is another one.

    It stands in a release so that the record names it, and first; what it does is in the `Objective`. What it draws it
    draws as a layer does, from the objective's `mask_seed`, which no adversary is told.
    """

    stage: ClassVar[Stage] = Stage.MODEL

    @abstractmethod
    def check(self, objective: Objective) -> None:
        """Refuse an objective that does not hold this defense as it is configured here.

        Raises:
            InputError: saying what is missing.
        """

    def inserted(
        self,
        encoder: nn.Module,
        decoder: Callable[[int], nn.Module],
        *,
        features: int,
        generator: torch.Generator,
    ) -> tuple[nn.Module, Callable[[Any, Tensor], Tensor]] | None:
        """A classifier with this defense between two parts, and its loss; None where that is no place for it.

        Args:
            encoder: (b, ...) to `features` numbers an example.
            decoder: makes the second part, for so many numbers an example.
            features: what the encoder puts out.
            generator: of weights.
        """
        return None


class ExampleDefense(Defense):
    """A defense that acts on the gradient of each example, before the mean, at every local step.

    `mean` is deterministic and treats every row by itself. One that adds noise, or divides by another number than that
    of the examples, says so by `closes` and is the last of its stage: `average`, `law` and `draw` of the last one hold.

    Attributes:
        closes: whether it makes the mean itself, so that no other defense of examples may follow it.
    """

    stage: ClassVar[Stage] = Stage.EXAMPLE
    closes: ClassVar[bool] = False

    @abstractmethod
    def mean(self, gradients: Mapping[str, Tensor]) -> Tensors:
        """The defended gradients, each row by itself; pure, differentiable where its mathematics is.

        Args:
            gradients: one a row, by name, each (b, *shape of the parameter).
        """

    def average(self, gradients: Mapping[str, Tensor]) -> Tensors:
        """Gradient that a step takes of its b examples, without noise; their mean, unless it is overridden.

        Args:
            gradients: defended, one a row, by name.
        """
        return {name: rows.mean(dim=0) for name, rows in gradients.items()}

    def divisor(self, examples: int) -> float | None:
        """Divisor in `average` of the sum over so many examples; None, where it is overridden, for another average."""
        return float(examples) if type(self).average is ExampleDefense.average else None

    def law(self, shapes: Mapping[str, Tensor], examples: int) -> Noise:
        """The law of the noise that `draw` adds to the average of so many examples, None for no noise."""
        return None

    def draw(self, average: Mapping[str, Tensor], examples: int, generator: torch.Generator) -> Tensors:
        """The average of so many examples with its noise, random numbers from `generator` only."""
        return dict(average)

    @property
    def bound(self) -> float | None:
        """The largest L2 norm, over all tensors, of one defended gradient; None for no such bound."""
        return None

    def pooled(self, draws: int) -> ExampleDefense | None:
        """The defense of which the mean of so many draws is one; None where there is no such. Itself without noise."""
        return None if self.closes else self


class UpdateDefense(Defense):
    """A defense that acts once on the finished update."""

    stage: ClassVar[Stage] = Stage.UPDATE

    @abstractmethod
    def mean(self, update: Mapping[str, Tensor]) -> Tensors:
        """The deterministic part of the defense; pure, differentiable where its mathematics is.

        Where the defense is random, the mean over its draws.
        """

    @abstractmethod
    def noise(self, shapes: Mapping[str, Tensor]) -> Noise:
        """The law of the noise that `draw` adds to `mean`, None for no noise."""

    @abstractmethod
    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> Tensors:
        """One release: the defense applied to `update`, random numbers from `generator` only."""

    def carry(self, noise: DiagonalGaussian) -> Noise:
        """Noise that Gaussian noise of an earlier defense becomes when this one is applied to it.

        The default says that it is no longer Gaussian; a defense whose mean is the identity returns it unchanged.
        """
        return NotGaussian(reason=f"Gaussian noise passes through {type(self).__name__}, which is not linear")

    def variance(self, update: Mapping[str, Tensor]) -> Tensors | None:
        """The variance of every entry of a draw around `mean`, at this update; None where it is not known.

        The default reads it off a Gaussian law; a defense that is random in another way overrides it.
        """
        noise = self.noise(update)
        if isinstance(noise, NotGaussian):
            return None
        return {
            name: torch.full_like(tensor, 0.0 if noise is None else noise.std[name] ** 2)
            for name, tensor in update.items()
        }

    def only_gaussian(self, shapes: Mapping[str, Tensor]) -> bool:
        """True if all that it does is to add Gaussian noise, or none."""
        return isinstance(self.effect(shapes), Unchanged) and not isinstance(self.noise(shapes), NotGaussian)

    def bound(self, shapes: Mapping[str, Tensor]) -> float | None:
        """The largest L2 norm of `mean` over all tensors, whatever goes in; None for no such bound."""
        return None

    def pooled(self, updates: Sequence[Mapping[str, Tensor]]) -> tuple[Tensors, UpdateDefense] | None:
        """Average of several draws of one update, and the defense under which it reads like one draw.

        None, the default for a random defense, where they say no more than each of them, or nobody has worked it out.

        Args:
            updates: draws by name, all of the same update.
        """
        return (dict(updates[0]), self) if self.noise(updates[0]) is None else None

    @property
    def keeps_scale(self) -> bool:
        """True if what comes out tells how long the update was; signs do not."""
        return True

    @property
    def centered(self) -> bool:
        """True if the middle of the bounds of `before` is likelier than their edges."""
        return False

    def before(self, after: Bounds) -> Bounds | None:
        """Bounds on the update that went in, for an adversary who knows this defense and sees what came out.

        The bounds hold for certain, whatever was drawn; pure and safe under torch.func transforms. None, the default,
        for a defense that is not read entry by entry: a guess is put through its mean instead.

        Args:
            after: of the update that came out; exact where nothing followed.
        """
        return None

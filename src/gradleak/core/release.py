"""Releases, what leaves the client: a protocol and the defenses on top of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradleak.core.batch import Batch
from gradleak.core.bounds import Bounds
from gradleak.core.defense import (
    Defense,
    DiagonalGaussian,
    ExampleDefense,
    ModelDefense,
    Noise,
    NotGaussian,
    Stage,
    UpdateDefense,
)
from gradleak.core.describe import describe
from gradleak.core.objective import Objective, Tensors
from gradleak.core.protocol import Protocol
from gradleak.core.update import Update
from gradleak.results import InputError, UnsupportedError
from gradleak.results.errors import kind_of


class BatchDefense(Defense):
    """A defense that acts on the finished update and looks at the private batch to decide how.

    Its place in the order is among the defenses of the update. What it adds depends on the data, so that nobody but the
    client can compute it, and it has no formal guarantee.

    Attributes:
        needs_sensitive: whether `mean` reads the sensitive variable, so that an adversary cannot compute it.
    """

    stage: ClassVar[Stage] = Stage.BATCH
    needs_sensitive: ClassVar[bool] = False

    @abstractmethod
    def mean(self, update: Mapping[str, Tensor], batch: Batch) -> Tensors:
        """The mean over draws, or as much of it as follows from update and batch alone; pure, differentiable."""

    def mean_at(
        self, update: Mapping[str, Tensor], batch: Batch, objective: Objective, params: Mapping[str, Tensor]
    ) -> Tensors:
        """The mean over draws where it follows from the model, too; `mean`, unless it is overridden. Pure, differentiable.

        Args:
            update: as far as it is made.
            batch: the private data.
            objective: the client's loss.
            params: that it shares its update for.
        """
        return self.mean(update, batch)

    @abstractmethod
    def noise(self, shapes: Mapping[str, Tensor]) -> Noise:
        """The law of what `draw` adds to its mean, None for nothing."""

    @abstractmethod
    def draw(
        self,
        update: Mapping[str, Tensor],
        *,
        objective: Objective,
        batch: Batch,
        before: Release,
        generator: torch.Generator,
    ) -> Tensors:
        """One release: the defense applied to `update`.

        Args:
            update: as far as it is made.
            objective: the client's loss, at the parameters that it shares its update for.
            batch: the private data, in the dtype of the objective.
            before: protocol and defenses up to this one, which made `update`.
            generator: the only source of randomness.
        """

    def many(self, flat: Tensor, sensitive: Tensor | None) -> Tensor | None:
        """Updates (n, P) after this defense, all at once; None where each needs a `draw` of its own.

        Args:
            flat: updates, in the order of their tensors.
            sensitive: the sensitive variable of every example of their batches, (n, k), or None.
        """
        return None

    @property
    def leaves_truth(self) -> bool:
        """True if it moves an update away from the true value of the sensitive variable, which it has to know."""
        return False

    def carry(self, noise: DiagonalGaussian) -> Noise:
        """Noise that Gaussian noise of an earlier defense becomes; by default no longer Gaussian."""
        return NotGaussian(reason=f"Gaussian noise passes through {type(self).__name__}, which is not linear")

    def before(self, after: Bounds) -> Bounds | None:
        """As that of a defense of the update; None, the default, where it is not read entry by entry."""
        return None


@dataclass(frozen=True)
class Release:
    """Protocol and defenses, in the order in which they act.

    Defenses of the model are named first (what they do is in the objective). Those of the example stage act on the
    gradient of each example in every local step, those of the update and batch stages once on the finished update, so
    the former come before the latter. Order matters within a stage too: pruning a clipped update is not clipping a
    pruned one, and noise before a defense that is not linear is no longer Gaussian.

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
            raise InputError(f"Release.protocol: expected a Protocol, got {kind_of(self.protocol)}")
        if isinstance(self.defenses, Defense) or not isinstance(self.defenses, Sequence):
            raise InputError(
                f"Release.defenses: expected a list of defenses, got {kind_of(self.defenses)}; write [...]"
            )
        object.__setattr__(self, "defenses", tuple(self.defenses))
        for defense in self.defenses:
            if not isinstance(defense, Defense):
                raise InputError(f"Release.defenses: expected Defense objects, got {kind_of(defense)}")
            if not isinstance(defense, ModelDefense | ExampleDefense | BatchDefense | UpdateDefense):
                raise UnsupportedError(
                    f"Release.defenses: {type(defense).__name__} acts at the {defense.stage.value} stage by a class of "
                    "its own; derive it from ModelDefense, ExampleDefense, BatchDefense or UpdateDefense"
                )
        for earlier, later in pairwise(self.defenses):
            _check_order(earlier, later)

    def mean(self, objective: Objective, params: Mapping[str, Tensor], batch: Batch) -> Tensors:
        """The released update without its noise, by name; pure, differentiable in `batch.inputs`."""
        update = self.protocol.mean(objective, params, batch, self._at_example)
        for defense in self._on_update:
            if isinstance(defense, BatchDefense):
                update = defense.mean_at(update, batch, objective, params)
            else:
                update = defense.mean(update)
        return update

    def noise(
        self, objective: Objective, params: Mapping[str, Tensor] | None = None, *, examples: int | None = None
    ) -> Noise:
        """The law of the noise on the released update: Gaussian, None for none, or NotGaussian with the reason.

        Args:
            objective: the client's loss.
            params: tensors of the update by name; None for the shared parameters.
            examples: b, the number of examples behind the update; without it the noise of a defense that adds it
                before the mean (DP-SGD) is not determined.
        """
        shapes = objective.params if params is None else params
        own, steps = self.protocol.own_noise(shapes, examples), self._noise_of_steps(shapes, examples)
        return law_after(self._on_update, _together(own, steps), shapes)

    def __call__(self, objective: Objective, batch: Batch, generator: torch.Generator) -> Update:
        """One release of `batch`: what the server sees.

        Args:
            objective: the client's loss, at the parameters that it shares its update for.
            batch: the private data.
            generator: the only source of randomness.

        Raises:
            InputError: if the batch does not fit the model, there is no generator, a defense of the model is not in
                the objective, or the update is not finite, before its defenses or after them.
            UnsupportedError: for a defense of single examples on a model that mixes them.
        """
        _check_generator(generator)
        objective.check(batch)
        self.check_model(objective)
        return self._sealed(objective, self.drawn(objective, batch, generator))

    def drawn(self, objective: Objective, batch: Batch, generator: torch.Generator) -> Tensors:
        """The tensors of one release, of a batch, model and generator that were checked before: the steps of a training.

        They may hold the graph that made them, and numbers that are not finite.

        Args:
            objective: the client's loss.
            batch: the private data, which fits it.
            generator: the only source of randomness.

        Raises:
            InputError: if what the defenses of the whole update are given is not finite.
            UnsupportedError: for a defense of single examples on a model that mixes them.
        """
        batch = batch.to(objective.dtype)
        drawn = [_Drawn(defense=defense, generator=generator) for defense in self._at_example]
        update = self.protocol.draw(objective, objective.params, batch, drawn, generator)
        if self._on_update:
            # A sign or a clip would make numbers of NaN; without them the end of this looks once.
            _refuse_non_finite(update)
        for place, defense in enumerate(self.defenses):
            if isinstance(defense, UpdateDefense):
                update = defense.draw(update, generator)
            elif isinstance(defense, BatchDefense):
                before = Release(self.protocol, self.defenses[:place])
                update = defense.draw(update, objective=objective, batch=batch, before=before, generator=generator)
        return dict(update)

    def of_nothing(self, objective: Objective, generator: torch.Generator) -> Update:
        """Update of a client whose Poisson sampling drew no example: the noise alone, with every defense after it.

        Nothing in it tells that it is empty. It needs a divisor that does not depend on the data: DP-SGD with an
        `expected_batch_size`.

        Args:
            objective: the client's loss.
            generator: the only source of randomness.

        Raises:
            InputError: without a generator.
            UnsupportedError: for a protocol with local steps, a defense that looks at the batch, or a mean over no
                example.
        """
        _check_generator(generator)
        if not self.protocol.shares_gradient or any(isinstance(defense, BatchDefense) for defense in self.defenses):
            raise UnsupportedError(
                "release of no example: expected FedSGD and no defense that looks at the batch, got "
                f"{kind_of(self.protocol)}{''.join(', ' + kind_of(defense) for defense in self.defenses)}"
            )
        none = {name: tensor.new_zeros(0, *tensor.shape) for name, tensor in objective.params.items()}
        last = self._at_example[-1] if self._at_example else None
        average = last.average(none) if last else {}
        if last is None or any(bool(torch.isnan(tensor).any()) for tensor in average.values()):
            raise UnsupportedError(
                "release of no example: expected a defense that divides by a constant, got a mean over the examples "
                "that were drawn; use DPSGD(..., noise='sum', expected_batch_size=...)"
            )
        update = last.draw(average, 0, generator)
        for defense in self._on_update:
            assert isinstance(defense, UpdateDefense)
            update = defense.draw(update, generator)
        return self._sealed(objective, update)

    def check_model(self, objective: Objective) -> None:
        """Refuse an objective in which a defense of the model that is listed here does not stand.

        Raises:
            InputError: saying what is missing.
        """
        for defense in self.defenses:
            if isinstance(defense, ModelDefense):
                defense.check(objective)

    @property
    def after_gradient(self) -> Callable[[Tensors], Tensors] | None:
        """Function that the defenses apply to the plain gradient; None where the release is no function of it alone."""
        scale = self.protocol.gradient_scale()
        finishing = [defense for defense in self._on_update if isinstance(defense, UpdateDefense)]
        if scale is None or self._at_example or len(finishing) < len(self._on_update):
            return None

        def defended(update: Tensors) -> Tensors:
            if scale != 1:
                update = {name: scale * tensor for name, tensor in update.items()}
            for defense in finishing:
                update = defense.mean(update)
            return update

        return defended

    def _noise_of_steps(self, shapes: Mapping[str, Tensor], examples: int | None) -> Noise:
        """The law, on the update, of the noise that the last defense of examples adds in every step."""
        if not self._at_example:
            return None
        last = self._at_example[-1]
        if examples is not None:
            return self.protocol.noise(partial(last.law, shapes), examples)
        if last.law(shapes, 1) is None:
            return None
        return NotGaussian(
            reason=f"the noise of {type(last).__name__} on the mean depends on the number of examples, which is not "
            "known here"
        )

    def _sealed(self, objective: Objective, update: Mapping[str, Tensor]) -> Update:
        _refuse_non_finite(update)
        return Update(
            tensors={name: tensor.detach().clone() for name, tensor in update.items()},
            kind=self.protocol.kind,
            provenance={"release": describe(self), "mode": objective.mode.value, "loss": objective.loss_name},
        )

    @property
    def _at_example(self) -> tuple[ExampleDefense, ...]:
        return tuple(defense for defense in self.defenses if isinstance(defense, ExampleDefense))

    @property
    def _on_update(self) -> tuple[UpdateDefense | BatchDefense, ...]:
        return tuple(defense for defense in self.defenses if isinstance(defense, UpdateDefense | BatchDefense))

    def describe(self) -> dict[str, Any]:
        """A JSON-ready description."""
        described: dict[str, Any] = describe(self)
        return described


@dataclass(frozen=True, kw_only=True, eq=False)
class _Drawn(ExampleDefense):
    """A defense of examples in one draw: its noise is in the average, from a generator that goes on."""

    defense: ExampleDefense
    generator: torch.Generator

    def mean(self, gradients: Mapping[str, Tensor]) -> Tensors:
        return self.defense.mean(gradients)

    def average(self, gradients: Mapping[str, Tensor]) -> Tensors:
        examples = next(iter(gradients.values())).shape[0]
        return self.defense.draw(self.defense.average(gradients), examples, self.generator)


def law_after(defenses: Sequence[UpdateDefense | BatchDefense], law: Noise, shapes: Mapping[str, Tensor]) -> Noise:
    """The law of the noise on an update after these defenses, from that before them.

    Args:
        defenses: in the order in which they act.
        law: of the noise before them.
        shapes: tensors of the update by name.
    """
    for defense in defenses:
        if isinstance(law, DiagonalGaussian):
            law = defense.carry(law)
        if isinstance(law, NotGaussian):
            return law
        law = _together(law, defense.noise(shapes))
    return law


def _together(first: Noise, second: Noise) -> Noise:
    """The law of the sum of two independent noises."""
    if isinstance(first, NotGaussian) or second is None:
        return first
    if isinstance(second, DiagonalGaussian) and isinstance(first, DiagonalGaussian):
        return first.added_to(second)
    if first is None or isinstance(second, DiagonalGaussian):
        return second
    # Of two laws the sum is neither.
    return NotGaussian(reason=second.reason)


def _check_order(earlier: Defense, later: Defense) -> None:
    """Refuse two neighbors whose stages come in the other order."""
    first, second = type(earlier).__name__, type(later).__name__
    if isinstance(later, ModelDefense) and not isinstance(earlier, ModelDefense):
        raise InputError(
            f"Release.defenses: expected defenses of the model before all others, got {second} after {first}; "
            f"put {second} first"
        )
    if isinstance(earlier, UpdateDefense | BatchDefense) and isinstance(later, ExampleDefense):
        raise InputError(
            f"Release.defenses: expected defenses of single examples before those of the whole update, got "
            f"{second} after {first}; the update no longer holds single examples, so put {second} first"
        )
    if isinstance(earlier, ExampleDefense) and earlier.closes and isinstance(later, ExampleDefense):
        raise InputError(
            f"Release.defenses: expected {first} last among the defenses of single examples, since it makes their "
            f"mean, got {second} after it; put {second} first"
        )


def _refuse_non_finite(update: Mapping[str, Tensor]) -> None:
    for name, tensor in update.items():
        if not bool(torch.isfinite(tensor).all()):
            raise InputError(
                f"release: expected finite numbers, got NaN or infinity in {name} ({tensor.dtype}); "
                "check the noise level, the learning rate and the model"
            )


def _check_generator(generator: torch.Generator) -> None:
    if not isinstance(generator, torch.Generator):
        raise InputError(f"Release: expected a torch.Generator, got {kind_of(generator)}; pass generator=...")

"""Protocols: what a client computes from its batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.core.batch import Batch
from gradleak.core.course import Clients, Course
from gradleak.core.defense import ExampleDefense, Noise, NotGaussian
from gradleak.core.example_gradients import example_gradients
from gradleak.core.objective import Objective, Tensors
from gradleak.core.update import UpdateKind
from gradleak.results import Citation, Settings


class Protocol(Settings, ABC):
    """Computation of a client on its batch, before any update-stage defense."""

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

    def draw(
        self,
        objective: Objective,
        params: Mapping[str, Tensor],
        batch: Batch,
        defenses: Sequence[ExampleDefense],
        generator: torch.Generator,
    ) -> Tensors:
        """One update by name; `mean`, unless the client itself draws something.

        Args:
            objective: the client's loss.
            params: where the client starts, by name.
            batch: the private data.
            defenses: of the example stage, whose own noise is drawn elsewhere.
            generator: the only source of what the client draws.
        """
        return self.mean(objective, params, batch, defenses)

    def chance(self, examples: int | None) -> NotGaussian | None:
        """Law of what the client itself draws, beside the noise of defenses; None, the default, for nothing.

        `mean` is then what an adversary computes who does not know the draw.

        Args:
            examples: b, the number of examples of the batch; None where it is not known.
        """
        return None

    def by_epoch(self, examples: int) -> tuple[Protocol, int] | None:
        """The protocol of a batch that holds the examples once for every epoch, and the number of epochs.

        An adversary who does not know in which order a client takes its examples follows it with a copy of them for each
        epoch, in an order of its own. None, the default, where there is no such order.

        Args:
            examples: b, the number of examples of the batch.
        """
        return None

    def plain_gradients(self, examples: int) -> float:
        """Cost of one `mean`, in plain gradients of the whole batch; 1 unless a protocol says otherwise.

        Args:
            examples: b, the number of examples of the batch.
        """
        return 1.0

    def gradient_scale(self) -> float | None:
        """The factor s where `mean` without defenses is s times `objective.gradient`; None where it is not a multiple."""
        return 1.0 if self.shares_gradient else None

    def mini_batch_weights(self, examples: int) -> Sequence[tuple[slice, float]] | None:
        """Weight of the gradient of each mini-batch in the update while the parameters stay near where they began.

        With weights w_j of mini-batches B_j the update is Σ_j w_j ∇L(θ₀; B_j) up to second order in the step size.
        None where the update is no such sum (adaptive optimizers), which is the default.

        Args:
            examples: b, the number of examples of the batch.
        """
        return None

    def decay(self, examples: int) -> float:
        """Factor of the shared parameters in the update, to first order in the step size: what weight decay adds; 0, the default.

        The update is Σ_j w_j ∇L(θ₀; B_j) + decay · θ₀ for small steps, and the second part holds no data.

        Args:
            examples: b, the number of examples of the batch.
        """
        return 0.0

    def course(self, examples: int) -> Course | None:
        """The gradients that the client takes; None, the default for all but the gradient itself, where it is not known.

        Args:
            examples: b, the number of examples of the batch.
        """
        if not self.shares_gradient:
            return None
        return Course(epochs=1, sizes=[examples], whole=True, sums=[(examples, 1.0)])

    @property
    def of_client(self) -> Protocol:
        """Protocol of a single client; itself, unless several clients' updates are put together."""
        return self

    @property
    def clients_added(self) -> Clients | None:
        """Clients whose updates are added up; None, the default, for the update of one."""
        return None

    def own_noise(self, shapes: Mapping[str, Tensor], examples: int | None) -> Noise:
        """The law, on the update, of all that is drawn besides what defenses of examples draw; `chance`, the default.

        Args:
            shapes: tensors of the update by name.
            examples: b, the number of examples of the batch; None where it is not known.
        """
        return self.chance(examples)

    @property
    def client_sizes(self) -> Sequence[int] | None:
        """Number of examples of a batch that each of several clients has; None where a batch may have any number."""
        return None

    def noise(self, law: Callable[[int], Noise], examples: int) -> Noise:
        """The law, on the update, of noise that a defense adds to every gradient that the client takes.

        The default is for one gradient, or none of it Gaussian: local training carries noise on in a way that is not
        linear.

        Args:
            law: of the noise on one gradient of so many examples; independent from gradient to gradient.
            examples: b, the number of examples of the batch.
        """
        noise = law(examples)
        if noise is None or isinstance(noise, NotGaussian) or self.shares_gradient:
            return noise
        return NotGaussian(
            reason=f"the noise is added to every gradient inside the local training of {type(self).__name__}, which "
            "carries it on in a way that is not linear"
        )

    def note(self, examples: int) -> str:
        """Note on an update of this protocol for the reader, in a clause; "" for nothing."""
        return ""


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
        defenses: of the example stage, in order; the last one makes the mean.

    Raises:
        UnsupportedError: with defenses, if the model mixes examples (BatchNorm in train mode).

    Cost: one plain gradient; with defenses see `example_gradients`.
    """
    if not defenses:
        return objective.gradient(params, batch)
    gradients = example_gradients(objective, params, batch)
    for defense in defenses:
        gradients = defense.mean(gradients)
    return defenses[-1].average(gradients)

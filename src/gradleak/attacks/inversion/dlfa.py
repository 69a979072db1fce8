"""Data leakage in federated averaging: local steps of a client whose order of examples is not known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import scipy
import torch
from torch import Tensor

from gradleak.attacks.attack import Attack, Monitor
from gradleak.attacks.inversion.engine import Inversion
from gradleak.attacks.inversion.matching import CosineDistance
from gradleak.attacks.inversion.optimizers import Adam, Iterations, SearchStage, StepDecay
from gradleak.attacks.inversion.priors import Guess, Prior, TotalVariation, weighted
from gradleak.attacks.inversion.problem import NEEDS, LabelPolicy, check_labels, readable
from gradleak.attacks.inversion.reading import LabelSource
from gradleak.attacks.inversion.variables import Pixels, Start
from gradleak.attacks.labels import recover_labels
from gradleak.core import Knowledge, Reconstruction, Update
from gradleak.results import DIMITROV_2022, Citation, Count, NonNegative, Positive


@dataclass(frozen=True, kw_only=True)
class EpochMeans(Prior):
    """weight · mean over pairs of epochs of the mean square of what their mean examples differ by.

    Every epoch of a client holds the same examples, in whatever order, so that any function of them that does not depend on
    the order is the same: here their mean.

    **Source**: Dimitrov et al. 2022, equation 5, with the mean as the function and squares as the distance. Deviation: a mean
    over entries and pairs, in place of sums.

    Attributes:
        weight: at least 0.
        epochs: how many copies of the examples a guess holds, one epoch after the other.

    Raises:
        InputError: for a negative weight.
    """

    citations = (DIMITROV_2022,)

    weight: NonNegative
    epochs: Count

    def __call__(self, guess: Guess) -> Tensor:
        """The weighted penalty, 0 for one epoch."""
        means = guess.inputs.reshape(self.epochs, -1, *guess.inputs.shape[1:]).mean(dim=1)
        # The mean over ordered pairs of squares is twice the variance.
        return self.weight * 2 * (means - means.mean(dim=0)).square().mean()


@dataclass(frozen=True, kw_only=True)
class DLFA(Attack):
    """Inputs from the local steps of a client that shuffles, with a copy of the examples for every epoch.

    The order of the examples is not known, so that no guess of one batch can be followed through all epochs. Every epoch gets
    unknowns of its own, in an order of its own, which are put through the client's steps and pulled together by
    `EpochMeans`. At the end the copies are paired one to one with those of the first epoch, within each label, and the
    claim is their mean.

    Labels stand in a random order in every epoch, as the client's do: they are disclosed, or recovered as counts. Where they
    are neither, and for every protocol whose order is known, this is the same search on a single copy (with steps that take
    the mean over an epoch, or the client's own).

    **Source**: Dimitrov et al. 2022, sections 4.2 and 4.3: order-invariant prior, matching and averaging of epochs. Deviations:
    optimizer, matching and box are those of `InvertingGradients`, labels those of `recover_labels`; the paper's
    interpolation of label counts over epochs is not built.

    **Cost**: 3 gradients of the client's whole training an iteration and start: 3 plain gradients times the epochs.

    Attributes:
        iterations: Adam steps.
        restarts: starts a target, in lockstep.
        learning_rate: in model-input units.
        total_variation: weight for the mean over neighbor pairs as `TotalVariation` defines it.
        epoch_means: weight of `EpochMeans`.
        patience: stop after so many steps without progress of any start; None never.
    """

    name: ClassVar[str] = "dlfa"
    needs: ClassVar[tuple[str, ...]] = NEEDS
    citations: ClassVar[tuple[Citation, ...]] = (DIMITROV_2022,)
    summary: ClassVar[str] = (
        "Cosine matching with a copy of the examples for every shuffled epoch (Dimitrov et al. 2022)."
    )

    iterations: Iterations = 4000
    restarts: Count = 1
    learning_rate: Positive = 0.1
    total_variation: NonNegative = 1e-3
    epoch_means: NonNegative = 0.1
    patience: Count | None = None

    def __post_init__(self) -> None:
        """Compose once, which refuses what the parts refuse."""
        super().__post_init__()
        self._composed(2)

    def estimate(self, knowledge: Knowledge) -> float:
        """The cost in plain gradients if no start stops early."""
        protocol, examples = knowledge.protocol, knowledge.batch_size
        copies = None if protocol is None or examples is None else protocol.by_epoch(examples)
        if copies is None or examples is None:
            return self._composed(1).estimate(knowledge)
        # A gradient of the batch of all epochs is one of the batch, once for each.
        wide = replace(knowledge, protocol=copies[0], batch_size=copies[1] * examples, targets=None)
        return copies[1] * self._composed(copies[1]).estimate(wide)

    def _check(self, knowledge: Knowledge) -> None:
        """As `Inversion`."""
        readable(knowledge)
        check_labels(knowledge, LabelPolicy.RECOVER)

    def _recover(
        self, update: Update, knowledge: Knowledge, generator: torch.Generator, monitor: Monitor
    ) -> Reconstruction:
        assert knowledge.protocol is not None
        assert knowledge.batch_size is not None
        examples = knowledge.batch_size
        copies = knowledge.protocol.by_epoch(examples)
        labels, source, said = knowledge.targets, LabelSource.DISCLOSED, "labels were disclosed to the attack"
        if copies is not None and labels is None:
            recovered = recover_labels(update, knowledge)
            labels, source, said = recovered.targets, LabelSource.RECOVERED, recovered.note
        if copies is None or labels is None:
            return self._composed(1)._recover(update, knowledge, generator, monitor)
        protocol, epochs = copies
        orders = [
            torch.randperm(examples, generator=generator, device=generator.device).to(labels.device)
            for _ in range(epochs)
        ]
        wide = replace(
            knowledge,
            protocol=protocol,
            batch_size=epochs * examples,
            targets=torch.cat([labels[order] for order in orders]),
        )
        found = self._composed(epochs)._recover(update, wide, generator, monitor)
        note = "; ".join(
            part for part in (said, found.note.replace("labels were disclosed to the attack", "").strip("; ")) if part
        )
        information = [
            f"labels: {source.value}" if fact.startswith("labels: ") else fact
            for fact in found.details.get("information", [])
        ]
        details = {**found.details, "labels": source.value, "information": information, "epochs": epochs}
        # A gradient of the batch of all epochs is one of the batch, once for each.
        found = replace(found, note=note, details=details, plain_gradients=found.plain_gradients * epochs)
        if found.inputs is None:
            return found
        inputs, spread = _averaged(found.inputs, labels, orders)
        return replace(found, inputs=inputs, targets=labels, details={**details, "epochs_apart": spread})

    def _composed(self, epochs: int) -> Inversion:
        """The composition that runs, over so many copies."""
        adam = Adam(learning_rate=self.learning_rate, signed=True, schedule=StepDecay())
        agreement = EpochMeans(weight=self.epoch_means, epochs=epochs) if epochs > 1 else None
        return Inversion(
            matching=CosineDistance(),
            variables=Pixels(start=Start.NORMAL, box=True),
            priors=weighted(TotalVariation(weight=self.total_variation), agreement),
            stages=(SearchStage(optimizer=adam, iterations=self.iterations),),
            restarts=self.restarts,
            patience=self.patience,
        )


def _averaged(inputs: Tensor, labels: Tensor, orders: list[Tensor]) -> tuple[Tensor, float]:
    """The mean of paired copies (b, *shape) in the order of the labels, and how far they are apart (root mean square)."""
    copies = inputs.reshape(len(orders), len(labels), *inputs.shape[1:])
    # In the order of the labels first: copies of one label may be exchanged.
    sorted_ = [copy[order.argsort()] for copy, order in zip(copies, orders, strict=True)]
    kinds = labels.detach().cpu()
    paired = [sorted_[0]]
    for copy in sorted_[1:]:
        placed = copy.clone()
        for kind in kinds.unique(dim=0):
            same = kinds == kind
            places = (same if same.dim() == 1 else same.all(dim=1)).nonzero()[:, 0].to(copy.device)
            first, other = sorted_[0][places].flatten(1).double(), copy[places].flatten(1).double()
            squared = (first[:, None] - other[None]).square().sum(dim=2)
            _, columns = scipy.optimize.linear_sum_assignment(squared.cpu().numpy())
            placed[places] = copy[places[torch.as_tensor(columns, device=places.device)]]
        paired.append(placed)
    together = torch.stack(paired)
    mean = together.mean(dim=0)
    return mean, float((together - mean).square().mean().sqrt())

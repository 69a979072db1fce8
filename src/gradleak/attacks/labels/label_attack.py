"""Base of every label attack, and the form of the loss that it reads: an update and knowledge go in, labels come out."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, final

import torch
from torch import Tensor

from gradleak.core import Knowledge, Objective, Update, sealed
from gradleak.core.effect import ScaledRows, Unchanged
from gradleak.core.losses import is_binary_cross_entropy, is_squared_error
from gradleak.core.module_copy import first_line
from gradleak.core.process import ONE_CALL
from gradleak.protocols.average_gradient import without_decay
from gradleak.results import Citation, Outcome, Settings


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelRecovery:
    """Labels that the update gives away, without the truth.

    Attributes:
        targets: class indices (b,), in ascending order, or None where the update does not identify them.
        confidence: probability that all of them are right, under the known (or apparent) noise and error, in [0, 1].
        outcome: `converged`, `not_identifiable`, or `no_signal`.
        note: how they were had, or why not.
        counts: how often each class occurs (c,), whole numbers that sum to the batch size, or None with `targets`.
        estimate: the counts before rounding (c,), or None where none were made; kept where there is no claim.
        interval: smallest and largest count of each class at 95 % (c, 2), where there is a claim of counts.
        expected_accuracy: the share of labels expected to be right, where there is a claim. As confidence and interval
            it holds under the attack's error model, which a trained model breaks.
    """

    targets: Tensor | None
    confidence: float
    outcome: Outcome
    note: str
    counts: Tensor | None = None
    estimate: Tensor | None = None
    interval: Tensor | None = None
    expected_accuracy: float | None = None


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """Reason why nothing about the labels can be read from an update.

    Attributes:
        reason: a clause for the reader.
        outcome: `not_identifiable`, or `no_signal`.
    """

    reason: str
    outcome: Outcome = Outcome.NOT_IDENTIFIABLE

    def recovery(self) -> LabelRecovery:
        """The answer without labels."""
        return LabelRecovery(targets=None, confidence=0.0, outcome=self.outcome, note=self.reason)


class LabelAttack(Settings, ABC):
    """An adversary that reads the labels of a batch off an update. Authors write `_recover`.

    Attributes:
        name: snake case, as it stands in records.
        needs: the fields of `Knowledge` without which the attack is refused before anything is computed.
        citations: where it comes from.
        summary: one sentence for lists and reports.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ("objective", "batch_size", "domain")
    citations: ClassVar[tuple[Citation, ...]] = ()
    summary: ClassVar[str]

    @final
    def __call__(
        self, update: Update, knowledge: Knowledge, *, generator: torch.Generator | None = None
    ) -> LabelRecovery:
        """The labels behind an update with a confidence, or why the update does not give them; never a guess.

        Args:
            update: what the server saw; it is aligned with the model and never changed.
            knowledge: all that the adversary knows besides it.
            generator: the only source of randomness (dummy inputs); None stands for a new one with seed 0.

        Raises:
            KnowledgeError: naming what the attack needs and the threat model does not disclose.
            InconsistentUpdateError: if the update does not fit the model.
            InputError: naming a tensor of the update with NaN or infinite values.
            UnsupportedError: for a model, loss or defense that cannot be copied.
        """
        knowledge.require(self.needs, asker=f"the label attack {self.name}")
        if generator is None:
            generator = torch.Generator().manual_seed(0)
        (update,), (knowledge,) = sealed([update]), sealed([knowledge])
        assert knowledge.objective is not None
        aligned, protocol, examples = update.align(knowledge.objective), knowledge.protocol, knowledge.batch_size
        if protocol is not None and examples is not None and protocol.decay(examples):
            effects = [defense.effect(aligned.tensors) for defense in knowledge.defenses or ()]
            if any(not isinstance(effect, Unchanged | ScaledRows) for effect in effects):
                reason = (
                    "weight decay moved the parameters before a defense changed the update, and cannot be taken out"
                )
                return Unreadable(reason=reason).recovery()
            aligned = without_decay(aligned, protocol, examples, knowledge.objective.params)
        return self._recover(aligned, knowledge, generator)

    @abstractmethod
    def _recover(self, update: Update, knowledge: Knowledge, generator: torch.Generator) -> LabelRecovery:
        """The labels behind one aligned, finite update."""


def spelled_out(counts: Tensor) -> Tensor:
    """Class indices (b,) with each class as often as counted, ascending.

    Examples:
        >>> spelled_out(torch.tensor([0, 3, 1])).tolist()
        [1, 1, 1, 2]
    """
    return torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)


# A loss is asked once a class; more classes than these are not asked.
MOST_CLASSES = 4096
TOLERANCE = 1e-3


class Reduction(StrEnum):
    """Reduction of a loss from examples to the batch."""

    MEAN = "mean"
    SUM = "sum"


@dataclass(frozen=True, kw_only=True, eq=False)
class LossForm:
    """A loss whose gradient at the logits z of an example of class y is a_y softmax(z) − T_y, whatever z.

    Over a batch these are averaged with weights w_y, or added up. Cross entropy has a = 1, T = 1 (the identity) and
    w = 1; label smoothing ε has T = (1 − ε) 1 + ε/c, and class weights enter w.

    Attributes:
        factors: a (c,).
        targets: T (c, c), one column a class.
        weights: w (c,), up to a factor.
        reduction: mean or sum.
    """

    factors: Tensor
    targets: Tensor
    weights: Tensor
    reduction: Reduction

    @property
    def one_hot(self) -> bool:
        """True if a class's own logit is the only one that its target enters (no smoothing)."""
        return bool((self.targets - torch.diag(self.targets.diagonal())).abs().max() < 1e-5)

    @property
    def plain(self) -> bool:
        """True if it is cross entropy without settings, averaged or added up."""
        return self.one_hot and not self.weighted and bool((self.factors - 1).abs().max() < 1e-4)

    @property
    def weighted(self) -> bool:
        """True if the mean over the batch has class weights."""
        spread = float(self.weights.max() - self.weights.min())
        return self.reduction is Reduction.MEAN and spread > 1e-4 * float(self.weights.max())

    @property
    def elsewhere(self) -> Tensor:
        """Target of an average other class at each logit (c,): ε/c for label smoothing."""
        classes = len(self.factors)
        return (self.targets.sum(dim=1) - self.targets.diagonal()) / (classes - 1)

    def matrix(self, probabilities: Tensor) -> Tensor:
        """Gradient of the logits that one example of each class adds, (c, c), one column a class.

        Args:
            probabilities: mean softmax of each class's examples (c, c), one column a class.
        """
        return (probabilities * self.factors - self.targets) * self.weights


def loss_form(objective: Objective, classes: int, *, log_softmax: bool) -> LossForm | Unreadable:
    """The form of an objective's loss, found by asking it, or why it has none.

    The gradient is taken at two random logit vectors for each class, where a and T are read off and the form is
    checked, and for a batch with one example of each class, which shows weights and reduction.

    Args:
        objective: whose loss is meant.
        classes: the number of logits, c.
        log_softmax: whether the model returns the log-softmax of the logits.

    **Cost**: 2c + 1 gradients of the loss alone; none for plain cross entropy.
    """
    if objective.loss_name == "cross_entropy" or (objective.loss_name == "nll" and log_softmax):
        eye = torch.eye(classes, dtype=torch.float64)
        ones = torch.ones(classes, dtype=torch.float64)
        return LossForm(factors=ones, targets=eye, weights=ones, reduction=Reduction.MEAN)
    name = objective.loss_name
    if is_squared_error(name) or is_binary_cross_entropy(name):
        return Unreadable(reason=f"the loss is {name}, which takes numbers, one an output, and no class")
    if classes > MOST_CLASSES:
        return Unreadable(reason=f"the loss {objective.loss_name} is not examined for more than {MOST_CLASSES} classes")
    dtype = objective.dtype if objective.dtype in (torch.float32, torch.float64) else torch.float32
    asked = objective.to(dtype)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn((2, classes, classes), generator=generator, dtype=torch.float64).to(objective.device, dtype)
    labels = torch.arange(classes, device=objective.device)
    try:
        # Losses of numbers warn of targets that are classes.
        with ONE_CALL, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            first, second = (
                torch.cat([_gradient(asked, piece[y : y + 1], labels[y : y + 1], log_softmax) for y in range(classes)])
                for piece in logits
            )
            together = _gradient(asked, logits[0], labels, log_softmax)
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError, ArithmeticError) as error:
        return Unreadable(
            reason=f"the loss {objective.loss_name} takes no logits (b, {classes}) with class indices "
            f"({first_line(error)})"
        )
    p, q = torch.softmax(logits[0].cpu().double(), dim=1), torch.softmax(logits[1].cpu().double(), dim=1)
    return _fit(objective.loss_name, p, q, first, second, together)


def _gradient(objective: Objective, logits: Tensor, labels: Tensor, log_softmax: bool) -> Tensor:
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_()
        outputs = torch.log_softmax(leaf, dim=1) if log_softmax else leaf
        loss = objective.loss_of_outputs(outputs, labels)
        (gradient,) = torch.autograd.grad(loss, leaf)
    result: Tensor = gradient.cpu().double()
    return result


def _fit(name: str, p: Tensor, q: Tensor, first: Tensor, second: Tensor, together: Tensor) -> LossForm | Unreadable:
    other = Unreadable(
        reason=f"the loss is {name}, whose gradient at the logits is not that of cross entropy with fixed targets"
    )
    gap, change = p - q, first - second
    factors = (gap * change).sum(dim=1) / gap.square().sum(dim=1)
    size = first.abs().amax(dim=1)
    if not bool(torch.isfinite(first).all()) or bool((size == 0).any()):
        return Unreadable(reason=f"the loss is {name}, under which some classes leave no gradient at the logits")
    wrong = (change - factors[:, None] * gap).abs().amax(dim=1) > TOLERANCE * size
    shares = (together * first).sum(dim=1) / first.square().sum(dim=1)
    mixed = (together - shares[:, None] * first).abs().amax(dim=1) > TOLERANCE * together.abs().amax(dim=1)
    if bool(wrong.any() | mixed.any() | (factors <= 0).any() | (shares <= 0).any()):
        return other
    classes = len(factors)
    if bool(((shares - 1).abs() < TOLERANCE).all()):
        reduction, weights = Reduction.SUM, torch.ones(classes, dtype=torch.float64)
    elif abs(float(shares.sum()) - 1) < TOLERANCE:
        reduction, weights = Reduction.MEAN, shares * classes
    else:
        return other
    targets = (factors[:, None] * p - first).T.contiguous()
    return LossForm(factors=factors, targets=targets, weights=weights, reduction=reduction)

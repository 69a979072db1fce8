"""Targets as unknowns of an inversion: the form in which a loss takes them, and how they are searched."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.labels.sign_rule import is_cross_entropy
from gradleak.core import Knowledge
from gradleak.core.losses import MASKED_WORD, is_binary_cross_entropy, is_squared_error
from gradleak.results import KnowledgeError, UnsupportedError

DISCLOSE = "disclose targets in the threat model: HonestButCurious(targets=True)"
"""What a user can do where an attack cannot have the targets."""


@dataclass(frozen=True, kw_only=True)
class TargetForm(ABC):
    """The targets of one example as numbers that a search moves.

    Attributes:
        shape: of the targets of one example, that of the model's output.
    """

    shape: tuple[int, ...]

    @property
    def entries(self) -> int:
        """Numbers an example."""
        return math.prod(self.shape)

    @property
    def bounds(self) -> tuple[float, float]:
        """Smallest and largest value of a number, infinite where there is no limit."""
        return -math.inf, math.inf

    def start(self, normal: Tensor) -> Tensor:
        """Start of a search, of numbers drawn from N(0, 1)."""
        return normal

    def middle(self, examples: int, like: Tensor) -> Tensor:
        """Targets (b, *shape) that are as good as any."""
        return self.read(torch.zeros(examples * self.entries, dtype=like.dtype, device=like.device))

    @abstractmethod
    def read(self, flat: Tensor) -> Tensor:
        """The targets (b, *shape) of numbers (b · n,); pure."""

    @abstractmethod
    def flat(self, targets: Tensor) -> Tensor:
        """The numbers (b · n,) that are read as these targets (b, *shape)."""


@dataclass(frozen=True, kw_only=True)
class ClassWeights(TargetForm):
    """Class probabilities, the softmax of one number a class: what cross entropy takes.

    **Source**: Zhu et al. 2019, algorithm 1.
    """

    def read(self, flat: Tensor) -> Tensor:
        """The softmax over the classes."""
        return flat.reshape(-1, *self.shape).softmax(dim=1)

    def flat(self, targets: Tensor) -> Tensor:
        """The logarithms of the probabilities, floored at 1e-6."""
        return targets.clamp(min=1e-6).log().reshape(-1)


@dataclass(frozen=True, kw_only=True, eq=False)
class WordWeights(TargetForm):
    """Probabilities of words, one number a place and word: what a language model's loss takes.

    They are unknowns of their own beside the embeddings of the same words. Probabilities that follow from the embeddings (by
    distance to the rows of the table) stop in local minima: 2 or 3 of 8 words in place where these gave 8.

    Attributes:
        closed: words that do not stand at a place, (b, T, V).
        there: places that hold a word, (b, T).
    """

    closed: Tensor
    there: Tensor

    def start(self, normal: Tensor) -> Tensor:
        """Nearly uniform."""
        return 0.1 * normal

    def read(self, flat: Tensor) -> Tensor:
        """The softmax over the words that may stand there, zero where no word is."""
        logits = flat.reshape(-1, *self.shape).masked_fill(self.closed, -math.inf)
        return logits.softmax(dim=-1) * self.there[..., None]

    def flat(self, targets: Tensor) -> Tensor:
        """The logarithms of the probabilities, floored at 1e-6."""
        return targets.clamp(min=1e-6).log().reshape(-1)


@dataclass(frozen=True, kw_only=True)
class FreeTargets(TargetForm):
    """Any numbers, one an output: what a squared error takes."""

    def read(self, flat: Tensor) -> Tensor:
        """The numbers themselves."""
        return flat.reshape(-1, *self.shape)

    def flat(self, targets: Tensor) -> Tensor:
        """The targets themselves."""
        return targets.reshape(-1)


@dataclass(frozen=True, kw_only=True)
class Shares(FreeTargets):
    """Numbers from 0 to 1, one an output: what binary cross entropy takes.

    They are searched in their box and not through a sigmoid: hard labels lie on its border, which a step reaches, and which
    no finite logit does.
    """

    @property
    def bounds(self) -> tuple[float, float]:
        """From 0 to 1."""
        return 0.0, 1.0

    def start(self, normal: Tensor) -> Tensor:
        """Uniform from 0 to 1."""
        started: Tensor = torch.special.ndtr(normal)
        return started

    def middle(self, examples: int, like: Tensor) -> Tensor:
        """Halves."""
        return torch.full((examples, *self.shape), 0.5, dtype=like.dtype, device=like.device)


def form_of(loss_name: str) -> type[TargetForm] | None:
    """The form of the targets of a loss, or None for a loss whose targets cannot be searched.

    Args:
        loss_name: of an objective: a name, or torch's module with its settings.
    """
    if is_cross_entropy(loss_name):
        return ClassWeights
    if is_squared_error(loss_name):
        return FreeTargets
    return Shares if is_binary_cross_entropy(loss_name) else None


def target_form(knowledge: Knowledge) -> TargetForm:
    """The form of the targets of a model and loss, where they are unknowns.

    Raises:
        KnowledgeError: for a loss whose targets cannot be searched.
        UnsupportedError: for a model without one output tensor an example, or cross entropy on less than a vector of logits.
    """
    assert knowledge.objective is not None
    assert knowledge.domain is not None
    form = form_of(knowledge.objective.loss_name)
    if form is None:
        raise not_had(knowledge.objective.loss_name, "")
    shape = knowledge.objective.output_shape(knowledge.domain)
    vector = shape is not None and len(shape) == 1 and shape[0] >= 2
    if shape is None or (form is ClassWeights and not vector):
        raise UnsupportedError(
            f"labels as unknowns need a model with one vector of logits an example, got output {shape}; {DISCLOSE}"
        )
    return form(shape=shape)


def not_had(loss: str, because: str) -> KnowledgeError:
    """The refusal of an attack that can neither read targets nor search them.

    Args:
        loss: name of the loss.
        because: why they cannot be read, "" or from a colon on.
    """
    if loss == MASKED_WORD:
        return KnowledgeError(
            "which places a client masked, and the words that stood there, are its secret, and the inputs do not hold these: "
            f"the targets of masked_lm are neither read nor searched; {DISCLOSE}"
        )
    return KnowledgeError(
        "labels can be optimized together with the inputs for cross entropy, squared error and binary cross entropy (under "
        f"torch's names), and the loss is {loss!r}{because}; {DISCLOSE}"
    )

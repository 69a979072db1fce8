"""One target as the search sees it: the release map, the update, and what is known about the labels."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from gradleak.attacks.inversion.variables import Pixels, PixelsAndLabels, Space, Variables
from gradleak.attacks.labels import SignRule
from gradleak.attacks.labels.sign_rule import is_cross_entropy
from gradleak.core import Batch, DiagonalGaussian, Knowledge, Objective, Release, Update
from gradleak.core.release import Noise
from gradleak.results import KnowledgeError, UnsupportedError

NEEDS = ("objective", "protocol", "batch_size", "domain")
"""What every inversion needs to know."""


class LabelPolicy(StrEnum):
    """What is done about labels that are not disclosed; disclosed ones are always used."""

    RECOVER = "recover"
    OPTIMIZE = "optimize"


class LabelSource(StrEnum):
    """Where the labels of a reconstruction come from."""

    DISCLOSED = "disclosed"
    RECOVERED = "recovered"
    OPTIMIZED = "optimized"


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """Find inputs (and labels) whose released mean is the update.

    Attributes:
        objective: in the dtype of the search.
        release: protocol and known defenses.
        target: the update, flat (P,), in the dtype of the search.
        update_dtype: the dtype in which the update came, which sets its round-off.
        labels: given labels (b, ...), or None where they are unknowns.
        source: where the labels come from.
        space: sizes of the unknowns.
        variables: the unknowns.
        noise: the law of the noise on the release.
        note: how the labels were had.
        label_confidence: of recovered labels, else None.
    """

    objective: Objective
    release: Release
    target: Tensor
    update_dtype: torch.dtype
    labels: Tensor | None
    source: LabelSource
    space: Space
    variables: Variables
    noise: Noise
    note: str
    label_confidence: float | None = None

    @classmethod
    def pose(
        cls,
        update: Update,
        knowledge: Knowledge,
        *,
        pixels: Pixels,
        policy: LabelPolicy,
        dtype: torch.dtype | None = None,
    ) -> Problem:
        """The problem of one aligned update.

        Args:
            update: aligned, finite, not zero.
            knowledge: with objective, protocol, batch size and domain.
            pixels: how inputs are searched.
            policy: what to do about labels that are not disclosed.
            dtype: of the search; None for the objective's own.

        Raises:
            KnowledgeError: if labels are neither disclosed nor recoverable nor optimizable.
            UnsupportedError: if labels would be unknowns of a model whose output is not one vector an example, or for
                a release without a derivative to follow (signs).
        """
        knowledge.require(NEEDS, asker="gradient inversion")
        flat = [type(defense).__name__ for defense in knowledge.release.defenses if defense.flat]
        if flat:
            raise UnsupportedError(
                f"gradient inversion: expected a release whose derivative can be followed, got {' and '.join(flat)}, "
                "whose derivative is zero almost everywhere; this is no evidence of safety: run inverting_gradients "
                "under HonestButCurious(defenses=False), which matches the plain gradient by cosine"
            )
        assert knowledge.objective is not None
        assert knowledge.domain is not None
        assert knowledge.batch_size is not None
        objective = knowledge.objective if dtype is None else knowledge.objective.to(dtype)
        labels, source, note, confidence = _labels(update, knowledge, policy)
        if labels is not None:
            labels = labels.to(objective.device)
            labels = labels.to(objective.dtype) if labels.is_floating_point() else labels
        space = Space(
            domain=knowledge.domain,
            batch_size=knowledge.batch_size,
            classes=_classes(objective, knowledge) if labels is None else None,
            dtype=objective.dtype,
            device=objective.device,
        )
        return cls(
            objective=objective,
            release=knowledge.release,
            target=objective.flatten(update.tensors).to(objective.device, objective.dtype),
            update_dtype=update.dtype,
            labels=labels,
            source=source,
            space=space,
            variables=pixels if labels is not None else PixelsAndLabels(pixels=pixels),
            noise=knowledge.release.noise(objective),
            note=note,
            label_confidence=confidence,
        )

    def released(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The released mean (P,) of a guess; pure and safe under torch.func transforms."""
        batch = Batch(inputs, targets)
        return self.objective.flatten(self.release.mean(self.objective, self.objective.params, batch))

    def mean(self, flat: Tensor, labels: Tensor | None) -> Tensor:
        """The released mean (P,) at flat unknowns (n,)."""
        return self.released(*self.variables.decode(self.space, flat, labels))

    def relative_residual(self, flat: Tensor) -> float:
        """‖g(z) − g*‖ / ‖g*‖ at flat unknowns (n,)."""
        with torch.no_grad():
            residual = self.mean(flat, self.labels) - self.target
        scale = self.target.abs().max()
        return float((residual / scale).norm() / (self.target / scale).norm())

    @property
    def round_off(self) -> float:
        """The relative residual that floating point alone leaves: 16 units of round-off of the update."""
        return 16 * max(torch.finfo(dtype).eps for dtype in (self.update_dtype, self.objective.dtype))

    @property
    def noise_std(self) -> Tensor | None:
        """The std of the known Gaussian noise by entry (P,), or None."""
        if not isinstance(self.noise, DiagonalGaussian):
            return None
        entries = {
            name: torch.full_like(tensor, self.noise.std[name]) for name, tensor in self.objective.params.items()
        }
        return self.objective.flatten(entries)

    def facts(self) -> dict[str, Any]:
        """JSON-ready facts for `Reconstruction.details`."""
        facts: dict[str, Any] = {"labels": self.source.value}
        if self.label_confidence is not None:
            facts["label_confidence"] = self.label_confidence
        return facts


def _labels(
    update: Update, knowledge: Knowledge, policy: LabelPolicy
) -> tuple[Tensor | None, LabelSource, str, float | None]:
    assert knowledge.objective is not None
    if knowledge.targets is not None:
        return knowledge.targets, LabelSource.DISCLOSED, "labels were disclosed to the attack", None
    loss = knowledge.objective.loss_name
    if not is_cross_entropy(loss):
        raise KnowledgeError(
            f"labels can be recovered or optimized for cross entropy only, and the loss is {loss!r}; "
            "disclose targets in the threat model"
        )
    if policy is LabelPolicy.OPTIMIZE:
        return None, LabelSource.OPTIMIZED, "labels were optimized together with the inputs", None
    found = SignRule()(update, knowledge)
    if found.targets is not None:
        return found.targets, LabelSource.RECOVERED, found.note, found.confidence
    return None, LabelSource.OPTIMIZED, f"labels were optimized together with the inputs: {found.note}", None


def _classes(objective: Objective, knowledge: Knowledge) -> int:
    assert knowledge.domain is not None
    shape = objective.output_shape(knowledge.domain)
    if shape is None or len(shape) != 1 or shape[0] < 2:
        raise UnsupportedError(
            f"labels as unknowns need a model with one vector of logits an example, got output {shape}; "
            "disclose targets in the threat model"
        )
    return shape[0]

"""Local training as an attack reads it: unrolled, or as the average gradient at the shared parameters (AGA)."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from gradleak.core import Mode, Objective, Release
from gradleak.protocols.average_gradient import AverageGradient, proportional, weights_of


class LocalTraining(StrEnum):
    """Local steps that a guess is put through before it is compared with an update.

    `unrolled`: the client's own steps, differentiated through all of them (the federated averaging operator of Geiping
    et al. 2020). Exact; one evaluation costs as many gradients as the client took.

    `average_gradient` (AGA): all local gradients taken at the shared parameters θ₀, so that an evaluation costs one
    plain gradient whatever the number of steps. See `AverageGradient` for the formula and for when it is exact.
    """

    UNROLLED = "unrolled"
    AVERAGE_GRADIENT = "average_gradient"

    def release(self, release: Release, objective: Objective, examples: int) -> Release:
        """The release whose mean a guess is put through: this one, or its first-order stand-in.

        Defenses stay as they are and act on the whole update, at its own scale: a clip that bit on the delta bites
        here, and noise keeps its std.

        Args:
            release: as it is known or assumed.
            objective: of the client; its mode decides whether mini-batches can be merged.
            examples: b, the number of examples of the batch.

        Raises:
            UnsupportedError: for `average_gradient` and a protocol that no average gradient stands for.
        """
        if self is LocalTraining.UNROLLED or release.protocol.shares_gradient:
            return release
        together = objective.mode is Mode.EVAL and proportional(weights_of(release.protocol, examples))
        return replace(
            release, protocol=AverageGradient(protocol=release.protocol, examples=examples, together=together)
        )

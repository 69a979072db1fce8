"""Matching by the law of the noise, for an adversary who knows it."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from gradleak.attacks.inversion.matching import AbsoluteError, LayerWeights, Matching, SquaredError
from gradleak.core import (
    Defense,
    DiagonalGaussian,
    ExampleDefense,
    Laplace,
    Noise,
    NotGaussian,
    Objective,
    Release,
    UpdateDefense,
)

LEAST_STD = 1e-2
"""Entries with less noise than this share of the least noisy ones, or with none, weigh as if they had so much."""


def known_law(release: Release, objective: Objective, examples: int) -> Noise:
    """The law of the noise on an update; that of Laplace noise alone as the Gaussian one of its variance.

    The error of an adversary who matches squares depends on the variance only, to first order.

    Args:
        release: as it is known, without the defenses that are read backward.
        objective: of the client.
        examples: of the batch.
    """
    law = release.noise(objective, examples=examples)
    scale = laplace_scale(release, objective.params)
    if isinstance(law, NotGaussian) and scale is not None:
        return DiagonalGaussian(std=dict.fromkeys(objective.params, scale * 2**0.5))
    return law


def laplace_scale(release: Release, shapes: Mapping[str, torch.Tensor]) -> float | None:
    """The scale b where the release ends in Laplace noise and has no other noise, else None."""
    last = release.defenses[-1] if release.defenses else None
    law = last.noise(shapes) if isinstance(last, UpdateDefense) else None
    if not isinstance(law, Laplace):
        return None
    # Other noise under it makes a law that is neither.
    return law.scale if all(_silent(defense, shapes) for defense in release.defenses[:-1]) else None


def stds(law: Noise, objective: Objective) -> torch.Tensor | None:
    """The std of every shared entry (P,) for weights, none below `LEAST_STD` of the least; None without Gaussian noise."""
    if not isinstance(law, DiagonalGaussian):
        return None
    noisy = [std for std in law.std.values() if std > 0]
    if not noisy:
        return None
    least = LEAST_STD * min(noisy)
    entries = {name: torch.full_like(tensor, max(law.std[name], least)) for name, tensor in objective.params.items()}
    return objective.flatten(entries)


def likely(matching: Matching, release: Release, law: Noise, objective: Objective) -> Matching:
    """A distance as the law of the noise asks for it, bound to the model.

    Gaussian noise whose std differs by layer divides every layer by its std. Under Laplace noise the likelihood is that
    of absolute errors, which take the place of `SquaredError`; for many entries they halve the squared error. Noise of one
    std changes nothing: squares are its likelihood, and a cosine leaves out the scale alone.

    Args:
        matching: as the attack has it, not bound.
        release: as it is known.
        law: of the noise.
        objective: of the client.
    """
    if isinstance(matching, SquaredError) and laplace_scale(release, objective.params) is not None:
        matching = AbsoluteError()
    if isinstance(law, DiagonalGaussian):
        noisy = [std for std in law.std.values() if std > 0]
        if noisy and len(set(law.std.values())) > 1:
            least = min(noisy)
            weights = {name: least / max(std, LEAST_STD * least) for name, std in law.std.items()}
            matching = LayerWeights(matching=matching, weights=weights)
    return matching.bind(objective)


def _silent(defense: Defense, shapes: Mapping[str, torch.Tensor]) -> bool:
    """True if a defense adds nothing at random."""
    if isinstance(defense, UpdateDefense):
        return defense.noise(shapes) is None
    return isinstance(defense, ExampleDefense) and not defense.closes

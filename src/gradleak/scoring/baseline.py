"""The blind adversary: how near one gets to an example without looking at the update."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradleak.core import Batch, Domain, DomainKind
from gradleak.results import Evidence, InputError, Score
from gradleak.scoring.image import mse
from gradleak.scoring.pairing import Pairing
from gradleak.scoring.reconstruction import pixels_of_truth, range_note, scores_of_pairs

BASELINE_NAMES = ("midpoint", "best_constant", "mean_public")


def blind_baseline(
    batch: Batch,
    domain: Domain | None = None,
    public: Batch | Tensor | None = None,
    *,
    beside: Sequence[Batch] = (),
) -> list[Score]:
    """The smallest error an adversary reaches that ignores the update, example by example.

    The smallest pixel RMSE among three claims: the midpoint of the domain (0.5 everywhere); the best constant a
    channel, which the scorer chooses *with the truth* (the mean of the true channel; for table rows one number a
    row); and the mean public image where one is known. The second is deliberately strong, so that a verdict *leaks*,
    which asks for half of this error, is conservative. It is left out where a constant would cover a single entry,
    since it would then be the truth itself.

    Args:
        batch: the truth.
        domain: its domain; None takes that of the batch.
        public: public data of the same shape: a batch with its own domain, or inputs in the domain of the batch.
        beside: further batches of the same data, for the note on a declared range of which images use little.

    Returns:
        mse, pixel_rmse, psnr, ssim and exact_hits with evidence "exact" (the error of a stated guess);
        `details["which"]` names the guess behind the value, `details["which_per_example"]` that of each example.

    Raises:
        InputError: no domain is declared, values leave its range, or public data has another shape.

    Cost:
        Three passes over the pixels.
    """
    if domain is not None:
        batch = Batch(batch.inputs, batch.targets, domain, batch.sensitive)
    truths, domain = pixels_of_truth(batch)
    guesses = _guesses(truths, domain, public)
    errors = torch.stack([mse(guess, truths) for guess in guesses.values()])
    chosen = errors.argmin(dim=0)
    best = torch.stack(list(guesses.values()))[chosen, torch.arange(batch.size)]
    names = [list(guesses)[place] for place in chosen.tolist()]
    worst = int(errors.min(dim=0).values.argmin())
    identity = Pairing(claim_of=tuple(range(batch.size)))
    extra = {"which": names[worst], "which_per_example": names, "considered": list(guesses)}
    note = range_note(batch, beside)
    return scores_of_pairs(best, truths, identity, domain=domain, evidence=Evidence.EXACT, note=note, extra=extra)


def _guesses(truths: Tensor, domain: Domain, public: Batch | Tensor | None) -> dict[str, Tensor]:
    """The candidate claims by name, each shaped like `truths`."""
    guesses = {"midpoint": torch.full_like(truths, 0.5)}
    by_channel = domain.kind is not DomainKind.TABULAR and len(domain.shape) > 1
    first = 2 if by_channel else 1
    axes = tuple(range(first, truths.dim()))
    if truths[0].numel() // (truths.shape[1] if by_channel else 1) > 1:
        guesses["best_constant"] = truths.mean(dim=axes, keepdim=True).expand_as(truths)
    if public is not None:
        guesses["mean_public"] = public_pixels(truths, domain, public).mean(dim=0, keepdim=True).expand_as(truths)
    return guesses


def public_pixels(truths: Tensor, domain: Domain, public: Batch | Tensor) -> Tensor:
    """Public data in pixels like those of the truth.

    Args:
        truths: (b, *shape) pixels.
        domain: of the truth, and of public inputs that come without one.
        public: a batch with its own domain, or inputs.

    Raises:
        InputError: the shape of one example differs.
    """
    inputs, stated = (public.inputs, public.domain) if isinstance(public, Batch) else (public, None)
    if inputs.shape[1:] != truths.shape[1:]:
        raise InputError(
            f"public data: expected examples of shape {tuple(truths.shape[1:])}, got {tuple(inputs.shape[1:])}"
        )
    return (stated or domain).to_pixels(inputs.to(truths))

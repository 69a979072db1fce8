"""Scores of a blind guess: of the best of many, by chance, and against a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import scipy
import torch
from torch import Tensor

from gradleak.core import Batch, Domain, DomainKind
from gradleak.results import Evidence, InputError, Leakier, Score, check_count
from gradleak.scoring.image import mse
from gradleak.scoring.pairing import Pairing, pairwise_mse
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


# A guess with free entries beyond so many is within an RMSE of 0.1 with a chance below 1e-13 (V_d (0.1 √d)^d, V_d the volume
# of the unit ball), and beyond the second number nearly surely more than 0.25 away.
CHANCE_ENTRIES = 32
MOST_ENTRIES = 256
CHANCE_LEVEL = 0.01

# Beyond so many examples guesses are not paired one to one: each example has its nearest one, which comes out smaller.
PAIRED_EXAMPLES = 64
FEWEST_DRAWS = 200


class _Guesser(Protocol):
    def __call__(self, generator: torch.Generator) -> Tensor:
        """The squared errors of b guesses (rows) at b examples (columns)."""
        ...


def chance_pixel_rmse(
    batch: Batch,
    domain: Domain | None = None,
    public: Batch | Tensor | None = None,
    *,
    generator: torch.Generator,
    within: float = 0.1,
    share: float = 0.5,
    draws: int | None = None,
) -> Score | None:
    """The errors that guesses without the update reach by luck: about 1 % of guessers have one of their sorted errors below.

    A guesser submits as many claims as the batch has examples, drawn without the update, and they are paired with the
    examples one to one. With few entries an example, some guess lands near some example: among 16 examples of two entries
    nearly always within an RMSE of 0.1. `details["limits"]` holds, for k = 1 to b, what the k-th smallest error has to fall
    below to be more than such luck; falling below one of them is enough. The limits are the global rank envelope of
    `draws` guessers, so that together, not one by one, they have the level 1 %. Each limit is the smallest of those for
    several kinds of guessers, with

    - uniform entries;
    - entries at the ends of the range, as clamped claims and binary data have;
    - either, entry by entry;
    - entries as the true ones are spread, for two examples or more, so that this is as strong as the best constant of the
      blind guess: 0 or 1 with their shares, one added to each count, where an entry is 0 or 1 in all examples; else
      uniform over their range and 0.1 beyond;
    - public rows, drawn with replacement, where some are known; of any number of entries.

    Where public rows are known, the k-th smallest error has to be below `share` of the k-th smallest distance of an example
    to the public row that is nearest to it, too: the scorer chooses that row with the truth, as it does the best constant of
    the blind guess. Draws alone are too lax here, since a true row of the same kind that is not among the public ones,
    as another client has them, comes near more often than a draw does.

    Args:
        batch: the truth.
        domain: its domain; None takes that of the batch.
        public: public data of the same shape, as for `blind_baseline`.
        generator: draws the guesses.
        within: largest error that is asked about; with more than 0.1 guesses count up to 256 entries, else up to 32.
        share: of the distance to the nearest public row; that of the blind guess in a verdict.
        draws: guessers of each kind; None takes 1,000, and 300 for more than 64 examples.

    Returns:
        The limit of the smallest error as `chance_pixel_rmse`, evidence "estimate"; None where an example has so many
        entries that luck gives nothing and no public rows are known.

    Raises:
        InputError: no domain is declared, values leave its range, public data has another shape, or draws < 200.

    Cost:
        `draws` pairings of b guesses with b examples for each kind: 0.4 s for 16 examples. Beyond 64 examples each takes
        its nearest guess, without pairing; errors come out smaller, so that limits are stricter: 5 s for 512.

    Source:
        Global rank envelope: Myllymäki et al. 2017, section 3.
    """
    if domain is not None:
        batch = Batch(batch.inputs, batch.targets, domain, batch.sensitive)
    pixels, domain = pixels_of_truth(batch)
    pixels = pixels.cpu()
    if draws is None:
        draws = 1000 if batch.size <= PAIRED_EXAMPLES else 300
    check_count("draws", draws, least=FEWEST_DRAWS)
    truths = pixels.flatten(start_dim=1)
    guessers: dict[str, _Guesser] = {}
    nearest: list[Tensor] = []
    if truths.shape[1] <= (CHANCE_ENTRIES if within <= 0.1 else MOST_ENTRIES):
        guessers |= {"uniform": _Free(truths, 0.0), "ends": _Free(truths, 1.0), "mixed": _Free(truths, 0.5)}
        if batch.size > 1:
            guessers["spread"] = _Spread.of(truths)
    if public is not None:
        rows = public_pixels(pixels, domain, public).flatten(start_dim=1)
        squared = pairwise_mse(rows, truths)
        guessers["public"] = _Public(squared)
        nearest.append(share * squared.min(dim=0).values.sqrt().sort().values)
    if not guessers:
        return None
    limits = [_envelope(_errors(guess, generator, draws)) for guess in guessers.values()]
    lowest = torch.stack([*limits, *nearest]).min(dim=0).values
    return Score(
        name="chance_pixel_rmse",
        value=float(lowest[0]),
        unit="pixel_rmse",
        leakier=Leakier.LOWER,
        evidence=Evidence.ESTIMATE,
        n=draws,
        note="guesses without the update, paired like claims, come below one of the limits in about 1 % of draws",
        details={"limits": lowest.tolist(), "guesses": list(guessers), "draws": draws, "level": CHANCE_LEVEL},
    )


def beyond_luck(errors: Sequence[float], limits: Sequence[float]) -> int:
    """Number of errors that together beat luck: the least k whose k-th smallest is below its limit, or 0.

    Args:
        errors: of examples, sorted.
        limits: of `chance_pixel_rmse`.
    """
    return next((k for k, (error, limit) in enumerate(zip(errors, limits, strict=False), 1) if error < limit), 0)


def _uniform(shape: torch.Size, generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64, device=generator.device).cpu()


@dataclass(frozen=True)
class _Free:
    """Entries over the whole range, a share of them at its ends."""

    truths: Tensor
    ends: float

    def __call__(self, generator: torch.Generator) -> Tensor:
        guess = _uniform(self.truths.shape, generator)
        if self.ends > 0:
            guess = torch.where(_uniform(self.truths.shape, generator) < self.ends, guess.round(), guess)
        return pairwise_mse(guess, self.truths)


@dataclass(frozen=True, kw_only=True)
class _Spread:
    """Entries as the true ones are spread, each by itself."""

    truths: Tensor
    at_ends: Tensor
    low: Tensor
    high: Tensor
    share: Tensor

    @classmethod
    def of(cls, truths: Tensor, *, beyond: float = 0.1) -> _Spread:
        at_ends = torch.minimum(truths.abs(), (truths - 1).abs()) < 1e-6
        return cls(
            truths=truths,
            at_ends=at_ends.all(dim=0),
            low=(truths.min(dim=0).values - beyond).clamp(min=0.0),
            high=(truths.max(dim=0).values + beyond).clamp(max=1.0),
            share=(truths.round().sum(dim=0) + 1) / (len(truths) + 2),
        )

    def __call__(self, generator: torch.Generator) -> Tensor:
        draw = _uniform(self.truths.shape, generator)
        bits = (draw < self.share).to(draw)
        return pairwise_mse(torch.where(self.at_ends, bits, self.low + draw * (self.high - self.low)), self.truths)


@dataclass(frozen=True)
class _Public:
    """Public rows, each as likely; holds their squared errors."""

    squared: Tensor

    def __call__(self, generator: torch.Generator) -> Tensor:
        examples = self.squared.shape[1]
        rows = torch.randint(len(self.squared), (examples,), generator=generator, device=generator.device)
        return self.squared[rows.cpu()]


def _errors(guess: _Guesser, generator: torch.Generator, draws: int) -> Tensor:
    """The sorted errors of every guesser, (draws, b)."""
    rows = []
    for _ in range(draws):
        squared = guess(generator)
        if len(squared) <= PAIRED_EXAMPLES:
            claims, examples = scipy.optimize.linear_sum_assignment(squared.numpy())
            found = squared[claims, examples]
        else:
            found = squared.min(dim=0).values
        rows.append(found.sqrt().sort().values)
    return torch.stack(rows)


def _envelope(errors: Tensor) -> Tensor:
    """The lower limits of sorted errors, (b,), that at most 1 % of these rows fall below anywhere."""
    ordered = errors.sort(dim=0).values
    # How many rows are smaller, at the place where a row is most extreme.
    ranks = torch.searchsorted(ordered.T.contiguous(), errors.T.contiguous())
    extreme = ranks.min(dim=0).values.sort().values
    # Rows of a smaller rank than this one fall below; with ties none may.
    rank = int(extreme[int(CHANCE_LEVEL * len(extreme))])
    return ordered[rank]

"""How near blind guesses come to some examples of a batch once they are paired with it, as claims are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from gradleak.core import Batch, Domain
from gradleak.results import Evidence, InputError, Leakier, Score
from gradleak.scoring.baseline import public_pixels
from gradleak.scoring.pairing import pairwise_mse
from gradleak.scoring.reconstruction import pixels_of_truth

# Beyond this many entries a guess within an RMSE of 0.1 has a chance below 1e-13: V_d (0.1 √d)^d, V_d the unit ball's volume.
CHANCE_ENTRIES = 32
CHANCE_LEVEL = 0.05
MOST_DRAWS, FEWEST_DRAWS = 1000, 200

Guess = Callable[[torch.Size, torch.Generator], Tensor]


def chance_pixel_rmse(
    batch: Batch,
    domain: Domain | None = None,
    public: Batch | Tensor | None = None,
    *,
    generator: torch.Generator,
    draws: int | None = None,
) -> Score | None:
    """The errors that blind guesses reach by luck: about 5 % of guessers have one of their sorted errors below.

    A guesser submits as many claims as the batch has examples, drawn without the update, and they are paired with the
    examples one to one. With few entries an example, some guess lands near some example: among 16 examples of two entries
    nearly always within an RMSE of 0.1. `details["limits"]` holds, for k = 1 to b, what the k-th smallest error has to fall
    below to be more than such luck; falling below one of them is enough. The limits are the global rank envelope of
    `draws` guessers, so that together, not one by one, they have the level 5 %. Each limit is the smallest of those for
    several kinds of guessers: with uniform entries; with entries at the ends of the range, as clamped claims and binary
    data have; with public rows, drawn with replacement, where some are known.

    Args:
        batch: the truth.
        domain: its domain; None takes that of the batch.
        public: public data of the same shape, as for `blind_baseline`.
        generator: draws the guesses.
        draws: guessers of each kind; None takes 1,000, and for more than 64 examples fewer, at least 200.

    Returns:
        The limit of the smallest error as `chance_pixel_rmse`, evidence "estimate"; None where an example has more than
        32 entries, so that luck gives nothing.

    Raises:
        InputError: no domain is declared, values leave its range, public data has another shape, or draws < 100.

    Cost:
        2 or 3 · draws pairings of b guesses with b examples: 0.2 s for 16 examples, 10 s for 512.

    Source:
        Global rank envelope: Myllymäki et al. 2017, section 3.
    """
    if domain is not None:
        batch = Batch(batch.inputs, batch.targets, domain, batch.sensitive)
    truths, domain = pixels_of_truth(batch)
    if draws is None:
        draws = round(min(MOST_DRAWS, max(FEWEST_DRAWS, MOST_DRAWS * (64 / batch.size) ** 2)))
    if draws < 100:
        raise InputError(f"draws: expected at least 100, got {draws}")
    truths = truths.cpu()
    guesses: dict[str, Guess] = {"uniform": _uniform, "ends": _ends}
    if public is not None:
        guesses["public"] = _PublicRows(public_pixels(truths, domain, public).flatten(start_dim=1))
    truths = truths.flatten(start_dim=1)
    if truths.shape[1] > CHANCE_ENTRIES:
        return None
    limits = torch.stack([_envelope(_errors(truths, guess, generator, draws)) for guess in guesses.values()])
    lowest = limits.min(dim=0).values
    return Score(
        name="chance_pixel_rmse",
        value=float(lowest[0]),
        unit="pixel_rmse",
        leakier=Leakier.LOWER,
        evidence=Evidence.ESTIMATE,
        n=draws,
        note="blind guesses, paired with the examples like claims, come below one of the limits in about 5 % of draws",
        details={"limits": lowest.tolist(), "guesses": list(guesses), "draws": draws, "level": CHANCE_LEVEL},
    )


def _uniform(shape: torch.Size, generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64, device=generator.device).cpu()


def _ends(shape: torch.Size, generator: torch.Generator) -> Tensor:
    return _uniform(shape, generator).round()


@dataclass(frozen=True)
class _PublicRows:
    """Draws public rows, each as likely."""

    rows: Tensor

    def __call__(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        return self.rows[torch.randint(len(self.rows), shape[:1], generator=generator, device=generator.device).cpu()]


def _errors(truths: Tensor, guess: Guess, generator: torch.Generator, draws: int) -> Tensor:
    """The sorted errors of every guesser, (draws, b)."""
    rows = []
    for _ in range(draws):
        squared = pairwise_mse(guess(truths.shape, generator), truths)
        claims, examples = linear_sum_assignment(squared.numpy())
        rows.append(squared[claims, examples].sqrt().sort().values)
    return torch.stack(rows)


def _envelope(errors: Tensor) -> Tensor:
    """The lower limits of sorted errors, (b,), that at most 5 % of these rows fall below anywhere."""
    ordered = errors.sort(dim=0).values
    # How many rows are smaller, at the place where a row is most extreme.
    ranks = torch.searchsorted(ordered.T.contiguous(), errors.T.contiguous())
    extreme = ranks.min(dim=0).values.sort().values
    # Rows of a smaller rank than this one fall below; with ties none may.
    rank = int(extreme[int(CHANCE_LEVEL * len(extreme))])
    return ordered[rank]


__all__ = ["CHANCE_ENTRIES", "chance_pixel_rmse"]

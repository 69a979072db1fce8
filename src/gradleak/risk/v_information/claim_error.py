"""Error of a claim: 0 for the example itself, 1 for what the reference attacker without gradients says."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self, final

import torch
from torch import Tensor

from gradleak.core import Batch, DomainKind, Reconstruction
from gradleak.results import InputError, NonNegative, Settings
from gradleak.scoring import pair, pixels_of_truth, score_images, ssim_obstacle
from gradleak.scoring.pairing import scorable

_UNIFORM = 1.0 / math.sqrt(12.0)
Numbers = list[float | None]


class ClaimError(Settings, ABC):
    """The error e of a claim in the density exp(−e²/(2σ²)) of `OriginalInformation`. Authors write the three methods.

    Attributes:
        name: of the number that is kept of every example.
    """

    name: ClassVar[str]

    @abstractmethod
    def obstacle(self, batch: Batch) -> str:
        """Reason why this error is not defined for such examples, as a sentence; "" where it is.

        Raises:
            InputError: for a batch whose domain is not declared, or that leaves it.
        """

    @abstractmethod
    def numbers(self, claim: Reconstruction, batch: Batch) -> Numbers:
        """One number an example, claims paired one to one with examples; None for an example without a claim.

        Raises:
            InputError: for claims of another shape.
        """

    @abstractmethod
    def error(self, number: float) -> float:
        """The error e of such a number."""

    @final
    def of_all(self, claim: Reconstruction, batch: Batch) -> Numbers:
        """`numbers`, or None for every example where nothing was claimed."""
        if claim.inputs is None or claim.outcome.has_value is False:
            return [None] * batch.size
        return self.numbers(claim, batch)


@dataclass(frozen=True, kw_only=True)
class StructuralDissimilarity(ClaimError):
    """e = 1 − SSIM, for images of 11 pixels a side or more: 1 at the similarity 0 that the paper gives a blind attacker.

    **Source**: Mo et al. 2021, equation 8; SSIM from Wang et al. 2004.
    """

    name: ClassVar[str] = "ssim"

    def obstacle(self, batch: Batch) -> str:
        """Reason for examples that are no images, or too small ones."""
        domain = batch.declared_domain()
        why = ssim_obstacle(domain)
        if not why:
            return ""
        ways = "error=NormalizedError()" + ("" if domain.kind is DomainKind.IMAGE else " or error=CosineError()")
        return f"SSIM is {why}; {ways} is defined here"

    def numbers(self, claim: Reconstruction, batch: Batch) -> Numbers:
        """SSIM; claims are paired by their pixel error."""
        found = next(score for score in score_images(claim, batch) if score.name == "ssim")
        return list(found.details.get("per_example", [None] * batch.size))

    def error(self, number: float) -> float:
        """1 − SSIM."""
        return 1.0 - number


@dataclass(frozen=True, kw_only=True)
class NormalizedError(ClaimError):
    """e = √(mean over entries of ((x̂ − x)/s)²): the error in units of what a population spreads by, for any kind of data.

    Who claims the mean of the population for everybody has a mean e² of 1 where s is its standard deviation, and 1 − e² is the
    share of the variance that a claim explains. The density is then a Gaussian about the claim, with the same share of every
    entry's own variance.

    **Assumptions**: entries count alike and as if they were independent; one that many others repeat counts as often. Columns
    of one-hot codes are entries like others. Claims outside of the valid range are taken as they stand.

    Args:
        spread: s in units of the valid range, that is of entries scaled to [0, 1]: one number for all, or one an entry in
            row-major order; 0 leaves an entry out (one that is the same for everybody). The default is that of a uniform
            distribution, 1/√12: with it, who claims the middle has 1 on data that fill the range, and less on others.

    Raises:
        InputError: for a spread that is negative or not finite, or zero everywhere.
    """

    name: ClassVar[str] = "normalized_error"

    spread: NonNegative | tuple[NonNegative, ...] = _UNIFORM

    def __post_init__(self) -> None:
        """Check what depends on more than one field."""
        super().__post_init__()
        if not any(one > 0.0 for one in self.spread) if isinstance(self.spread, tuple) else self.spread == 0.0:
            raise InputError(
                f"NormalizedError.spread: expected finite numbers, one of them positive, got {self.spread!r}"
            )

    @classmethod
    def of(cls, public: Batch) -> Self:
        """With the standard deviation of every entry of public examples, of the domain that they declare.

        Raises:
            InputError: for fewer than two examples, or ones that are all the same.
        """
        pixels, _ = pixels_of_truth(public)
        if len(pixels) < 2:
            raise InputError("NormalizedError.of: expected at least two public examples, got one")
        return cls(spread=tuple(pixels.flatten(start_dim=1).std(dim=0).tolist()))

    def obstacle(self, batch: Batch) -> str:
        """None, if there is a spread for every entry."""
        _, domain = pixels_of_truth(batch)
        if isinstance(self.spread, tuple) and len(self.spread) not in (1, domain.size):
            raise InputError(
                f"NormalizedError.spread: expected 1 or {domain.size} numbers, one an entry, got {len(self.spread)}"
            )
        return ""

    def numbers(self, claim: Reconstruction, batch: Batch) -> Numbers:
        """The error e; claims are paired so that the sum of e² is smallest."""
        claims, truths = _pixels(claim, batch)
        spread = torch.as_tensor(self.spread, dtype=truths.dtype).expand(truths[0].numel())
        kept = spread > 0.0
        return _paired(
            [rows.flatten(start_dim=1)[:, kept] / spread[kept] for rows in (claims, truths)],
            scorable(claims),
            lambda one, other: ((one - other) ** 2).mean(dim=1).sqrt(),
        )

    def error(self, number: float) -> float:
        """The number itself."""
        return number


@dataclass(frozen=True, kw_only=True)
class CosineError(ClaimError):
    """e = 1 − cos(x̂, x) in model-input units, for embeddings and signals whose scale says little: 1 for what is orthogonal.

    A claim of zero has no direction and counts as orthogonal: that is the middle of a range about 0, what an attacker says who
    knows the range alone. Data with a mean far from 0 are alike in direction (`against_blind` says how much so).
    """

    name: ClassVar[str] = "cosine"

    def obstacle(self, batch: Batch) -> str:
        """Examples of zeros, which have no direction."""
        pixels_of_truth(batch)
        zeros = int((batch.inputs.flatten(start_dim=1) == 0.0).all(dim=1).sum())
        return f"the cosine is not defined for {zeros} examples that are zero everywhere" if zeros else ""

    def numbers(self, claim: Reconstruction, batch: Batch) -> Numbers:
        """The cosine; claims are paired so that the sum of e is smallest."""
        claims, truths = _pixels(claim, batch)
        domain = batch.declared_domain()
        units = [_unit(domain.from_pixels(rows)) for rows in (claims, truths)]
        return _paired(units, scorable(claims), lambda one, other: (one * other).sum(dim=1).clamp(-1.0, 1.0))

    def error(self, number: float) -> float:
        """1 − cos."""
        return 1.0 - number


def _pixels(claim: Reconstruction, batch: Batch) -> tuple[Tensor, Tensor]:
    """Claims and truths scaled to [0, 1], float64."""
    truths, domain = pixels_of_truth(batch)
    assert claim.inputs is not None
    claims = claim.inputs.detach()
    if claims.dim() == 0 or tuple(claims.shape[1:]) != domain.shape:
        raise InputError(
            f"reconstruction: expected (b, {', '.join(map(str, domain.shape))}) like the truth, got {tuple(claims.shape)}"
        )
    return domain.to_pixels(claims.to(truths)), truths


def _unit(rows: Tensor) -> Tensor:
    flat = rows.flatten(start_dim=1)
    # A claim that is zero up to the round-off of the range stays without direction.
    norm = flat.norm(dim=1, keepdim=True)
    return torch.where(norm > 1e-12 * math.sqrt(flat.shape[1]), flat / norm.clamp(min=1e-300), torch.zeros_like(flat))


def _paired(sides: Sequence[Tensor], fit: Tensor, number: Callable[[Tensor, Tensor], Tensor]) -> Numbers:
    """The number of every example and its claim, of claims (m, k) and truths (b, k); unfit claims stay alone."""
    claims, truths = sides
    pairs = pair(torch.where(fit[:, None], claims, torch.full_like(claims, math.nan)), truths).paired
    found: Numbers = [None] * len(truths)
    if pairs:
        places, chosen = (list(side) for side in zip(*pairs, strict=True))
        for place, value in zip(places, number(claims[chosen], truths[places]).tolist(), strict=True):
            found[place] = value
    return found

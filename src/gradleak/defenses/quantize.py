"""Quantization: every entry of the update on a grid of few levels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from gradleak.core import Bounds, Guarantee, Noise, NotGaussian, Rounded, UpdateDefense
from gradleak.defenses.clip import power_of_two
from gradleak.defenses.draws import uniform
from gradleak.results import ALISTARH_2017, Citation, Positive, Whole


class QuantizeRange(StrEnum):
    """Value that the outermost level stands for in every tensor."""

    LARGEST = "largest"
    NORM = "norm"


@dataclass(frozen=True, kw_only=True)
class Quantize(UpdateDefense):
    """The update with every entry rounded to one of 2^bits − 1 evenly spaced levels from −r to r, zero among them.

    With s = 2^(bits − 1) − 1 levels a side and steps r/s an entry becomes (r/s)·round(s·v/r). The range r is the largest
    magnitude or the L2 norm of each tensor (QSGD), sent along exactly, or a fixed `limit` at which entries are clipped.

    - Stochastic rounding goes up with the probability of the fraction, so that the mean over the draws is the update
      (clipped to the limit): A stays. Its law depends on the update and is not Gaussian: measures of Gaussian noise are
      unsupported. The variance of an entry is (r/s)²f(1 − f), f the fraction.
    - Rounding to nearest is constant almost everywhere, so that A = 0 and closed-form measures are `not_informative`,
      which is no evidence of safety: with 8 bits the update is known to 1/254 of its range. The derivative along r, one
      number a tensor, is left out.

    It gives no formal guarantee. One bit has no levels: that is `Sign`.

    **Source**: Alistarh et al. 2017, section 3.1 (norm, stochastic). Deviations: the range by the largest entry (as in
    their experiments) is the default, whole tensors in place of buckets, and no entropy coding, which loses nothing.

    Attributes:
        bits: of an entry with its sign, from 2 to 16.
        stochastic: whether the rounding is random and unbiased, or to nearest.
        range: "largest" or "norm", of each tensor.
        limit: a fixed r for all tensors in place of `range`, or None.

    Raises:
        InputError: for a number out of range, or a `stochastic` that is no truth value.

    Examples:
        >>> import torch
        >>> Quantize(bits=2, stochastic=False, limit=1.0).mean({"w": torch.tensor([0.4, 0.6, -3.0])})["w"].tolist()
        [0.0, 1.0, -1.0]
    """

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC
    citations: ClassVar[tuple[Citation, ...]] = (ALISTARH_2017,)

    bits: Annotated[int, Whole(2, 16)]
    stochastic: bool = True
    range: QuantizeRange | str = QuantizeRange.LARGEST
    limit: Positive | None = None

    @property
    def flat(self) -> bool:
        """True if it rounds to nearest."""
        return not self.stochastic

    @property
    def levels(self) -> int:
        """s, the number of levels on each side of zero."""
        return int(2 ** (self.bits - 1) - 1)

    def effect(self, names: Iterable[str]) -> Rounded:
        """Entries on levels."""
        return Rounded()

    def mean(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The clipped update, or the rounded one where the rounding is not random."""
        if self.stochastic:
            return {name: self._clipped(tensor) for name, tensor in update.items()}
        return {name: self._rounded(tensor, None) for name, tensor in update.items()}

    def noise(self, shapes: Mapping[str, Tensor]) -> Noise:
        """Not Gaussian; None for rounding to nearest."""
        if not self.stochastic:
            return None
        return NotGaussian(
            reason=f"Quantize rounds at random to {2 * self.levels + 1} levels, by a law that depends on the update"
        )

    def variance(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """(r/s)²f(1 − f) of an entry whose place between two levels is f; 0 for rounding to nearest."""
        found = {}
        for name, tensor in update.items():
            step = self._reach(tensor) / self.levels
            place = self._clipped(tensor) / _not_zero(step)
            fraction = place - place.floor()
            found[name] = fraction * (1 - fraction) * step**2 if self.stochastic else torch.zeros_like(tensor)
        return found

    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """The rounded update, rounded at random unless it is to nearest."""
        if not self.stochastic:
            return self.mean(update)
        return {name: self._rounded(tensor, generator) for name, tensor in update.items()}

    @property
    def centered(self) -> bool:
        """True if it rounds at random: a level is drawn the likelier the nearer it is."""
        return self.stochastic

    def before(self, after: Bounds) -> Bounds:
        """Within a step of the level that came out, or half a step for rounding to nearest; open beyond a fixed limit.

        The step is r/s where the range is the largest magnitude, which comes out as it was, or a fixed limit. Where it is
        the norm, the smallest magnitude of the tensor that is not zero stands for it, a multiple of the step.
        """
        lower, upper = {}, {}
        for name, low in after.lower.items():
            high = after.upper[name]
            # A hair wider, for the round-off of the level itself.
            reach = self._step(after, name) * ((1.0 if self.stochastic else 0.5) + 1e-6)
            lower[name], upper[name] = low - reach, high + reach
            if self.limit is not None:
                edge = self.limit * (1 - 1e-6)
                lower[name] = torch.where(low <= -edge, -torch.inf, lower[name])
                upper[name] = torch.where(high >= edge, torch.inf, upper[name])
        return Bounds(lower=lower, upper=upper)

    def _step(self, after: Bounds, name: str) -> Tensor:
        magnitude = after.most(name)
        if self.limit is not None:
            return magnitude.new_full((), self.limit / self.levels)
        if self.range is QuantizeRange.LARGEST:
            return magnitude.max() / self.levels
        # Infinite for a tensor of zeros alone, each of which is below a step of a norm that is not known.
        return torch.where(after.hold_zero(name), torch.inf, magnitude).min()

    def bound(self, shapes: Mapping[str, Tensor]) -> float | None:
        """r√P for a fixed limit r and P entries."""
        entries = sum(tensor.numel() for tensor in shapes.values())
        return None if self.limit is None else self.limit * math.sqrt(entries)

    def _reach(self, tensor: Tensor) -> Tensor:
        """The range r of a tensor, a constant."""
        wide = tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))
        if self.limit is not None:
            return torch.full((), self.limit, dtype=wide.dtype, device=wide.device)
        if self.range is QuantizeRange.LARGEST:
            return wide.abs().max()
        unit = power_of_two([wide])
        return unit * (wide / unit).square().sum().sqrt()

    def _clipped(self, tensor: Tensor) -> Tensor:
        return tensor if self.limit is None else tensor.clamp(-self.limit, self.limit)

    def _rounded(self, tensor: Tensor, generator: torch.Generator | None) -> Tensor:
        step = self._reach(tensor) / self.levels
        place = self._clipped(tensor).to(step.dtype) / _not_zero(step)
        place = place.round() if generator is None else (place + uniform(tensor, generator)).floor()
        return (place.clamp(-self.levels, self.levels) * step).to(tensor.dtype)


def _not_zero(step: Tensor) -> Tensor:
    return torch.where(step > 0, step, 1.0)

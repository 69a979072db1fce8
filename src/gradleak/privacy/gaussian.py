"""Two hypotheses under Gaussian noise, with thousands of trials at the price of a few numbers each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp
from torch import Tensor

from gradleak.privacy.lower_bounds import TrialScores
from gradleak.privacy.pair import HypothesisPair, Statistic
from gradleak.privacy.theory import PAIR, largest_gaussian_epsilon, without_value
from gradleak.results import InputError, Outcome, Score, check_count

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class GaussianPair(HypothesisPair):
    """H0: u ~ N(μ₀, σ²); H1: u ~ N(μⱼ, σ²) with j uniform over the alternatives; statistics of both, exact in law.

    With y = u − μ₀ and dⱼ = μⱼ − μ₀ the statistics are ‖y‖ and

        log (1/a) Σⱼ p(u | μⱼ)/p(u | μ₀),  for one σ on all entries  log (1/a) Σⱼ exp((⟨y, dⱼ⟩ − ‖dⱼ‖²/2)/σ²).

    Both depend on y by its coordinates in the span of the dⱼ and by the squared length of the rest alone. The rest is
    σ²χ² with as many degrees of freedom as dimensions are left, so that a trial draws a + 1 numbers at most, not P. σ may
    differ from entry to entry (each set of entries with one σ is taken by itself) and under H1 be another than under
    H0, as where a divisor depends on the number of examples.

    Attributes:
        null: μ₀, (P,).
        alternatives: μⱼ, (a, P).
        std: σ of every entry, one number or (P,), positive.
        alternative_std: σ under H1; None for the same.

    Raises:
        InputError: for shapes that disagree, numbers that are not finite, or a standard deviation that is not positive.

    **Cost**: one singular value decomposition of a × P numbers; then a + 1 random numbers and a² products a trial.

    Examples:
        >>> pair = GaussianPair(null=torch.zeros(3), alternatives=torch.tensor([[2.0, 0.0, 0.0]]), std=1.0)
        >>> scores = pair.trials(20_000, generator=torch.Generator().manual_seed(0))["likelihood_ratio"]
        >>> round(float(scores.alternative.mean() - scores.null.mean()), 1)
        4.0
    """

    null: Tensor = field(repr=False)
    alternatives: Tensor = field(repr=False)
    std: float | Tensor
    alternative_std: float | Tensor | None = None

    def __post_init__(self) -> None:
        """Check shapes and numbers."""
        if self.null.dim() != 1 or self.alternatives.dim() != 2 or 0 in self.alternatives.shape:
            raise InputError(
                "GaussianPair: expected null (P,) and alternatives (a, P) with at least one, got "
                f"{tuple(self.null.shape)} and {tuple(self.alternatives.shape)}"
            )
        if self.alternatives.shape[1] != self.null.shape[0]:
            raise InputError(
                f"GaussianPair.alternatives: expected {self.null.shape[0]} entries each, got {self.alternatives.shape[1]}"
            )
        for name in ("null", "alternatives"):
            if not bool(torch.isfinite(getattr(self, name)).all()):
                raise InputError(f"GaussianPair.{name}: expected finite numbers, got NaN or infinity")
        for name, std in (("std", self.std), ("alternative_std", self._other)):
            spread = torch.as_tensor(std, dtype=torch.float64)
            if spread.dim() > 1 or (spread.dim() == 1 and spread.shape != self.null.shape):
                raise InputError(
                    f"GaussianPair.{name}: expected one number or ({len(self.null)},), got {tuple(spread.shape)}"
                )
            if not bool((torch.isfinite(spread) & (spread > 0)).all()):
                raise InputError(f"GaussianPair.{name}: expected positive finite numbers, got {std}")

    def trials(self, count: int, *, generator: torch.Generator) -> dict[str, TrialScores]:
        """Distance and likelihood ratio of `count` releases under each hypothesis; both of the same releases."""
        check_count("trials", count)
        draws = np.random.default_rng(int(torch.randint(2**62, (), generator=generator, device=generator.device)))
        null = self._statistics(count, draws, alternative=False)
        alternative = self._statistics(count, draws, alternative=True)
        return {str(name): TrialScores(null=null[name], alternative=alternative[name], name=str(name)) for name in null}

    def epsilon(self, name: str, delta: float, *, note: str = "") -> Score:
        """Epsilon by `largest_gaussian_epsilon`, for one σ on all entries in units of the update, else of σ.

        Args:
            name: of the score.
            delta: δ, between 0 and 1.
            note: for the reader.
        """
        if len(self._parts) == 1:
            distances = [shift * self._parts[0].std for shift in self.shifts]
            return largest_gaussian_epsilon(name, distances, self._parts[0].std, delta, note=note)
        return largest_gaussian_epsilon(name, self.shifts, 1.0, delta, note=note)

    def theory(self, *, delta: float) -> list[Score]:
        """Epsilon of the pair, exactly: the largest over the alternatives, an upper bound on that of their mixture."""
        if self.one_law:
            return [self.epsilon(PAIR, delta)]
        reason = "the noise itself differs between the hypotheses, and no closed form is known here"
        return [without_value(PAIR, reason, Outcome.UNSUPPORTED)]

    @property
    def one_law(self) -> bool:
        """True if the noise is the same under both hypotheses."""
        return all(part.std == part.other for part in self._parts)

    @cached_property
    def shifts(self) -> tuple[float, ...]:
        """‖dⱼ/σ‖ for every alternative: how far it is, in standard deviations of H0."""
        squared = sum(np.square(part.shifts / part.std).sum(axis=1) for part in self._parts)
        return tuple(float(value) for value in np.sqrt(squared))

    @property
    def facts(self) -> Mapping[str, Any]:
        """Number of alternatives, and their distances."""
        distances = (self.alternatives.double() - self.null.double()).norm(dim=1)
        return {
            "law": "Gaussian",
            "entries": len(self.null),
            "distances": [float(value) for value in distances],
            "std": sorted({part.std for part in self._parts}),
            "std_alternative": sorted({part.other for part in self._parts}),
        }

    @property
    def _other(self) -> float | Tensor:
        return self.std if self.alternative_std is None else self.alternative_std

    @cached_property
    def _parts(self) -> list[_Part]:
        """The entries by their standard deviations under both hypotheses."""
        moved = self.alternatives.double().cpu() - self.null.double().cpu()
        spreads = torch.stack(
            [torch.as_tensor(std, dtype=torch.float64).cpu().expand(len(self.null)) for std in (self.std, self._other)]
        )
        laws, place = torch.unique(spreads, dim=1, return_inverse=True)
        return [
            _Part.of(moved[:, place == number], float(laws[0, number]), float(laws[1, number]))
            for number in range(laws.shape[1])
        ]

    def _statistics(self, count: int, draws: np.random.Generator, *, alternative: bool) -> dict[Statistic, Floats]:
        many = len(self.alternatives)
        chosen = draws.integers(many, size=count)
        squared = np.zeros(count)
        ratios = np.zeros((count, many))
        for part in self._parts:
            spread = part.other if alternative else part.std
            rank = part.shifts.shape[1]
            y = spread * draws.standard_normal((count, rank))
            if alternative:
                y += part.shifts[chosen]
            rest = spread**2 * draws.chisquare(part.size - rank, size=count) if part.size > rank else np.zeros(count)
            length = np.square(y).sum(axis=1) + rest
            squared += length
            lengths = np.square(part.shifts).sum(axis=1)
            crossed = y @ part.shifts.T - lengths / 2
            ratios += crossed / part.other**2
            if part.std != part.other:
                gap = 1 / part.std**2 - 1 / part.other**2
                ratios += (length * gap / 2 + part.size * np.log(part.std / part.other))[:, None]
        return {
            Statistic.DISTANCE: np.sqrt(squared),
            Statistic.LIKELIHOOD_RATIO: logsumexp(ratios, axis=1) - np.log(many),
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class _Part:
    """Entries with one standard deviation a hypothesis.

    Attributes:
        size: how many.
        std: under H0.
        other: under H1.
        shifts: coordinates of the dⱼ on these entries in an orthonormal basis of their span, (a, r).
    """

    size: int
    std: float
    other: float
    shifts: Floats

    @classmethod
    def of(cls, moved: Tensor, std: float, other: float) -> _Part:
        left, values, _ = torch.linalg.svd(moved, full_matrices=False)
        kept = values > values.max() * torch.finfo(torch.float64).eps * max(moved.shape)
        return cls(size=moved.shape[1], std=std, other=other, shifts=(left * values)[:, kept].numpy())

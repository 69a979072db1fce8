"""Pairs of releases and their scores: of records and attributes under Gaussian noise, and of releases as they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradleak.core import Batch, DiagonalGaussian, Objective, Release
from gradleak.data import rows_of
from gradleak.privacy.lower_bounds import TrialScores
from gradleak.privacy.theory import PAIR, largest_gaussian_epsilon, without_value
from gradleak.results import InputError, Outcome, Score, check_count
from gradleak.training import BatchReleases


class Statistic(StrEnum):
    """Statistic of a released update: one number, larger where the alternative is likelier."""

    DISTANCE = "distance"
    """‖u - u₀‖₂, how far the update is from the one without noise under the null hypothesis."""
    LIKELIHOOD_RATIO = "likelihood_ratio"
    """log p(u | H1) - log p(u | H0), of the exact laws: no test separates better."""
    MATCHED_FILTER = "matched_filter"
    """The likelihood ratio as if the noise were Gaussian of one standard deviation, where its law is not known."""


class HypothesisPair(ABC):
    """Two hypotheses about a release, H0 and H1: for instance a record, and the record with another attribute.

    A user's own pair subclasses this and writes `trials`, which draws releases under each hypothesis and reduces each to
    one number or several. Everything after it (bounds on epsilon, histograms, records of a run) is then as for the pairs
    that gradleak has: `audit_pair(pair, ...)`.

    Whatever is chosen by looking at releases (a threshold, a direction) belongs to the estimator; a statistic may depend
    on anything but on the releases that are counted.

    Examples:
        >>> class Coin(HypothesisPair):
        ...     def trials(self, count, *, generator):
        ...         toss = torch.rand(2, count, generator=generator, dtype=torch.float64)
        ...         answers = (toss < torch.tensor([[0.25], [0.75]])).double().numpy()
        ...         return {"answer": TrialScores(null=answers[0], alternative=answers[1], name="answer")}
        >>> found = Coin().trials(1000, generator=torch.Generator().manual_seed(0))
        >>> bool(found["answer"].null.mean() < 0.5 < found["answer"].alternative.mean())
        True
    """

    @abstractmethod
    def trials(self, count: int, *, generator: torch.Generator) -> Mapping[str, TrialScores]:
        """The statistics of so many releases under H0 and as many under H1, by name.

        Args:
            count: releases a hypothesis; independent of each other.
            generator: the only source of randomness.
        """

    def theory(self, *, delta: float) -> list[Score]:
        """Known values of the epsilon of this pair without a trial; nothing unless a pair says otherwise.

        Args:
            delta: δ, between 0 and 1.
        """
        return []

    @property
    def facts(self) -> Mapping[str, Any]:
        """Description of the pair for a record, JSON-ready and without a private value."""
        return {}


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
        moved = self.alternatives.cpu().double() - self.null.cpu().double()
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
            Statistic.LIKELIHOOD_RATIO: scipy.special.logsumexp(ratios, axis=1) - np.log(many),
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


# Releases under H0 that the variance of an unknown noise is read off; they count for nothing else.
PILOT = 64


def released_pair(
    objective: Objective, release: Release, rows: Batch, *, null: Sequence[int], alternatives: Sequence[Sequence[int]]
) -> GaussianPair | SampledPair:
    """The releases of one batch against those of another, or of one of several.

    Gaussian noise on every entry (DP-SGD, clipping with noise after it, noise on a step of FedAvg) gives a
    `GaussianPair`. Everything else is really drawn, as a `SampledPair`: noise of another law, noise inside of local
    training, sparsification, a defense after the noise, random layers, or no noise at all.

    Args:
        objective: the client's loss at the parameters that the update is shared for.
        release: protocol and defenses.
        rows: what batches are made of.
        null: places of the rows of the batch under H0.
        alternatives: places of those under H1, one of them drawn uniformly.

    Raises:
        InputError: for no alternative, an empty batch, or rows that the model does not take.
        UnsupportedError: where the model refuses the release.
    """
    batches = [list(null), *(list(places) for places in alternatives)]
    if len(batches) < 2 or not all(batches):
        raise InputError(f"released_pair: expected a batch under H0 and at least one under H1, got {batches}")
    release.check_model(objective)
    rows = rows.to(objective.dtype)
    rows.validate()
    held = [rows_of(rows, torch.tensor(places, device=rows.inputs.device)) for places in batches]
    for batch in held:
        objective.check(batch)
    spreads = None if objective.draws(rows.inputs, rows.targets) else _spreads(objective, release, batches)
    if spreads is None:
        return SampledPair(
            objective=objective,
            release=release,
            rows=rows,
            null=tuple(batches[0]),
            alternatives=tuple(tuple(places) for places in batches[1:]),
        )
    with torch.no_grad():
        means = torch.stack([_mean(objective, release, batch) for batch in held])
    return GaussianPair(null=means[0], alternatives=means[1:], std=spreads[0], alternative_std=spreads[1])


@dataclass(frozen=True, kw_only=True, eq=False)
class SampledPair(HypothesisPair):
    """Releases that are really made, trial by trial.

    Statistics: the distance from the release without noise, and the matched filter

        log (1/a) Σⱼ exp((⟨y, dⱼ⟩ − ‖dⱼ‖²/2)/s²),

    which is the likelihood ratio for Gaussian noise of one standard deviation s on every entry and for two hypotheses
    orders releases by ⟨y, d⟩ whatever s is. s² is the mean variance of 64 releases under H0 that count for nothing else
    (1 where nothing varies). Any statistic bounds epsilon from below; for noise of another law it need not be the best.

    Where layers draw (dropout, a bottleneck), centers are means of 64 releases each, and every trial has its own masks.

    Attributes:
        objective: the client's loss.
        release: protocol and defenses.
        rows: what batches are made of.
        null: places of the batch under H0.
        alternatives: places of the batches under H1.

    **Cost**: 2·count releases, together where `BatchReleases` can.
    """

    objective: Objective = field(repr=False)
    release: Release
    rows: Batch = field(repr=False)
    null: tuple[int, ...]
    alternatives: tuple[tuple[int, ...], ...]

    def trials(self, count: int, *, generator: torch.Generator) -> dict[str, TrialScores]:
        """Distance and matched filter of `count` releases under each hypothesis; both of the same releases."""
        check_count("trials", count)
        center, moved, variance = self._centers(generator)
        fixed = variance == 0
        null = self._scored([self.null], [count], center, moved, variance, generator, fixed=fixed)
        chosen = torch.randint(len(self.alternatives), (count,), generator=generator, device=generator.device)
        counts = torch.bincount(chosen, minlength=len(self.alternatives)).tolist()
        alternative = self._scored(self.alternatives, counts, center, moved, variance, generator, fixed=fixed)
        return {str(name): TrialScores(null=null[name], alternative=alternative[name], name=str(name)) for name in null}

    @property
    def facts(self) -> Mapping[str, Any]:
        """Facts on the draws of the releases."""
        return {"law": "drawn", "route": self._releases.route.value, "entries": self.objective.size}

    @cached_property
    def _releases(self) -> BatchReleases:
        return BatchReleases(self.objective, self.release, self.rows, own_masks=True)

    @cached_property
    def _draws(self) -> bool:
        return self.objective.draws(self.rows.inputs, self.rows.targets)

    def _centers(self, generator: torch.Generator) -> tuple[Tensor, Tensor, float]:
        """u₀, the dⱼ, and s² of one entry."""
        pilot = self._drawn(self.null, PILOT, generator)
        if self._draws:
            center = pilot.mean(dim=0)
            others = [self._drawn(places, PILOT, generator).mean(dim=0) for places in self.alternatives]
        else:
            with torch.no_grad():
                center, *others = [
                    _mean(self.objective, self.release, rows_of(self.rows, torch.tensor(places)))
                    for places in (self.null, *self.alternatives)
                ]
        varies = self._draws or self.release.noise(self.objective, examples=len(self.null)) is not None
        variance = float((pilot - center).square().mean()) if varies else 0.0
        return center, torch.stack(others) - center, variance

    def _drawn(self, places: Sequence[int], count: int, generator: torch.Generator) -> Tensor:
        return torch.cat([part.double() for part in self._releases.chunks(_repeated(places, count), generator)])

    def _scored(
        self,
        batches: Sequence[Sequence[int]],
        counts: Sequence[int],
        center: Tensor,
        moved: Tensor,
        variance: float,
        generator: torch.Generator,
        *,
        fixed: bool,
    ) -> dict[Statistic, Floats]:
        """The statistics of so many releases of each batch; of a release that never varies one is enough."""
        half = moved.square().sum(dim=1) / 2
        distances: list[Floats] = []
        ratios: list[Floats] = []
        for places, count in zip(batches, counts, strict=True):
            if not count:
                continue
            for part in self._releases.chunks(_repeated(places, 1 if fixed else count), generator):
                y = part.double() - center
                times = count if fixed else 1
                distances.append(np.repeat(y.norm(dim=1).cpu().numpy(), times))
                crossed = (y @ moved.T - half) / (variance or 1.0)
                ratios.append(
                    np.repeat(scipy.special.logsumexp(crossed.cpu().numpy(), axis=1) - np.log(len(moved)), times)
                )
        return {
            Statistic.DISTANCE: np.concatenate(distances),
            Statistic.MATCHED_FILTER: np.concatenate(ratios),
        }


def _mean(objective: Objective, release: Release, batch: Batch) -> Tensor:
    """The release without its noise, flat in float64."""
    return objective.flatten(release.mean(objective, objective.params, batch)).double()


def _repeated(places: Sequence[int], count: int) -> Tensor:
    return torch.tensor(list(places)).expand(count, len(places))


def _spreads(
    objective: Objective, release: Release, batches: Sequence[Sequence[int]]
) -> tuple[float | Tensor, float | Tensor] | None:
    """σ on the release under both hypotheses; None where the law is not Gaussian on every entry, or not one under H1."""
    sizes = [len(places) for places in batches]
    if len(set(sizes[1:])) > 1:
        return None
    found: list[float | Tensor] = []
    for size in sizes[:2]:
        law = release.noise(objective, examples=size)
        if not isinstance(law, DiagonalGaussian) or not all(std > 0 for std in law.std.values()):
            return None
        if len(set(law.std.values())) == 1:
            found.append(next(iter(law.std.values())))
        else:
            full = {
                name: torch.full_like(tensor, law.std[name], dtype=torch.float64)
                for name, tensor in objective.params.items()
            }
            found.append(objective.flatten(full))
    return found[0], found[1]

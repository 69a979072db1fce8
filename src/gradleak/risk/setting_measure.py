"""Measures of a setting in place of an example, with what they share: continuity of the release, and blind success."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import scipy
import torch
from torch import Tensor

from gradleak.core import Domain, Objective, Release
from gradleak.operators import DerivativeCheck
from gradleak.results import Evidence, InputError, Leakier, Outcome, Score, check_count
from gradleak.risk.layer_exposure import VisibleLayers
from gradleak.risk.layer_measure import LayerMeasure
from gradleak.risk.layer_profile import Groups, LayerProfile, LayerScale, LayerSite
from gradleak.risk.measure import Unit

PIECES = 16
ZOOMS = 7  # each by PIECES / 2: the last pieces are 3e-8 of the line


def largest_jump(function: Callable[[Tensor], Tensor], start: Tensor, end: Tensor) -> float:
    """The largest jump found along the line from `start` to `end`, relative to the change over the whole line.

    The line is cut into pieces; the search zooms into the two pieces where the second difference is largest, again and
    again. A smooth function leaves second differences of the order of the squared length of a piece, one with a kink of
    its length, one with a jump the jump itself.

    Assumptions: a search, not a proof: a jump that is small beside the curvature of the first pieces may be missed.

    Args:
        function: maps (n,) to (P,).
        start: (n,).
        end: (n,).

    Returns:
        0.0 if the function does not change along the line.

    Cost: about 120 evaluations.
    """
    low, high, change, jump = 0.0, 1.0, 0.0, 0.0
    with torch.no_grad():
        for zoom in range(ZOOMS):
            places = torch.linspace(low, high, PIECES + 1, dtype=start.dtype).tolist()
            values = torch.stack([function(torch.lerp(start, end, place)) for place in places])
            if zoom == 0:
                change = float((values[1:] - values[:-1]).norm(dim=1).sum())
                if change == 0.0:
                    return 0.0
            seconds = (values[2:] - 2 * values[1:-1] + values[:-2]).norm(dim=1)
            worst = int(seconds.argmax())
            jump = float(seconds[worst])
            low, high = places[worst], places[worst + 2]
    return jump / change


# Of the largest squared length: distances come from inner products in float64. Only ever counts a point more.
SLACK = 1e-10
CHUNK_ENTRIES = 2**22


def blind_success_limit(points: Tensor, radius: float, *, guesses: int = 1, confidence: float = 0.95) -> float:
    """An upper confidence limit of κ = sup P(X lies within `radius` of one of k guesses), from independent draws of X.

    The supremum is over all sets of k points of the space, whether drawn or not. **It needs no uniform convergence**: let
    z* be the best guesses. They depend on the law of X alone and not on the draws, so the number of draws within
    `radius` of z* is binomial with probability κ. The largest number N within `radius` of any k points is at least
    that, so the limit of Clopper and Pearson from N is at least theirs from the binomial number, which is above κ with
    the stated confidence. (Where no best guesses exist, take some that fall short by any small amount.)

    N is not known either; k times `most_within` is at least N, and more draws only raise the limit.

    Args:
        points: (n, e), the draws.
        radius: Euclidean, positive.
        guesses: k.
        confidence: of the limit, between 0 and 1, over the draws.

    Cost: n²·e multiplications.

    Source: Clopper and Pearson 1934 for the limit; the argument for the supremum is ours.

    Examples:
        >>> apart = torch.eye(100, dtype=torch.float64)
        >>> round(blind_success_limit(apart, 0.5), 4)  # one of 100 draws is within 0.5 of any point
        0.0466
    """
    count = points.shape[0]
    found = min(count, guesses * most_within(points, radius))
    return 1.0 if found == count else float(scipy.stats.beta.ppf(confidence, found + 1, count - found))


def most_within(points: Tensor, radius: float) -> int:
    """A number of points that no ball of this radius exceeds, wherever its center is; at least 1.

    For m points within r of some center, the mean over all pairs (each with itself too) of the squared distance is twice
    the mean squared distance from their own mean, so at most 2r². So one of the m has a mean squared distance of at
    most 2r² from them, and none further than 2r away. For every point the largest m is taken for which its m nearest
    (itself first) allow that.

    Args:
        points: (n, e) with n >= 1.
        radius: r, positive.

    Cost: n²·e multiplications, and a partial sort of every row of distances.

    Examples:
        >>> most_within(torch.tensor([[0.0], [1.0], [2.0], [9.0]]), 1.0)
        3
    """
    points = points.double() - points.double().mean(0)
    squares = points.square().sum(1)
    slack = SLACK * float(squares.max())
    most = 1
    for rows in points.split(max(1, CHUNK_ENTRIES // points.shape[0])):
        gaps = (rows.square().sum(1)[:, None] + squares - 2 * rows @ points.T).clamp(min=0.0)
        near = int((gaps <= 4 * radius**2 + slack).sum(1).max())
        nearest = gaps.topk(near, largest=False, sorted=True).values
        means = nearest.cumsum(1) / torch.arange(1, near + 1, dtype=gaps.dtype, device=gaps.device)
        fits = (nearest <= 4 * radius**2 + slack) & (means <= 2 * radius**2 + slack)
        most = max(most, int(fits.sum(1).max()))
    return most


@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """Public facts on a release before the private inputs are known.

    Attributes:
        objective: the client's loss.
        release: protocol and defenses.
        batch_size: examples behind a release.
        copies: how often the most frequent of them stands there; what hides one does not hide so many alike.
        targets: their labels (b, ...), which the adversary is taken to know, or None for labels of a measure's own.
        domain: shape, range and normalization of an example, or None for unknown.
        check: of the derivative of the release, where it was made already.
    """

    objective: Objective
    release: Release
    batch_size: int = 1
    copies: int = 1
    targets: Tensor | None = field(default=None, repr=False)
    domain: Domain | None = None
    check: DerivativeCheck | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class SettingMeasure(LayerMeasure):
    """A number about a setting, or a named outcome where there is none.

    A `Measure` is about one exposure and needs the private inputs; a measure of a setting averages over what an
    adversary may believe about them, and needs none. Authors write `_measure` and `estimate`.

    Attributes:
        reads_derivative: whether it is taken from the derivative of the release.
    """

    leakier: ClassVar[Leakier] = Leakier.LOWER
    needs_every_layer: ClassVar[bool] = True
    reads_derivative: ClassVar[bool] = True

    def check(self, domain: Domain | None) -> None:
        """Refuse data of which this measure can have no value, before anything is computed; by default none.

        Args:
            domain: shape, range and vocabulary of an example, or None for unknown.

        Raises:
            InputError: if no batch of such examples has a value.
        """

    @final
    def __call__(
        self,
        objective: Objective,
        release: Release,
        *,
        targets: Tensor | None = None,
        batch_size: int | None = None,
        copies: int = 1,
        domain: Domain | None = None,
        generator: torch.Generator | None = None,
        check: DerivativeCheck | None = None,
    ) -> Score:
        """The score of this measure for releases of one batch of independent examples.

        Args:
            objective: the client's loss.
            release: protocol and defenses.
            targets: (b, ...) the labels of the batch, known to the adversary; None for labels of the measure's own.
            batch_size: b where no targets are given, by default 1.
            copies: how often the most frequent example stands in the batch, where some are alike.
            domain: of an example, where the measure does not know it already.
            generator: of all random numbers; None is a fresh one with seed 0.
            check: of the derivative of this release, where it was made already; else a measure that reads it makes one.

        Raises:
            InputError: if targets and batch_size disagree, an argument is of another kind, or the measure needs what is not
                given.
            UnsupportedError: if the release cannot be differentiated.
        """
        for name, value, kind in (
            ("objective", objective, Objective),
            ("release", release, Release),
            ("domain", domain, Domain | None),
            ("generator", generator, torch.Generator | None),
        ):
            if not isinstance(value, kind):
                wanted = getattr(kind, "__name__", str(kind))
                raise InputError(f"{name}: expected {wanted}, got {type(value).__name__}")
        if targets is not None and (not isinstance(targets, Tensor) or targets.dim() == 0 or targets.shape[0] == 0):
            raise InputError("targets: expected a tensor (b, ...) of the labels of a batch, or None")
        size = batch_size if targets is None else int(targets.shape[0])
        if batch_size is not None:
            check_count("batch_size", batch_size)
            if batch_size != size:
                raise InputError(f"batch_size: expected the number of targets, {size}, got {batch_size}")
        check_count("copies", copies)
        if copies > (size or 1):
            raise InputError(f"copies: expected at most the number of examples, {size or 1}, got {copies}")
        setting = Setting(
            objective=objective,
            release=release,
            batch_size=size or 1,
            copies=copies,
            targets=targets,
            domain=domain,
            check=check,
        )
        return self._measure(setting, generator or torch.Generator().manual_seed(0))

    @abstractmethod
    def _measure(self, setting: Setting, generator: torch.Generator) -> Score:
        """The score; all random numbers come from `generator`."""

    @abstractmethod
    def estimate(self, unknowns: int) -> float:
        """The cost for a batch of so many unknowns in plain gradients, roughly."""

    def by_layer(self, site: LayerSite, groups: Groups) -> LayerProfile:
        """The scores of settings in which a group is all that is released."""
        first = site.rows.releases[0]
        scores = {}
        for name, members in groups.items():
            sets = VisibleLayers(names=members)
            scores[name] = self(
                sets.objective(site.objective),
                sets.release(site.objective, site.release),
                batch_size=first.size,
                domain=site.rows.batch.domain,
                generator=site.draws,
            )
        return LayerProfile(measure=site.label, scores=scores, groups=groups)

    def layer_cost(self, scale: LayerScale) -> float:
        """Its own cost for each group and set."""
        return (scale.groups + scale.sets) * self.estimate(scale.unknowns)

    def apart(self, scale: LayerScale) -> bool:
        """True: groups have nothing in common."""
        return True

    @property
    def variant(self) -> str:
        """The unit that it is stated in, where it has one."""
        return str(getattr(self, "metric", getattr(self, "unit", "")))

    def unsupported(self, reason: str) -> Score:
        """The score without a value, for a reason that lies outside of the measure."""
        return self._without_value(Outcome.UNSUPPORTED, reason)

    @property
    def _unit(self) -> str:
        return str(getattr(self, "unit", Unit.INPUT))

    def _without_value(self, outcome: Outcome, note: str, **details: Any) -> Score:
        return Score(
            name=self.name,
            value=None,
            unit=self._unit,
            leakier=self.leakier,
            evidence=Evidence.ESTIMATE,
            outcome=outcome,
            note=note,
            details=details,
        )

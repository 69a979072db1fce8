"""The two laws of a release under two hypotheses on its batch: in closed form where there is one, else by drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy.special import logsumexp
from torch import Tensor

from gradleak.core import Batch, DiagonalGaussian, Objective, Release
from gradleak.data import rows_of
from gradleak.privacy.gaussian import Floats, GaussianPair
from gradleak.privacy.lower_bounds import TrialScores
from gradleak.privacy.pair import HypothesisPair, Statistic
from gradleak.results import InputError, check_count
from gradleak.training import BatchReleases

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
                ratios.append(np.repeat(logsumexp(crossed.cpu().numpy(), axis=1) - np.log(len(moved)), times))
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

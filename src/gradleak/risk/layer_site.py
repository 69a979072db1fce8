"""One release as measures of its layers see it: the client's loss, rows that are released, and what is told of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gradleak.core import Batch, Exposure, Knowledge, Objective, Release, ThreatModel, derive_generator, derive_seed
from gradleak.risk.layer_exposure import VisibleLayers
from gradleak.training.releases.layer_gradients import layer_gradients

Groups = Mapping[str, tuple[str, ...]]
"""The tensors of every group, in the order of the model."""


@dataclass(frozen=True, kw_only=True, eq=False)
class DrawnRows:
    """The rows of a seed.

    Attributes:
        batch: rows that gradients are taken of.
        target: what is told, one entry a gradient; zeros where nothing is asked for.
        batches: places of the rows of each gradient, None for every row by itself.
        clusters: what belongs together, or None.
        releases: batches of closed-form measures and inversions.
    """

    batch: Batch
    target: Tensor
    batches: Tensor | None
    clusters: Tensor | None
    releases: Sequence[Batch]


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerSite:
    """View of one release for a measure of layers.

    Attributes:
        label: of the profile; it tells the random numbers of one measure from those of another.
        objective: the client's loss at the parameters that an update is shared for.
        release: protocol and defenses.
        rows: that are released.
        threat: what the adversary of an inversion knows.
        seed: of all random numbers besides those of a measure itself.
        shuffled: whether each gradient is told what belongs to another one, so that nothing is to be found.
        max_bytes: memory budget.
    """

    label: str
    objective: Objective
    release: Release
    rows: DrawnRows = field(repr=False)
    threat: ThreatModel
    seed: int
    shuffled: bool = False
    max_bytes: int = 2**30

    @property
    def exposures(self) -> list[Exposure]:
        """The releases of closed-form measures and inversions."""
        return [Exposure(self.objective, batch, self.release) for batch in self.rows.releases]

    @property
    def target(self) -> Tensor:
        """Target that is told, one entry a gradient; that of another one where the site is shuffled."""
        target = self.rows.target
        if not self.shuffled:
            return target
        return target[torch.randperm(len(target), generator=derive_generator(self.seed, "shuffled", self.label))]

    @property
    def draws(self) -> torch.Generator:
        """A fresh generator for the measure itself."""
        return derive_generator(self.seed, "measure", self.label)

    def gradients(self, groups: Groups) -> Mapping[str, Tensor]:
        """The released gradients of the rows, one matrix (n, P_l) a group.

        Args:
            groups: names of tensors.

        Raises:
            GradleakError: where the release and the rows do not fit together.
        """
        found = layer_gradients(
            self.objective,
            self.rows.batch,
            release=self.release,
            generator=derive_generator(self.seed, "gradients", device=self.objective.device),
            batches=self.rows.batches,
            groups=groups,
            max_bytes=self.max_bytes,
        )
        return found.matrices

    def derived_seed(self, purpose: str) -> int:
        """A seed for one purpose, the same for all measures.

        Args:
            purpose: its name.
        """
        return derive_seed(self.seed, purpose)

    def seen(self, sets: VisibleLayers) -> LayerSite:
        """The same release, of which only these tensors are seen.

        Args:
            sets: what is visible.

        Raises:
            GradleakError: where hiding and the release do not go together.
        """
        return replace(
            self, objective=sets.objective(self.objective), release=sets.release(self.objective, self.release)
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerScale:
    """Amount to measure, for an estimate of the cost.

    Attributes:
        rows: that gradients are taken of.
        releases: of closed-form measures and inversions.
        unknowns: numbers of the inputs of a release.
        groups: of tensors.
        sets: of visible tensors, measured besides.
        null: whether gradients are read a second time with shuffled attributes.
        known: makes what the adversary of an undefended release knows.
    """

    rows: int
    releases: int
    unknowns: int
    groups: int
    sets: int
    null: bool
    known: Callable[[], Knowledge]

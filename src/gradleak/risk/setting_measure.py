"""Base of every measure of a setting: no private input comes into it."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from gradleak.core import Domain, Objective, Release
from gradleak.operators import DerivativeCheck
from gradleak.results import Evidence, InputError, Leakier, Outcome, Score, check_count
from gradleak.risk.layer_exposure import VisibleLayers
from gradleak.risk.layer_measure import LayerMeasure
from gradleak.risk.layer_profile import LayerProfile
from gradleak.risk.layer_site import Groups, LayerScale, LayerSite
from gradleak.risk.measure import Unit


@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """Public facts on a release before the private inputs are known.

    Attributes:
        objective: the client's loss.
        release: protocol and defenses.
        batch_size: examples behind a release.
        targets: their labels (b, ...), which the adversary is taken to know, or None for labels of a measure's own.
        domain: shape, range and normalization of an example, or None for unknown.
        check: of the derivative of the release, where it was made already.
    """

    objective: Objective
    release: Release
    batch_size: int = 1
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

    @final
    def __call__(
        self,
        objective: Objective,
        release: Release,
        *,
        targets: Tensor | None = None,
        batch_size: int | None = None,
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
        setting = Setting(
            objective=objective, release=release, batch_size=size or 1, targets=targets, domain=domain, check=check
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

"""Counts the units of released layers whose weights got no gradient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.audits.base import Audit, Site, Task
from gradleak.results import (
    Control,
    Evidence,
    Grounds,
    InputError,
    Leakier,
    Outcome,
    PlanError,
    Score,
    Verdict,
    VerdictKind,
)

from .finding import DeadUnitsFinding


@dataclass(frozen=True, kw_only=True, eq=False)
class DeadUnitsAudit(Audit[DeadUnitsFinding]):
    """Counts the units of every released layer whose weights got no gradient.

    Attributes:
        most: so large a share of dead units is no news.
    """

    kind: ClassVar[str] = "dead_units"
    finding: ClassVar[type[DeadUnitsFinding]] = DeadUnitsFinding
    noun: ClassVar[str] = "count of dead units"

    most: float = 0.5

    def fit(self, site: Site) -> None:
        """Refuse a share that is none, and a plan without private batches."""
        if not 0 <= self.most <= 1:
            raise PlanError(f"dead_units.{self.name}, most: expected a share from 0 to 1, got {self.most}")
        if not site.batches:
            raise PlanError(f"dead_units.{self.name}: expected a section [data], got none")

    def tasks(self, site: Site) -> Iterable[Task[DeadUnitsFinding]]:
        """The control, then every scenario."""
        blank = DeadUnitsFinding(item=f"control/{self.name}", audit=self.name, control=Control(planted=True))
        yield Task(name=blank.item, run=Planted(blank), blank=blank, headline="planted dead unit", cost=1.0)
        for scenario in site.scenarios:
            if self.against(scenario.name):
                item = f"{scenario.name}/{self.name}"
                blank = DeadUnitsFinding(item=item, audit=self.name, scenario=scenario.name)
                yield Task(name=item, run=Count(blank), blank=blank, headline=item, cost=1.0)

    @classmethod
    def judge(cls, found: Sequence[DeadUnitsFinding], grounds: Grounds) -> Iterable[Verdict]:
        """Inconclusive always: dead units are no leak."""
        failed = any(one.control is not None and one.control.passed is not True for one in found)
        for finding in found:
            if finding.control is None:
                yield Verdict(
                    item=finding.item,
                    audit=finding.audit,
                    scenario=finding.scenario,
                    verdict=VerdictKind.INCONCLUSIVE,
                    reason="control_failed" if failed else "units_counted",
                    explanation=f"{finding.value('dead_units'):g} of {finding.units} units got no gradient.",
                    noun="counts of dead units",
                    tested=False,
                )


@dataclass(frozen=True)
class Count:
    """Counts the dead units of the first release of a scenario."""

    blank: DeadUnitsFinding

    def __call__(self, site: Site, out: Path) -> Sequence[DeadUnitsFinding]:
        """One finding."""
        scenario = site.scenario(str(self.blank.scenario))
        if not scenario.examples:
            raise InputError(f"{scenario.name}: expected an example, got none")
        return [counted(self.blank, site.released(scenario, scenario.examples[0]).tensors)]


@dataclass(frozen=True)
class Planted:
    """Counts what was planted: one of three units without a gradient."""

    blank: DeadUnitsFinding

    def __call__(self, site: Site, out: Path) -> Sequence[DeadUnitsFinding]:
        """The control."""
        found = counted(self.blank, {"weight": torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 2.0]])})
        control = Control(
            planted=True,
            title="Planted dead unit",
            expects="one dead unit of three is counted",
            meaning="Units are not counted as they should be.",
            passed=found.value("dead_units") == 1.0,
            measure="dead_units",
        )
        return [found.but(control=control)]


def counted(blank: DeadUnitsFinding, tensors: Mapping[str, Tensor]) -> DeadUnitsFinding:
    """The finding on the weights among some tensors."""
    weights = {name: tensor.flatten(1) for name, tensor in tensors.items() if tensor.ndim > 1}
    layers = {name: int((~weight.any(dim=1)).sum()) for name, weight in weights.items()}
    dead = Score(
        name="dead_units",
        value=sum(layers.values()),
        unit="count",
        leakier=Leakier.NEITHER,
        evidence=Evidence.EXACT,
    )
    return blank.but(
        outcome=Outcome.CONVERGED,
        units=sum(weight.shape[0] for weight in weights.values()),
        layers=layers,
        scores=(dead,),
    )

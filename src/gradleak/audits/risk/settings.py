"""Measures of a setting: what holds for every release whose batch has the same labels."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from gradleak.audits.base import Scenario, Site, internal_example
from gradleak.audits.risk.derivative import derivative_of, distinct
from gradleak.core import Batch, derive_generator
from gradleak.operators import DerivativeCheck
from gradleak.results import GradleakError, Score
from gradleak.results.findings.risk import RiskFinding
from gradleak.risk import SettingMeasure


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The measures of a setting for the releases of a scenario whose batches have the same labels.

    Attributes:
        audit: the name of the section.
        measures: those of a setting.
        scenario: its name.
        index: of the first of these batches.
    """

    audit: str
    measures: Sequence[SettingMeasure]
    scenario: str
    index: int

    def __call__(self, site: Site, out: Path) -> list[RiskFinding]:
        """A finding with the scores for every release with these labels."""
        scenario = site.scenario(self.scenario)
        started = time.perf_counter()
        batch, measures = site.batches[self.index], distinct(self.measures)
        reads = any(measure.reads_derivative for measure in measures)
        check = derivative_of(site, scenario.release, self.index) if reads else None
        scores = tuple(_score(site, scenario, measure, batch, place, check) for place, measure in enumerate(measures))
        seconds = time.perf_counter() - started
        return [
            RiskFinding(
                item=f"{self.scenario}/{internal_example(index)}/setting",
                audit=self.audit,
                scenario=self.scenario,
                subject=site.subject(index),
                seconds=seconds if index == self.index else 0.0,
                scores=scores,
            )
            for index in same_labels(site, scenario)[self.index]
        ]


def same_labels(site: Site, scenario: Scenario) -> dict[int, list[int]]:
    """The batches of a scenario by the first one that has the same labels."""
    groups: dict[int, list[int]] = {}
    for index in scenario.examples:
        targets = site.batches[index].targets
        twin = next((first for first in groups if _equal(site.batches[first].targets, targets)), index)
        groups.setdefault(twin, []).append(index)
    return groups


def _equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.dtype == second.dtype and torch.equal(first, second)


def _score(
    site: Site, scenario: Scenario, measure: SettingMeasure, batch: Batch, place: int, check: DerivativeCheck | None
) -> Score:
    try:
        return measure(
            site.objective,
            scenario.release,
            targets=batch.targets,
            domain=batch.domain,
            generator=derive_generator(site.seed, "setting", str(place)),
            check=check,
        )
    except GradleakError as refusal:
        return measure.unsupported(str(refusal))

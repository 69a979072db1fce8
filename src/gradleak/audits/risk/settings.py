"""Measures of a setting: what holds for every release whose batch has the same labels."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from gradleak.audits.base import Scenario, Site, internal_example
from gradleak.audits.risk.derivative import derivative_of, distinct
from gradleak.core import Batch, Exposure, derive_generator
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
        indices: of these batches; the first one is measured.
    """

    audit: str
    measures: Sequence[SettingMeasure]
    scenario: str
    indices: Sequence[int]

    def __call__(self, site: Site, out: Path) -> list[RiskFinding]:
        """A finding with the scores for every release with these labels."""
        scenario = site.scenario(self.scenario)
        started = time.perf_counter()
        first = self.indices[0]
        batch, measures = site.batches[first], distinct(self.measures)
        reads = any(measure.reads_derivative for measure in measures)
        plain = Exposure(site.objective, batch, scenario.release)
        check = derivative_of(site, plain.at_embeddings(), first) if reads else None
        often = {index: _copies(site.batches[index].inputs) for index in self.indices}
        by_copies = {
            copies: tuple(
                _score(site, scenario, measure, batch, place, check, copies) for place, measure in enumerate(measures)
            )
            for copies in dict.fromkeys(often.values())
        }
        seconds = time.perf_counter() - started
        return [
            RiskFinding(
                item=f"{self.scenario}/{internal_example(index)}/setting",
                audit=self.audit,
                scenario=self.scenario,
                subject=site.subject(index),
                seconds=seconds if index == first else 0.0,
                scores=by_copies[often[index]],
            )
            for index in self.indices
        ]


def same_labels(site: Site, scenario: Scenario) -> dict[int, list[int]]:
    """The batches of a scenario by the first one that has the same labels."""
    groups: dict[Hashable, list[int]] = {}
    for index in scenario.examples:
        groups.setdefault(_labels(site.batches[index].targets), []).append(index)
    return {group[0]: group for group in groups.values()}


def _labels(targets: torch.Tensor) -> Hashable:
    """Equal for equal labels alone: what is on another device, or of another number, is not."""
    values = targets.detach().cpu().contiguous()
    return str(targets.device), values.dtype, values.shape, values.view(torch.uint8).numpy().tobytes()


def _copies(inputs: torch.Tensor) -> int:
    """Number of times that the most frequent example stands in a batch."""
    return int(torch.unique(inputs.detach().cpu().flatten(1), dim=0, return_counts=True)[1].max())


def _score(
    site: Site,
    scenario: Scenario,
    measure: SettingMeasure,
    batch: Batch,
    place: int,
    check: DerivativeCheck | None,
    copies: int,
) -> Score:
    try:
        return measure(
            site.objective,
            scenario.release,
            targets=batch.targets,
            copies=copies,
            domain=batch.domain,
            generator=derive_generator(site.seed, "setting", str(place)),
            check=check,
        )
    except GradleakError as refusal:
        return measure.unsupported(str(refusal))

"""A measure of layers that plan files of the tests name by import path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from gradleak.results import Citation, Evidence, Score, UnsupportedError
from gradleak.risk import LayerMeasure, LayerProfile, LayerScale, LayerSite


@dataclass(frozen=True, kw_only=True)
class Entries(LayerMeasure):
    """How many entries of each layer are not zero in the first release, by an author who answers no other question."""

    name: ClassVar[str] = "entries"
    citations: ClassVar[tuple[Citation, ...]] = ()
    summary: ClassVar[str] = "entries of each layer that are not zero"

    few: int = 0

    def by_layer(self, site: LayerSite, groups: Mapping[str, tuple[str, ...]]) -> LayerProfile:
        first = site.exposures[0]
        mean = site.release.mean(site.objective, site.objective.params, first.batch)
        if "2.bias" not in mean:
            raise UnsupportedError("Entries: expected the last bias")
        scores = {
            name: Score(
                name=self.name,
                value=float(sum(int(mean[one].count_nonzero()) for one in members)),
                unit="1",
                leakier=self.leakier,
                evidence=Evidence.EXACT,
            )
            for name, members in groups.items()
        }
        return LayerProfile(measure=site.label, scores=scores, groups=groups)

    def layer_cost(self, scale: LayerScale) -> float:
        return 1.0 + scale.sets

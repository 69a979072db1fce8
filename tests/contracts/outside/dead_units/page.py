"""The section of a report on dead units."""

from __future__ import annotations

from collections.abc import Sequence

from gradleak.reporting.blocks import Column, Section, Table, Text, Tile, Tiles
from gradleak.reporting.context import Context
from gradleak.reporting.numerals import quantity
from gradleak.results import Evidence

from .finding import DeadUnitsFinding


def page(findings: Sequence[DeadUnitsFinding], context: Context) -> Section | None:
    """A table of scenarios; the most dead units on the first screen."""
    counts = [finding for finding in findings if finding.control is None and finding.scores]
    if not counts:
        return None
    worst = max(counts, key=lambda finding: finding.value("dead_units") or 0.0)
    return Section(
        anchor="dead-units",
        title="Units without a gradient",
        blocks=[
            Text(parts=["A unit whose weights get no gradient shows nothing of the input."]),
            Table(
                columns=[
                    Column(label="Scenario"),
                    Column(label="Dead units", numeric=True, evidence=Evidence.EXACT),
                    Column(label="Units", numeric=True),
                ],
                rows=[[str(one.scenario), quantity(one.score("dead_units")), str(one.units)] for one in counts],
            ),
        ],
        front=[Tiles(tiles=[Tile(label="Most dead units", value=quantity(worst.score("dead_units")))])],
    )

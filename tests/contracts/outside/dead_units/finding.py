"""Finding of a count of the dead units of a release."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from gradleak.results import Finding


class DeadUnitsFinding(Finding):
    """The dead units of one release.

    Attributes:
        units: rows of the shared weights.
        layers: dead rows by the name of their weight.
    """

    kind: str = "dead_units"
    units: int = 0
    layers: Mapping[str, int] = Field(default_factory=dict)

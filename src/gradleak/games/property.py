"""Property inference: what is said of the rows, but stands in none of the features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradleak.games.value_game import OneValueGame


@dataclass(frozen=True, kw_only=True, eq=False)
class PropertyGame(OneValueGame):
    """Game about a property that the model does not see, inferred from gradients.

    All k rows of a batch share the property. The population's inputs must not hold it: remove its column
    (`Table.population(..., keep_sensitive=False)` does; rows that say they hold it are refused). What other features tell
    of it stays.

    **Source**: Li et al. 2024, section 3.2 (property inference game); there k = 16 and AUROC 0.9919 for gender on Adult.
    """

    kind: ClassVar[str] = "property"
    inside: ClassVar[bool | None] = False

"""Attribute inference: a feature inside of the inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradleak.games.value_game import OneValueGame


@dataclass(frozen=True, kw_only=True, eq=False)
class AttributeGame(OneValueGame):
    """Game about the value of a feature that the model sees, inferred from gradients.

    All k rows of a batch share the value. The population's inputs hold the feature
    (`Table.population(..., keep_sensitive=True)`; rows that say they do not are refused); apart from that the game is
    `PropertyGame`.

    **Source**: Li et al. 2024, section 3.2 (attribute inference game); there k = 16 and AUROC 0.9991 for gender on Adult.
    """

    kind: ClassVar[str] = "attribute"
    inside: ClassVar[bool | None] = True

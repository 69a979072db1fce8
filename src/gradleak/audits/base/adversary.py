"""The two adversaries of a defended release: one who knows the defenses, and one who takes them as absent."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from gradleak.core import Knowledge


class Adversary(StrEnum):
    """Adversary, with or without knowledge of the defenses of a release and their constants."""

    ADAPTIVE = "adaptive"
    STATIC = "static"

    def of(self, knowledge: Knowledge) -> Knowledge:
        """Knowledge of this adversary, of two who know the same besides: a static one is not told of any defense."""
        return knowledge if self is Adversary.ADAPTIVE else replace(knowledge, defenses=None)

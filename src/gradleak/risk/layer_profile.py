"""One number a layer: where a release leaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradleak.results import InputError, Leakier, Score


@dataclass(frozen=True, kw_only=True)
class LayerProfile:
    """The scores of one measure for every layer, set of layers or named group of tensors.

    Scores without a value keep their outcome, and stand last in the ranking: "could not be told" is not "safe".

    Attributes:
        measure: name of the measure.
        scores: by group, in the order of the model.
        groups: the tensors of every group.

    Raises:
        InputError: without a group, or for scores and groups of different names.
    """

    measure: str
    scores: Mapping[str, Score]
    groups: Mapping[str, tuple[str, ...]]

    def __post_init__(self) -> None:
        """Check that every group has its score."""
        if not self.scores or list(self.scores) != list(self.groups):
            raise InputError(
                f"LayerProfile: expected one score a group, got {list(self.scores)} for groups {list(self.groups)}"
            )

    @property
    def ranked(self) -> list[str]:
        """The groups, the leakiest first; those without a value last, in the order of the model."""
        sign = -1.0 if self._leakier is not Leakier.LOWER else 1.0
        known = {name: score.value for name, score in self.scores.items() if score.value is not None}
        return [
            *sorted(known, key=lambda name: sign * known[name]),
            *(name for name in self.scores if name not in known),
        ]

    @property
    def leakiest(self) -> str | None:
        """The group that leaks most; None where no group has a value."""
        first = self.ranked[0]
        return None if self.scores[first].value is None else first

    def rivals(self) -> list[str]:
        """The groups whose intervals reach that of the leakiest, so that any of them may be the leakiest one.

        Groups with a value but no interval are among them; without a value anywhere there is none.
        """
        if self.leakiest is None:
            return []
        first = self.scores[self.leakiest]
        names = [name for name in self.ranked if self.scores[name].value is not None]
        return [name for name in names[1:] if _meet(first, self.scores[name])]

    def lines(self, item: str) -> list[dict[str, Any]]:
        """One JSON-ready line a group for a record: item, layer, rank, tensors and the score.

        Args:
            item: what the profile is of.
        """
        rank = {name: place + 1 for place, name in enumerate(self.ranked)}
        return [
            {
                "item": item,
                "measure": self.measure,
                "layer": name,
                "rank": rank[name] if score.value is not None else None,
                "tensors": list(self.groups[name]),
                "score": score.to_dict(),
            }
            for name, score in self.scores.items()
        ]

    @property
    def _leakier(self) -> Leakier:
        return next(iter(self.scores.values())).leakier


def _meet(first: Score, second: Score) -> bool:
    if first.interval is None or second.interval is None:
        return True
    return first.interval[0] <= second.interval[1] and second.interval[0] <= first.interval[1]


__all__ = ["LayerProfile"]

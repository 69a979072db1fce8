"""The three-valued answer of an audit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gradleak.results.errors import InputError
from gradleak.results.score import jsonable


class VerdictKind(StrEnum):
    """leaks, bounded or inconclusive; there is no "safe"."""

    LEAKS = "leaks"
    BOUNDED = "bounded"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on one item of a record.

    Attributes:
        item: name of the release that was judged.
        verdict: leaks, bounded or inconclusive.
        reason: a short code, for instance "attack_reached_threshold" or "control_failed".
        explanation: one or two sentences for a person.
        details: the numbers behind it (thresholds, best attack, errors).
    """

    item: str
    verdict: VerdictKind
    reason: str
    explanation: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The fields of a verdict line of a record (without its `type`)."""
        return {
            "item": self.item,
            "verdict": self.verdict.value,
            "reason": self.reason,
            "explanation": self.explanation,
            "details": jsonable(dict(self.details)),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Verdict:
        """The verdict that `to_dict` wrote.

        Raises:
            InputError: if a field is missing or the verdict is not one of the three.
        """
        try:
            return cls(
                item=data["item"],
                verdict=VerdictKind(data["verdict"]),
                reason=data["reason"],
                explanation=data.get("explanation", ""),
                details=data.get("details", {}),
            )
        except (KeyError, ValueError) as error:
            raise InputError(
                f"verdict: expected what Verdict.to_dict wrote, got a line without a proper {error}"
            ) from error

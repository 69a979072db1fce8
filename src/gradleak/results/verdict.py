"""The three-valued answer of an audit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gradleak.results.errors import InputError
from gradleak.results.finding import Subject
from gradleak.results.score import jsonable

RUN = "run"


class VerdictKind(StrEnum):
    """leaks, bounded or inconclusive; there is no "safe"."""

    LEAKS = "leaks"
    BOUNDED = "bounded"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on one subject of one audit, on a scenario, or on the run.

    Attributes:
        item: a name that is unique among the verdicts: of the findings that were judged, of the scenario, or "run".
        verdict: leaks, bounded or inconclusive.
        reason: a short code, for instance "attack_reached_threshold" or "control_failed".
        explanation: one or two sentences for a person.
        details: the numbers behind it (thresholds, best attack, errors).
        audit: the name of the audit's section of the plan; None for a verdict on a scenario or the run.
        scenario: its scenario; None for the verdict on the run.
        subject: whose data or which part, None for all of the scenario.
        noun: what its audit judges, in words and in the plural, for the verdict on a scenario: "attacked releases".
        tested: whether something was tried that could have leaked; comparing or refusing is no trial.
    """

    item: str
    verdict: VerdictKind
    reason: str
    explanation: str
    details: Mapping[str, Any] = field(default_factory=dict)
    audit: str | None = None
    scenario: str | None = None
    subject: Subject | None = None
    noun: str = ""
    tested: bool = True

    def to_dict(self) -> dict[str, Any]:
        """The fields of a verdict line of a record (without its `type`)."""
        return {
            "item": self.item,
            "audit": self.audit,
            "scenario": self.scenario,
            "subject": None if self.subject is None else self.subject.to_dict(),
            "verdict": self.verdict.value,
            "reason": self.reason,
            "explanation": self.explanation,
            "details": jsonable(dict(self.details)),
            "noun": self.noun,
            "tested": self.tested,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Verdict:
        """The verdict that `to_dict` wrote.

        Raises:
            InputError: if a field is missing or has a value that no verdict has.
        """
        try:
            texts = {key: data[key] for key in ("item", "reason")}
            texts |= {key: "" if data.get(key) is None else data[key] for key in ("explanation", "noun")}
            names = {key: data.get(key) for key in ("audit", "scenario")}
            details, subject = data.get("details", {}), data.get("subject")
            for key, given in {**texts, **{key: "" if name is None else name for key, name in names.items()}}.items():
                if not isinstance(given, str):
                    raise TypeError(f"{key}: {str(given)[:100]!r} is not text")
            if not isinstance(details, Mapping):
                raise TypeError("details: expected a table")
            return cls(
                item=texts["item"],
                verdict=VerdictKind(data["verdict"]),
                reason=texts["reason"],
                explanation=texts["explanation"],
                details=details,
                audit=names["audit"],
                scenario=names["scenario"],
                subject=None if subject is None else Subject.model_validate(subject),
                noun=texts["noun"],
                tested=bool(data.get("tested", True)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"verdict: expected what Verdict.to_dict wrote, got a line without a proper {' '.join(str(error).split())}"
            ) from error

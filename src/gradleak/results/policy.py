"""Policy of a plan: which scenarios are references, what is required of the others, and where a run falls short of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from gradleak.results.verdict import RUN, Verdict, VerdictKind

if TYPE_CHECKING:
    from gradleak.results.record import Record


class Requirement(StrEnum):
    """Verdict that a plan requires of a scenario.

    Attributes:
        BOUNDED: a guarantee has to hold against every attacker.
        NOT_LEAKS: nothing that was tried may leak; a scenario that is inconclusive meets it, and is not shown to be safe.
    """

    BOUNDED = "bounded"
    NOT_LEAKS = "not leaks"

    def met_by(self, verdict: VerdictKind | None) -> bool:
        """True if a verdict is as required; a scenario without a verdict never is.

        Args:
            verdict: on the scenario, or None.
        """
        if self is Requirement.BOUNDED:
            return verdict is VerdictKind.BOUNDED
        return verdict in (VerdictKind.BOUNDED, VerdictKind.INCONCLUSIVE)


@dataclass(frozen=True, kw_only=True)
class Breach:
    """Verdict that a gate does not let pass.

    Attributes:
        item: of the verdict, or the scenario that has none.
        scenario: its scenario; None for the run or the whole plan.
        verdict: which came out, or None.
        reason: its code, "" without a verdict.
        required: what the plan requires, or None where `--fail-on` names the verdict.
        explanation: of the verdict.
    """

    item: str
    scenario: str | None
    verdict: VerdictKind | None
    reason: str
    required: Requirement | None
    explanation: str

    def __str__(self) -> str:
        """One line: "noise: required bounded, got inconclusive"."""
        got = "no verdict" if self.verdict is None else self.verdict.value
        return f"{self.item}: required {self.required}, got {got}" if self.required else f"{self.item}: {got}"


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Policy that the scenarios of a plan state.

    Attributes:
        references: scenarios that are there to compare with; no verdict on the run and no gate counts them.
        required: the verdict that is required of a scenario, by its name.
    """

    references: frozenset[str] = frozenset()
    required: Mapping[str, Requirement] = field(default_factory=dict)

    @classmethod
    def of(cls, record: Record) -> Policy:
        """The policy in the header of a record; empty where that states none.

        Args:
            record: of a run, or made in Python.
        """
        plan = record.run.get("plan")
        listed = plan.get("scenarios") if isinstance(plan, Mapping) else None
        stated = [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
        known = {one.value for one in Requirement}
        return cls(
            references=frozenset(str(one.get("name")) for one in stated if one.get("reference") is True),
            required={
                str(one.get("name")): Requirement(one["require"]) for one in stated if one.get("require") in known
            },
        )

    def breaches(self, verdicts: Sequence[Verdict], fail_on: Collection[VerdictKind] = ()) -> list[Breach]:
        """The verdicts that a gate does not let pass, in the order of the record; then scenarios without a verdict.

        A scenario of which something is required is held to that alone; of every other one that is no reference, and of
        the plan as a whole, each verdict counts that `fail_on` names.

        Args:
            verdicts: of the record.
            fail_on: verdicts that may not occur.
        """
        return [*self._occurred(verdicts, fail_on), *self._missing(verdicts)]

    def _occurred(self, verdicts: Sequence[Verdict], fail_on: Collection[VerdictKind]) -> Iterator[Breach]:
        for verdict in verdicts:
            required = self.required.get(verdict.scenario) if verdict.scenario is not None else None
            if verdict.scenario in self.references or (verdict.item == RUN and self.required):
                # The verdict on the run is that of its parts, which are looked at one by one.
                continue
            if required is None:
                wrong = verdict.verdict in fail_on
            else:
                wrong = verdict.audit is None and not required.met_by(verdict.verdict)
            if wrong:
                yield Breach(
                    item=verdict.item,
                    scenario=verdict.scenario,
                    verdict=verdict.verdict,
                    reason=verdict.reason,
                    required=required,
                    explanation=verdict.explanation,
                )

    def _missing(self, verdicts: Sequence[Verdict]) -> Iterator[Breach]:
        judged = {verdict.scenario for verdict in verdicts if verdict.audit is None}
        for name, required in self.required.items():
            if name not in judged:
                said = "Nothing that was tried judges this scenario."
                yield Breach(item=name, scenario=name, verdict=None, reason="", required=required, explanation=said)

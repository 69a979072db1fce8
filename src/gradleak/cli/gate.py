"""Gate of a run: `--fail-on`, the policy of the plan, and the files for CI."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradleak.cli.outputs import place_for
from gradleak.results import InputError, Policy, Record, VerdictKind

if TYPE_CHECKING:
    from gradleak.auditing import Plan


class FailOn(StrEnum):
    """Verdicts that end a run with 1, and the policy of the plan."""

    LEAKS = VerdictKind.LEAKS.value
    BOUNDED = VerdictKind.BOUNDED.value
    INCONCLUSIVE = VerdictKind.INCONCLUSIVE.value
    POLICY = "policy"


FailOnOption = Annotated[
    list[FailOn] | None,
    typer.Option(
        help="Exit with code 1 if this verdict occurs, or a scenario is not as its `require` says (alone with 'policy'); "
        "may be repeated."
    ),
]
JUnitOption = Annotated[Path | None, typer.Option("--junit", help="JUnit XML file to write, a test case a scenario.")]
SarifOption = Annotated[Path | None, typer.Option("--sarif", help="SARIF 2.1.0 file to write.")]


@dataclass(frozen=True, kw_only=True)
class Gate:
    """Gate that a command line states.

    Attributes:
        plan: the plan file, to whose lines results point.
        fail_on: verdicts that may not occur where the plan requires nothing, and whether its policy counts.
        junit: JUnit file to write, or None.
        sarif: SARIF file to write, or None.
    """

    plan: Path
    fail_on: Sequence[FailOn] = ()
    junit: Path | None = None
    sarif: Path | None = None

    def prepare(self, plan: Plan) -> None:
        """Make the folders of its files, and refuse a policy that lets everything pass.

        Args:
            plan: as it was read.

        Raises:
            InputError: for `--fail-on policy` where the plan requires nothing, and for files that would replace the plan.
        """
        if FailOn.POLICY in self.fail_on and not any(scenario.require for scenario in plan.site.scenarios):
            raise InputError(
                "--fail-on policy: expected a scenario with `require` in the plan, got none; write require = "
                '"bounded" or "not leaks" there, or name a verdict'
            )
        for flag, file in (("--junit", self.junit), ("--sarif", self.sarif)):
            if file is not None:
                place_for(file, flag, self.plan)

    def write(self, record: Record) -> None:
        """Write the files for CI.

        Args:
            record: of the run.
        """
        from gradleak.reporting import write_junit, write_sarif

        if self.junit is not None:
            write_junit(record, self.junit, fail_on=self._stated)
        if self.sarif is not None:
            write_sarif(record, self.sarif, plan=self.plan, fail_on=self._stated)

    def breached(self, record: Record) -> str:
        """One line on the verdicts that it does not let pass; "" where it lets all pass.

        Args:
            record: of the run.
        """
        from gradleak.reporting.context import Context

        found = Policy.of(record).breaches(record.verdicts, self._verdicts) if self.fail_on else []
        named = " ".join(dict.fromkeys(chosen.value for chosen in self.fail_on))
        said = Context(record=record).printed("; ".join(map(str, found)))
        return f"--fail-on {named}: {said}" if found else ""

    @property
    def _stated(self) -> list[VerdictKind] | None:
        """As `_verdicts`; None where nothing was said, which is not the same as the policy alone."""
        return self._verdicts if self.fail_on else None

    @property
    def _verdicts(self) -> list[VerdictKind]:
        return [VerdictKind(one.value) for one in self.fail_on if one is not FailOn.POLICY]

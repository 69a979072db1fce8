"""The audit that every plan with batches has: the releases themselves, and the verdict on each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from gradleak.audits.base import Audit, Reader, Schema, Site, Task, Writer, internal_example
from gradleak.audits.released.task import ReleaseTask
from gradleak.audits.released.verdict import judge
from gradleak.results import Finding, Grounds, Verdict
from gradleak.results.findings.released import ReleaseFinding


@dataclass(frozen=True, kw_only=True, eq=False)
class ReleaseAudit(Audit[ReleaseFinding]):
    """Releases for every batch of the plan; it has no table in a plan file."""

    kind: ClassVar[str] = "released"
    finding: ClassVar[type[Finding]] = ReleaseFinding

    name: str = "released"

    @classmethod
    def schema(cls, writer: Writer) -> dict[str, Schema]:
        """Nothing of its own: it reads the section `[data]`, which is the plan's."""
        return {}

    @classmethod
    def read(cls, plan: Mapping[str, Any], reader: Reader) -> Iterable[Self]:
        """One audit if the plan has batches."""
        if reader.site.batches:
            yield cls()

    def tasks(self, site: Site) -> Iterable[Task[ReleaseFinding]]:
        """One task a batch, over all scenarios."""
        chosen = [scenario for scenario in site.scenarios if self.against(scenario.name)]
        for index in sorted({index for scenario in chosen for index in scenario.examples}):
            name = f"release/{internal_example(index)}"
            yield Task(
                name=name,
                run=ReleaseTask(audit=self.name, index=index, scenarios=[scenario.name for scenario in chosen]),
                blank=ReleaseFinding(item=name, audit=self.name, subject=site.subject(index)),
                headline=f"release {index}",
            )

    @classmethod
    def judge(cls, found: Sequence[ReleaseFinding], grounds: Grounds) -> Iterable[Verdict]:
        """The verdict on every release, from attacks, controls, derivative and bounds of all audits."""
        return judge(found, grounds)

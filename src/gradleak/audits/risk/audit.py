"""Closed-form risk as an audit: measures of every release and of its setting; it gives no verdict of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

from gradleak.audits.base import Audit, Reader, Schema, Site, Task, Writer, internal_example, released_by
from gradleak.audits.base.rows import held_privately
from gradleak.audits.risk.derivative import CHECK_COST, quiet
from gradleak.audits.risk.releases import Releases
from gradleak.audits.risk.settings import Settings, same_labels
from gradleak.operators import DENSE_LIMIT
from gradleak.results import Grounds, InputError, PlanError, UnsupportedError, Verdict
from gradleak.results.findings.risk import RiskFinding
from gradleak.risk import Measure, SettingMeasure

# Of the measures of releases with one derivative, in plain gradients for every entry of their input.
ENTRY_COST = 0.3
# In float64, a second, on the machine of `Task.seconds`.
_OPERATIONS = 3e10
# Up to so many unknowns the whole spectrum takes a second or two.
QUICK_UNKNOWNS = 1024


@dataclass(frozen=True, kw_only=True, eq=False)
class RiskAudit(Audit[RiskFinding]):
    """The closed-form measures of a plan, the checks of its derivatives, and the perfect attacker where a scenario asks.

    The verdict on a release reads its bounds and whether its derivative is right.

    Attributes:
        measures: those of an exposure are taken of every release, those of a setting once for every scenario and choice
            of labels.
    """

    kind: ClassVar[str] = "risk"
    finding: ClassVar[type[RiskFinding]] = RiskFinding

    name: str = "risk"
    measures: Sequence[Measure | SettingMeasure] = ()

    @classmethod
    def schema(cls, writer: Writer) -> dict[str, Schema]:
        """The JSON Schema of the tables `[measures.NAME]`."""
        return {"measures": writer.named(writer.choice("measures"))}

    @classmethod
    def read(cls, plan: Mapping[str, Any], reader: Reader) -> Iterable[Self]:
        """One audit with the tables `[measures.NAME]`; a plan with batches has it without any, too, but of tokens.

        Nothing is differentiated by ids: the spectrum at their embeddings is for measures alone, and takes minutes.
        """
        tables = reader.table(plan.get("measures", {}), "measures")
        measures = [reader.build(spec, "measures", f"measures.{name}") for name, spec in tables.items()]
        site = reader.site
        if measures or any(_of_numbers(site, index) for index in range(len(site.batches))):
            yield cls(measures=measures)

    def fit(self, site: Site) -> None:
        """Refuse measures that do not fit the model or the data."""
        for measure in self.measures:
            try:
                if isinstance(measure, Measure):
                    measure.check(site.objective)
                else:
                    for batch in site.batches:
                        measure.check(batch.domain)
            except InputError as refusal:
                raise PlanError(f"measure {type(measure).__name__}: {refusal}") from refusal

    def check(self, site: Site) -> None:
        """Refuse public examples that the client holds.

        Raises:
            InputError: naming the measure.
        """
        for measure in self._about_settings():
            public = measure.public_inputs
            shared = 0 if public is None else int(held_privately(public, site.batches).sum())
            if shared:
                raise InputError(
                    f"{type(measure).__name__}.public: expected examples that the client does not hold, got {shared} of "
                    "the private ones among them; take them out"
                )

    def tasks(self, site: Site) -> Iterable[Task[RiskFinding]]:
        """The releases of one example over all scenarios at a time, then one setting at a time."""
        scenarios = [scenario for scenario in site.scenarios if self.against(scenario.name)]
        measures = [one for one in self.measures if isinstance(one, Measure)]
        maps = {one.name: str(quiet(one.release, site.objective).describe()) for one in scenarios}
        for index, here in released_by(scenarios).items():
            if not (_of_numbers(site, index) or measures):
                continue  # the spectrum at embeddings is for measures of releases alone, and takes minutes
            names = tuple(scenario.name for scenario in here)
            derivatives = len({maps[name] for name in names})
            unknowns = _unknowns(site, index)
            name, subject = f"risk/{internal_example(index)}", site.subject(index)
            yield Task(
                name=name,
                run=Releases(audit=self.name, measures=tuple(self.measures), scenarios=names, index=index),
                blank=RiskFinding(item=name, audit=self.name, subject=subject),
                headline=f"risk of {subject}",
                # One check a derivative, which releases that differ by noise alone share.
                cost=CHECK_COST * derivatives
                + ENTRY_COST * unknowns * derivatives
                + sum(one.extra_cost(site.batches[index]) for one in measures) * len(here),
                pace=1.5,
                seconds=(0.1 + sum(one.extra_seconds(site.batches[index], site.objective.size) for one in measures))
                * len(here)
                + _spectrum_seconds(unknowns, site.objective.size) * derivatives,
                examples=(index,),
                after=partial(_too_large, unknowns),
            )
        about = tuple(self._about_settings())
        for scenario in scenarios if about else ():
            for index, twins in same_labels(site, scenario).items():
                name = f"setting/{scenario.name}/{internal_example(index)}"
                yield Task(
                    name=name,
                    run=Settings(audit=self.name, measures=about, scenario=scenario.name, indices=twins),
                    blank=RiskFinding(item=name, audit=self.name, scenario=scenario.name, subject=site.subject(index)),
                    headline=f"setting of {scenario.name}/{site.subject(index)}",
                    cost=sum(measure.estimate(site.batches[index].inputs.numel()) for measure in about)
                    + (CHECK_COST if any(measure.reads_derivative for measure in about) else 0.0),
                    seconds=0.1,
                    examples=twins,
                )

    @classmethod
    def judge(cls, found: Sequence[RiskFinding], grounds: Grounds) -> Iterable[Verdict]:
        """Nothing: a number that no attack reached and nothing guarantees is no verdict."""
        return ()

    def parts(self) -> Iterable[object]:
        """The measures."""
        return [self.scenarios, *self.measures]

    def _about_settings(self) -> list[SettingMeasure]:
        return [measure for measure in self.measures if isinstance(measure, SettingMeasure)]


def _of_numbers(site: Site, index: int) -> bool:
    """True for examples that are numbers, and no ids of tokens."""
    domain = site.batches[index].domain
    return domain is None or domain.vocabulary is None


def _unknowns(site: Site, index: int) -> int:
    """The entries that A has columns for: those of the batch, of ids those of their embeddings."""
    inputs = site.batches[index].inputs
    if _of_numbers(site, index):
        return inputs.numel()
    try:
        return site.objective.embed(inputs).numel()
    except UnsupportedError:
        # Their measures refuse it, too.
        return 0


def _spectrum_seconds(unknowns: int, entries: int) -> float:
    """Seconds for AᵀA and its eigenvalues, in float64; beyond what a dense solver takes there are none."""
    dense = unknowns <= DENSE_LIMIT
    return unknowns**2 * (2 * entries + 10 * unknowns) / _OPERATIONS if dense else 0.0


def _too_large(unknowns: int, site: Site, grounds: Grounds) -> str:
    """Reason to leave the closed form out where time is short, or "": plain gradients are no measure of its cubes."""
    return f"the closed form of {unknowns} unknowns takes their cube of operations" if unknowns > QUICK_UNKNOWNS else ""

"""The section of attacks: which are tried on which releases, and what bears their results out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from gradleak.attacks import Attack, LocalTraining
from gradleak.audits.base import Audit, Reader, Refusal, Schema, Site, Task, Writer, check_name, unknown
from gradleak.audits.reconstruction.chances import AttackChance, ClosedForm, ComputedChance, ControlChance
from gradleak.audits.reconstruction.controls import noise_controls, planted_controls, shortened
from gradleak.audits.reconstruction.task import REFINED, AttackTask, first_to_run, refusals, runs
from gradleak.protocols.average_gradient import AverageGradient
from gradleak.results import Finding, Grounds, PlanError, Verdict
from gradleak.results.errors import shown
from gradleak.results.findings.reconstruction import ReconstructionFinding

# Of processor time, for scores and setting up.
SECONDS = 0.1
RESERVED = ("baseline", "risk", "perfect_attacker")


@dataclass(frozen=True, kw_only=True, eq=False)
class ReconstructionAudit(Audit[ReconstructionFinding]):
    """Attacks on the updates of a plan's batches: the tables `[attacks.NAME]`, as far as scenarios name them.

    Attributes:
        attacks: by name; a scenario says which of them run on which of its batches.
    """

    kind: ClassVar[str] = "reconstruction"
    finding: ClassVar[type[Finding]] = ReconstructionFinding

    name: str = "reconstruction"
    attacks: Mapping[str, Attack] = field(default_factory=dict)

    @classmethod
    def schema(cls, writer: Writer) -> dict[str, Schema]:
        """The JSON Schema of the tables `[attacks.NAME]`."""
        return {"attacks": writer.named(writer.choice("attacks"))}

    @classmethod
    def read(cls, plan: Mapping[str, Any], reader: Reader) -> Iterable[Self]:
        """One audit of all tables `[attacks.NAME]`; also where there is none and something of the plan names one."""
        tables = reader.table(plan.get("attacks", {}), "attacks")
        attacks = {name: reader.build(spec, "attacks", f"attacks.{name}") for name, spec in tables.items()}
        named = any(scenario.attacks for scenario in reader.site.scenarios) or reader.site.controls.attack is not None
        if attacks or named:
            yield cls(attacks=attacks)

    def fit(self, site: Site) -> None:
        """Refuse attacks, batches and controls that are named and not there.

        Raises:
            PlanError: naming the nearest one.
        """
        for name in self.attacks:
            _check_name(name)
        for scenario in site.scenarios:
            for name, examples in scenario.attacks.items():
                if name not in self.attacks:
                    raise PlanError(f"scenario {scenario.name!r}: {unknown('attack', name, self.attacks)}")
                wrong = [index for index in examples if index not in scenario.members]
                if wrong:
                    raise PlanError(
                        f"scenario {scenario.name!r}, {name}: expected indices among {shown(list(scenario.examples))}, "
                        f"got {shown(wrong)}"
                    )
        if site.controls.attack is not None and site.controls.attack not in self.attacks:
            raise PlanError(f"controls: {unknown('attack', site.controls.attack, self.attacks)}")

    def refusals(self, site: Site) -> Sequence[Refusal]:
        """The attacks that will be refused, by scenario, adversary and reason."""
        return refusals(site, self.attacks)

    def tasks(self, site: Site) -> Iterable[Task[ReconstructionFinding]]:
        """The planted leaks, the noise of every attack, and every attack on every update."""
        used = [name for name in self.attacks if any(name in scenario.attacks for scenario in site.scenarios)]
        bearing: dict[str, list[str]] = {name: [] for name in used}
        if used and site.controls.positive:
            chosen = site.controls.attack or first_to_run(site, self.attacks, used)
            for planted in planted_controls(site, self.name, {name: self.attacks[name] for name in used}, chosen):
                for name, items in bearing.items():
                    if not planted.further or name == planted.name:
                        items.append(planted.item)
                yield Task(
                    name=planted.item,
                    run=planted,
                    blank=planted.blank,
                    headline=f"planted leak for {planted.name}" if planted.further else "planted leak",
                    cost=planted.cost(site),
                    pace=shortened(planted.attack).pace,
                    seconds=SECONDS,
                    states=planted.states,
                    turn=3 if planted.further else 2,
                    after=ControlChance(),
                    once=planted.once(site),
                )
        for name in used if site.controls.negative else ():
            for noise in noise_controls(site, self.name, name, self.attacks[name]):
                bearing[name].append(noise.item)
                yield Task(
                    name=noise.item,
                    run=noise,
                    blank=noise.blank,
                    headline=f"noise for {noise.title}",
                    cost=noise.cost(site),
                    pace=shortened(noise.attack).pace,
                    seconds=SECONDS,
                    states=noise.states,
                    turn=3,
                    after=ControlChance(attack=name),
                    once=noise.once(site),
                )
        form, tried = ClosedForm(), Counter[tuple[str, int]]()
        for scenario, name, index, withheld in runs(site, self.attacks):
            if not self.against(scenario.name):
                continue
            task = AttackTask(
                audit=self.name,
                name=name,
                attack=self.attacks[name],
                scenario=scenario.name,
                index=index,
                withheld=withheld,
            )
            number = tried[scenario.name, index]
            tried[scenario.name, index] += 1
            yield Task(
                name=f"attack/{task.item}",
                run=task,
                blank=task.blank(site),
                headline=task.named(site.subject(index)),
                cost=task.cost(site),
                pace=task.attack.pace,
                seconds=SECONDS,
                states=(task.item,),
                # One attack on every update, then the controls, then the others.
                turn=1 if number == 0 else 3 + number,
                after=(known := AttackChance(scenario=scenario.name, index=index)),
                chance=ComputedChance(by=known, form=form),
                needs=bearing[name],
                examples=(index,),
            )

    def parts(self) -> Iterable[object]:
        """The attacks by name, and the protocol by which some of them read local training."""
        averaged = (getattr(attack, "local_training", None) for attack in self.attacks.values())
        return [*super().parts(), *([AverageGradient] if LocalTraining.AVERAGE_GRADIENT in averaged else [])]

    @classmethod
    def judge(cls, found: Sequence[ReconstructionFinding], grounds: Grounds) -> Iterable[Verdict]:
        """No verdict of its own: that on a release is given from all that is known about it."""
        return ()


def _check_name(name: str) -> None:
    """Names stand in records, pages and file names."""
    if name.endswith(REFINED):
        raise PlanError(
            f"attack {name[:100]!r}: names that end in '{REFINED}' are those of refined claims; choose another"
        )
    check_name(name, "attack", reserved=RESERVED)

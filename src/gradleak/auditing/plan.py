"""A plan: what is audited, and by which audits."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from gradleak.auditing.fingerprint import Reading, read
from gradleak.audits.base import Adversary, Audit, Refusal, Scenario, Site, check_name, unknown
from gradleak.core import HonestButCurious, describe
from gradleak.results import GradleakError, InputError, PlanError, Settings
from gradleak.results.errors import shown

# Names of parts of the record beside those of scenarios and audits.
RESERVED = ("baseline", "perfect_attacker", "setting", "refined")
RESERVED_SCENARIOS = ("run", "control")


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan(Settings):
    """Everything that determines a record, except times and the host.

    Attributes:
        site: model, data, scenarios, threat model.
        audits: what is done, in the order of the record.
        source: the plan as it was written, for the record.

    Raises:
        PlanError: if names and indices refer to nothing, or settings do not fit together.
    """

    refused_with: ClassVar[type[GradleakError]] = PlanError

    site: Site
    audits: Sequence[Audit[Any]] = ()
    source: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """One line: name and the parts that `counted` has. `resolved` has everything."""
        return f"Plan({self.site.name!r}, {', '.join(counted(count, noun) for count, noun in self.counted() if count)})"

    def __post_init__(self) -> None:
        """Check that names and indices refer to something."""
        super().__post_init__()
        site = self.site
        if not 0 < len(site.name) <= 200 or not site.name.isprintable():
            raise PlanError(f"name: expected 1 to 200 printable characters, got {shown(site.name)}")
        names = dict.fromkeys(scenario.name for scenario in site.scenarios)
        _unique([scenario.name for scenario in site.scenarios])
        if not self.audits or not names:
            raise PlanError("plan: expected at least one batch or one section with rows of its own, and one scenario")
        if all(scenario.reference for scenario in site.scenarios):
            raise PlanError("scenarios: expected one at least that is no reference, or nothing is judged")
        for scenario in site.scenarios:
            check_name(scenario.name, "scenario", reserved=RESERVED_SCENARIOS)
            self._check_scenario(scenario)
        self._check_threat()
        owners: dict[str, str] = {}
        for audit in self.audits:
            where = place(audit)
            check_name(audit.name, audit.kind, reserved=RESERVED)
            if audit.name in owners:
                raise PlanError(f"{where}: expected another name than that of {owners[audit.name]}")
            owners[audit.name] = where
            for wanted in audit.scenarios or ():
                if wanted not in names:
                    raise PlanError(f"{where}: {unknown('scenario', wanted, names)}")
            for scenario in site.scenarios:
                self._check_perturbation(audit, scenario)
            audit.fit(site)

    def _check_scenario(self, scenario: Scenario) -> None:
        every = range(len(self.site.batches))
        wrong = [index for index in scenario.examples if index not in every]
        if wrong:
            known = f"expected indices among {shown(list(every))}"
            raise PlanError(f"scenario {scenario.name!r}, examples: {known}, got {shown(wrong)}")
        if scenario.reference and scenario.require is not None:
            raise PlanError(
                f"scenario {scenario.name!r}: expected reference = true or require = {scenario.require.value!r}, got both; "
                "no gate counts a reference, so drop one of the two"
            )
        if scenario.perturbation is not None and scenario.examples:
            raise PlanError(
                f"scenario {scenario.name!r}, perturbation: expected no examples, since only inference games have the "
                "public rows that it is trained on; write examples = []"
            )
        chosen, threat = scenario.adversaries, self.site.threat
        if chosen is None:
            return
        if not chosen or len(set(chosen)) != len(chosen):
            raise PlanError(
                f"scenario {scenario.name!r}, adversaries: expected each of {', '.join(Adversary)} at most once and one at "
                f"least, got {list(chosen)}"
            )
        if Adversary.ADAPTIVE in chosen and isinstance(threat, HonestButCurious) and not threat.defenses:
            raise PlanError(
                f"scenario {scenario.name!r}, adversaries: expected no adaptive adversary, since threat.defenses is false: "
                "the plan's server is not told of the defenses; drop one of the two"
            )

    def _check_perturbation(self, audit: Audit[Any], scenario: Scenario) -> None:
        if scenario.perturbation is None or audit.trains_perturbations or not audit.noun:
            return
        if audit.against(scenario.name):
            raise PlanError(
                f"{place(audit)}: expected scenarios without a perturbation, which only inference games have the public "
                f"rows for, got {scenario.name!r}; list the others under scenarios"
            )

    def _check_threat(self) -> None:
        threat, batches = self.site.threat, self.site.batches
        public = threat.public if isinstance(threat, HonestButCurious) else None
        shapes = {tuple(batch.inputs.shape[1:]) for batch in batches}
        if public is not None and shapes - {tuple(public.inputs.shape[1:])}:
            raise PlanError(
                f"threat.public: expected examples of the shape of the audited ones, {shapes.pop()}, got "
                f"{tuple(public.inputs.shape[1:])}"
            )
        brought = threat.generator if isinstance(threat, HonestButCurious) else None
        for batch in batches if brought is not None else ():
            assert brought is not None
            try:
                brought.in_domain(replace(brought.domain, shape=tuple(batch.inputs.shape[1:])))
                brought.refuse_seen(batch)
            except InputError as refusal:
                raise PlanError(
                    f"threat.{'' if str(refusal).startswith('generator:') else 'generator: '}{refusal}"
                ) from refusal

    def refusals(self) -> list[Refusal]:
        """Refusals of parts of the plan while the rest runs; nothing is computed."""
        return [refusal for audit in self.audits for refusal in audit.refusals(self.site)]

    def opening(self) -> Iterator[str]:
        """Lines for a reader before the long work begins: does each update that was sent fit what the plan makes?"""
        for audit in self.audits:
            yield from audit.opening(self.site)

    def counted(self) -> Iterator[tuple[int, str]]:
        """Numbers of the plan's parts, and their nouns: examples or batches, audits, scenarios."""
        nouns = [audit.noun for audit in self.audits if audit.noun]
        # As findings name them.
        yield len(self.site.batches), "batch" if any(batch.size > 1 for batch in self.site.batches) else "example"
        yield from ((nouns.count(noun), noun) for noun in dict.fromkeys(nouns))
        yield len(self.site.scenarios), "scenario"

    def resolved(self) -> dict[str, Any]:
        """The plan with every default filled in, JSON-ready, without any data value."""
        site = self.site
        audits: dict[str, dict[str, Any]] = {}
        for audit in self.audits:
            audits.setdefault(audit.kind, {})[audit.name] = audit.resolved()
        return {
            "name": site.name,
            "seed": site.seed,
            "objective": {
                "loss": site.objective.loss_name,
                "mode": site.objective.mode.value,
                "shared_entries": site.objective.size,
                "shared": {name: list(tensor.shape) for name, tensor in site.objective.params.items()},
                "dtype": describe(site.objective.dtype),
            },
            "data": [{"shape": list(b.inputs.shape), "domain": describe(b.domain)} for b in site.batches],
            "domain_guessed": site.domain_guessed,
            "threat": describe(site.threat),
            "thresholds": describe(site.thresholds),
            "controls": describe(site.controls),
            "scenarios": [
                {
                    "name": scenario.name,
                    "release": scenario.release.describe(),
                    "examples": list(scenario.examples),
                    "attacks": {name: list(examples) for name, examples in scenario.attacks.items()},
                    "perfect_attacker": describe(scenario.perfect_attacker),
                    "updates_given": sorted(scenario.updates),
                    "adversaries": None if scenario.adversaries is None else list(scenario.adversaries),
                    "reference": scenario.reference,
                    "require": describe(scenario.require),
                    "perturbation": describe(scenario.perturbation),
                }
                for scenario in site.scenarios
            ],
            "pictures": site.pictures,
            "save_updates": site.save_updates,
            "checkpoint_seconds": site.checkpoint_seconds,
            "max_bytes": site.max_bytes,
            "audits": audits,
            "source": dict(self.source),
        }

    def private(self) -> list[object]:
        """The private data: batches, updates that were sent, and what its audits hold."""
        batches = [(batch.inputs, batch.targets, batch.sensitive) for batch in self.site.batches]
        updates = [scenario.updates for scenario in self.site.scenarios]
        return [*batches, updates, *(part for audit in self.audits for part in audit.private())]

    def digest(self) -> str:
        """A fingerprint of all that determines the record: settings, code, model; the private data have a file of their own."""
        return self.reading().digest

    def reading(self) -> Reading:
        """The digest, and the names of what it cannot see, for which no run is gone on with."""
        site = self.site
        described = json.dumps(self.resolved(), sort_keys=True, default=str)
        releases = {scenario.name: (scenario.release, scenario.perturbation) for scenario in site.scenarios}
        audits = {audit.name: (type(audit), list(audit.parts())) for audit in self.audits}
        whole = {"model and loss": site.objective, "threat": site.threat, "releases": releases, "audits": audits}
        found = read(described, whole)
        return found._replace(digest=found.digest[:16])


def counted(count: int, noun: str) -> str:
    """A number of things as people say it: 1 batch, 2 batches."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('ch') else 's'}"


def place(audit: Audit[Any]) -> str:
    """Place of an audit in a plan file: `inference.gender`, or its kind alone where that has one section."""
    return audit.kind if audit.name == audit.kind else f"{audit.kind}.{audit.name}"


def _unique(names: Sequence[str]) -> None:
    double = sorted(name for name, times in Counter(names).items() if times > 1)
    if double:
        raise PlanError(f"scenarios: expected different names, got {', '.join(double)} more than once")

"""A plan: what is audited, how, and against whom."""

from __future__ import annotations

import difflib
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from gradleak.attacks import Attack
from gradleak.auditing.adversary import Adversary
from gradleak.auditing.fingerprint import fingerprint
from gradleak.auditing.inference_plan import InferencePlan
from gradleak.auditing.invention import REFINED
from gradleak.auditing.layer_plan import LayersPlan
from gradleak.auditing.privacy_plan import PrivacyPlan
from gradleak.auditing.utility_plan import UtilityPlan
from gradleak.auditing.verdict import Thresholds
from gradleak.core import (
    Batch,
    Domain,
    HonestButCurious,
    Knowledge,
    Objective,
    Release,
    ThreatModel,
    Update,
    describe,
)
from gradleak.games import PerturbedGame
from gradleak.protocols import FedSGD
from gradleak.results import InputError, PlanError, check_flags
from gradleak.risk import Measure, SettingMeasure
from gradleak.scoring import CHANCE_LEVEL

DENSE_BYTES = 4 * 2**30


@dataclass(frozen=True, kw_only=True)
class PerfectAttackerRule:
    """When the perfect attacker (a validation routine that starts from the truth) is run.

    Attributes:
        below: only where exact I²F predicts a pixel RMSE below this.
        max_steps: Levenberg–Marquardt steps at most.
    """

    below: float = 0.05
    max_steps: int = 30

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not self.below > 0 or self.max_steps < 1:
            raise PlanError(
                f"perfect_attacker: expected below > 0 and max_steps >= 1, got {self.below} and {self.max_steps}"
            )


@dataclass(frozen=True, kw_only=True)
class Controls:
    """The controls of an audit.

    Attributes:
        attack: name of the plan's attack that the planted leak is run with; None for the first one.
        positive: whether the planted leak is run.
        negative: whether the noise control of every attack is run.
    """

    attack: str | None = None
    positive: bool = True
    negative: bool = True

    def __post_init__(self) -> None:
        """Check the truth values."""
        check_flags(self, "positive", "negative")


@dataclass(frozen=True, kw_only=True, eq=False)
class Scenario:
    """One release map, the batches that go through it, and the attacks on the updates.

    Attributes:
        name: unique in the plan.
        release: protocol and defenses.
        examples: indices into `Plan.batches`.
        attacks: for each attack name, the indices of the batches whose update it attacks.
        perfect_attacker: run the validation routine where the rule says so; None for never.
        updates: updates that were really sent, by batch index; others are drawn from the release.
        adversaries: against whom the defenses are tested: one who knows them, one who does not, or both; None for both
            where the threat model discloses them, else for the static one that it describes.
        perturbation: adversarial perturbation behind the release in inference games, which have the public rows that it is
            trained on; a scenario that has it releases no example and attacks none.
    """

    name: str
    release: Release
    examples: Sequence[int]
    attacks: Mapping[str, Sequence[int]] = field(default_factory=dict)
    perfect_attacker: PerfectAttackerRule | None = None
    updates: Mapping[int, Update] = field(default_factory=dict)
    adversaries: Sequence[Adversary] | None = None
    perturbation: PerturbedGame | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """Everything that determines a record, except times and the host.

    Attributes:
        name: of the run.
        seed: all randomness derives from it.
        objective: the client's loss at the audited parameters.
        batches: the private batches; each is released by itself.
        scenarios: what is released and attacked.
        attacks: by name.
        measures: closed-form measures: those of an exposure are evaluated on every release, those of a setting once for
            every scenario and choice of labels.
        threat: what the adversary is told.
        thresholds: when an example counts as rebuilt.
        controls: which controls run.
        pictures: whether originals and reconstructions are saved beside the record.
        save_updates: whether the released updates are saved beside the record.
        checkpoint_seconds: at least so long between two states that an attack leaves under `checkpoints/` beside the
            record, from which a killed run goes on; None for none. A state holds guesses, which may be private data.
        max_bytes: memory budget of the closed-form operators.
        domain_guessed: whether the domain of the batches was guessed from their values.
        utility: how models are trained through every release and judged; None for not.
        inference: inference games by name; they have rows of their own. A plan of games alone has no batches.
        privacy: privacy audits by name; they have rows of their own, too, and need no batches.
        layers: sections about where it leaks, by name, likewise.
        source: the plan as it was written, for the record.
    """

    name: str
    seed: int
    objective: Objective
    batches: Sequence[Batch]
    scenarios: Sequence[Scenario]
    attacks: Mapping[str, Attack]
    measures: Sequence[Measure | SettingMeasure]
    threat: ThreatModel = field(default_factory=HonestButCurious)
    thresholds: Thresholds = field(default_factory=Thresholds)
    controls: Controls = field(default_factory=Controls)
    pictures: bool = False
    save_updates: bool = False
    checkpoint_seconds: float | None = None
    max_bytes: int = 2**30
    domain_guessed: bool = False
    utility: UtilityPlan | None = None
    inference: Mapping[str, InferencePlan] = field(default_factory=dict)
    privacy: Mapping[str, PrivacyPlan] = field(default_factory=dict)
    layers: Mapping[str, LayersPlan] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that names and indices refer to something."""
        check_flags(self, "pictures", "save_updates")
        _unique([scenario.name for scenario in self.scenarios])
        if self.seed < 0:
            raise PlanError(f"seed: expected a whole number of at least 0, got {self.seed}")
        if self.checkpoint_seconds is not None and not self.checkpoint_seconds >= 0:
            raise PlanError(f"checkpoint_seconds: expected a number of at least 0, got {self.checkpoint_seconds}")
        for name in self.attacks:
            _check_name(name, "attack", reserved=("baseline", "risk", "perfect_attacker"))
        if not (self.batches or self.inference or self.privacy or self.layers) or not self.scenarios:
            raise PlanError(
                "plan: expected at least one batch, inference game, privacy audit or section of layers, and one scenario"
            )
        names = [scenario.name for scenario in self.scenarios]
        for name, game in self.inference.items():
            _check_name(name, "inference", reserved=("baseline", "risk", "perfect_attacker", "utility", "setting"))
            for wanted in game.scenarios or ():
                if wanted not in names:
                    raise PlanError(f"inference.{name}: {unknown('scenario', wanted, names)}")
        self._check_privacy(names)
        self._check_layers(names)
        for scenario in self.scenarios:
            _check_name(scenario.name, "scenario", reserved=("run", "control"))
            for name, examples in {"examples": scenario.examples, **scenario.attacks}.items():
                if name != "examples" and name not in self.attacks:
                    raise PlanError(f"scenario {scenario.name!r}: {unknown('attack', name, self.attacks)}")
                allowed = range(len(self.batches)) if name == "examples" else scenario.examples
                wrong = [index for index in examples if index not in allowed]
                if wrong:
                    raise PlanError(
                        f"scenario {scenario.name!r}, {name}: expected indices among {list(allowed)}, got {wrong}"
                    )
            if scenario.perturbation is not None and scenario.examples:
                raise PlanError(
                    f"scenario {scenario.name!r}, perturbation: expected no examples, since only inference games have the "
                    "public rows that it is trained on; write examples = []"
                )
            self._check_adversaries(scenario)
        for measure in self.measures:
            if isinstance(measure, Measure):
                try:
                    measure.check(self.objective)
                except InputError as refusal:
                    raise PlanError(f"measure {type(measure).__name__}: {refusal}") from refusal
        if self.controls.attack is not None and self.controls.attack not in self.attacks:
            raise PlanError(f"controls: {unknown('attack', self.controls.attack, self.attacks)}")
        public = self.threat.public if isinstance(self.threat, HonestButCurious) else None
        shapes = {tuple(batch.inputs.shape[1:]) for batch in self.batches}
        if public is not None and shapes - {tuple(public.inputs.shape[1:])}:
            raise PlanError(
                f"threat.public: expected examples of the shape of the audited ones, {shapes.pop()}, got "
                f"{tuple(public.inputs.shape[1:])}"
            )
        brought = self.threat.generator if isinstance(self.threat, HonestButCurious) else None
        for batch in self.batches if brought is not None else ():
            assert brought is not None
            try:
                brought.in_domain(replace(brought.domain, shape=tuple(batch.inputs.shape[1:])))
                brought.refuse_seen(batch)
            except InputError as refusal:
                raise PlanError(
                    f"threat.{'' if str(refusal).startswith('generator:') else 'generator: '}{refusal}"
                ) from refusal

    def _check_privacy(self, names: Sequence[str]) -> None:
        for name, audit in self.privacy.items():
            _check_name(name, "privacy", reserved=("baseline", "risk", "perfect_attacker", "utility", "setting"))
            if name in self.inference:
                raise PlanError(f"privacy.{name}: expected another name than that of an inference game")
            for wanted in audit.scenarios or ():
                if wanted not in names:
                    raise PlanError(f"privacy.{name}: {unknown('scenario', wanted, names)}")
            for scenario in self.scenarios:
                if audit.audit is None and audit.against(scenario.name) and scenario.name not in audit.pairs:
                    raise PlanError(
                        f"privacy.{name}: expected a pair of hypotheses for scenario {scenario.name!r}, got none"
                    )
                if scenario.perturbation is not None and audit.against(scenario.name):
                    raise PlanError(
                        f"privacy.{name}: expected scenarios without a perturbation, which only inference games have the "
                        f"public rows for, got {scenario.name!r}; list the others under scenarios"
                    )

    def _check_layers(self, names: Sequence[str]) -> None:
        for name, chosen in self.layers.items():
            _check_name(name, "layers", reserved=("baseline", "risk", "perfect_attacker", "utility", "setting"))
            if name in self.inference or name in self.privacy:
                raise PlanError(f"layers.{name}: expected another name than that of an inference game or privacy audit")
            for wanted in chosen.scenarios or ():
                if wanted not in names:
                    raise PlanError(f"layers.{name}: {unknown('scenario', wanted, names)}")
            for scenario in self.scenarios:
                if scenario.perturbation is not None and chosen.against(scenario.name):
                    raise PlanError(
                        f"layers.{name}: expected scenarios without a perturbation, which only inference games have the public "
                        f"rows for, got {scenario.name!r}; list the others under scenarios"
                    )

    def _check_adversaries(self, scenario: Scenario) -> None:
        chosen = scenario.adversaries
        if chosen is None:
            return
        if not chosen or len(set(chosen)) != len(chosen):
            raise PlanError(
                f"scenario {scenario.name!r}, adversaries: expected each of {', '.join(Adversary)} at most once and one at "
                f"least, got {list(chosen)}"
            )
        if Adversary.ADAPTIVE in chosen and isinstance(self.threat, HonestButCurious) and not self.threat.defenses:
            raise PlanError(
                f"scenario {scenario.name!r}, adversaries: expected no adaptive adversary, since threat.defenses is false: "
                "the plan's server is not told of the defenses; drop one of the two"
            )

    def withheld(self, scenario: Scenario, attack: str) -> list[bool]:
        """The runs of an attack on each update of a scenario: whether the adversary is not told of the defenses.

        One run of the plan's adversary, and where that is told of defenses a second, static one beside it, unless the
        scenario says otherwise. The two differ in nothing else: same update, same generator.
        """
        if not scenario.release.defenses or not self.attacks[attack].reads_update:
            return [False]
        if self.knowledge(scenario, scenario.examples[0]).defenses is None:
            return [False]
        chosen = scenario.adversaries or tuple(Adversary)
        return [adversary is Adversary.STATIC for adversary in Adversary if adversary in chosen]

    def knowledge(self, scenario: Scenario, index: int, *, withheld: bool = False) -> Knowledge:
        """What the adversary knows of one batch's release.

        Args:
            scenario: of the plan.
            index: of the batch.
            withheld: whether the defenses are kept from it, whatever the threat model discloses.
        """
        known = self.threat.disclose(self.objective, scenario.release, self.batches[index])
        return Adversary.STATIC.of(known) if withheld else known

    def resolved(self) -> dict[str, Any]:
        """The plan with every default filled in, JSON-ready, without any data value."""
        return {
            "name": self.name,
            "seed": self.seed,
            "objective": {
                "loss": self.objective.loss_name,
                "mode": self.objective.mode.value,
                "shared_entries": self.objective.size,
                "shared": {name: list(tensor.shape) for name, tensor in self.objective.params.items()},
                "dtype": describe(self.objective.dtype),
            },
            "data": [{"shape": list(b.inputs.shape), "domain": describe(b.domain)} for b in self.batches],
            "threat": describe(self.threat),
            "attacks": {name: describe(attack) for name, attack in self.attacks.items()},
            "measures": [describe(measure) for measure in self.measures],
            "thresholds": describe(self.thresholds),
            # Records from before luck was asked about were judged by another rule, and cannot be gone on with.
            "luck": CHANCE_LEVEL,
            "controls": describe(self.controls),
            "scenarios": [
                {
                    "name": scenario.name,
                    "release": scenario.release.describe(),
                    "examples": list(scenario.examples),
                    "attacks": {name: list(examples) for name, examples in scenario.attacks.items()},
                    "perfect_attacker": describe(scenario.perfect_attacker),
                    "updates_given": sorted(scenario.updates),
                    # Left out where nothing is stated, so that records from before there were two adversaries resume.
                    **({} if scenario.adversaries is None else {"adversaries": list(scenario.adversaries)}),
                    **({} if scenario.perturbation is None else {"perturbation": describe(scenario.perturbation)}),
                }
                for scenario in self.scenarios
            ],
            "pictures": self.pictures,
            "save_updates": self.save_updates,
            "checkpoint_seconds": self.checkpoint_seconds,
            "max_bytes": self.max_bytes,
            **({} if self.utility is None else {"utility": self.utility.resolved()}),
            **(
                {"inference": {name: game.resolved() for name, game in self.inference.items()}}
                if self.inference
                else {}
            ),
            **({"privacy": {name: one.resolved() for name, one in self.privacy.items()}} if self.privacy else {}),
            **({"layers": {name: one.resolved() for name, one in self.layers.items()}} if self.layers else {}),
            "source": dict(self.source),
        }

    def digest(self) -> str:
        """A fingerprint of all that determines the record except the private data, which have a file of their own."""
        parts = (self.objective, self.threat, dict(self.attacks), list(self.measures))
        releases = [(scenario.name, scenario.release) for scenario in self.scenarios]
        layers = [[list(chosen.audit.measures) for chosen in self.layers.values()]] if self.layers else []
        return fingerprint(json.dumps(self.resolved(), sort_keys=True, default=str), parts, releases, *layers)[:16]


def default_plan(
    model: nn.Module,
    batch: Batch,
    *,
    loss: Any = "cross_entropy",
    mode: str = "eval",
    release: Release | None = None,
) -> Plan:
    """The plan of `gradleak.audit(model, batch)` without options: one scenario, default attacks and measures.

    `GaussNewton` where the unknowns are few enough for it (at most 4,096), and beside it
    `InvertingGradients(iterations=1000, restarts=1)`.
    """
    from gradleak.attacks import GaussNewton, InvertingGradients
    from gradleak.risk import GradientNorm, InversionInfluence, InversionInfluenceLowerBound

    if inspect.isclass(loss):
        raise InputError(
            f"loss: expected a loss function or object, got the class {loss.__name__}; write {loss.__name__}()"
        )
    objective = Objective.from_module(model, loss=loss, mode=mode)
    objective.check(batch.to(objective.dtype))
    attacks: dict[str, Attack] = {}
    strong = GaussNewton()
    # The dense Jacobian has P · n entries of 8 bytes.
    if batch.inputs.numel() <= strong.max_unknowns and 8 * objective.size * batch.inputs.numel() <= DENSE_BYTES:
        attacks["gauss_newton"] = strong
    attacks["inverting_gradients"] = InvertingGradients(iterations=1000, restarts=1)
    scenario = Scenario(
        name="release",
        release=release or Release(FedSGD()),
        examples=[0],
        attacks={name: [0] for name in attacks},
    )
    measures: list[Measure | SettingMeasure] = [
        InversionInfluence(unit="pixel_rmse"),
        InversionInfluenceLowerBound(unit="pixel_rmse"),
        GradientNorm(),
    ]
    return Plan(
        name="audit",
        seed=0,
        objective=objective,
        batches=[batch if batch.domain is not None else replace(batch, domain=Domain.guess(batch.inputs))],
        domain_guessed=batch.domain is None,
        scenarios=[scenario],
        attacks=attacks,
        measures=measures,
    )


def _check_name(name: str, what: str, *, reserved: Sequence[str]) -> None:
    """Names stand in records, pages and file names."""
    if name.endswith(REFINED):
        raise PlanError(
            f"{what} {name[:100]!r}: names that end in '{REFINED}' are those of refined claims; choose another"
        )
    if not 0 < len(name) <= 100 or not name.isprintable() or "/" in name or name in reserved:
        raise PlanError(
            f"{what} {name[:100]!r}: expected a name of 1 to 100 printable characters without '/', other than "
            f"{', '.join(reserved)}"
        )


def unknown(what: str, name: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    """One line for a name that is not known, with the nearest one that is."""
    near = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    allowed = f"expected one of {', '.join(known)}" if known else "none is allowed here"
    return f"unknown {what.removesuffix('s')} {name!r}; {hint}{allowed}"


def _unique(names: Sequence[str]) -> None:
    double = sorted({name for name in names if list(names).count(name) > 1})
    if double:
        raise PlanError(f"scenarios: expected different names, got {', '.join(double)} more than once")


__all__ = ["Controls", "PerfectAttackerRule", "Plan", "Scenario", "default_plan", "unknown"]

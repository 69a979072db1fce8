"""The controls of an audit's attacks as groups of work: a planted leak, and noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gradleak.attacks import Checkpoint
from gradleak.auditing.adversary import Adversary
from gradleak.auditing.attack_task import run_attack, state_of, wide
from gradleak.auditing.controls import noise_update, planted_leak, shortened
from gradleak.auditing.invention import check_estimate, claim_support
from gradleak.auditing.items import Line, domain_of, item_line, luck, released, score_lines
from gradleak.auditing.plan import Plan, Scenario
from gradleak.core import Batch, HonestButCurious, Knowledge, Update, derive_generator, describe
from gradleak.results import Score
from gradleak.scoring import blind_baseline, score_images

NEGATIVE_DRAWS = 5


@dataclass(frozen=True)
class PositiveControl:
    """The planted leak: has to come out as *leaks*."""

    attack: str

    @property
    def states(self) -> Sequence[str]:
        """The name of the state of its attack."""
        return ("control/positive",)

    def __call__(self, plan: Plan, out: Path) -> list[Line]:
        """The line of the control, and its scores."""
        update, knowledge, batch = self._case(plan)
        case = _Case(
            update, knowledge, batch, state_of(plan, out, self.states[0]), _limits(plan, batch, "planted leak")
        )
        lines, leaks = _control(plan, "positive", self.attack, case)
        lines[0] |= {"passed": leaks, "expects": "a planted leak is found"}
        return lines

    def estimate(self, plan: Plan) -> float:
        """Its cost in plain gradients of its own small model."""
        attack, knowledge = shortened(plan.attacks[self.attack]), wide(self._case(plan)[1])[0]
        return 0.0 if attack.refusal(knowledge) else attack.estimate(knowledge) + check_estimate(attack, knowledge)

    def _case(self, plan: Plan) -> tuple[Update, Knowledge, Batch]:
        domain = domain_of(plan.batches[0])
        generator = derive_generator(plan.seed, "control", "positive")
        # What the attack is given in this audit it is given here, too.
        known = plan.threat if isinstance(plan.threat, HonestButCurious) else HonestButCurious()
        needs = plan.attacks[self.attack].needs
        objective, batch, release = planted_leak(domain, generator, known.generator if "generator" in needs else None)
        update = release(objective, batch, generator)
        threat = HonestButCurious(targets="targets" in needs, statistics=known.statistics, generator=known.generator)
        return update, threat.disclose(objective, release, batch), batch


@dataclass(frozen=True)
class NegativeControl:
    """Noise of the norm of a real update: must not come out as *leaks*; one lucky draw in five is forgiven twice.

    Attributes:
        attack: by its name in the plan.
        withheld: whether it imitates runs of the static adversary, who takes noise for an undefended update, follows it
            further and lands elsewhere, or the other runs alone; None for the first run that is not refused.
    """

    attack: str
    withheld: bool | None = None

    @property
    def name(self) -> str:
        """The item of the record, and the group of work."""
        return f"control/negative/{self.attack}" + (f"/{Adversary.STATIC.value}" if self.withheld else "")

    @property
    def title(self) -> str:
        """Whose noise it is, for a reader."""
        return f"{self.attack}, {Adversary.STATIC.value}" if self.withheld else self.attack

    @property
    def states(self) -> Sequence[str]:
        """The names of the states of its attack, one a draw."""
        return tuple(f"{self.name}/draw {draw}" for draw in range(NEGATIVE_DRAWS))

    def estimate(self, plan: Plan) -> float:
        """Its cost in plain gradients if the first draw gives nothing, as it should."""
        attack = plan.attacks[self.attack]
        for scenario, index, withheld in self._runs(plan):
            knowledge = plan.knowledge(scenario, index, withheld=withheld)
            if attack.refusal(knowledge) is None:
                known = wide(knowledge)[0]
                return shortened(attack).estimate(known) + check_estimate(attack, known)
        return 0.0

    def __call__(self, plan: Plan, out: Path) -> list[Line]:
        """The line of the control with the scores of its first draw, and with what all draws cost."""
        facts: Line = {"expects": "noise of the same norm gives nothing"}
        if self.withheld:
            facts["adversary"] = Adversary.STATIC.value
        place = self._place(plan)
        if place is None:
            line = item_line(self.name, "control", None, None) | {"attack": self.attack}
            note = "every update that this control could imitate is zero"
            return [line | facts | {"passed": None, "status": "refused", "note": note}]
        scenario, index, withheld = place
        batch = plan.batches[index]
        knowledge = plan.knowledge(scenario, index, withheld=withheld)
        limits = _limits(plan, batch, f"example {index}")
        first: list[Line] = []
        leaks: bool | None = None
        hits = draws = 0
        spent = {"plain_gradients": 0.0, "seconds": 0.0}
        for draw, state in enumerate(self.states):
            # Both adversaries get the same noise, as they get the same update.
            generator = derive_generator(plan.seed, "control", "negative", self.attack, str(draw))
            noise = noise_update(released(plan, scenario, index), generator)
            case = _Case(noise, knowledge, batch, state_of(plan, out, state), limits)
            lines, leaks = _control(plan, self.name.removeprefix("control/"), self.attack, case)
            first = first or lines
            spent = {name: before + float(lines[0].get(name) or 0.0) for name, before in spent.items()}
            draws, hits = draws + 1, hits + bool(leaks)
            # A guess can land near an example of few numbers; only a habit is a fault.
            if leaks is None or hits == 0 or hits > NEGATIVE_DRAWS // 2:
                break
        ran = leaks is not None
        passed = hits <= NEGATIVE_DRAWS // 2 if ran else None
        first[0] |= spent | {"passed": passed, "draws": draws, "hits": hits} | facts
        return first

    def _runs(self, plan: Plan) -> Iterator[tuple[Scenario, int, bool]]:
        """The runs of the attack in the plan that this control may imitate: where, on which batch, defenses withheld."""
        for scenario in plan.scenarios:
            for index in scenario.attacks.get(self.attack, ()):
                for withheld in plan.withheld(scenario, self.attack):
                    if self.withheld is None or withheld is self.withheld:
                        yield scenario, index, withheld

    def _place(self, plan: Plan) -> tuple[Scenario, int, bool] | None:
        """The first update under this attack that is not zero, and for whom; one who is not refused, if there is any."""
        first = None
        for scenario, index, withheld in self._runs(plan):
            if not any(bool(tensor.any()) for tensor in released(plan, scenario, index).tensors.values()):
                continue
            knowledge = plan.knowledge(scenario, index, withheld=withheld)
            if plan.attacks[self.attack].refusal(knowledge) is None:
                return scenario, index, withheld
            first = first or (scenario, index, withheld)
        return first


def noise_controls(plan: Plan, attack: str) -> list[NegativeControl]:
    """The noise controls of one attack: one, or one of each where the static adversary runs it and another one does."""
    running = {
        withheld
        for scenario in plan.scenarios
        for index in scenario.attacks.get(attack, ())
        for withheld in plan.withheld(scenario, attack)
        if plan.attacks[attack].refusal(plan.knowledge(scenario, index, withheld=withheld)) is None
    }
    if len(running) < 2:
        return [NegativeControl(attack)]
    return [NegativeControl(attack, withheld=False), NegativeControl(attack, withheld=True)]


class _Case(NamedTuple):
    """What a control is about, and what luck reaches on its batch."""

    update: Update
    knowledge: Knowledge
    batch: Batch
    state: Checkpoint | None
    limits: Sequence[float]


def _limits(plan: Plan, batch: Batch, name: str) -> Sequence[float]:
    """What luck reaches on a batch, smallest first; empty where that is nothing."""
    return [limit for score in luck(plan, batch, name) for limit in score.details["limits"]]


def _control(plan: Plan, name: str, chosen: str, case: _Case) -> tuple[list[Line], bool | None]:
    """The lines of a control and whether its attack rebuilt the batch; None if the attack was refused.

    Behind a generator the claim refined without it counts as well: audits score it, and it leaves the prior.
    """
    update, knowledge, batch, state, limits = case
    attack = shortened(plan.attacks[chosen])
    generator = derive_generator(plan.seed, "control", name, chosen)
    line = item_line(f"control/{name}", "control", None, None) | {"attack": chosen, "attack_config": describe(attack)}
    found, facts = run_attack(attack, update, knowledge, generator, state)
    line |= facts
    if found is None:
        return [line], None
    blind = blind_baseline(batch, domain_of(batch), beside=plan.batches)
    baseline = next(score for score in blind if score.name == "pixel_rmse")
    line["baseline_pixel_rmse"] = baseline.value

    def rebuilt(scores: Sequence[Score]) -> bool:
        errors = next(score for score in scores if score.name == "pixel_rmse").details.get("per_example", [])
        return bool(errors) and plan.thresholds.leaks(errors, list(baseline.details["per_example"]), limits)

    scores = score_images(found, batch, beside=plan.batches)
    leaks = rebuilt(scores)
    checked = claim_support(attack, found, update, knowledge)
    if checked is not None:
        line["plain_gradients"] += checked.plain_gradients
        line["seconds"] += checked.seconds
        if checked.refined is not None:
            refined = score_images(checked.refined, batch, beside=plan.batches)
            line["refined_pixel_rmse"] = next(score.value for score in refined if score.name == "pixel_rmse")
            leaks = leaks or rebuilt(refined)
    return [line, *score_lines(scores, line)], leaks

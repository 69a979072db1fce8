"""Controls of attacks on updates: one that must leak, planted, and one without the update."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch

from gradleak.attacks import Attack, Checkpoint
from gradleak.audits.base import Adversary, Scenario, Site, domain_of, internal_example, luck, state_of
from gradleak.audits.reconstruction.task import claim_support, estimate, run_attack, wide
from gradleak.core import (
    NO_TOKEN,
    Batch,
    Domain,
    HonestButCurious,
    ImageGenerator,
    Knowledge,
    Objective,
    Release,
    Update,
    Vocabulary,
    derive_generator,
    describe,
)
from gradleak.models import initialize_default, linear_model, transformer
from gradleak.protocols import FedSGD
from gradleak.results import ERRORS, Control, GradleakError, InputError, Score, Status, error_score
from gradleak.results.findings.reconstruction import Draws, ReconstructionFinding
from gradleak.results.score import jsonable
from gradleak.scoring import blind_scores, score_claim

CONTROL_STEPS = 12
POSITIVE_CLASSES = 10
LEAST_PLANTED, PLANTED_TOKENS, PLANTED_WIDTH = 4, 16, 32


def shortened(attack: Attack) -> Attack:
    """The attack as the controls run it: with one start of at most 12 steps, where it can be so brief."""
    return attack.brief(CONTROL_STEPS)


def planted_leak(
    domain: Domain, generator: torch.Generator, images: ImageGenerator | None = None
) -> tuple[Objective, Batch, Release]:
    """A synthetic example of the domain, released undefended through a linear layer with bias and cross entropy.

    For tokens it is a sentence, through an encoder: its tables name words and places, and its layers span them.

    Its gradient is (p − y)xᵀ for the weight and p − y for the bias, so the input can be read off by division: an
    attack that does not find it is broken or was set up wrongly.

    Args:
        domain: shape, range and normalization of the audited data.
        generator: draws the example (uniform over the valid range, of a category one value) and the weights.
        images: a generator that the adversary searches: the example is then an image of its own, of class 0 where it is
            conditional, since no such search can find anything but an image.
    """
    if domain.vocabulary is not None:
        # A sentence of one word is guessed by luck too often to tell anything.
        return _planted_sentence(domain.vocabulary, max(domain.size, LEAST_PLANTED), generator)
    pixels = domain.decided(torch.rand((1, *domain.shape), generator=generator))
    inputs = domain.from_pixels(pixels)
    label = torch.randint(POSITIVE_CLASSES, (1,), generator=generator)
    if images is not None:
        label = torch.zeros_like(label) if images.conditional else label
        made = images.in_domain(domain)(images.draw(1, generator), labels=label if images.conditional else None)
        inputs = domain.from_pixels(domain.to_pixels(made).clamp(0.0, 1.0)).detach()
    model = linear_model(features=domain.size, classes=POSITIVE_CLASSES)
    initialize_default(model, generator=generator)
    return Objective.from_module(model), Batch(inputs, label, domain), Release(FedSGD())


def _planted_sentence(
    vocabulary: Vocabulary, length: int, generator: torch.Generator
) -> tuple[Objective, Batch, Release]:
    """A sentence of random words, special tokens at their fixed places, through an undefended encoder.

    It has two blocks: what stands behind the first token of the last one is not read.
    """
    ordinary = torch.tensor([one for one in range(vocabulary.size) if vocabulary.ordinary(one)])
    chosen = ordinary[torch.randperm(len(ordinary), generator=generator)[:length]]
    words = min(length, PLANTED_TOKENS)
    ids = torch.full((1, length), NO_TOKEN)
    ids[0, :words] = chosen.repeat(1 + words // len(chosen))[:words]
    for token, place in vocabulary.places.items():
        if place is not None and words > len(vocabulary.places):
            ids[0, place if place >= 0 else words + place] = token
    model = transformer(
        words=vocabulary.size, length=length, width=PLANTED_WIDTH, blocks=2, heads=2, std=0.2, generator=generator
    )
    label = torch.randint(2, (1,), generator=generator)
    return Objective.from_module(model), Batch(ids, label, Domain.tokens(vocabulary, length)), Release(FedSGD())


def noise_update(update: Update, generator: torch.Generator) -> Update:
    """Gaussian noise with the norm of every tensor of `update`: it holds nothing of the batch.

    Raises:
        InputError: if the update is zero.
    """
    tensors = {}
    for name, tensor in update.tensors.items():
        # In float64, so that neither tiny nor huge updates lose their norm.
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        norm = noise.norm()
        scaled = noise * (tensor.cpu().double().norm() / norm) if bool(norm > 0) else noise
        tensors[name] = scaled.to(tensor.dtype).to(tensor.device)
    if not any(bool(tensor.any()) for tensor in tensors.values()):
        raise InputError("negative control: expected an update with a non-zero tensor, got zeros everywhere")
    return replace(update, tensors=tensors, provenance={"control": "noise"})


NEGATIVE_DRAWS = 5
PLANTED = Control(
    planted=True,
    title="Positive control: a planted leak",
    expects="A public or synthetic example, released undefended through a small network, must be rebuilt.",
    meaning="This attack, with the settings of the plan, misses an easy leak: where it finds nothing elsewhere, that means "
    "nothing. A leak that another attack found stands. Where no planted leak of the audit was found, no verdict does.",
    measure=ERRORS[0],
)
NOISE = Control(
    planted=False,
    title="Negative control: pure noise",
    expects="The audited update, replaced by Gaussian noise of the same norms, must not lead to the true example by the rule for "
    "leaks; a small error that luck brings, too, passes.",
    meaning="Something leads to the truth without the update: the truth has reached the attack, or the threshold is so "
    "lax that guessing passes. A verdict “leaks” of this run cannot be trusted.",
    measure=ERRORS[0],
)


@dataclass(frozen=True, kw_only=True)
class PositiveControl:
    """The planted leak: has to come out as *leaks*.

    Attributes:
        audit: the name of its audit.
        name: of the attack in the plan.
        attack: the attack.
        further: whether another attack of the plan is held against the same leak first.
    """

    audit: str
    name: str
    attack: Attack
    further: bool = False

    @property
    def item(self) -> str:
        """Its name in the record."""
        return f"control/positive/{self.name}" if self.further else "control/positive"

    @property
    def states(self) -> Sequence[str]:
        """The name of the state of its attack."""
        return (self.item,)

    @property
    def blank(self) -> ReconstructionFinding:
        """The finding without any result."""
        attack = shortened(self.attack)
        return ReconstructionFinding(
            item=self.item,
            audit=self.audit,
            attack=self.name,
            settings=jsonable(describe(attack)),
            control=PLANTED.model_copy(update={"of": self.name}),
        )

    def __call__(self, site: Site, out: Path) -> list[ReconstructionFinding]:
        """The finding of the control with its scores."""
        update, knowledge, batch = self._case(site)
        state = state_of(site, out, self.item)
        case = _Case(update, knowledge, batch, state, _limits(site, batch, "planted leak"))
        made, leaks = _control(site, "positive", (self.name, self.attack), case, self.blank)
        return [_judged(made, leaks)]

    def refusal(self, site: Site) -> str | None:
        """Reason why its attack cannot read the planted leak; None where it can."""
        return self.attack.refusal(self._case(site)[1])

    def cost(self, site: Site) -> float:
        """Its cost in plain gradients of its own small model."""
        try:
            return estimate(shortened(self.attack), wide(self._case(site)[1])[0])
        except GradleakError:
            return 0.0

    def once(self, site: Site) -> str:
        """Everything that its finding depends on, as a text."""
        return once_of(self.item, site, self.attack, describe(site.domain(0)))

    def _case(self, site: Site) -> tuple[Update, Knowledge, Batch]:
        domain = site.domain(0)
        generator = derive_generator(site.seed, "control", "positive")
        # What the attack is given in this audit it is given here, too.
        known = site.threat if isinstance(site.threat, HonestButCurious) else HonestButCurious()
        needs = self.attack.needs
        objective, batch, release = planted_leak(domain, generator, known.generator if "generator" in needs else None)
        update = release(objective, batch, generator)
        threat = HonestButCurious(targets="targets" in needs, statistics=known.statistics, generator=known.generator)
        return update, threat.disclose(objective, release, batch), batch


@dataclass(frozen=True, kw_only=True)
class NegativeControl:
    """Noise of the norm of a real update: must not come out as *leaks*; one lucky draw in five is forgiven twice.

    Attributes:
        audit: the name of its audit.
        name: of the attack in the plan.
        attack: the attack.
        withheld: whether it imitates runs of the static adversary, who takes noise for an undefended update, follows it
            further and lands elsewhere, or the other runs alone; None for the first run that is not refused.
    """

    audit: str
    name: str
    attack: Attack
    withheld: bool | None = None

    @property
    def item(self) -> str:
        """Its name in the record."""
        return f"control/negative/{self.name}" + (f"/{Adversary.STATIC.value}" if self.withheld else "")

    @property
    def title(self) -> str:
        """The attack, and the adversary where there are two, for a reader."""
        return f"{self.name}, {Adversary.STATIC.value}" if self.withheld else self.name

    @property
    def states(self) -> Sequence[str]:
        """The names of the states of its attack, one a draw."""
        return tuple(f"{self.item}/draw {draw}" for draw in range(NEGATIVE_DRAWS))

    @property
    def blank(self) -> ReconstructionFinding:
        """The finding without any result."""
        return ReconstructionFinding(
            item=self.item,
            audit=self.audit,
            attack=self.name,
            adversary=Adversary.STATIC.value if self.withheld else "",
            settings=jsonable(describe(shortened(self.attack))),
            control=NOISE.model_copy(update={"of": self.title}),
        )

    def cost(self, site: Site) -> float:
        """Its cost in plain gradients if the first draw gives nothing, as it should."""
        try:
            for scenario, index, withheld in self._runs(site):
                knowledge = site.knowledge(scenario, index, withheld=withheld)
                if self.attack.refusal(knowledge) is None:
                    return estimate(shortened(self.attack), wide(knowledge)[0])
        except GradleakError:
            return 0.0
        return 0.0

    def once(self, site: Site) -> str:
        """Subject of the control as a text: model, release, attack; the update that it imitates may be that of another round."""
        shapes = {name: list(tensor.shape) for name, tensor in site.objective.params.items()}
        releases = [scenario.release.describe() for scenario in site.scenarios]
        return once_of(self.item, site, self.attack, [shapes, site.objective.mode.value, releases])

    def __call__(self, site: Site, out: Path) -> list[ReconstructionFinding]:
        """The finding of the control with the scores of its first draw, and with what all draws cost."""
        place = self._place(site)
        if place is None:
            note = "every update that this control could imitate is zero"
            return [self.blank.but(status=Status.REFUSED, note=note)]
        scenario, index, withheld = place
        batch = site.batches[index]
        knowledge = site.knowledge(scenario, index, withheld=withheld)
        limits = _limits(site, batch, internal_example(index))
        first: ReconstructionFinding | None = None
        leaks: bool | None = None
        hits = draws = 0
        gradients = seconds = 0.0
        for draw, state in enumerate(self.states):
            # Both adversaries get the same noise, as they get the same update.
            generator = derive_generator(site.seed, "control", "negative", self.name, str(draw))
            noise = noise_update(site.released(scenario, index), generator)
            case = _Case(noise, knowledge, batch, state_of(site, out, state), limits)
            made, leaks = _control(site, self.item.removeprefix("control/"), (self.name, self.attack), case, self.blank)
            first = first or made
            gradients, seconds = gradients + (made.plain_gradients or 0.0), seconds + made.seconds
            draws, hits = draws + 1, hits + bool(leaks)
            # A guess can land near an example of few numbers; only a habit is a fault.
            if leaks is None or hits == 0 or hits > NEGATIVE_DRAWS // 2:
                break
        assert first is not None
        passed = None if leaks is None else hits <= NEGATIVE_DRAWS // 2
        spent = first.but(plain_gradients=gradients, seconds=seconds, draws=Draws(tried=draws, hits=hits))
        return [_judged(spent, passed)]

    def _runs(self, site: Site) -> Iterator[tuple[Scenario, int, bool]]:
        """The runs of the attack in the plan that this control may imitate: where, on which batch, defenses withheld."""
        for scenario in site.scenarios:
            for index in scenario.attacks.get(self.name, ()):
                for withheld in site.withheld(scenario, self.attack):
                    if self.withheld is None or withheld is self.withheld:
                        yield scenario, index, withheld

    def _place(self, site: Site) -> tuple[Scenario, int, bool] | None:
        """The first update under this attack that is not zero, and for whom; one who is not refused, if there is any."""
        first = None
        for scenario, index, withheld in self._runs(site):
            if not any(bool(tensor.any()) for tensor in site.released(scenario, index).tensors.values()):
                continue
            knowledge = site.knowledge(scenario, index, withheld=withheld)
            if self.attack.refusal(knowledge) is None:
                return scenario, index, withheld
            first = first or (scenario, index, withheld)
        return first


def planted_controls(site: Site, audit: str, attacks: Mapping[str, Attack], first: str) -> list[PositiveControl]:
    """The planted leak for the attack that is named first and, of sentences, for every other one on tokens that can read it.

    Args:
        site: whose data.
        audit: the name of the audit.
        attacks: by name.
        first: the name of one of them.
    """
    chosen = [PositiveControl(audit=audit, name=first, attack=attacks[first])]
    if site.domain(0).vocabulary is not None:
        others = [name for name, attack in attacks.items() if name != first and attack.claims_tokens]
        further = [PositiveControl(audit=audit, name=name, attack=attacks[name], further=True) for name in others]
        chosen += [one for one in further if one.refusal(site) is None]
    return chosen


def noise_controls(site: Site, audit: str, name: str, attack: Attack) -> list[NegativeControl]:
    """The noise controls of one attack: one, or one of each where the static adversary runs it and another one does.

    Args:
        site: whose scenarios it attacks.
        audit: the name of its audit.
        name: of the attack.
        attack: the attack.
    """
    running = {
        withheld
        for scenario in site.scenarios
        for index in scenario.attacks.get(name, ())
        for withheld in site.withheld(scenario, attack)
        if attack.refusal(site.knowledge(scenario, index, withheld=withheld)) is None
    }
    chosen: Sequence[bool | None] = [None] if len(running) < 2 else [False, True]
    return [NegativeControl(audit=audit, name=name, attack=attack, withheld=withheld) for withheld in chosen]


def once_of(item: str, site: Site, attack: Attack, about: object) -> str:
    """A text on what a control depends on.

    Args:
        item: its name.
        site: whose seed, threat model and thresholds.
        attack: that it runs.
        about: what else it depends on, JSON-ready.
    """
    limits = site.thresholds.to_dict()
    return json.dumps([item, site.seed, describe(attack), describe(site.threat), limits, about], default=str)


class _Case(NamedTuple):
    """The data of a control, and what luck reaches on its batch."""

    update: Update
    knowledge: Knowledge
    batch: Batch
    state: Checkpoint | None
    limits: Sequence[float]


def _limits(site: Site, batch: Batch, name: str) -> Sequence[float]:
    """The errors that luck reaches on a batch, smallest first; empty where that is nothing."""
    score = luck(site, batch, name)
    return [] if score is None else list(score.details["limits"])


def _judged(made: ReconstructionFinding, passed: bool | None) -> ReconstructionFinding:
    assert made.control is not None
    return made.but(control=made.control.model_copy(update={"passed": passed}))


def _control(
    site: Site, name: str, chosen: tuple[str, Attack], case: _Case, blank: ReconstructionFinding
) -> tuple[ReconstructionFinding, bool | None]:
    """The finding of a control and whether its attack rebuilt the batch; None if the attack was refused.

    Behind a generator the claim refined without it counts as well: audits score it, and it leaves the prior.
    """
    update, knowledge, batch, state, limits = case
    attack = shortened(chosen[1])
    generator = derive_generator(site.seed, "control", name, chosen[0])
    found, made = run_attack(attack, update, knowledge, generator, (blank, state))
    if found is None:
        return made, None
    domain = domain_of(batch)
    blind, measure = blind_scores(batch, domain, beside=site.beside), error_score(domain.kind)
    baseline = next(score for score in blind if score.name == measure)

    def rebuilt(scores: Sequence[Score]) -> bool:
        errors = next(score for score in scores if score.name == measure).details.get("per_example", [])
        return bool(errors) and site.thresholds.for_data(domain.kind).leaks(
            errors, list(baseline.details["per_example"]), limits
        )

    scores = score_claim(found, batch, beside=site.beside)
    leaks = rebuilt(scores)
    assert made.control is not None
    made = made.but(
        scores=tuple(scores), control=made.control.model_copy(update={"measure": measure, "baseline": baseline.value})
    )
    checked = claim_support(attack, found, update, knowledge)
    if checked is not None:
        made = made.but(
            plain_gradients=(made.plain_gradients or 0.0) + checked.plain_gradients,
            seconds=made.seconds + checked.seconds,
        )
        if checked.refined is not None:
            refined = score_claim(checked.refined, batch, beside=site.beside)
            reached = next(score.value for score in refined if score.name == measure)
            made = made.but(refined_pixel_rmse=reached)
            leaks = leaks or rebuilt(refined)
    return made, leaks

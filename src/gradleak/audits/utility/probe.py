"""Leakage of single examples by a release, as numbers to stand beside its utility."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from gradleak.attacks import Attack
from gradleak.core import Batch, Domain, Exposure, HonestButCurious, Objective, Release, ThreatModel, derive_generator
from gradleak.operators import DerivativeCheck, GradientJacobian
from gradleak.results import Evidence, InputError, KnowledgeError, Leakier, Outcome, Score, UnsupportedError, median
from gradleak.risk import InversionInfluence, InversionInfluenceLowerBound
from gradleak.scoring import blind_baseline, score_images
from gradleak.training import AnyRelease, ReleaseOfRound


@dataclass(frozen=True, kw_only=True)
class Adversary:
    """An attack and what it is told.

    Attributes:
        name: for tables, for instance "static" or "adaptive".
        attack: the attack.
        threat: what is disclosed to it; `HonestButCurious(defenses=False)` for an adversary who is not told of the defense.
    """

    name: str
    attack: Attack
    threat: ThreatModel = field(default_factory=HonestButCurious)


@dataclass(frozen=True, kw_only=True, eq=False)
class ReconstructionProbe:
    """Error of an L2 attacker on single examples, in closed form and by attacks; every example released alone.

    Scores, all in `pixel_rmse`, the median over the examples (details: `per_example`, and `worst`, the smallest):

    - `predicted_static`: exact I²F of an attacker who knows nothing of the defense: it matches the undefended gradient, and
      the whole difference of release and gradient misleads it.
    - `lower_bound_static`: the lower bound of that.
    - `predicted_adaptive`: exact I²F of one who matches the defended mean, whom only the noise that was drawn misleads: 0
      (up to null directions) for a defense without noise.
    - `reached_NAME`: what each adversary's attack reaches.
    - `blind`: the best guess that ignores the release.

    Predictions are first order around the truth and bound nobody. One example a release is the worst case: an update of
    more examples gives less away of each.

    Attributes:
        batch: the examples, private ones, with their domain; a handful.
        adversaries: attacks, static and adaptive.
        seed: of the releases and the attacks.
    """

    batch: Batch = field(repr=False)
    adversaries: Sequence[Adversary] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the names, and freeze the list."""
        object.__setattr__(self, "adversaries", tuple(self.adversaries))
        names = [adversary.name for adversary in self.adversaries]
        if len(set(names)) < len(names):
            raise InputError(f"ReconstructionProbe.adversaries: expected different names, got {', '.join(names)}")

    @property
    def names(self) -> tuple[str, ...]:
        """The scores, in their order."""
        reached = tuple(f"reached_{adversary.name}" for adversary in self.adversaries)
        return ("predicted_static", "lower_bound_static", "predicted_adaptive", *reached, "blind")

    def __call__(self, release: AnyRelease, objective: Objective) -> tuple[Score, ...]:
        """The scores of a release at the parameters of an objective."""
        if isinstance(release, ReleaseOfRound):
            release = release.at(objective, derive_generator(self.seed, "release of round"))
        found: dict[str, list[Score]] = {name: [] for name in self.names}
        checks: list[DerivativeCheck | None] = [None, None]
        for index in range(self.batch.size):
            example = self.batch.example(index)
            of_example = self._of_example(release, objective, example, index, checks)
            for name, score in zip(self.names, of_example, strict=True):
                found[name].append(score)
        return tuple(_over_examples(name, scores) for name, scores in found.items())

    def _of_example(
        self,
        release: Release,
        objective: Objective,
        example: Batch,
        index: int,
        checks: list[DerivativeCheck | None],
    ) -> list[Score]:
        """Its scores; `checks` of the derivatives of both maps are those of the first example."""
        wide, private = objective.to(torch.float64), example.to(torch.float64)
        drawn = release(wide, private, derive_generator(self.seed, "release", str(index)))
        flat = wide.flatten(drawn.tensors)
        exact, bound = InversionInfluence(unit="pixel_rmse"), InversionInfluenceLowerBound(unit="pixel_rmse")
        scores = []
        maps = ((exact, bound), Release(release.protocol)), ((exact,), release)
        for place, (measures, map_) in enumerate(maps):
            try:
                exposure = Exposure(wide, private, map_)
                operator = GradientJacobian(exposure, check=checks[place])
                delta = flat - operator.value
                scores += [measure(exposure, delta=delta, operator=operator) for measure in measures]
                checks[place] = operator.shared_check
            except UnsupportedError as refusal:
                scores += [measure.unsupported(str(refusal)) for measure in measures]
        scores += [self._reached(adversary, release, objective, example, index) for adversary in self.adversaries]
        domain = example.domain or Domain.guess(example.inputs)
        blind = blind_baseline(example, domain, beside=[self.batch])
        return [*scores, next(score for score in blind if score.name == "pixel_rmse")]

    def _reached(
        self, adversary: Adversary, release: Release, objective: Objective, example: Batch, index: int
    ) -> Score:
        update = release(objective, example, derive_generator(self.seed, "release", str(index)))
        knowledge = adversary.threat.disclose(objective, release, example)
        generator = derive_generator(self.seed, "attack", adversary.name, str(index))
        try:
            claim = adversary.attack(update, knowledge, generator=generator)
        except (KnowledgeError, UnsupportedError) as refusal:
            return _valueless(f"reached_{adversary.name}", Outcome.UNSUPPORTED, str(refusal))
        scored = score_images(claim, example, beside=[self.batch])
        return next(score for score in scored if score.name == "pixel_rmse")


def _over_examples(name: str, scores: Sequence[Score]) -> Score:
    """The median over the examples that have a value, and what became of the others."""
    values = [score.value for score in scores if score.value is not None]
    missing = [score for score in scores if score.value is None]
    notes = list(dict.fromkeys(score.note for score in (missing or scores) if score.note))
    if not values:
        return _valueless(name, missing[0].outcome, notes[0] if notes else "", len(scores))
    evidence = {score.evidence for score in scores if score.value is not None}
    partial = next((score.outcome for score in scores if score.outcome is Outcome.NOT_IDENTIFIABLE), Outcome.CONVERGED)
    lacking = f"no value for {len(missing)} of {len(scores)} examples" if missing else ""
    return Score(
        name=name,
        value=median(values),
        unit="pixel_rmse",
        leakier=Leakier.LOWER,
        evidence=evidence.pop() if len(evidence) == 1 else Evidence.ESTIMATE,
        n=len(values),
        outcome=partial,
        note="; ".join(filter(None, [lacking, *notes[:1]])),
        details={"per_example": [score.value for score in scores], "worst": min(values)},
    )


def _valueless(name: str, outcome: Outcome, note: str, n: int = 1) -> Score:
    return Score(
        name=name,
        value=None,
        unit="pixel_rmse",
        leakier=Leakier.LOWER,
        evidence=Evidence.ATTACK if name.startswith("reached") else Evidence.ESTIMATE,
        n=n,
        outcome=outcome,
        note=note,
    )

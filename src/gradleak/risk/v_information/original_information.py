"""Information on the inputs that a gradient inversion tells from the gradients of each set of layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import scipy
from numpy.typing import NDArray

from gradleak.attacks.attack import Attack
from gradleak.attacks.blind import Blind
from gradleak.core import (
    Batch,
    Exposure,
    HonestButCurious,
    Knowledge,
    ThreatModel,
    Update,
    derive_generator,
    derive_seed,
)
from gradleak.core.describe import describe
from gradleak.results import (
    MO_2021,
    WANG_2004,
    Citation,
    Evidence,
    InputError,
    KnowledgeError,
    Leakier,
    Outcome,
    Positive,
    Score,
    Seed,
    Share,
    UnsupportedError,
)
from gradleak.risk.layer_exposure import Consecutive, Grouping, VisibleLayers, layer_groups
from gradleak.risk.layer_measure import LayerMeasure
from gradleak.risk.layer_profile import Groups, LayerProfile, LayerScale, LayerSite, PairedRows
from gradleak.risk.v_information.claim_error import ClaimError, Numbers, StructuralDissimilarity

SIGMA = 1.0 / (2.0 * math.pi)


@dataclass(frozen=True, kw_only=True)
class OriginalInformation(LayerMeasure):
    """The V-information of the inputs in the gradients of sets of layers: what an inversion from them alone reaches.

    The pseudo-density of the truth x given a claim x̂ is exp(−e(x̂, x)²/(2σ²)), so that

        V = mean log f[g](x) − mean log f[∅](x) = (mean e₀² − mean e²) / (2σ²),

    where e₀ is the error of an attacker without gradients. For images e = 1 − SSIM, and the value has the paper's blind
    similarity of 0, that is e₀ = 1: with σ = 1/(2π) it is 2π² (1 − mean (1 − SSIM)²), at most 2π² = 19.7.
    `details["against_blind"]` has the error of the blind attacker on the same examples instead: what is 0 there was had
    without the update. SSIM is not defined for tables, signals, texts and small images: there the outcome is
    `unsupported` until another error is chosen, `NormalizedError` (units of the population's spread) or `CosineError`
    (direction alone), for which e₀ = 1 is what their docstrings say.

    Every set of layers gets the same releases and the same random starts. An example of which the attack claims nothing
    counts as not known: 0 in the value, and the blind attacker's error beside it.

    **Assumptions**: a result of one attack. The density is not one over images (it is not normalized), so that nats are a
    scale, not a code length, and two numbers compare only for the same σ and error. It is negative for claims with e > 1.
    Student's interval of 95 % is over releases, not over the examples of one; of a single release there is none. Differences
    between sets are paired by release (`LayerProfile.difference`).

    Args:
        attack: the inversion; it sees the visible tensors alone. The hidden head of a classifier leaves it no labels to
            read, so that it optimizes them, unless the threat model discloses them.
        by: `tensor`, `layer`, `Consecutive` (the paper's sets of two), or named groups of tensors and layers.
        threat_model: what the adversary knows besides the update.
        error: e, by default the paper's 1 − SSIM.
        sigma: σ.
        confidence: of the interval.
        seed: of releases and attack.

    Raises:
        InputError: for a number out of range.

    **Cost**: one run of the attack a group and release.

    **Source**: Mo et al. 2021, definition 2 and equations 6, 8 and 9 (SSIM from Wang et al. 2004). Deviations: claims of a
    batch are paired with its examples, the blind attacker has its own similarity beside the paper's 0, and other errors than
    1 − SSIM are ours.
    """

    name: ClassVar[str] = "original_information"
    citations: ClassVar[tuple[Citation, ...]] = (MO_2021, WANG_2004)
    summary: ClassVar[str] = "V-information of the inputs in the gradients of each set of layers, for one inversion"

    attack: Attack
    by: Grouping = field(default_factory=Consecutive)
    threat_model: ThreatModel = field(default_factory=HonestButCurious)
    error: ClaimError = field(default_factory=StructuralDissimilarity)
    sigma: Positive = SIGMA
    confidence: Share = 0.95
    seed: Seed = 0

    def __call__(
        self, exposures: Sequence[Exposure], *, visible: Mapping[str, VisibleLayers] | None = None
    ) -> LayerProfile:
        """The V-information in every set of layers.

        Args:
            exposures: releases of one model, at least one; each is drawn once.
            visible: sets of visible tensors by name, for instance of `what_ifs`; None for the groups of `by`.

        Returns:
            Scores named `original_information` in nats with evidence "attack"; `details`: `against_blind` and its interval,
            mean similarity (`ssim`; or what the error is made of, under its name) and that of the blind attacker,
            `per_example` similarities, `claimed` (how many of all examples). Without any claim the outcome of the attack,
            with a refusal `unsupported`; examples that the error is not defined for are `unsupported`.

        Raises:
            InputError: without an exposure, for exposures of different parameters, or a batch without a domain.
        """
        names = _names(exposures)
        sets = visible
        if sets is None:
            sets = {group: VisibleLayers(names=members) for group, members in layer_groups(names, self.by).items()}
        if not sets:
            raise InputError("visible: expected at least one set of layers, got none")
        groups = {label: one.names for label, one in sets.items()}
        obstacle = next(filter(None, (self.error.obstacle(one.batch) for one in exposures)), "")
        if obstacle:
            lost = self._without(Outcome.UNSUPPORTED, obstacle)
            return LayerProfile(measure=self.name, scores=dict.fromkeys(groups, lost), groups=groups)
        updates = [
            one.release(one.objective, one.batch, derive_generator(self.seed, "release", str(place)))
            for place, one in enumerate(exposures)
        ]
        known = self.threat_model.disclose_each(exposures)
        blind = _blind(self.error, exposures, updates, known)
        scores, nats = {}, {}
        for label, one in sets.items():
            scores[label], found = self._of_set(one, exposures, updates, known, blind)
            if found is not None:
                nats[label] = np.array([value for release in found for value in release]) / (2.0 * self.sigma**2)
        paired = PairedRows(
            values=nats,
            clusters=np.repeat(np.arange(len(exposures)), [one.batch.size for one in exposures]),
            confidence=self.confidence,
            seed=derive_seed(self.seed, "differences"),
        )
        return LayerProfile(measure=self.name, scores=scores, groups=groups, rows=paired)

    def by_layer(self, site: LayerSite, groups: Groups) -> LayerProfile:
        """Profile of an inversion by the site's adversary from each group alone."""
        return self.by_visible(site, {name: VisibleLayers(names=members) for name, members in groups.items()})

    def by_visible(self, site: LayerSite, visible: Mapping[str, VisibleLayers]) -> LayerProfile:
        """The same of sets of visible tensors: every set gets the same releases."""
        found = replace(self, threat_model=site.threat)(site.exposures, visible=visible)
        return replace(found, measure=site.label)

    def layer_cost(self, scale: LayerScale) -> float:
        """One run of the attack a group, set and release."""
        return (scale.groups + scale.sets) * scale.releases * self.attack.estimate(scale.known())

    def apart(self, scale: LayerScale) -> bool:
        """True: groups have nothing in common."""
        return True

    @property
    def variant(self) -> str:
        """The attack."""
        return type(self.attack).__name__

    @property
    def layer_parts(self) -> tuple[object, ...]:
        """The attack."""
        return (self.attack,)

    def obstacle(self, batch: Batch) -> str:
        """Reason why the error is not defined for such examples."""
        found = self.error.obstacle(batch)
        return f"{found}; in a plan: error = {{ use = 'NormalizedError' }}" if found else ""

    def refusal(self, known: Knowledge) -> str:
        """Reason why the attack cannot run."""
        reason = self.attack.refusal(known)
        return f"{type(self.attack).__name__} cannot run, whatever the layers: {reason}" if reason else ""

    def estimate(self, exposures: Sequence[Exposure]) -> float:
        """The cost in plain gradients.

        Raises:
            InputError: without an exposure.
        """
        sets = layer_groups(_names(exposures), self.by)
        known = self.threat_model.disclose_each(exposures)
        return len(sets) * math.fsum(self.attack.estimate(facts) for facts in known)

    def _of_set(
        self,
        visible: VisibleLayers,
        exposures: Sequence[Exposure],
        updates: Sequence[Update],
        known: Sequence[Knowledge],
        blind: list[Numbers] | None,
    ) -> tuple[Score, list[list[float]] | None]:
        """The score of one set, and 1 − e² of every example of every release; None where nothing is claimed."""
        try:
            claims = self.attack.many(
                [visible.update(update) for update in updates],
                [visible.knowledge(facts) for facts in known],
                generators=[derive_generator(self.seed, "attack", str(place)) for place in range(len(updates))],
            )
        except (KnowledgeError, UnsupportedError) as refusal:
            return self._without(Outcome.UNSUPPORTED, str(refusal)), None
        found = [self.error.of_all(claim, one.batch) for claim, one in zip(claims, exposures, strict=True)]
        claimed = sum(value is not None for release in found for value in release)
        if not claimed:
            first = claims[0]
            outcome = first.outcome if first.outcome.has_value is False else Outcome.UNSUPPORTED
            return self._without(outcome, first.note or "the attack claims no inputs"), None
        # Nothing claimed of an example: an error of 1 is worth 0 nats.
        plain = [[1.0 - self._square(value, None) for value in release] for release in found]
        value, interval = self._mean(plain)
        assert value is not None
        details: dict[str, Any] = {
            "sigma": self.sigma,
            "most": 1.0 / (2.0 * self.sigma**2),
            self.error.name: float(np.mean([value for release in found for value in release if value is not None])),
            "per_example": found,
            "claimed": claimed,
            "examples": sum(len(release) for release in found),
            "against_blind": None,
            "against_blind_interval": None,
            f"blind_{self.error.name}": None,
            "outcomes": sorted({claim.outcome.label for claim in claims}),
            "attack": describe(self.attack),
            "confidence": self.confidence,
        }
        if blind is not None:
            beside = [
                [
                    self._square(floor, None) - self._square(value, floor)
                    for value, floor in zip(release, other, strict=True)
                ]
                for release, other in zip(found, blind, strict=True)
            ]
            details["against_blind"], details["against_blind_interval"] = self._mean(beside)
            floors = [floor for release in blind for floor in release if floor is not None]
            details[f"blind_{self.error.name}"] = float(np.mean(floors)) if floors else None
        lost = details["examples"] - claimed
        score = self._score(
            value,
            n=len(found),
            interval=interval,
            note=f"{lost} of {details['examples']} examples without a claim count as not known" if lost else "",
            details=details,
        )
        return score, plain

    def _square(self, number: float | None, otherwise: float | None) -> float:
        """e², of what stands in for a claim where there is none; 1 without either."""
        shown = number if number is not None else otherwise
        return 1.0 if shown is None else self.error.error(shown) ** 2

    def _mean(self, values: Sequence[Sequence[float]]) -> tuple[float, tuple[float, float] | None]:
        """The mean over examples of a quantity in units of 1/(2σ²), and Student's interval over releases."""
        scale = 1.0 / (2.0 * self.sigma**2)
        sizes = np.array([len(release) for release in values], dtype=np.float64)
        means: NDArray[np.float64] = np.array([scale * float(np.mean(release)) for release in values])
        mean, count = float(np.average(means, weights=sizes)), len(means)
        if count < 2:
            return mean, None
        weights = sizes / sizes.sum()
        spread = math.sqrt(float((weights**2 * (means - mean) ** 2).sum()) * count / (count - 1))
        reach = float(scipy.stats.t.isf((1.0 - self.confidence) / 2.0, count - 1)) * spread
        return mean, (mean - reach, mean + reach)

    def _without(self, outcome: Outcome, note: str) -> Score:
        return self._score(None, outcome=outcome, note=note)

    def _score(self, value: float | None, **rest: Any) -> Score:
        return Score(name=self.name, value=value, unit="nats", leakier=Leakier.HIGHER, evidence=Evidence.ATTACK, **rest)


def _names(exposures: Sequence[Exposure]) -> list[str]:
    if isinstance(exposures, Exposure) or not exposures:
        raise InputError("exposures: expected a list of at least one Exposure")
    names = list(exposures[0].objective.params)
    for one in exposures[1:]:
        if list(one.objective.params) != names:
            raise InputError(f"exposures: expected releases of one model, got one with {list(one.objective.params)}")
    return names


def _blind(
    error: ClaimError, exposures: Sequence[Exposure], updates: Sequence[Update], known: Sequence[Knowledge]
) -> list[Numbers] | None:
    """Error of the blind attacker with the same knowledge; None where it knows too little."""
    attack = Blind()
    if any(attack.refusal(facts) for facts in known):
        return None
    generators = [derive_generator(0, "blind") for _ in updates]
    claims = attack.many(updates, known, generators=generators)
    return [error.of_all(claim, one.batch) for claim, one in zip(claims, exposures, strict=True)]

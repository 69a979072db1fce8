"""Information that a gradient inversion tells of one example whose gradient was averaged with those of others."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    Reconstruction,
    ThreatModel,
    Update,
    derive_generator,
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
    Natural,
    Outcome,
    Positive,
    Score,
    Seed,
    Settings,
    Share,
    UnsupportedError,
)
from gradleak.scoring import score_images, ssim_obstacle

Similarities = list[float | None]


@dataclass(frozen=True, kw_only=True)
class TargetInformation(Settings):
    """The V-information of one example of each batch, in nats: 2π² (1 − mean (1 − SSIM)²) for the claim paired with it.

    The update is a mean over n + 1 examples: the target and n others, of the same client or of others whose updates are
    added up. The attack has to find all of them; its claims are paired one to one with the examples, since an update has
    no order. A pairing picks, and among many claims one looks like almost anything. Beside the value stands therefore
    what the same claims give when the target is exchanged for that of another release, which is no example of this one, and
    the pairing is made anew: `details["exchanged"]`. What lies above it (`above_exchanged`, with its interval) is about *this*
    example.

    **Assumptions**: a result of one attack, on the scale of `OriginalInformation` (see there), and the targets are
    independent draws. Student's intervals of 95 % are over releases. Whoever knows the updates of the others (a server that
    sees every client, colluding clients) subtracts them and is back at n = 0: aggregation hides from those alone who see
    nothing but the mean.

    Args:
        attack: the inversion; it sees the whole update.
        threat_model: what the adversary knows besides.
        place: which example of each batch is the target.
        sigma: σ of the paper's density; the factor 2π² is 1/(2σ²) for its σ = 1/(2π).
        confidence: of the intervals.
        seed: of releases and attack.

    Raises:
        InputError: for a number out of range.

    **Cost**: one run of the attack a release, and two pairings.

    **Source**: Mo et al. 2021, definition 2 and equation 8, section 6.4 on aggregation. Deviations: the paper does not say
    which of the claims is held against the target (here the one-to-one pairing of least squared error), leaves failed
    runs out of its figure (here they count as not known), and has no exchanged target.

    Examples:
        >>> import torch, gradleak as gl
        >>> generator = torch.Generator().manual_seed(0)
        >>> pixels = torch.rand((4, 1, 12, 12), generator=generator, dtype=torch.float64)
        >>> image = gl.Domain.image(channels=1, height=12, width=12)
        >>> layers = [torch.nn.Flatten(), torch.nn.Linear(144, 8), torch.nn.Sigmoid(), torch.nn.Linear(8, 3)]
        >>> objective = gl.Objective.from_module(torch.nn.Sequential(*layers).double())
        >>> batches = [gl.Batch(pixels[i : i + 1], torch.tensor([i % 3]), image) for i in range(4)]
        >>> alone = [gl.Exposure(objective, batch, gl.Release(gl.FedSGD())) for batch in batches]
        >>> found = gl.risk.TargetInformation(attack=gl.GaussNewton())(alone)
        >>> found.details["ssim"] > 0.99, found.details["above_exchanged"] > 10.0
        (True, True)
    """

    name: ClassVar[str] = "target_information"
    citations: ClassVar[tuple[Citation, ...]] = (MO_2021, WANG_2004)
    summary: ClassVar[str] = "V-information of one example among the others of its update, for one inversion"

    attack: Attack
    threat_model: ThreatModel = field(default_factory=HonestButCurious)
    place: Natural = 0
    sigma: Positive = 1.0 / (2.0 * math.pi)
    confidence: Share = 0.95
    seed: Seed = 0

    def __call__(self, exposures: Sequence[Exposure]) -> Score:
        """The V-information of the targets.

        Args:
            exposures: releases, at least one, each of a batch that holds its target at `place`; each is drawn once.

        Returns:
            A score named `target_information` in nats with evidence "attack". `details`: `ssim` (mean over claimed
            targets), `per_target`, `blind_ssim`, `against_blind`, `exchanged`, `exchanged_ssim`, `above_exchanged`, the
            intervals of the three differences, `claimed`, `others` (n of each release). Without any claim the outcome of
            the attack, with a refusal `unsupported`, and likewise for images that SSIM is not defined for. Of a single
            release there is no interval, and no exchanged target where every other release's is in the batch.

        Raises:
            InputError: without an exposure, for a batch without a domain or without an example at `place`, or targets of
                different shapes.
        """
        _check(exposures, self.place)
        obstacle = ssim_obstacle(exposures[0].domain)
        if obstacle:
            return self._without(Outcome.UNSUPPORTED, f"SSIM is {obstacle}")
        known = self.threat_model.disclose_each(exposures)
        updates = [
            one.release(one.objective, one.batch, derive_generator(self.seed, "release", str(place)))
            for place, one in enumerate(exposures)
        ]
        try:
            claims = self.attack.many(
                updates,
                known,
                generators=[derive_generator(self.seed, "attack", str(place)) for place in range(len(updates))],
            )
        except (KnowledgeError, UnsupportedError) as refusal:
            return self._without(Outcome.UNSUPPORTED, str(refusal))
        found = [self._similarity(claim, one.batch) for claim, one in zip(claims, exposures, strict=True)]
        if all(value is None for value in found):
            first = claims[0]
            outcome = Outcome.UNSUPPORTED if first.outcome.has_value else first.outcome
            return self._without(outcome, first.note or "the attack claims no inputs")
        return self._scored(found, claims, exposures, self._blind(exposures, updates, known))

    def estimate(self, exposures: Sequence[Exposure]) -> float:
        """The cost in plain gradients.

        Raises:
            InputError: as for a call.
        """
        _check(exposures, self.place)
        known = self.threat_model.disclose_each(exposures)
        return math.fsum(self.attack.estimate(facts) for facts in known)

    def _scored(
        self,
        found: Similarities,
        claims: Sequence[Reconstruction],
        exposures: Sequence[Exposure],
        blind: Similarities | None,
    ) -> Score:
        plain = self._nats(found)
        value, interval = self._mean(plain)
        claimed = [one for one in found if one is not None]
        details: dict[str, Any] = {
            "sigma": self.sigma,
            "most": 1.0 / (2.0 * self.sigma**2),
            "ssim": float(np.mean(claimed)),
            "per_target": found,
            "claimed": len(claimed),
            "others": [one.batch.size - 1 for one in exposures],
            "outcomes": sorted({claim.outcome.label for claim in claims}),
            "attack": describe(self.attack),
            "confidence": self.confidence,
            "blind_ssim": None,
            "against_blind": None,
            "against_blind_interval": None,
            "exchanged_ssim": None,
            "exchanged": None,
            "exchanged_interval": None,
            "above_exchanged": None,
            "above_exchanged_interval": None,
        }
        if blind is not None:
            floor = self._nats(blind)
            details["blind_ssim"] = float(np.mean([one or 0.0 for one in blind]))
            details["against_blind"], details["against_blind_interval"] = self._mean(plain - floor)
        swapped = self._exchanged(claims, exposures)
        if swapped is not None:
            other = self._nats(swapped)
            details["exchanged_ssim"] = float(np.mean([one or 0.0 for one in swapped]))
            details["exchanged"], details["exchanged_interval"] = self._mean(other)
            details["above_exchanged"], details["above_exchanged_interval"] = self._mean(plain - other)
        lost = len(found) - len(claimed)
        return self._score(
            value,
            n=len(found),
            interval=interval,
            note=f"{lost} of {len(found)} targets without a claim count as not known" if lost else "",
            details=details,
        )

    def _similarity(self, claim: Reconstruction, batch: Batch) -> float | None:
        """SSIM of the target and the claim that is paired with it, None without one."""
        score = next(one for one in score_images(claim, batch) if one.name == "ssim")
        per_example: list[float | None] = list(score.details.get("per_example", [None] * batch.size))
        return per_example[self.place]

    def _exchanged(self, claims: Sequence[Reconstruction], exposures: Sequence[Exposure]) -> Similarities | None:
        """Error of the claims with the target of a later release in the place of their own; None where there is none.

        The next one whose target is no example of this batch: one that is would be found rightly.
        """
        targets, found = [one.batch.inputs[self.place] for one in exposures], []
        for place, claim in enumerate(claims):
            batch = exposures[place].batch
            later = [targets[(place + step) % len(targets)].to(batch.inputs) for step in range(1, len(targets))]
            foreign = [one for one in later if not bool((batch.inputs == one).flatten(start_dim=1).all(dim=1).any())]
            if not foreign:
                return None
            inputs = batch.inputs.clone()
            inputs[self.place] = foreign[0]
            found.append(self._similarity(claim, replace(batch, inputs=inputs)))
        return found

    def _blind(
        self, exposures: Sequence[Exposure], updates: Sequence[Update], known: Sequence[Knowledge]
    ) -> Similarities | None:
        """Error without the update; None where the adversary knows too little for it."""
        blind = Blind()
        if any(blind.refusal(facts) for facts in known):
            return None
        claims = blind.many(updates, known, generators=[derive_generator(self.seed, "blind") for _ in updates])
        return [self._similarity(claim, one.batch) for claim, one in zip(claims, exposures, strict=True)]

    def _nats(self, similarities: Similarities) -> NDArray[np.float64]:
        """(1 − (1 − SSIM)²)/(2σ²) of every target; nothing claimed is worth SSIM 0."""
        losses = np.array([(1.0 - (one if one is not None else 0.0)) ** 2 for one in similarities])
        return np.asarray((1.0 - losses) / (2.0 * self.sigma**2), dtype=np.float64)

    def _mean(self, values: NDArray[np.float64]) -> tuple[float, tuple[float, float] | None]:
        mean, count = float(values.mean()), len(values)
        if count < 2:
            return mean, None
        quantile = float(scipy.stats.t.isf((1.0 - self.confidence) / 2.0, count - 1))
        reach = quantile * float(values.std(ddof=1)) / math.sqrt(count)
        return mean, (mean - reach, mean + reach)

    def _without(self, outcome: Outcome, note: str) -> Score:
        return self._score(None, outcome=outcome, note=note)

    def _score(self, value: float | None, **rest: Any) -> Score:
        return Score(name=self.name, value=value, unit="nats", leakier=Leakier.HIGHER, evidence=Evidence.ATTACK, **rest)


def _check(exposures: Sequence[Exposure], place: int) -> None:
    if isinstance(exposures, Exposure) or not exposures:
        raise InputError("exposures: expected a list of at least one Exposure")
    for one in exposures:
        if one.batch.size <= place:
            raise InputError(f"exposures: expected a target at place {place}, got a batch of {one.batch.size}")
        if one.batch.inputs.shape[1:] != exposures[0].batch.inputs.shape[1:]:
            raise InputError("exposures: expected targets of one shape")

"""Probability that any attacker rebuilds an example, from differential privacy and a stated prior."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import scipy
import torch
from torch import Tensor

from gradleak.accounting import exact_gaussian_epsilon, mechanism_of
from gradleak.core import Batch, Domain, GaussianMechanism, NoGuarantee
from gradleak.core import Unit as Hidden
from gradleak.results import (
    BALLE_2022,
    DONG_2022,
    HAYES_2023,
    KAISSIS_2023,
    Citation,
    Count,
    Evidence,
    InputError,
    Leakier,
    Number,
    Outcome,
    Score,
    Share,
    Whole,
)
from gradleak.risk.setting_measure import Setting, SettingMeasure, blind_success_limit


@dataclass(frozen=True, kw_only=True, eq=False)
class ReconstructionProbability(SettingMeasure):
    """An upper bound on the probability that any attacker rebuilds an example of a release to a pixel RMSE of η.

    For one guess at one example z, drawn from a prior π, and a release that hides an example as T Gaussian mechanisms
    of sensitivity Δ and noise σ do,

        P(error <= η) <= Φ(μ + Φ⁻¹(κ)),   μ = √T·Δ/σ,   κ = sup over guesses of P(error(guess, z) <= η),

    κ the success of a blind guess. **Why**: let Q be the law of what the attacker sees if z adds nothing, P_z the
    law if it is there, and E_z all outcomes at which the attacker's answer is within η of z. No test tells P_z from Q
    better than N(μ, 1) from N(0, 1), so P_z(E_z) <= F(Q(E_z)) with F(a) = Φ(μ + Φ⁻¹(a)), which increases and is
    concave. The mean over z is at most F(mean Q(E_z)), by Jensen. And Q does not depend on z: under it the answer is a
    blind guess, so that the mean of Q(E_z) is at most κ. The attacker may know everything else: all other examples, the
    labels, the model, the defenses.

    **A batch of b examples**: claims come in no order and are paired with the truth by the scorer, so κ counts b guesses.
    The value is for *at least one* example rebuilt, as the verdict *leaks* is: at most b times the bound on each, or, where
    the whole update of the client is hidden, F of b times κ. The bound on each example is in the details.
    What hides one example hides k copies of it less: together they move the sum by kΔ, so that μ is k times as large.

    Assumptions: evidence is upper_bound. (i) The prior is stated, and is what the attacker knows of an example *given* all
    the others and its label; one who knows more may do better. `public`: an example is an independent draw of the same law as
    the public ones (of those with its label, where these come as a Batch and the labels of the batch are given); κ is an
    upper confidence limit (`blind_success_limit`). `candidates`: one of n candidates, each as likely, any two more than 2η
    apart, so that a guess is right for at most one and κ of b guesses is b/n. Of sentences no two candidates have the same
    word at a place: a guess is right for at most r = ⌊1/(1 - η)⌋ of them (two at η = 1/2), and κ = b·r/n. (ii) Gradients
    really are clipped and noise really is drawn as the release says. The bound is an average over prior and noise; there may
    be single examples that are easier to guess.

    A release without a guarantee (`gradleak.accounting.mechanism_of`) has no value, and neither have heuristic defenses. There is
    no amplification by sampling: the example is in every release, as the audited ones are.

    Args:
        within: η, in pixels scaled to [0, 1], of sentences the share of words; for a verdict at least its limit,
            `thresholds.pixel_rmse` or `thresholds.token_error`.
        public: public examples (n, *shape) in model-input units, as a tensor or a Batch; or None.
        candidates: n >= 2, or None. Just one of public and candidates is given.
        rounds: in how many such releases the example takes part, with other parameters each time.
        confidence: of κ over the draw of the public examples; labels of a batch share what is left to 1.
        delta: δ of the ε in the details.

    Raises:
        InputError: for fields out of range, or none or both of public and candidates.

    Cost: n² d multiplications for n public examples of a label with d entries; no gradient.

    Source: Balle, Cherubin and Hayes 2022 for reconstruction robustness and κ; Hayes, Mahloujifar and Balle 2023 for the
    bound by a law without the example; Kaissis et al. 2023 for its form by hypothesis tests; Dong, Roth and Su 2022 for F
    and for √T. Guesses at a batch, the whole client, and the confidence limit of κ are ours.

    Examples:
        >>> from gradleak.core import Objective, Release
        >>> from gradleak.defenses import DPSGD
        >>> from gradleak.models import mlp
        >>> from gradleak.protocols import FedSGD
        >>> objective = Objective.from_module(mlp(features=4, classes=2, hidden=(3,)))
        >>> release = Release(FedSGD(), [DPSGD(clip_norm=1.0, noise_std=2.0, noise="sum")])
        >>> score = ReconstructionProbability(candidates=1000)(objective, release)
        >>> round(score.value, 4), score.details["mu"]
        (0.0048, 0.5)
    """

    name: ClassVar[str] = "reconstruction_probability"
    citations: ClassVar[tuple[Citation, ...]] = (BALLE_2022, HAYES_2023, KAISSIS_2023, DONG_2022)
    summary: ClassVar[str] = "bound on every attacker's chance to rebuild an example, from differential privacy"
    leakier: ClassVar[Leakier] = Leakier.HIGHER
    reads_derivative: ClassVar[bool] = False

    within: Share = 0.1
    public: Tensor | Batch | None = field(default=None, repr=False)
    candidates: Annotated[int, Whole(2)] | None = None
    rounds: Count = 1
    confidence: Annotated[float, Number(0.5, 1, excluded="both")] = 0.95
    delta: Share = 1e-5

    def __post_init__(self) -> None:
        """Check what depends on more than one field."""
        super().__post_init__()
        if (self.public is None) == (self.candidates is None):
            raise InputError("ReconstructionProbability: expected one of public and candidates")
        if self.public_inputs is not None:
            inputs = self.public_inputs
            if inputs.dim() < 2 or inputs.shape[0] < 2 or not bool(torch.isfinite(inputs).all()):
                raise InputError("public: expected at least two finite examples (n, ...)")

    @property
    def public_inputs(self) -> Tensor | None:
        """The public examples (n, ...), or None."""
        return self.public.inputs if isinstance(self.public, Batch) else self.public

    def estimate(self, unknowns: int) -> float:
        """The cost in plain gradients: next to nothing."""
        return 0.1

    def check(self, domain: Domain | None) -> None:
        """Refuse more candidates than the data have room for, and public sentences.

        Args:
            domain: of an example, or None for unknown.

        Raises:
            InputError: naming what to change.
        """
        if refusal := self._misfit(domain):
            raise InputError(refusal)

    @property
    def _unit(self) -> str:
        return "probability"

    def _measure(self, setting: Setting, generator: torch.Generator) -> Score:
        mechanism = mechanism_of(setting.release, setting.objective, setting.batch_size)
        if isinstance(mechanism, NoGuarantee):
            return self._without_value(
                Outcome.NOT_INFORMATIVE, f"the release has no differential privacy: {mechanism.reason}"
            )
        blind = self._blind(setting)
        if isinstance(blind, str):
            return self._without_value(Outcome.NOT_INFORMATIVE, blind)
        kappa, prior = blind
        whole = mechanism.unit is Hidden.CLIENT
        copies = 1 if whole else setting.copies
        mu = copies * math.sqrt(self.rounds * mechanism.steps) / mechanism.noise_multiplier
        each = success_bound(mu, kappa)
        size = setting.batch_size
        value = success_bound(mu, min(1.0, size * kappa)) if whole else min(1.0, size * each)
        details: dict[str, Any] = {
            "within": self.within,
            "mu": mu,
            "kappa": kappa,
            "each_example": each,
            "examples": size,
            "prior": prior,
            "rounds": self.rounds,
            "steps_per_round": mechanism.steps,
            "hidden": mechanism.unit.value,
            "sensitivity": mechanism.sensitivity,
            "std": mechanism.std,
            "epsilon": exact_gaussian_epsilon(mu, 1.0, self.delta).value,
            "delta": self.delta,
        } | ({"copies": copies} if copies > 1 else {})
        return Score(
            name=self.name,
            value=value,
            unit=self._unit,
            leakier=self.leakier,
            evidence=Evidence.UPPER_BOUND,
            note=self._note(mechanism, size, copies),
            details=details,
        )

    def _note(self, mechanism: GaussianMechanism, size: int, copies: int) -> str:
        notes = ["average over the noise and the stated prior"]
        if size > 1:
            notes.append(f"that at least one of the {size} examples is rebuilt")
        if copies > 1:
            notes.append(f"one of them stands there {copies} times, and is hidden {copies} times less")
        if mechanism.unit is Hidden.CLIENT:
            notes.append("the whole update of the client is hidden")
        if self.rounds > 1:
            notes.append(f"for {self.rounds} releases that all hold the example")
        return "; ".join(notes)

    def _blind(self, setting: Setting) -> tuple[float, dict[str, Any]] | str:
        """The success of b blind guesses at one example and the prior behind it, or why there is none."""
        size = setting.batch_size
        if misfit := self._misfit(setting.domain):
            return misfit
        if setting.domain is not None and setting.domain.vocabulary is not None:
            return self._blind_sentences(size)
        if self.candidates is not None:
            origin = f"one of {self.candidates} candidates, each as likely, any two more than {2 * self.within:g} apart (RMSE)"
            return min(1.0, size / self.candidates), {"origin": origin}
        points, guessed = self._pixels(setting)
        if isinstance(self.public, Tensor) or setting.targets is None:
            groups = {"": points}
        else:
            assert self.public is not None
            groups = _by_label(points, self.public.targets, setting.targets)
            missing = [label for label, group in groups.items() if group.shape[0] < 2]
            if missing:
                return (
                    f"fewer than two public examples have the label {missing[0]}, which the attacker is taken to know; give "
                    "more, or pass their inputs alone for a prior that does not depend on the label"
                )
        confidence = 1 - (1 - self.confidence) / len(groups)
        limits = {
            label: blind_success_limit(group, self.within, guesses=size, confidence=confidence)
            for label, group in groups.items()
        }
        worst = max(limits, key=lambda label: limits[label])
        share = f"{groups[worst].shape[0]} with the label {worst}" if worst else f"{points.shape[0]}"
        origin = f"drawn like {share} of the public examples" if worst else f"drawn like the {share} public examples"
        prior = {"origin": origin, "examples": groups[worst].shape[0], "confidence": self.confidence}
        return limits[worst], prior | ({"domain": "guessed from the public examples"} if guessed else {})

    def _misfit(self, domain: Domain | None) -> str:
        """Reason why the prior is none that such data can have, or ""."""
        if domain is None:
            return ""
        if domain.vocabulary is None:
            if self.candidates is None or self.candidates <= _room(domain.size, self.within):
                return ""
            return f"no {self.candidates} candidates more than {2 * self.within:g} apart fit the range of the data"
        if self.candidates is None:
            return "of sentences, public ones are no prior for it; state candidates"
        words = sum(map(domain.vocabulary.ordinary, range(domain.vocabulary.size)))
        if self.candidates <= words:
            return ""
        return f"no {self.candidates} sentences that agree at no place fit {words} words; state fewer candidates"

    def _blind_sentences(self, size: int) -> tuple[float, dict[str, Any]]:
        """The same for sentences: places of one guess are right for few of them, since at each it is right for one at most."""
        assert self.candidates is not None
        # Rounding of 1 - η must not take one away.
        each = math.floor(1.0 / (1.0 - self.within) + 1e-9)
        claims = "the one claim" if size == 1 else f"each of the {size} claims"
        origin = (
            f"one of {self.candidates} sentences of one length, each as likely, of which no two have the same word at a place "
            f"({claims} on a batch is within {self.within:g} of at most {each} of them)"
        )
        return min(1.0, size * each / self.candidates), {"origin": origin, "claims": size, "right_for": each}

    def _pixels(self, setting: Setting) -> tuple[Tensor, bool]:
        """The public examples (n, d), scaled so that Euclidean distances are pixel RMSEs; whether their range was guessed."""
        assert self.public is not None
        assert self.public_inputs is not None
        inputs = self.public_inputs.detach().double()
        domain = (self.public.domain if isinstance(self.public, Batch) else None) or setting.domain
        guessed = domain is None
        domain = domain or Domain.guess(inputs)
        domain.check(inputs)
        return (inputs * domain.pixel_scale(inputs)).flatten(1) / math.sqrt(domain.size), guessed


def success_bound(mu: float, kappa: float) -> float:
    """Φ(μ + Φ⁻¹(κ)): the largest probability under a law of what has probability κ under another that μ hides it from.

    Args:
        mu: of Gaussian differential privacy, at least 0.
        kappa: between 0 and 1, both included.

    Source: Dong, Roth and Su 2022, the trade-off function of N(0, 1) and N(μ, 1), turned over.

    Examples:
        >>> round(success_bound(1.0, 0.5), 4), success_bound(0.0, 0.25)
        (0.8413, 0.25)
    """
    return float(scipy.special.ndtr(mu + scipy.special.ndtri(kappa)))


def _room(size: int, within: float) -> float:
    """A number of points that no set in the unit cube exceeds whose root mean squared distances are all above 2η.

    Balls of radius η around them do not meet and lie in the ball of radius 1/2 + η around the middle of the cube.
    """
    exponent = size * math.log((0.5 + within) / within)
    return math.exp(exponent) if exponent < 700.0 else math.inf


def _by_label(points: Tensor, public: Tensor, wanted: Tensor) -> dict[str, Tensor]:
    """The public points of every label that occurs in a batch."""
    public = public.detach().to(wanted.device)
    found: dict[str, Tensor] = {}
    for label in wanted.detach():
        same = (public == label).flatten(1).all(1) if public.dim() > 1 else public == label
        found[str(label.tolist())] = points[same.to(points.device)]
    return found

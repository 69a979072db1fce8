"""Bounds of a setting on every attacker, read for one release's verdict: differential privacy and van Trees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from gradleak.results import Evidence, Grounds, Score, rounded_up
from gradleak.results.findings.released import ReleaseFinding
from gradleak.risk import BayesianCramerRao, ReconstructionProbability

# No law on a range of length 1 has a larger standard deviation.
WIDEST_PRIOR = 0.5
# Of the energy of the noise in an update that was really sent.
NOISE_Z = 5.0


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Values that a bound has to keep, and with which it is compared.

    Attributes:
        error: the error up to which an example counts as rebuilt.
        baseline_ratio: the share of the error of the blind guess up to which it does.
        probability: the largest chance to rebuild an example that a bound may leave.
        reached: the smallest error of an attack on the release, or None.
        blind: the smallest error of the blind guess on it, or None.
        noun: what the error is called.
    """

    error: float
    baseline_ratio: float
    probability: float
    reached: float | None
    blind: float | None
    noun: str


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The bound on a release, ready for a verdict.

    Attributes:
        holds: whether it makes the release *bounded*.
        reason: the code of the verdict where it does.
        text: what it says and rests on where it holds, else why it does not.
        details: the numbers behind it.
    """

    holds: bool
    reason: str
    text: str
    details: Mapping[str, Any]


def bound_on(release: ReleaseFinding, grounds: Grounds, limits: Limits) -> Bound | None:
    """The bounds on a release, or None where the plan asked for none.

    One is enough to make the release *bounded*: the chance that differential privacy leaves every attacker is at most the
    limit (`dp_bound`), or the lower confidence limit of van Trees on the mean error lies above the limit of a leak
    (`bayesian_bound`); for noise that the release carries and a prior that the data could have, and where nothing was seen
    that speaks against it. Of several scores of one kind the weakest counts.

    Args:
        release: whose bounds.
        grounds: where they stand.
        limits: what the bounds are held against.
    """
    found = [
        bound
        for name, read in ((ReconstructionProbability.name, _by_privacy), (BayesianCramerRao.name, _by_van_trees))
        if (scores := [score for _, score in grounds.scores(name, release.scenario, release.subject)])
        for bound in (read(scores, release, limits),)
    ]
    if not found:
        return None
    telling = [bound for bound in found if bound.holds] or found
    details: dict[str, Any] = {}
    for bound in found:
        details |= bound.details
    margins = [float(bound.details["bound_margin"]) for bound in telling if "bound_margin" in bound.details]
    return Bound(
        holds=telling[0].holds,
        reason=telling[0].reason,
        text=" ".join(bound.text for bound in telling),
        details=details | ({"bound_margin": max(margins)} if margins else {}),
    )


def _by_privacy(scores: Sequence[Score], release: ReleaseFinding, limits: Limits) -> Bound:
    """The largest chance that a score leaves; one without a value is no bound, and one for a smaller error no larger."""
    reasons = [_no_probability(score, limits) for score in scores]
    readable = [score for score, reason in zip(scores, reasons, strict=True) if not reason]
    if not readable:
        return Bound(holds=False, reason="dp_bound", text=next(filter(None, reasons)), details={})
    weakest = max(readable, key=lambda score: score.value or 0.0)
    facts, value = weakest.details, weakest.value or 0.0
    details = {
        "reconstruction_probability": value,
        "threshold_reconstruction_probability": limits.probability,
        "privacy_prior": facts["prior"]["origin"],
        **{key: facts[key] for key in ("kappa", "mu", "epsilon", "delta", "rounds")},
        "bound_margin": limits.probability / value,
    }
    stated = f"The chance to rebuild an example that differential privacy leaves, {value:.2g},"
    why_not = (
        f"{stated} is above the limit of {limits.probability:g}."
        if value > limits.probability
        else _seen_against(stated, release, limits)
    )
    return Bound(
        holds=not why_not, reason="dp_bound", text=why_not or _privacy_sentence(weakest, limits), details=details
    )


def _no_probability(score: Score, limits: Limits) -> str:
    """Reason why a score says nothing on the chance to rebuild an example, or "" where it does."""
    if score.value is None:
        return f"Differential privacy gives no bound: {score.note}."
    if score.evidence is not Evidence.UPPER_BOUND:
        return "The chance to rebuild an example is an estimate, no bound."
    within = score.details["within"]
    if within < limits.error:
        return (
            f"The chance to rebuild an example is for an error of {within:g}, and up to {limits.error:g} counts as rebuilt; "
            f"state within = {limits.error:g}."
        )
    return ""


def _by_van_trees(scores: Sequence[Score], release: ReleaseFinding, limits: Limits) -> Bound:
    """The smallest lower limit of the mean error."""
    reasons = [_unreadable(score) for score in scores]
    readable = [score for score, reason in zip(scores, reasons, strict=True) if not reason]
    if not readable:
        return Bound(holds=False, reason="bayesian_bound", text=next(filter(None, reasons)), details={})
    weakest = min(readable, key=lambda score: score.value or 0.0)
    facts, value = weakest.details, weakest.value or 0.0
    details = {
        "bound": weakest.value,
        "prior": facts["prior"]["origin"],
        "prior_error": facts["prior_error"],
        "bound_noise_std": facts["noise_std"],
        "confidence": facts["confidence"],
        "bound_margin": value / limits.error,
    }
    why_not = _against(value, facts, release, limits)
    return Bound(
        holds=not why_not, reason="bayesian_bound", text=why_not or _sentence(weakest, limits), details=details
    )


def _unreadable(score: Score) -> str:
    """Reason why a score is no van Trees bound for this release, or "" where it is one."""
    if score.value is None:
        return f"The van Trees bound has no value: {score.note}."
    if score.unit != "pixel_rmse":
        return "The van Trees bound is in input units; state unit = 'pixel_rmse' for a verdict to read it."
    if score.evidence is not Evidence.LOWER_BOUND:
        return "The van Trees value is an estimate, no bound, since the release jumps as the input moves (ReLU, max pooling)."
    if not score.details["holds_for_release"]:
        return "The van Trees bound is for more noise than the release carries."
    return ""


def _against(value: float, facts: Mapping[str, Any], release: ReleaseFinding, limits: Limits) -> str:
    """Evidence against the verdict *bounded* by van Trees, or "" where there is none."""
    stated = f"The van Trees bound on the mean error, {value:.2g},"
    if value <= limits.error:
        return f"{stated} is not above the limit of {limits.error:g}."
    if facts["prior_error"] > WIDEST_PRIOR:
        return f"{stated} rests on a prior wider than any data of the stated range can be."
    if limits.blind is not None and limits.error < limits.blind < limits.baseline_ratio * value:
        return f"{stated} does not fit this example, which a blind guess meets within {limits.blind:.3g}."
    return _seen_against(stated, release, limits)


def _seen_against(stated: str, release: ReleaseFinding, limits: Limits) -> str:
    """Evidence against any bound on this release, or "" where there is none."""
    if limits.reached is not None and limits.reached <= limits.error:
        return f"{stated} is an average; an attack came within {limits.reached:.3g} on this very example."
    if limits.blind is not None and limits.blind <= limits.error:
        return f"{stated} does not fit this example, which a blind guess meets within {limits.blind:.3g}."
    z = release.gate.chi_square_z
    if release.given and release.gate.status != "consistent" and not (z is not None and abs(z) <= NOISE_Z):
        return f"{stated} rests on noise that the update which was sent is not shown to carry."
    return ""


def _privacy_sentence(score: Score, limits: Limits) -> str:
    facts = score.details
    rounds, size = facts["rounds"], facts["examples"]
    seen = "one such release" if rounds == 1 else f"{rounds} such releases of the same data"
    what = "an example" if size == 1 else f"any of the {size} examples"
    whom = "it" if size == 1 else "them"
    prior = facts["prior"]
    sure = f", κ at {prior['confidence']:.0%} confidence" if "confidence" in prior else ""
    whose, carrier = ("an example", "sum") if facts["hidden"] == "example" else ("the whole client", "update")
    most = _releases(facts, limits.probability)
    further = f" Up to {most} such releases of the same data stay within the limit." if most > rounds else ""
    return (
        f"No attacker who knows of {whom} no more than the stated prior, and sees {seen}, rebuilds {what} to a {limits.noun} of "
        f"{facts['within']:g} with a probability above {rounded_up(score.value or 0.0):g}, which is at most the limit of "
        f"{limits.probability:g}. This is reconstruction robustness from the differential privacy of "
        f"{whose} (μ = {facts['mu']:.3g}, that is ε = {facts['epsilon']:.3g} at δ = "
        f"{facts['delta']:g}; a guess from the prior succeeds with κ = {facts['kappa']:.2g}). It rests on clipping to "
        f"{facts['sensitivity']:g} with noise of std {facts['std']:.3g} on the {carrier}, and on the stated prior "
        f"({prior['origin']}{sure}), over which it is an average: single examples may be easier, and who knows more about "
        "one may do better"
        + (", and so may who sees several releases of the same data." if rounds == 1 else ".")
        + further
    )


def _releases(facts: Mapping[str, Any], limit: float) -> int:
    """The number of releases of the same data whose bound is at most the limit: μ grows with its root (Gaussian composition)."""
    size, kappa, mu = facts["examples"], facts["kappa"], facts["mu"]
    start, end = (kappa, limit / size) if facts["hidden"] == "example" else (min(1.0, size * kappa), limit)
    if not (0.0 < start <= end < 1.0 and mu > 0.0):
        return 0
    normal = NormalDist()
    room = (normal.inv_cdf(end) - normal.inv_cdf(start)) / mu
    return int(facts["rounds"] * room**2)


def _sentence(score: Score, limits: Limits) -> str:
    facts = score.details
    return (
        f"No attacker who sees one such release gets below a {limits.noun} of {score.value:.2g} on average over the stated "
        f"prior (van Trees, at {facts['confidence']:.0%} confidence; the prior alone leaves {facts['prior_error']:.2g}), which "
        f"is above the limit of {limits.error:g}. This rests on the prior ({facts['prior']['origin']}) and on Gaussian noise "
        f"of std {facts['noise_std']:.3g} on every shared number. It is an average over the prior and not a worst case: "
        "single examples may leak more, and so may several releases of the same data."
    )

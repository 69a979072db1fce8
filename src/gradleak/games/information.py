"""Bounds on what updates can tell of a sensitive variable, in nats, and what that allows any adversary to reach."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
import torch
from numpy.typing import ArrayLike, NDArray

from gradleak.core import BatchDefense, DiagonalGaussian, ExampleDefense, Objective, Release, UpdateDefense
from gradleak.results import (
    Evidence,
    InputError,
    Leakier,
    Outcome,
    Score,
    check_count,
    check_not_negative,
    check_positive,
)

Floats = NDArray[np.float64]
RESAMPLES = 2000


def entropy_of(prior: Sequence[float] | Floats) -> float:
    """H(a) = −Σ P(a) log P(a) in nats.

    Args:
        prior: P(a), m numbers of at least 0 that sum to 1.

    Raises:
        InputError: for numbers that are no distribution.
    """
    return float(scipy.special.entr(_distribution(prior)).sum())


def fano_error(entropy: float, information: float, classes: int, *, blind: float | None = None) -> float:
    """The smallest error probability that Fano's inequality leaves to a guess of one of m values.

    The smallest e in [0, 1 − p*] with H₂(e) + e log(m − 1) ≥ H(a) − I, H₂ the binary entropy: what is left unknown,
    H(a|g) = H(a) − I, is at most the entropy of the error and of the value given an error. The left side rises from 0
    to log m on [0, (m − 1)/m], so that the smallest e is its only root there; nothing is approximated, and m = 2 is no
    special case.

    **Assumptions**: I is the information, or an upper bound on it, for a lower bound on the error. With an estimate of I
    it is an estimate. For a uniform prior some channel reaches it, as for m = 2 with any prior; else it can be too small.

    Args:
        entropy: H(a) in nats, from 0 to log m.
        information: I(a; g) in nats, at least 0; from H(a) on the error is 0.
        classes: m, at least 2.
        blind: p*, the success rate of the best blind guess; no error need be larger than 1 − p*. None for 1/m.

    Raises:
        InputError: for numbers out of range.

    **Cost**: one root.

    **Source**: Li et al. 2024, inequality (6), solved as they propose below (7).

    Examples:
        A binary symmetric channel that flips one bit in ten has I = log 2 − H₂(0.1), and no guess errs less:

        >>> flip = scipy.special.entr([0.1, 0.9]).sum()
        >>> round(fano_error(math.log(2), math.log(2) - flip, 2), 12)
        0.1
    """
    check_count("classes", classes, least=2)
    check_not_negative("entropy", entropy)
    if not information >= 0:
        raise InputError(f"information: expected at least 0 nats, got {information!r}")
    if entropy > math.log(classes) * (1 + 1e-9):
        raise InputError(f"entropy: expected at most log {classes} = {math.log(classes):.6g} nats, got {entropy!r}")
    if blind is not None and not 1.0 / classes - 1e-9 <= blind <= 1.0:
        raise InputError(f"blind: expected a best guess right in 1/{classes} to 1 of all cases, got {blind!r}")
    most = (classes - 1.0) / classes
    unknown = entropy - information
    if unknown <= 0.0:
        return 0.0

    def excess(error: float) -> float:
        return float(scipy.special.entr([error, 1.0 - error]).sum()) + error * math.log(classes - 1) - unknown

    found = most if excess(most) <= 0.0 else float(scipy.optimize.brentq(excess, 0.0, most, xtol=1e-15, rtol=1e-14))
    return found if blind is None else min(found, 1.0 - blind)


def fano_advantage(prior: Sequence[float] | Floats, information: Score) -> Score:
    """The largest advantage (p − p*)/(1 − p*) that Fano's inequality leaves to any adversary.

    1 − e/(1 − p*) for the error e of `fano_error`. It is an upper bound where the information is one, and an estimate
    where the information is estimated: from below by an adversary, so that a stronger one may well exceed it.

    Args:
        prior: P(a), (m,).
        information: of `gaussian_channel_information` or `information_estimate`.

    Returns:
        A score named `fano_advantage` with evidence "upper_bound" or "estimate". 1 says that the bound is vacuous.
        Without information it has the outcome of that; with p* = 1 it is `not_informative`.

    Raises:
        InputError: for a prior that is no distribution.

    **Source**: Li et al. 2024, inequality (8), with inequality (6) solved in place of its bound (7).
    """
    law = _distribution(prior)
    blind, entropy, classes = float(law.max()), entropy_of(law), int((law > 0).sum())
    evidence = Evidence.UPPER_BOUND if information.evidence is Evidence.UPPER_BOUND else Evidence.ESTIMATE
    details = {"blind": blind, "entropy": entropy, "classes": classes, "information": information.value}
    if information.value is None:
        return _score("fano_advantage", None, evidence, information.outcome, note=information.note, details=details)
    if classes < 2:
        why = "one value is certain beforehand (p* = 1), so that nothing is left to gain"
        return _score("fano_advantage", None, evidence, Outcome.NOT_INFORMATIVE, note=why, details=details)

    def advantage(nats: float) -> float:
        found = 1.0 - fano_error(entropy, max(nats, 0.0), classes, blind=blind) / (1.0 - blind)
        # What is left of nothing is round-off.
        return found if found > 1e-12 else 0.0

    value = advantage(information.value)
    interval = None
    if information.interval is not None:
        interval = (advantage(information.interval[0]), advantage(information.interval[1]))
    vacuous = "" if value < 1.0 else "vacuous: the information may be all of H(a)"
    note = "; ".join(part for part in (vacuous, information.note) if part)
    return _score("fano_advantage", value, evidence, n=information.n, interval=interval, note=note, details=details)


def channel_information(norm: float, std: float, size: int, *, releases: int = 1) -> float:
    """The most that noisy updates tell of anything, in nats: R · (n/2) log(1 + C²/(nσ²)) for R releases.

    The capacity of n parallel Gaussian channels with power C² in all: the released vector has a second moment of at most
    C² + nσ², so that its entropy is at most that of white Gaussian noise with this power, and given the data what is
    left is the entropy of the noise. It grows with n, to C²/(2σ²).

    Args:
        norm: C, the largest L2 norm of an update without its noise (the root of its mean square would do).
        std: σ, of the noise on every entry of the update.
        size: n, entries of an update.
        releases: R.

    **Source**: Li et al. 2024, section 6.3, who write ½ log(1 + P/σ²) for all n entries together (see the factor n).

    Examples:
        >>> channel_information(1.0, 1.0, 1)
        0.34657359027997264
    """
    for name, value in (("norm", norm), ("std", std)):
        check_positive(name, value)
    check_count("size", size)
    check_count("releases", releases, least=0)
    return releases * size / 2.0 * math.log1p((norm / std) ** 2 / size)


def channel_std(information: float, norm: float, size: int, *, releases: int = 1) -> float:
    """The standard deviation on the update from which on R releases tell at most so much: the inverse of the above.

    Args:
        information: in nats; H(a) for the noise at which the bound stops being vacuous.
        norm: C.
        size: n.
        releases: R.
    """
    for name, value in (("information", information), ("norm", norm)):
        check_positive(name, value)
    return norm / math.sqrt(size * math.expm1(2.0 * information / (size * releases)))


@dataclass(frozen=True, kw_only=True)
class _Channel:
    """A vector of bounded norm with Gaussian noise, of which what is released is a function."""

    norm: float
    std: float


def gaussian_channel_information(
    releases: Sequence[Release], objective: Objective, *, examples: int, prior: Sequence[float] | Floats | None = None
) -> Score:
    """An upper bound on I(a; g̃₁, …, g̃_R): what all observed updates of one batch tell of its sensitive variable.

    The sum over rounds of (n/2) log(1 + C²/(nσ²)), and at most H(a). C bounds the L2 norm of the update before the noise,
    σ is the standard deviation that the noise has on the update: for DP-SGD on the mean of k clipped gradients C is the
    clip norm, and σ that of every example over √k (`noise="per_example"`) or that of the sum over k (`noise="sum"`).

    **Why the sum is a bound.** Let D be the private rows, drawn once, and x the batch, drawn from D given a. θ_i are the
    parameters at round i. By the chain rule I(a; θ₁, g̃₁, …, θ_R, g̃_R | D) = Σ_i I(a; θ_i | past, D) + Σ_i I(a; g̃_i | past,
    θ_i, D).

    - The first sum is 0: the parameters come from D, from earlier releases and from noise of their own, which are
      independent of a given the past and D. So it is in the game, where the training does not know which batch is being
      tried, and also where parameters are chosen by the releases so far, whoever chooses them: they may be adaptive.
    - In the second, the update without noise is a function m_i of x given the past and θ_i, with norm at most C, and the
      noise is fresh: I(a; g̃_i | past, θ_i, D) ≤ h(g̃_i | past, θ_i, D) − h(noise) ≤ (n/2) log(1 + C²/(nσ²)), since no law
      with that second moment has a larger entropy than the Gaussian. That the batch is the same in all rounds makes the
      terms less than this, never more.
    - So the bound is on I(a; all | D), for an adversary who is handed D. Where a does not depend on D (shares and users: the
      law is fixed) not knowing D tells less, I(a; all) ≤ I(a; all | D). Attributes and properties are drawn by their shares
      in D: their law is known with D alone, and the bound, H(a) and p* hold conditionally on D, with its shares.

    **Assumptions**: fresh noise in every release, of every release of the same batch all that is observed, and no side
    information on the batch: with φ(x), H(a|φ) stands for H(a) and P(a|φ) for the prior. The bound is on one draw of the
    batch; an adversary who sees more batches with the same a adds them up. It is often far from tight.

    The noise that counts is that right after a bound on the norm; later defenses of the update are functions of what is
    noisy already. Of several such places the best counts. With noise of different strength by layer σ is the smallest.

    Args:
        releases: of every observed round its protocol and defenses.
        objective: the client's loss; its shapes say how many entries carry which noise.
        examples: k, the number of examples of a batch.
        prior: P(a), for the limit H(a); None for no limit.

    Returns:
        A score named `information_bound` in nats with evidence "upper_bound"; `details` holds C, σ, n and the sum before
        the limit. `unsupported` with the reason where no norm is bounded, no Gaussian noise follows it, or a defense
        looks at the batch after it.

    Raises:
        InputError: without a release or an example.

    **Cost**: none to speak of; nothing is computed from data.

    **Source**: Li et al. 2024, section 6.3 (one release); the sum over rounds is ours.
    """
    check_count("examples", examples)
    if not releases:
        raise InputError("gaussian_channel_information: expected the release of at least one round, got none")
    entropy = None if prior is None else entropy_of(prior)
    channels = [_channel(release, objective, examples) for release in releases]
    reason = next((found for found in channels if isinstance(found, str)), None)
    if reason is not None:
        return _score("information_bound", None, Evidence.UPPER_BOUND, Outcome.UNSUPPORTED, note=reason)
    size = sum(tensor.numel() for tensor in objective.params.values())
    known = [channel for channel in channels if isinstance(channel, _Channel)]
    total = math.fsum(channel_information(channel.norm, channel.std, size) for channel in known)
    details = {
        "sum": total,
        "entropy": entropy,
        "rounds": len(known),
        "norm": max(channel.norm for channel in known),
        "noise_std": min(channel.std for channel in known),
        "size": size,
        "examples": examples,
    }
    note = ""
    if entropy is not None and total >= entropy:
        level = channel_std(entropy, known[0].norm, size, releases=len(known)) if entropy > 0 else math.inf
        details["std_needed"] = level
        note = (
            f"vacuous: the noise would allow {total:.4g} nats, more than all that there is to be told (H(a) = {entropy:.4g}); to "
            f"limit anything, it takes noise of std {level:.3g} on the update, {level / known[0].std:.3g} times the present one"
        )
    value = total if entropy is None else min(total, entropy)
    return _score("information_bound", value, Evidence.UPPER_BOUND, note=note, details=details)


def information_estimate(
    log_posteriors: ArrayLike,
    truth: ArrayLike,
    prior: Sequence[float] | Floats,
    *,
    seed: int = 0,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
) -> Score:
    """Estimate of I(a; g) from below: what a trained adversary shows that the updates tell of the variable, in nats.

    The mean over trials of log q(a|g)/P(a) = H(a) − cross-entropy, for the adversary's posterior q. Its expectation is I
    minus the mean divergence of q from the true posterior, so never above I for a q that did not see the trials.

    Posteriors that multiply many rounds rank well and are far too sure. Before the mean is taken they are tempered,
    q ∝ P(a) (q/P(a))^t, with the t that suits the other half of the trials best (each half is judged with the t of the
    other), which keeps the property. `details` holds both temperatures' exponents and the value without tempering.

    Args:
        log_posteriors: (n, m), prior included, up to a constant of the row; of trials that the adversary was not
            trained on.
        truth: (n,).
        prior: P(a) by which the trials were drawn, (m,), positive.
        seed: of the bootstrap over trials.
        confidence: of its interval.
        resamples: of it.

    Returns:
        A score named `information_estimate` with evidence "estimate", at least 0 and at most H(a); `details["unclipped"]`
        and the interval are of the mean itself. `not_resolvable` with fewer than four trials, `not_finite` for
        posteriors that are not.

    Raises:
        InputError: for sizes that do not fit, a truth out of range or a prior with an impossible value.

    **Cost**: `resamples` sums over trials.

    **Source**: Li et al. 2024, section 6.3 (the cross-entropy of a classifier); tempering and interval are ours.
    """
    logs, true, law = np.asarray(log_posteriors, dtype=np.float64), np.asarray(truth), _distribution(prior)
    if logs.ndim != 2 or logs.shape != (len(true), len(law)):
        raise InputError(f"log_posteriors: expected ({len(true)}, {len(law)}), got {logs.shape}")
    if len(true) and not 0 <= int(true.min()) <= int(true.max()) < len(law):
        raise InputError(f"truth: expected 0 to {len(law) - 1}, got {true.min()} to {true.max()}")
    if not (law > 0).all():
        raise InputError(f"prior: expected positive probabilities, got {law.tolist()}; leave out impossible values")
    if len(true) < 4:
        why = f"{len(true)} trials are too few for a mean and its interval"
        return _score("information_estimate", None, Evidence.ESTIMATE, Outcome.NOT_RESOLVABLE, n=len(true), note=why)
    if not np.isfinite(logs).all():
        why = "posteriors are not finite; smooth those of a forest"
        return _score("information_estimate", None, Evidence.ESTIMATE, Outcome.NOT_FINITE, n=len(true), note=why)
    evidence_of = logs - np.log(law)
    halves = np.arange(len(true)) % 2
    exponents = [_exponent(evidence_of[halves != half], true[halves != half], law) for half in (0, 1)]
    gains = np.where(halves == 0, *(_gain(evidence_of, true, law, exponent) for exponent in exponents))
    mean, entropy = float(gains.mean()), entropy_of(law)
    random = np.random.default_rng(seed)
    means = [float(gains[random.integers(0, len(gains), len(gains))].mean()) for _ in range(resamples)]
    half = (1.0 - confidence) / 2.0
    low, high = (float(end) for end in np.quantile(means, [half, 1.0 - half]))
    return _score(
        "information_estimate",
        min(max(mean, 0.0), entropy),
        Evidence.ESTIMATE,
        n=len(true),
        interval=(min(low, mean), max(high, mean)),
        note="from below: another adversary may find more",
        details={
            "unclipped": mean,
            "untempered": float(_gain(evidence_of, true, law, 1.0).mean()),
            "exponents": exponents,
            "entropy": entropy,
            "confidence": confidence,
        },
    )


def information_scores(
    log_posteriors: ArrayLike, truth: ArrayLike, prior: Sequence[float] | Floats, *, bound: Score | None = None
) -> list[Score]:
    """Scores beside those of one adversary: information and the advantage it allows, bounded and estimated.

    Args:
        log_posteriors: (n, m), of all observed rounds together.
        truth: (n,).
        prior: P(a) by which the trials were drawn.
        bound: of `gaussian_channel_information`; None where none holds, as with side information.

    Returns:
        `information_bound` and the `fano_advantage` by it (upper bounds) if there is a bound, then `information_estimate`
        and the `fano_advantage` by it (estimates).
    """
    shown = information_estimate(log_posteriors, truth, prior)
    bounded = [] if bound is None else [bound, fano_advantage(prior, bound)]
    return [*bounded, shown, fano_advantage(prior, shown)]


def _gain(evidence_of: Floats, true: NDArray[np.int64], law: Floats, exponent: float) -> Floats:
    """Log q(a|g)/P(a) of every trial, for q ∝ P(a) exp(exponent · evidence)."""
    tempered = exponent * evidence_of
    norm = scipy.special.logsumexp(tempered + np.log(law), axis=1)
    found: Floats = tempered[np.arange(len(true)), true] - norm
    return found


def _exponent(evidence_of: Floats, true: NDArray[np.int64], law: Floats) -> float:
    """The exponent with the largest mean gain, between 0 and 4; the mean is concave in it."""
    found = scipy.optimize.minimize_scalar(
        lambda exponent: -float(_gain(evidence_of, true, law, exponent).mean()), bounds=(0.0, 4.0), method="bounded"
    )
    return float(found.x)


def _channel(release: Release, objective: Objective, examples: int) -> _Channel | str:
    """The best channel that a release passes through; or why there is none."""
    shapes = objective.params
    found: list[_Channel] = []
    at_example = [defense for defense in release.defenses if isinstance(defense, ExampleDefense)]
    norm, noise = _of_steps(release, at_example, objective, examples)
    for defense in release.defenses:
        if isinstance(defense, UpdateDefense) and defense.only_gaussian(shapes):
            law = defense.noise(shapes)
            if isinstance(law, DiagonalGaussian):
                noise = law if noise is None else noise.added_to(law)
        elif isinstance(defense, BatchDefense):
            # It reads the private batch again: what was noisy before is no longer all that is seen.
            found, norm, noise = [], None, None
        elif isinstance(defense, UpdateDefense):
            found += _closed(norm, noise)
            norm = defense.bound(shapes) if defense.noise(shapes) is None else None
            noise = None
    found += _closed(norm, noise)
    if found:
        return min(found, key=lambda channel: channel.norm / channel.std)
    names = ", ".join(type(defense).__name__ for defense in release.defenses) or "no defense"
    return (
        f"{names}: nothing limits what the updates tell. A limit takes a bound on the norm of the update and, right after it, "
        "Gaussian noise on every entry: DPSGD, or Clip and then GaussianNoise"
    )


def _closed(norm: float | None, noise: DiagonalGaussian | None) -> list[_Channel]:
    if norm is None or noise is None or not all(noise.std.values()):
        return []
    return [_Channel(norm=norm, std=min(noise.std.values()))]


def _of_steps(
    release: Release, at_example: Sequence[ExampleDefense], objective: Objective, examples: int
) -> tuple[float | None, DiagonalGaussian | None]:
    """A bound on the norm of the mean of defended gradients, and the noise on it; of the shared gradient alone."""
    if not at_example or not release.protocol.shares_gradient:
        return None, None
    last = at_example[-1]
    law = last.law(objective.params, examples)
    return (
        None if last.bound is None else last.bound * _weight(last, examples),
        law if isinstance(law, DiagonalGaussian) else None,
    )


def _weight(defense: ExampleDefense, examples: int) -> float:
    """Average of so many ones: 1 for a mean, k over the divisor for a sum over a constant."""
    return float(defense.average({"one": torch.ones(examples, 1, dtype=torch.float64)})["one"])


def _distribution(prior: Sequence[float] | Floats) -> Floats:
    law: Floats = np.asarray(prior, dtype=np.float64)
    if law.ndim != 1 or not law.size or not np.isfinite(law).all() or (law < 0).any() or abs(law.sum() - 1.0) > 1e-6:
        raise InputError(f"prior: expected probabilities that sum to 1, got {np.asarray(prior).tolist()}")
    normalized: Floats = law / law.sum()
    return normalized


def _score(
    name: str,
    value: float | None,
    evidence: Evidence,
    outcome: Outcome = Outcome.CONVERGED,
    *,
    n: int = 1,
    interval: tuple[float, float] | None = None,
    note: str = "",
    details: Mapping[str, Any] | None = None,
) -> Score:
    return Score(
        name=name,
        value=value,
        unit="share" if name == "fano_advantage" else "nat",
        leakier=Leakier.HIGHER,
        evidence=evidence,
        interval=interval,
        n=n,
        outcome=outcome,
        note=note,
        details=details or {},
    )

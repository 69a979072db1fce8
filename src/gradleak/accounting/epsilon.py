"""Epsilon from the noise really added: of one step by two formulas, of all rounds by two accountants."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
import torch

from gradleak.accounting.cautions import SAMPLING, delta_caution
from gradleak.accounting.mechanism import mechanism_of
from gradleak.accounting.overheard import overheard
from gradleak.core import Adjacency, GaussianMechanism, NoGuarantee, Objective, Release, Unit
from gradleak.results import (
    Count,
    Evidence,
    InputError,
    Leakier,
    Outcome,
    Positive,
    Score,
    Settings,
    Share,
    ShareOrAll,
    UnsupportedError,
    check_positive,
    is_number,
)

# Grid cells within a standard deviation of the loss of a round, and beyond so many rounds, where round-off adds up.
CELLS, FEWER_CELLS, MANY_ROUNDS = 20, 10, 10**5
# Of the whole range of the loss of a round: more cost minutes.
MOST_CELLS = 200_000
# Its exponential has to be a float.
LARGEST_CELL = 50.0


def classical_gaussian_epsilon(sensitivity: float, std: float, delta: float) -> Score:
    """Epsilon of one step by the classical Gaussian formula, Δ√(2 ln(1.25/δ))/σ.

    Proven for ε < 1 only, where it is an upper bound. Above it is a convention, and too small where noise is little: at
    Δ = 2, σ = 0.1, δ = 1e-5 it gives 96.90 and the exact value is 284.39.

    Args:
        sensitivity: Δ, positive.
        std: σ, the noise on every entry, positive.
        delta: δ, between 0 and 1.

    Raises:
        InputError: for a number out of range.

    **Source**: Dwork and Roth 2014, theorem A.1; Li et al. 2024, section 6.1 (5), which use it for each step.

    Examples:
        >>> round(classical_gaussian_epsilon(2.0, 0.1, 1e-5).value, 2)
        96.9
    """
    mechanism = GaussianMechanism(sensitivity=sensitivity, std=std)
    _check_delta(delta)
    multiplier = mechanism.noise_multiplier
    value = math.sqrt(2 * math.log(1.25 / delta)) / multiplier if multiplier else math.inf
    if not math.isfinite(value):
        return _none("classical_gaussian_epsilon", _TOO_LARGE, Outcome.NOT_FINITE)
    proven = value < 1
    return _score(
        "classical_gaussian_epsilon",
        value,
        Evidence.UPPER_BOUND if proven else Evidence.ESTIMATE,
        note="classical Gaussian formula" + ("" if proven else ": proven below 1 only, a convention here"),
        details={"sensitivity": sensitivity, "std": std, "delta": delta},
    )


def exact_gaussian_epsilon(sensitivity: float, std: float, delta: float) -> Score:
    """Epsilon of one step of the Gaussian mechanism, exactly: the smallest ε at which it is (ε, δ)-private.

    Solves Φ(Δ/2σ − εσ/Δ) − e^ε Φ(−Δ/2σ − εσ/Δ) = δ.

    Args:
        sensitivity: Δ, positive.
        std: σ, the noise on every entry, positive.
        delta: δ, between 0 and 1.

    Raises:
        InputError: for a number out of range.

    **Source**: Balle and Wang 2018, theorem 8, by dp-accounting.

    Examples:
        >>> round(exact_gaussian_epsilon(2.0, 0.1, 1e-5).value, 2)
        284.39
    """
    mechanism = GaussianMechanism(sensitivity=sensitivity, std=std)
    _check_delta(delta)
    value = _analytic(mechanism.noise_multiplier, delta)
    if not math.isfinite(value):
        return _none("gaussian_epsilon", _TOO_LARGE, Outcome.NOT_FINITE)
    details = {"sensitivity": sensitivity, "std": std, "delta": delta}
    return _score("gaussian_epsilon", value, Evidence.EXACT, note="analytic Gaussian mechanism", details=details)


def pld_epsilon(
    mechanism: GaussianMechanism,
    *,
    delta: float,
    rounds: int = 1,
    sampling_rate: float = 1.0,
    adjacency: Adjacency | str = Adjacency.ADD_OR_REMOVE,
) -> Score:
    """Epsilon of all rounds by privacy loss distributions: an upper bound that is tight up to its grid.

    Without sampling there is no grid: rounds and steps compose to one Gaussian mechanism of √(rounds · steps) times the
    sensitivity, whose epsilon is analytic (evidence exact for one step a round of a mechanism that is not `loose`; a
    round of several steps shows less than all of them, so that it is an upper bound).

    With sampling the grid of the loss has 20 cells within a standard deviation of the loss of one round (10 beyond 10⁵
    rounds) and is finer where rounding would move the mean by 0.1 %; ten times finer ones change the value by less than
    0.3 %, where it is above 0.01. Where RDP gives less (epsilons far below 0.01), that is the value, with a note: both
    are upper bounds.

    Args:
        mechanism: of one round.
        delta: δ, between 0 and 1.
        rounds: how many releases, each with `mechanism.steps` steps.
        sampling_rate: q: every unit takes part with this probability, independently (Poisson); 1 for every time.
        adjacency: "add_or_remove" (a unit's contribution becomes zero) or "replace" (another in its place).

    Raises:
        InputError: for a number out of range.

    **Cost**: none without sampling; with it up to a second, for 10⁵ rounds and more some seconds.

    **Source**: Doroshenko et al. 2022 and, without sampling, Balle and Wang 2018, theorem 8, both by dp-accounting;
    the grid is ours.
    """
    return _total(mechanism, delta, rounds, sampling_rate, Adjacency(adjacency), by_pld=True)


def rdp_epsilon(
    mechanism: GaussianMechanism,
    *,
    delta: float,
    rounds: int = 1,
    sampling_rate: float = 1.0,
    adjacency: Adjacency | str = Adjacency.ADD_OR_REMOVE,
) -> Score:
    """Epsilon of all rounds by Rényi divergences: an upper bound, looser than `pld_epsilon`.

    Poisson sampling with "replace" is unsupported.

    Args:
        mechanism: of one round.
        delta: δ, between 0 and 1.
        rounds: how many releases, each with `mechanism.steps` steps.
        sampling_rate: q: every unit takes part with this probability, independently (Poisson); 1 for every time.
        adjacency: "add_or_remove" or "replace".

    Raises:
        InputError: for a number out of range.

    **Source**: Mironov, Talwar and Zhang 2019, by dp-accounting with its default orders.
    """
    return _total(mechanism, delta, rounds, sampling_rate, Adjacency(adjacency), by_pld=False)


@dataclass(frozen=True, kw_only=True)
class Accounting(Settings):
    """Repeated releases and their epsilon: the scores of a run.

    Attributes:
        delta: δ, between 0 and 1; well below one over the number of units.
        rounds: how many releases.
        sampling_rate: q: every unit takes part in a round with this probability, independently; 1 for every time.
        adjacency: "add_or_remove" or "replace".
        settings_tried: how many settings were tried on the private data, this one among them. The epsilon of one run
            does not cover the choice of the best; a note says so.
        clip_query_std: standard deviation of the noise on the number of units that lie within the clipping norm, by which the
            next round's norm is chosen (`next_clip_norm`); None where the norm does not adapt. It is counted with the noise
            on the sum: together they hide a unit as one noise multiplier (z⁻² + (2σ)⁻²)^−½ does.
        units: how many units there are in all, against which δ is held (a note says where it is not below one over
            them); None for at least those of a batch.

    Raises:
        InputError: for a number out of range.
    """

    delta: Share
    rounds: Count = 1
    sampling_rate: ShareOrAll = 1.0
    adjacency: Adjacency | str = Adjacency.ADD_OR_REMOVE
    settings_tried: Count = 1
    clip_query_std: Positive | None = None
    units: Count | None = None

    def __call__(self, release: Release, objective: Objective, examples: int) -> list[Score]:
        """Four scores: one step by the classical formula and exactly, all rounds by PLD and by RDP.

        A release without a guarantee gives all four without a value and with the reason: its epsilon is "none", neither
        0 nor infinite. One step means that the unit takes part; sampling counts in the totals alone, and they are
        unsupported where an empty sample shows (`Release.of_nothing` refuses).

        Args:
            release: protocol and defenses.
            objective: the client's loss, for its shapes.
            examples: b, the number of examples of a batch; with Poisson sampling, of any one.
        """
        mechanism = mechanism_of(release, objective, examples)
        if isinstance(mechanism, NoGuarantee):
            return [
                self._noted(_none(name, mechanism.reason), "")
                for name in ("classical_gaussian_epsilon", "gaussian_epsilon", "pld_epsilon", "rdp_epsilon")
            ]
        if self.clip_query_std is not None:
            mechanism = with_clip_query(mechanism, self.clip_query_std)
        sensitivity = mechanism.sensitivity * (2 if self.adjacency is Adjacency.REPLACE else 1)
        steps = [
            of_mechanism(formula(sensitivity, mechanism.std, self.delta), mechanism)
            for formula in (classical_gaussian_epsilon, exact_gaussian_epsilon)
        ]
        # Of clients that a server adds up, it adds noise also where there are none.
        silent = release.protocol.clients_added is None and not can_be_empty(release, objective)
        shows = self.sampling_rate < 1 and mechanism.fixed and silent
        totals = [
            _none(total.__name__, _SHOWS, Outcome.UNSUPPORTED)
            if shows
            else total(
                mechanism,
                delta=self.delta,
                rounds=self.rounds,
                sampling_rate=self.sampling_rate,
                adjacency=self.adjacency,
            )
            for total in (pld_epsilon, rdp_epsilon)
        ]
        known = self.units or (examples if mechanism.unit is Unit.EXAMPLE else 1)
        caution = delta_caution(self.delta, known, mechanism.unit.value)
        return [self._noted(score, caution) for score in (*steps, *totals)]

    def _noted(self, score: Score, caution: str) -> Score:
        tried = {} if self.settings_tried == 1 else {"settings_tried": self.settings_tried}
        choice = (
            f"{self.settings_tried} settings were tried on the private data; this epsilon does not cover the choice among "
            "them"
        )
        notes = (score.note, caution, choice if tried else "")
        return replace(score, note="; ".join(filter(None, notes)), details={**score.details, **tried})


def _total(
    mechanism: GaussianMechanism,
    delta: float,
    rounds: int,
    sampling_rate: float,
    adjacency: Adjacency,
    *,
    by_pld: bool,
) -> Score:
    _check(delta, rounds, sampling_rate)
    name = "pld_epsilon" if by_pld else "rdp_epsilon"
    replaced = adjacency is Adjacency.REPLACE
    sampled = sampling_rate < 1
    if sampled and not mechanism.fixed:
        return _none(
            name,
            "under Poisson sampling the number of examples is private, and noise, divisor or mini-batches depend on it; use "
            "DPSGD(..., noise='sum', expected_batch_size=...) with a public number, and whole batches",
            Outcome.UNSUPPORTED,
        )
    if sampled and replaced and not by_pld:
        return _none(name, "Poisson sampling with 'replace' has no RDP bound here; use PLD", Outcome.UNSUPPORTED)
    # Loaded where epsilon is asked for, here and below: half a second of every process that never does.
    import dp_accounting

    # Gaussian mechanisms on one sample compose to one with less noise: the steps of a round share its sample.
    spread = mechanism.noise_multiplier / math.sqrt(mechanism.steps)
    note, evidence = _of(mechanism), Evidence.UPPER_BOUND
    if sampled:
        note = f"{note}; {SAMPLING}"
        event: Any = dp_accounting.SelfComposedDpEvent(
            dp_accounting.PoissonSampledDpEvent(sampling_rate, dp_accounting.GaussianDpEvent(spread)), rounds
        )
    else:
        # Another unit in the place of one moves the sum twice as far.
        spread = spread / math.sqrt(rounds) / (2 if replaced else 1)
        event = dp_accounting.GaussianDpEvent(spread)
    if not by_pld:
        value, left_out = _by_rdp(event, delta)
        note = f"{note}; {left_out}" if left_out else note
    elif not sampled:
        value = _analytic(spread, delta)
        note = f"{note}; closed form: without sampling all rounds are one Gaussian mechanism"
        if not mechanism.loose and mechanism.steps == 1:
            evidence = Evidence.EXACT
    else:
        value = _by_pld(event, delta, replaced=replaced)
        other = math.inf if replaced else _by_rdp(event, delta)[0]
        if other < value:
            value = other
            note = f"{note}; the value by RDP, which is smaller here: the grid of PLD is too coarse for it"
    details = {
        "sensitivity": mechanism.sensitivity,
        "std": mechanism.std,
        "noise_multiplier": mechanism.noise_multiplier,
        "unit": mechanism.unit.value,
        "delta": delta,
        "rounds": rounds,
        "steps_per_round": mechanism.steps,
        "sampling": f"Poisson, rate {sampling_rate:g}" if sampled else "none: takes part in every round",
        "adjacency": adjacency.value,
    }
    if not math.isfinite(value):
        return _none(name, _TOO_LARGE, Outcome.NOT_FINITE)
    return _score(name, value, evidence, note=note, details=details)


_SHOWS = "a round whose sample is empty sends nothing, which reveals that it is empty"
_TOO_LARGE = "the accountant finds no finite epsilon for this noise"
# What accountants raise, or warn of, where a number leaves the range of floats.
_OUT_OF_RANGE = (ArithmeticError, ValueError, RuntimeError, MemoryError)


def _analytic(multiplier: float, delta: float) -> float:
    """Epsilon of one Gaussian mechanism; infinite where it leaves the range of floats."""
    if multiplier < math.sqrt(sys.float_info.min):
        return math.inf  # 1/(2 multiplier²) is no float, and the search for epsilon would end at 0
    import dp_accounting

    with np.errstate(all="ignore"):  # log 0 on the way to an epsilon of 0
        try:
            return float(dp_accounting.get_epsilon_gaussian(multiplier, delta))
        except _OUT_OF_RANGE:
            return math.inf


def _by_rdp(event: Any, delta: float) -> tuple[float, str]:
    """Epsilon by RDP, and a note on orders that the accountant left out; infinite where it fell back to zero."""
    from dp_accounting import rdp

    with np.errstate(all="ignore"), overheard("absl") as told:
        try:
            value = float(rdp.RdpAccountant().compose(event).get_epsilon(delta))
        except _OUT_OF_RANGE:
            return math.inf, ""
    if any("Negative Renyi divergence" in message for message in told):
        return math.inf, ""
    out = sum("failed to converge" in message for message in told)
    return value, f"{out} Rényi orders did not converge and were left out, which can only raise it" if out else ""


def _by_pld(event: Any, delta: float, *, replaced: bool) -> float:
    import dp_accounting
    from dp_accounting import pld

    neighbors = dp_accounting.NeighboringRelation
    relation = neighbors.REPLACE_ONE if replaced else neighbors.ADD_OR_REMOVE_ONE
    with np.errstate(all="ignore"):
        try:
            sampling = event.event
            grid = _grid(sampling.event.noise_multiplier, sampling.sampling_probability, event.count)
            accountant = pld.PLDAccountant(relation, value_discretization_interval=grid)
            return float(accountant.compose(event).get_epsilon(delta))
        except _OUT_OF_RANGE:
            return math.inf


def _grid(spread: float, rate: float, rounds: int) -> float:
    """A grid for the loss of one round, log(1 − q + q exp((2x − 1)/2s²)) with x ~ (1 − q)N(0, s²) + qN(1, s²)."""

    def loss(x: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * x - 1) / (2 * spread**2))
        return found

    nodes, weights = np.polynomial.hermite_e.hermegauss(64)
    weights = weights / weights.sum()
    absent, present = loss(spread * nodes), loss(1 + spread * nodes)
    losses, shares = np.concatenate([absent, present]), np.concatenate([(1 - rate) * weights, rate * weights])
    mean = float(shares @ losses)
    std = math.sqrt(float(shares @ (losses - mean) ** 2))
    cells = CELLS if rounds <= MANY_ROUNDS else FEWER_CELLS
    # A cell g moves the mean of a round by about g²/8 where it is small, and that of a round with the unit by g/2 where
    # it is large.
    allowed = max(2e-3 * float(weights @ present), math.sqrt(8e-3 * max(mean, 0.0)))
    fine = min(std / cells, allowed, LARGEST_CELL)
    low, high = loss(np.array([-10 * spread, 1 + 10 * spread]))
    return max(fine, float(high - low) / MOST_CELLS)


def with_clip_query(mechanism: GaussianMechanism, std: float) -> GaussianMechanism:
    """A mechanism whose clipping norm adapts: it also tells, with noise, how many units lie within the norm.

    Every unit reports ½ where its norm is within, −½ where it is not, so that one moves the sum by ½; both noisy sums
    together are one Gaussian mechanism of noise multiplier (z⁻² + (2σ)⁻²)^−½.

    Args:
        mechanism: of the sum, with noise multiplier z.
        std: σ, of the noise on the sum of the reports; positive.

    Raises:
        InputError: for a standard deviation that is not positive.

    **Source**: Andrew et al. 2021, theorem 1.

    Examples:
        >>> round(with_clip_query(GaussianMechanism(sensitivity=1.0, std=1.0), 5.0).noise_multiplier, 4)
        0.995
    """
    check_positive("clip_query_std", std)
    joint = (mechanism.noise_multiplier**-2 + (2 * std) ** -2) ** -0.5
    return replace(mechanism, std=joint * mechanism.sensitivity)


def next_clip_norm(clip_norm: float, within: float, *, quantile: float = 0.5, rate: float = 0.2) -> float:
    """The clipping norm of the next round, C exp(−η(b − γ)): it goes to a quantile of the norms of updates.

    Args:
        clip_norm: C of this round, positive.
        within: b, the noisy share of units whose norm is at most C.
        quantile: γ.
        rate: η.

    Raises:
        InputError: for a norm that is not positive.

    **Source**: Andrew et al. 2021, algorithm 1.

    Examples:
        >>> next_clip_norm(1.0, 0.5)
        1.0
    """
    check_positive("clip_norm", clip_norm)
    return clip_norm * math.exp(-rate * (within - quantile))


def can_be_empty(release: Release, objective: Objective) -> bool:
    """True if a client whose sample is empty can send noise alone."""
    try:
        release.of_nothing(objective, torch.Generator().manual_seed(0))
    except UnsupportedError:
        return False
    return True


def of_mechanism(score: Score, mechanism: GaussianMechanism) -> Score:
    """The epsilon of one step, with the unit that it hides, and no longer exact where its mechanism is loose."""
    exact = score.evidence is Evidence.EXACT
    evidence = Evidence.UPPER_BOUND if exact and mechanism.loose else score.evidence
    details = {**score.details, "unit": mechanism.unit.value}
    return replace(score, evidence=evidence, note=f"{score.note}; {_of(mechanism)}", details=details)


def _of(mechanism: GaussianMechanism) -> str:
    return f"for one {mechanism.unit.value}" + (f"; an upper bound: {mechanism.loose}" if mechanism.loose else "")


def _score(name: str, value: float, evidence: Evidence, *, note: str, details: dict[str, Any]) -> Score:
    return Score(
        name=name, value=value, unit="epsilon", leakier=Leakier.HIGHER, evidence=evidence, note=note, details=details
    )


def _none(name: str, reason: str, outcome: Outcome = Outcome.NOT_INFORMATIVE) -> Score:
    return Score(
        name=name,
        value=None,
        unit="epsilon",
        leakier=Leakier.HIGHER,
        evidence=Evidence.UPPER_BOUND,
        outcome=outcome,
        note=f"none: {reason}",
    )


def _check_delta(delta: float) -> None:
    if not is_number(delta) or not 0 < delta < 1:
        raise InputError(f"delta: expected a number between 0 and 1, got {delta!r}")


def _check(delta: float, rounds: int, sampling_rate: float) -> None:
    _check_delta(delta)
    if not isinstance(rounds, Integral) or isinstance(rounds, bool) or rounds < 1:
        raise InputError(f"rounds: expected a whole number of at least 1, got {rounds!r}")
    if not is_number(sampling_rate) or not 0 < sampling_rate <= 1:
        raise InputError(f"sampling_rate: expected a number above 0 and at most 1, got {sampling_rate!r}")

"""What the van Trees bound of a setting says on one release, for a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradleak.risk import BayesianCramerRao

Line = Mapping[str, Any]
# No law on a range of length 1 has a larger standard deviation.
WIDEST_PRIOR = 0.5
# Of the energy of the noise in an update that was really sent.
NOISE_Z = 5.0


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a bound has to be above, and what it is compared with.

    Attributes:
        error: the error up to which an example counts as rebuilt.
        baseline_ratio: the share of the blind adversary's error up to which it does.
        reached: the smallest error of an attack on the release, or None.
        blind: the smallest error of the blind adversary on it, or None.
        noun: what the error is called.
    """

    error: float
    baseline_ratio: float
    reached: float | None
    blind: float | None
    noun: str


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The bound on a release, ready for a verdict.

    Attributes:
        holds: whether it makes the release *bounded*.
        text: what it says and rests on where it holds, else why it does not.
        details: the numbers behind it.
    """

    holds: bool
    text: str
    details: Mapping[str, Any]


def bound_on(release: Line, rows: Sequence[Line], limits: Limits) -> Bound | None:
    """The weakest van Trees bound on a release, or None where the plan asked for none.

    It makes the release *bounded* where the lower confidence limit of the mean error lies above the limit of a leak, for
    noise that the release carries and a prior that the data could have, and nothing was seen that speaks against it.

    Args:
        release: the item line of the release.
        rows: all lines of the record.
        limits: what the bound is held against.
    """
    scores = [
        row for row in rows
        if row["type"] == "score" and row["item"] == f"{release['item']}/setting" and row["name"] == BayesianCramerRao.name
    ]  # fmt: skip
    if not scores:
        return None
    reasons = [_unreadable(score) for score in scores]
    readable = [score for score, reason in zip(scores, reasons, strict=True) if not reason]
    if not readable:
        return Bound(holds=False, text=next(filter(None, reasons)), details={})
    weakest = min(readable, key=lambda score: float(score["value"]))
    facts = weakest["details"]
    details = {
        "bound": weakest["value"],
        "prior": facts["prior"]["origin"],
        "prior_error": facts["prior_error"],
        "bound_noise_std": facts["noise_std"],
        "confidence": facts["confidence"],
    }
    why_not = _against(float(weakest["value"]), facts, release, limits)
    return Bound(holds=not why_not, text=why_not or _sentence(weakest, limits), details=details)


def _unreadable(score: Line) -> str:
    """Why a score is no bound for this release, or "" where it is one."""
    if score["value"] is None:
        return f"The van Trees bound has no value: {score['note']}."
    if score["unit"] != "pixel_rmse":
        return "The van Trees bound is in input units; state unit = 'pixel_rmse' for a verdict to read it."
    if score["evidence"] != "lower_bound":
        return "The van Trees value is an estimate, no bound, since the release jumps as the input moves (ReLU, max pooling)."
    if not score["details"]["holds_for_release"]:
        return "The van Trees bound is for more noise than the release carries."
    return ""


def _against(value: float, facts: Mapping[str, Any], release: Line, limits: Limits) -> str:
    """What speaks against the verdict *bounded*, or "" where nothing does."""
    stated = f"The van Trees bound on the mean error, {value:.2g},"
    if value <= limits.error:
        return f"{stated} is not above the limit of {limits.error:g}."
    if facts["prior_error"] > WIDEST_PRIOR:
        return f"{stated} rests on a prior wider than any data of the stated range can be."
    if limits.reached is not None and limits.reached <= limits.error:
        return f"{stated} is an average; an attack came within {limits.reached:.2g} on this very example."
    if limits.blind is not None and (limits.blind <= limits.error or limits.blind < limits.baseline_ratio * value):
        return f"{stated} does not fit this example, which guessing blindly meets within {limits.blind:.2g}."
    gate = release.get("gate") or {}
    z = gate.get("chi_square_z")
    if release.get("given") and gate.get("status") != "consistent" and not (z is not None and abs(z) <= NOISE_Z):
        return f"{stated} rests on noise that the update which was sent is not shown to carry."
    return ""


def _sentence(score: Line, limits: Limits) -> str:
    facts = score["details"]
    return (
        f"No attacker who sees one such release gets below a {limits.noun} of {score['value']:.2g} on average over the stated "
        f"prior (van Trees, at {facts['confidence']:.0%} confidence; the prior alone leaves {facts['prior_error']:.2g}), which "
        f"is above the limit of {limits.error:g}. This rests on the prior ({facts['prior']['origin']}) and on Gaussian noise "
        f"of std {facts['noise_std']:.3g} on every shared number. It is an average over the prior and not a worst case: "
        "single examples may leak more, and so may several releases of the same data."
    )

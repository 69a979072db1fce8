"""A claimed batch against the true one: paired one to one, worst case first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from gradleak.core import Batch, Domain, DomainKind, Reconstruction
from gradleak.core.domain import WIDE
from gradleak.results import Evidence, InputError, Leakier, Outcome, Score, median
from gradleak.scoring.image import check_channel_axis, mse, ssim, ssim_obstacle
from gradleak.scoring.pairing import Pairing, label_accuracy, pair, scorable, wrong_pairing_rmse

# Below this pixel RMSE (a quarter of one of 256 gray levels) a reconstruction counts as an exact hit.
EXACT_HIT_RMSE = 1e-3

# How far a true pixel may lie outside [0, 1] before its declared range is called wrong: float32 normalization
# undone leaves about 1e-6.
RANGE_TOLERANCE = 1e-4

UNITS: Mapping[str, tuple[str, Leakier]] = {
    "mse": ("pixel_mse", Leakier.LOWER),
    "pixel_rmse": ("pixel_rmse", Leakier.LOWER),
    "psnr": ("dB", Leakier.HIGHER),
    "ssim": ("ssim", Leakier.HIGHER),
    "exact_hits": ("share", Leakier.HIGHER),
}


def score_images(reconstruction: Reconstruction, batch: Batch, *, beside: Sequence[Batch] = ()) -> list[Score]:
    """The errors of a reconstruction: mse, pixel_rmse, psnr, ssim, exact_hits; label_accuracy, wrong_pairing_rmse.

    Claims and examples are paired one to one first (the order within a batch cannot be recovered). Each value is the
    worst case over the examples, that is the *smallest* error or the largest similarity; `details` holds
    `per_example` (in the order of the batch, None for an example without a claim), the `median` (of two middle values
    their mean, or the finite one where the other is infinite) and `aggregation` ("worst for the client"; "share" and
    "mean" where the value is one over all examples). `exact_hits` is the share of examples with
    a pixel RMSE below 1e-3. `label_accuracy` comes where targets are classes.

    For a batch `wrong_pairing_rmse` says what the same claims reach when each is held against a wrong example, on average:
    an error near it has found nothing about single examples, however small it looks.

    A claim is scored as it stands, also where it leaves the valid range; the note then says which share of its
    pixels does. Clamping it would lower its error, and could be done by the adversary just as well: an attack that
    wants it clamps. Claims with NaN or infinite pixels are never scored.

    Images that use at most half of their declared range are said to (`Domain.range_note`): if the range is wrong, all
    errors are too small.

    Args:
        reconstruction: the claim, in model-input units.
        batch: the truth, with its domain declared.
        beside: further batches of the same data, which the note on the declared range goes by, too.

    Returns:
        Scores with evidence "attack" and the outcome of the reconstruction; `wrong_pairing_rmse` with evidence "exact".
        Where nothing was claimed every value is None.

    Raises:
        InputError: the batch has no domain, its values leave the declared range, the channels stand last, or claim
            and truth differ in the shape of an example.

    Cost:
        O(b² d) for the pairing; one pass for each score.

    Source:
        SSIM: Wang et al. 2004.
    """
    truths, domain = pixels_of_truth(batch)
    if reconstruction.inputs is None or reconstruction.outcome.has_value is False:
        outcome, note = _unclaimed(reconstruction)
        labels = label_accuracy(reconstruction, batch, None)
        return [*_valueless(outcome, note), *([labels] if labels else [])]
    claims = reconstruction.inputs.detach()
    if claims.dim() == 0 or tuple(claims.shape[1:]) != domain.shape:
        raise InputError(
            f"reconstruction: expected (b, {', '.join(map(str, domain.shape))}) like the truth, "
            f"got {tuple(claims.shape)}"
        )
    claims = domain.to_pixels(claims.cpu().to(truths.dtype))
    finite = scorable(claims)
    if not bool(finite.any()):
        note = "the claim holds NaN or infinite pixels and was not scored"
        labels = label_accuracy(reconstruction, batch, None)
        return [*_valueless(Outcome.NOT_FINITE, note), *([labels] if labels else [])]
    pairing = pair(claims, truths)
    extra: dict[str, Any] = {}
    wrongly: list[Score] = []
    if truths.shape[0] > 1:
        extra = {"claim_of": list(pairing.claim_of)}
        wrong = wrong_pairing_rmse(claims, truths, pairing)
        if wrong is not None:
            extra["wrong_pairing_pixel_rmse"] = wrong
            wrongly = [_wrong(wrong, len(pairing.paired))]
    scores = scores_of_pairs(
        claims,
        truths,
        pairing,
        domain=domain,
        evidence=Evidence.ATTACK,
        outcome=reconstruction.outcome,
        note=_joined(_outside_note(claims[finite], len(finite) - int(finite.sum())), range_note(batch, beside)),
        extra=extra,
    )
    labels = label_accuracy(reconstruction, batch, pairing)
    return [*scores, *([labels] if labels else []), *wrongly]


def pixels_of_truth(batch: Batch) -> tuple[Tensor, Domain]:
    """The true examples in pixels scaled to [0, 1], float64, and their domain; checked against what is declared.

    Args:
        batch: the truth.

    Raises:
        InputError: no domain is declared, values are not finite or leave its range, or the channels stand last.
    """
    domain = batch.declared_domain()
    check_channel_axis(domain)
    pixels = domain.to_pixels(batch.validate().inputs.detach().cpu().to(torch.float64))
    low, high = float(pixels.min()), float(pixels.max())
    if low < -RANGE_TOLERANCE or high > 1.0 + RANGE_TOLERANCE:
        normalized = "" if domain.mean is None and domain.std is None else f", mean={domain.mean}, std={domain.std}"
        outside = (
            ((pixels < -RANGE_TOLERANCE) | (pixels > 1.0 + RANGE_TOLERANCE)).any(dim=0).reshape(domain.shape[0], -1)
        )
        place = int(outside.any(dim=1).int().argmax())
        raise InputError(
            f"batch.inputs: expected pixels within [0, 1] once the declared domain ({domain.range_text}{normalized}) is "
            f"undone, got [{low:.4g}, {high:.4g}], in channel or feature {place} first; declare the range and the "
            "normalization that the inputs really have"
        )
    return pixels, domain


def range_note(batch: Batch, beside: Sequence[Batch] = ()) -> str:
    """Note where the images of a batch, and of those beside it, use little of their declared range.

    Args:
        batch: with its domain declared.
        beside: further batches; those of another domain do not count.
    """
    domain = batch.declared_domain()
    return domain.range_note(one.inputs for one in (batch, *beside) if one.domain == domain)


def range_ends(batches: Sequence[Batch]) -> tuple[Batch, ...]:
    """The few of many batches that tell `range_note` what all of them do: of each domain those at the ends of its values.

    Args:
        batches: without those that have no domain.
    """
    lowest: dict[Domain, tuple[float, Batch]] = {}
    highest: dict[Domain, tuple[float, Batch]] = {}
    told: set[Domain] = set()
    for batch in batches:
        domain = batch.domain
        if domain is None or domain.kind is not DomainKind.IMAGE or domain in told or batch.inputs.numel() == 0:
            continue
        pixels = domain.to_pixels(batch.inputs.detach().cpu().to(torch.float64))
        low, high = float(pixels.min()), float(pixels.max())
        if math.isnan(low):
            continue
        lowest[domain] = min(lowest.get(domain, (low, batch)), (low, batch), key=itemgetter(0))
        highest[domain] = max(highest.get(domain, (high, batch)), (high, batch), key=itemgetter(0))
        # Where more of the range is used nothing is said, whatever follows.
        if not highest[domain][0] - lowest[domain][0] <= WIDE:
            told.add(domain)
    return tuple({id(one): one for _, one in (*lowest.values(), *highest.values())}.values())


def scores_of_pairs(
    claims: Tensor,
    truths: Tensor,
    pairing: Pairing,
    *,
    domain: Domain,
    evidence: Evidence,
    outcome: Outcome = Outcome.CONVERGED,
    note: str = "",
    extra: Mapping[str, Any] | None = None,
) -> list[Score]:
    """The five image scores of paired claims.

    Args:
        claims: (m, *shape) pixels.
        truths: (b, *shape) pixels.
        pairing: with at least one pair.
        domain: what the examples are.
        evidence: evidence kind of the scores.
        outcome: outcome of the scores that have a value.
        note: a sentence for the reader.
        extra: further details of every score.

    Returns:
        mse, pixel_rmse, psnr, ssim, exact_hits.
    """
    rows = [truth for truth, _ in pairing.paired]
    found = claims[[claim for _, claim in pairing.paired]]
    true = truths[rows]
    squared = mse(found, true).tolist()
    roots = [math.sqrt(value) for value in squared]
    values: dict[str, Sequence[float]] = {
        "mse": squared,
        "pixel_rmse": roots,
        "psnr": [-10.0 * math.log10(value) if value > 0 else math.inf for value in squared],
    }
    obstacle = ssim_obstacle(domain)
    if not obstacle:
        values["ssim"] = ssim(found, true).tolist()
    scores = []
    for name, numbers in values.items():
        scores.append(_worst_first(name, numbers, rows, len(truths), evidence, outcome, note, extra or {}))
    if obstacle:
        scores.append(_score("ssim", None, evidence, Outcome.UNSUPPORTED, note=f"SSIM is {obstacle}"))
    hits = [root < EXACT_HIT_RMSE for root in roots]
    details = {
        "aggregation": "share",
        "threshold_pixel_rmse": EXACT_HIT_RMSE,
        "per_example": _by_example(hits, rows, len(truths)),
        **(extra or {}),
    }
    scores.append(
        _score("exact_hits", sum(hits) / len(truths), evidence, outcome, n=len(truths), note=note, details=details)
    )
    return scores


def _worst_first(
    name: str,
    numbers: Sequence[float],
    rows: Sequence[int],
    examples: int,
    evidence: Evidence,
    outcome: Outcome,
    note: str,
    extra: Mapping[str, Any],
) -> Score:
    lower = UNITS[name][1] is Leakier.LOWER
    details = {
        "aggregation": "worst for the client",
        "median": median(numbers),
        "per_example": _by_example(numbers, rows, examples),
        **extra,
    }
    worst = min(numbers) if lower else max(numbers)
    return _score(name, worst, evidence, outcome, n=len(numbers), note=note, details=details)


def _score(
    name: str,
    value: float | None,
    evidence: Evidence,
    outcome: Outcome,
    *,
    n: int = 1,
    note: str = "",
    details: Mapping[str, Any] | None = None,
) -> Score:
    unit, leakier = UNITS[name]
    return Score(
        name=name,
        value=value,
        unit=unit,
        leakier=leakier,
        evidence=evidence,
        n=n,
        outcome=outcome,
        note=note,
        details=details or {},
    )


def _wrong(value: float, n: int) -> Score:
    return Score(
        name="wrong_pairing_rmse",
        value=value,
        unit="pixel_rmse",
        leakier=Leakier.LOWER,
        evidence=Evidence.EXACT,
        n=n,
        note="the same claims, each held against a wrong example: the mean over all wrong pairs",
        details={"aggregation": "mean"},
    )


def _valueless(outcome: Outcome, note: str) -> list[Score]:
    return [_score(name, None, Evidence.ATTACK, outcome, note=note) for name in UNITS]


def _unclaimed(reconstruction: Reconstruction) -> tuple[Outcome, str]:
    if reconstruction.outcome.has_value is True:
        label = reconstruction.outcome.label
        return Outcome.UNSUPPORTED, f"the attack (outcome {label}) claims no inputs, so there is nothing to score"
    if reconstruction.outcome.has_value is None:
        return reconstruction.outcome, reconstruction.note or "the attack claims no inputs"
    return reconstruction.outcome, reconstruction.note


def _by_example(values: Sequence[Any], rows: Sequence[int], examples: int) -> list[Any]:
    out: list[Any] = [None] * examples
    for row, value in zip(rows, values, strict=True):
        out[row] = value
    return out


def _outside_note(claims: Tensor, not_finite: int) -> str:
    parts = []
    outside = (claims < -RANGE_TOLERANCE) | (claims > 1.0 + RANGE_TOLERANCE)
    if bool(outside.any()):
        share = float(outside.to(torch.float64).mean())
        parts.append(f"{share:.1%} of the claimed pixels lie outside the valid range; scored as claimed")
    if not_finite:
        parts.append(f"{not_finite} claimed example(s) hold NaN or infinite pixels and were not scored")
    return "; ".join(parts)


def _joined(*notes: str) -> str:
    return "; ".join(note for note in notes if note)

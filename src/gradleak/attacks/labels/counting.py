"""Class counts from a mean gradient of the logits, and their rounding."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradleak.attacks.labels.label_attack import LabelRecovery, LossForm, Reduction, Unreadable, spelled_out
from gradleak.attacks.labels.reading import Reading
from gradleak.results import Outcome


def examples_in(reading: Reading, form: LossForm) -> float:
    """The divisor D of the gradient, so that D·gradient is a sum over examples: K for a mean, 1 for a sum.

    With class weights D is the sum of the weights of the examples, which is not known before the counts are; this gives
    K, and counts have to be scaled to sum to K afterwards.
    """
    return 1.0 if form.reduction is Reduction.SUM else float(reading.examples)


def counts_at(reading: Reading, gradient: Tensor, probabilities: Tensor) -> Tensor | Unreadable:
    """The counts (c,) that explain the gradient of the logits if every example had these probabilities.

    Σ_j w_j (a_j p − T_j) n_j = D v with v the mean gradient of the logits, and Σ_j n_j = K: for plain cross entropy
    n = K (p − v), equation 11 of the ALR paper. Where the scale of v is not known, classes that surely do not occur
    (at least c − K) give it: there v/(p − T_other) is that scale.

    Args:
        reading: with the loss's form and the batch size.
        gradient: v (c,).
        probabilities: p (c,).
    """
    form, total = reading.form, float(reading.examples)
    if not reading.scaled:
        absent = len(gradient) - reading.examples
        if absent < 1:
            return Unreadable(
                reason=f"the scale of the gradient is not known, and with {reading.examples} examples of "
                f"{len(gradient)} classes no class is surely absent to show it"
            )
        factor = float((form.factors * form.weights).mean())
        expected = factor * probabilities - float(form.weights.mean()) * form.elsewhere
        ratios = torch.where(expected.abs() > 1e-12, gradient / expected, -torch.inf)
        scale = float(ratios.topk(absent).values.median())
        if not scale > 0:
            return Unreadable(reason="the scale of the gradient is not known, and no class is surely absent to show it")
        gradient = gradient / scale
    # With y = w n: T y = A p − D v, where A = Σ_j a_j y_j is set by Σ_j n_j = K, and with class weights D by Σ_j y_j = D.
    solved: Tensor = torch.linalg.solve(form.targets, torch.stack([probabilities, gradient], dim=1))
    by_mean, by_gradient = solved.unbind(1)
    if form.weighted:
        by_mean = by_mean - by_gradient * by_mean.sum() / (1 + by_gradient.sum())
        weighted = by_mean * total / (by_mean / form.weights).sum()
    else:
        rest = examples_in(reading, form) * by_gradient
        weighted = by_mean * (total + (rest / form.weights).sum()) / (by_mean / form.weights).sum() - rest
    return weighted / form.weights


def expected_predictions(reading: Reading, values: Tensor, gradient: Tensor | None, probabilities: Tensor) -> Tensor:
    """Number of examples that the model puts in each class (c,), by the probabilities and by what the counts imply."""
    total = float(reading.examples)
    implied = torch.zeros_like(probabilities)
    if gradient is not None and reading.scaled and reading.form.plain:
        implied = values + examples_in(reading, reading.form) * gradient
    return torch.maximum(total * probabilities, implied).clamp(min=0)


# Relative errors of the mean probabilities that are thought possible, equally likely on a logarithmic scale.
ERRORS = torch.logspace(-5, 1, 49, dtype=torch.float64)
# How far from the rounded count other counts are considered, at most.
REACH = 400
# Above this `Head.decision` a hidden scale hides examples that the model is already sure of: those that are left explain
# the update by themselves, as if they were all.
SCALE_HIDDEN = 0.25


def largest_remainder(values: Tensor, total: int) -> Tensor:
    """Whole numbers n_c >= 0 that sum to `total` with the smallest Σ (values_c − n_c)².

    Whole parts first (0 for negative values), then one more for the largest remainders, or one less for the smallest.

    Args:
        values: estimated counts (c,).
        total: the batch size.

    Examples:
        >>> largest_remainder(torch.tensor([2.4, 1.7, -0.1]), 4).tolist()
        [2, 2, 0]
    """
    values = values.double().clamp(-total, total)
    counts = values.clamp(min=0).floor()
    missing = total - int(counts.sum())
    while missing > 0:
        step = min(missing, len(values))
        counts[(values - counts).topk(step).indices] += 1
        missing -= step
    while missing < 0:
        remainders = torch.where(counts > 0, values - counts, torch.inf)
        counts[int(remainders.argmin())] -= 1
        missing += 1
    return counts.long()


def judge(values: Tensor, counts: Tensor, *, relative: Tensor, std: Tensor, total: int) -> tuple[float, float, Tensor]:
    """The probability that all counts are right, the expected share of right labels, and 95 % intervals (c, 2).

    Error model: values_c = n_c + e_c with independent e_c ~ N(0, std_c² + (s·relative_c)²), n_c a whole number from 0
    to the batch size that is a priori any of these alike, and log s a priori uniform from 1e-5 to 10. How far the
    values lie from whole numbers tells s, and so how sure the rounding is; values of which no whole numbers are near
    give a large s. The sum being known, of c distances c − 1 count.

    Args:
        values: estimated counts (c,).
        counts: the rounded ones (c,).
        relative: size of an error of each count for s = 1 (c,).
        std: known std of each count (c,).
        total: the batch size.
    """
    values = values.double()
    reach = min(total, REACH)
    candidates = counts[:, None] + torch.arange(-reach, reach + 1, dtype=torch.float64)
    possible = (candidates >= 0) & (candidates <= total)
    squares = (values[:, None] - candidates).square()
    floor = 1e-6 * total  # round-off of float32 updates

    def masses(error: Tensor) -> tuple[Tensor, Tensor]:
        """The probability of each candidate at one relative error, and the logarithm of the density of the values."""
        variance = (std.square() + (error * relative).square() + floor**2)[:, None]
        log_density = torch.where(possible, -0.5 * (squares / variance + (2 * math.pi * variance).log()), -torch.inf)
        normalizer = torch.logsumexp(log_density, dim=1, keepdim=True)
        return (log_density - normalizer).exp(), normalizer.sum()

    likelihood = torch.stack([masses(error)[1] for error in ERRORS]) * (len(values) - 1) / len(values)
    posterior = torch.softmax(likelihood, dim=0)
    mixture, confidence = torch.zeros_like(candidates), 0.0
    for error, weight in zip(ERRORS, posterior, strict=True):
        if float(weight) > 1e-12:
            mass, _ = masses(error)
            mixture += weight * mass
            confidence += float(weight * mass[:, reach].log().sum().exp())
    away = float((mixture * (candidates - counts[:, None]).abs()).sum()) / (2 * total)
    cumulative = mixture.cumsum(dim=1)
    low, high = (
        candidates.gather(1, (cumulative < level).sum(dim=1, keepdim=True).clamp(max=2 * reach))
        for level in (0.025, 0.975 - 1e-12)
    )
    interval = torch.cat([low, high], dim=1).clamp(0, total).long()
    return min(confidence, 1.0), max(0.0, 1 - away), interval


def recovery(
    values: Tensor, reading: Reading, *, relative: Tensor, minimum_confidence: float, how: str, doubt: str = ""
) -> LabelRecovery:
    """Estimated counts as a claim, or as not identifiable where they are too unsure.

    Args:
        values: estimated counts (c,).
        reading: what they were read from.
        relative: how many examples the model puts in each class, by which its mean probabilities can be wrong (c,).
        minimum_confidence: below it there is no claim.
        how: the method and what it used, for the note.
        doubt: why the error model does not hold here, so that the confidence is 0; "" where it does.
    """
    total = reading.examples
    if not bool(torch.isfinite(values).all()):
        return LabelRecovery(
            targets=None,
            confidence=0.0,
            outcome=Outcome.NOT_IDENTIFIABLE,
            note=f"{how}: the equations have no solution",
        )
    counts = largest_remainder(values, total)
    if reading.uneven:  # examples that weigh unequally change a count by as much as they are
        relative = relative + counts
    std = reading.std * total / float((reading.form.targets.diagonal() - reading.form.elsewhere).min())
    std = (std.square() + counts * reading.spread**2).sqrt()
    confidence, accuracy, interval = judge(values, counts, relative=relative, std=std, total=total)
    doubt = doubt or reading.doubt
    trained = reading.head.decision > 1 / 2 if reading.scaled else reading.head.decision > SCALE_HIDDEN
    if not doubt and trained and (reading.uneven or not reading.scaled):
        doubt = (
            "the model is trained, so that examples may leave next to nothing in the gradient, and where its scale is "
            "hidden or examples weigh unequally they cannot be counted"
        )
    if doubt:
        confidence = 0.0
    notes = "; ".join([how, *reading.notes])
    if confidence < minimum_confidence:
        reason = doubt or f"right with probability {confidence:.2g} only: {_reason(values, counts, std)}"
        return LabelRecovery(
            targets=None,
            confidence=confidence,
            outcome=Outcome.NOT_IDENTIFIABLE,
            note=f"{notes}; no claim: {reason}",
            estimate=values,
        )
    return LabelRecovery(
        targets=spelled_out(counts),
        confidence=confidence,
        outcome=Outcome.CONVERGED,
        note=f"{notes}; confidence {confidence:.4f}",
        counts=counts,
        estimate=values,
        interval=None if doubt else interval,
        expected_accuracy=None if doubt else accuracy,
    )


def _reason(values: Tensor, counts: Tensor, std: Tensor) -> str:
    if float(std.median()) > 0.2:
        return f"noise leaves a std of {float(std.median()):.2g} on a count"
    apart = float((values - counts).abs().mean())
    return (
        f"the estimates lie {apart:.2g} from whole numbers on average; a trained model (whose mean probabilities are hard "
        "to guess), entries that are missing, or labels that are soft, mixed or smoothed by the client do that"
    )

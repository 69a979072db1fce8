"""The linear equations that tie class counts to the classifier's gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from gradleak.attacks.labels.label_attack import Unreadable
from gradleak.attacks.labels.loss_form import LossForm, Reduction
from gradleak.attacks.labels.reading import Reading


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

"""Class counts and class features that explain the classifier's weight and bias gradient together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.attacks.labels.counting import counts_at, examples_in
from gradleak.attacks.labels.label_attack import LabelAttack, LabelRecovery, Unreadable
from gradleak.attacks.labels.reading import Reading, read, run_dummies
from gradleak.attacks.labels.rounding import recovery
from gradleak.core import Knowledge, Update
from gradleak.results import FANG_2024, MA_2023, Citation, Probability

# Above this confidence the first start is not questioned.
SURE = 0.99
# Up to this confidence the second start counts for nothing: neither is right then, and the first is less wrong.
WORTH = 0.1


@dataclass(frozen=True, kw_only=True)
class ConsistentLabels(LabelAttack):
    """Class counts that explain the classifier's weight and bias gradient together.

    Let S_j be the sum of the classifier's inputs h over the n_j examples of class j, and P_ij the probability of class
    i at their mean S_j/n_j. With one prototype a class, cross entropy has K ∂L/∂W = (P − 1) S and K ∂L/∂b = (P − 1) n.
    Classes that do not occur drop out; restricted to those that do, P − 1 can be inverted, since every example gives
    some probability to the others. So: start from one common h̄ = ∂L/∂Wᵀ v/‖v‖² with v = ∂L/∂b (the regression of the
    rows of one on the entries of the other) and n = K (p(h̄) − v); then, until nothing changes, take the classes with
    n_j > ½ as present, solve for S and n, and take P at S_j/n_j. Where every class is present, the first step stands. If
    that is not sure of itself (a balanced batch leaves v next to nothing), the search starts again from the mean inputs
    of dummies, as ALR does, and the result counts if it is surer.

    The scale cancels in S_j/n_j, so that clipped updates and unknown factors do not hurt where some class is absent.
    Without a bias gradient n_j is S_jᵀu, scaled to sum to K, with u the leading direction of the rows: as if every
    class had the same mean projection on it; with two classes nothing is left to check that by, and there is no claim.
    Known smoothing, class weights and sums are corrected for exactly.

    **Assumptions**: exact for equal inputs h within each class and some class absent; the error is of second order in
    the spread of h within a class. That is small for an untrained model, also where the classes differ. A trained one
    treats the examples of one class differently, and P comes near 1, so that errors grow; the confidence, from how
    near the estimates lie to whole numbers, falls with it.

    **Cost**: a forward pass of a few inputs, and of the dummies where they are needed; then a linear system of the size
    of the number of present classes, at most `iterations` times.

    **Source**: ours. The equation for n at P from class features is that of Ma et al. 2023, who take
    S_j/n_j from the ratio of a class's rows alone, which the probabilities of other examples bias, and do not iterate.
    For equal features of all classes it is equation 11 of Fang et al. 2024.

    Attributes:
        iterations: at most so many.
        dummies: number of dummy inputs, where they are needed.
        minimum_confidence: below it there is no claim, only `estimate`; 0 always claims.
    """

    name: ClassVar[str] = "consistent_labels"
    citations: ClassVar[tuple[Citation, ...]] = (MA_2023, FANG_2024)
    summary: ClassVar[str] = "Class counts and class features that explain the classifier's whole gradient together."

    iterations: int = 40
    dummies: int = 128
    minimum_confidence: Probability = 0.5

    def _recover(self, update: Update, knowledge: Knowledge, generator: torch.Generator) -> LabelRecovery:
        reading = read(update, knowledge, generator)
        if isinstance(reading, Unreadable):
            return reading.recovery()
        weight = reading.weight
        if weight is None:
            return Unreadable(reason="the gradient of the classifier's weight is not shared by itself").recovery()
        if reading.bias is None and len(weight) == 2:
            return Unreadable(
                reason="two classes without a bias gradient: the rows of the weight only differ in sign, so that any one "
                "class explains both"
            ).recovery()
        found = self._from(reading, weight, _regressed(reading, weight), "")
        if isinstance(found, LabelRecovery) and found.confidence >= SURE:
            return found
        ran = run_dummies(reading, knowledge, self.dummies, generator)
        if isinstance(ran, Unreadable):
            return ran.recovery()
        head, dummies = ran
        again = self._from(reading, weight, head.features.mean(dim=0), f", from {dummies}")
        if isinstance(again, Unreadable):
            return found if isinstance(found, LabelRecovery) else again.recovery()
        if isinstance(found, LabelRecovery) and again.confidence <= max(found.confidence, WORTH):
            return found
        return again

    def _from(
        self, reading: Reading, weight: Tensor, mean: Tensor | Unreadable, start: str
    ) -> LabelRecovery | Unreadable:
        """The claim from one first guess of the mean input of the classifier (d,)."""
        if isinstance(mean, Unreadable):
            return mean
        if reading.head.non_negative:
            mean = mean.clamp(min=0)
        square = float(mean.square().sum())
        if square == 0:
            return Unreadable(reason="the inputs of the classifier are zero (dead units)")
        gradient = weight @ mean / square if reading.bias is None else reading.bias
        head = reading.head
        values = counts_at(reading, gradient, torch.softmax(head.weight @ mean + head.bias, dim=0))
        if isinstance(values, Unreadable):
            return values
        values, probabilities = self._refine(reading, weight, mean, values)
        return recovery(
            values,
            reading,
            relative=(probabilities @ values.clamp(min=0)).clamp(min=0),
            minimum_confidence=self.minimum_confidence,
            how=f"counts that are consistent with {reading.source}{start}",
        )

    def _refine(self, reading: Reading, weight: Tensor, mean: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Counts (c,) and probabilities (c, c), one column a class, from a first guess of both."""
        head, form, total = reading.head, reading.form, float(reading.examples)
        classes = len(values)
        gradient = weight if reading.bias is None else torch.cat([weight, reading.bias[:, None]], dim=1)
        features = mean.expand(classes, -1).clone()
        unit = mean / mean.norm() if reading.bias is None else None
        probabilities = _probabilities(reading, features)
        for step in range(self.iterations):
            present = (values > 0.5).nonzero().flatten()
            if len(present) in (0, classes):
                break
            matrix = form.matrix(probabilities)
            # Not lstsq, whose last bits change from call to call.
            sums, info = torch.linalg.solve_ex(matrix[present][:, present], gradient[present])
            if int(info) != 0 or not bool(torch.isfinite(sums).all()):
                break
            sizes = sums[:, -1] if unit is None else sums @ unit
            if not float(sizes.sum()) > 0:
                break
            free = not reading.scaled or form.weighted or unit is not None
            divisor = total / float(sizes.sum()) if free else examples_in(reading, form)
            absent = torch.ones(classes, dtype=torch.bool).index_fill(0, present, False)
            # What the rows of absent classes leave unexplained, as if examples of those classes had made it.
            rest = (matrix[absent][:, present] @ sums - gradient[absent]) / -matrix.diagonal()[absent, None]
            new = torch.zeros_like(values)
            new[present] = divisor * sizes
            new[absent] = divisor * (rest[:, -1] if unit is None else rest @ unit)
            points = _points(sums, sizes, reading, unit, total)
            if head.non_negative:
                points = points.clamp(min=0)
            if not bool(torch.isfinite(points).all()):
                break
            new = new.clamp(-10 * total, 10 * total)  # a runaway stays finite, and far from any counts
            share = 1.0 if step < 3 else 0.5
            moved = float((new - values).abs().max())
            values = values + share * (new - values)
            features = features.clone()
            features[absent] = (values[present].clamp(min=0) @ points / values[present].clamp(min=1e-9).sum()).expand(
                int(absent.sum()), -1
            )
            features[present] = features[present] + share * (points - features[present])
            probabilities = _probabilities(reading, features)
            if moved < 1e-9 * total:
                break
        return values, probabilities


def _probabilities(reading: Reading, features: Tensor) -> Tensor:
    """The softmax at one feature vector a class, (c, c), one column a class."""
    return torch.softmax(features @ reading.head.weight.T + reading.head.bias, dim=1).T


def _points(sums: Tensor, sizes: Tensor, reading: Reading, unit: Tensor | None, total: float) -> Tensor:
    """The mean features of each present class."""
    safe = torch.where(sizes.abs() > 1e-12 * float(sizes.abs().max()), sizes, torch.inf)
    if unit is None:
        return sums[:, :-1] / safe[:, None]
    # Without a bias the length of the features follows from the scale, and where that is hidden from dummy inputs.
    if reading.scaled and not reading.form.weighted:
        length = examples_in(reading, reading.form) * float(sizes.sum()) / total
    else:
        length = float((reading.head.features @ unit).mean().abs())
    return sums / safe[:, None] * length


def _regressed(reading: Reading, weight: Tensor) -> Tensor | Unreadable:
    """The mean input of the classifier (d,) by which the rows of its weight gradient follow the bias gradient.

    Without a bias gradient: the leading direction of the rows, as long as the inputs of a few dummies are along it.
    """
    if reading.bias is not None:
        square = float(reading.bias.square().sum())
        if square == 0:
            return Unreadable(reason="the gradient of the classifier's bias is zero")
        followed: Tensor = weight.T @ reading.bias / square
        return followed
    directions: Tensor
    _, _, directions = torch.linalg.svd(weight, full_matrices=False)
    return float(reading.head.features.mean(dim=0) @ directions[0]) * directions[0]

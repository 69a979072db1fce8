"""Label attacks that solve for class counts: ALR, consistent class features, and zero-shot features."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.attacks.labels.counting import counts_at, examples_in, expected_predictions, recovery
from gradleak.attacks.labels.label_attack import LabelAttack, LabelRecovery, Unreadable, spelled_out
from gradleak.attacks.labels.reading import Head, Reading, read, run_dummies
from gradleak.attacks.labels.target import UNCHECKED
from gradleak.core import DiagonalGaussian, Knowledge, Update
from gradleak.core.defense import Noise, NotGaussian
from gradleak.results import FANG_2024, MA_2023, YIN_2021, Citation, Outcome, Probability

_TRAINED = (
    "the model is trained: it is sure of the class of most dummies, so that their mean probabilities say little of a "
    "few private examples"
)
# So near to whole numbers are the counts of one example a class, where labels are hard and the update is exact.
_WHOLE = 0.02


@dataclass(frozen=True, kw_only=True)
class AdaptiveLabelRecovery(LabelAttack):
    """Class counts n = K (p̄ − ∂L/∂b) from the bias gradient and mean probabilities p̄ that dummy inputs give (ALR).

    For cross entropy ∂L/∂b = (1/K) Σ_k (p_k − y_k), with p_k the softmax of example k. An untrained model gives every
    input nearly the same probabilities, so that those of noise stand for the private ones. Counts are rounded by
    largest remainder, are non-negative and sum to K.

    Without a bias gradient, ∂L/∂W = (1/K) Σ_k (p_k − y_k) h_kᵀ is read along the mean input h̄ of the classifier for
    dummies, v = ∂L/∂W h̄/‖h̄‖², as if h_kᵀh̄ = ‖h̄‖² for all. Known label smoothing, class weights and a loss that adds
    up are corrected for exactly, since the loss is asked what it does. A delta is read as the average gradient of its
    local steps, with p̄ taken halfway along it where no defense disturbs it. Where the scale is hidden (clipping), the
    classes that surely do not occur show it, if there are more classes than examples.

    **Assumptions**: that the private examples have, on average, the probabilities of the dummies: good for an untrained
    model, not for a trained one. The confidence comes from how near the estimates lie to whole numbers
    (`gradleak.attacks.labels.counting.judge`) and from noise that is known. Labels that are soft show as estimates far
    from whole numbers; those of mixup with partners from the same batch average to the hard counts, which are what is
    found.

    **Cost**: one forward pass of the dummies.

    **Source**: Fang et al. 2024, equations 9 to 11 (there: untrained models, one gradient, a bias). Deviations: p̄ is the
    mean of the dummies' softmax, where the paper averages the inputs of the classifier first; dummies are uniform noise
    over the valid range (the paper does not say), or public inputs where the adversary has some. Everything beyond a
    bias gradient at a known scale, and the confidence, is ours.

    Attributes:
        dummies: number of dummy inputs.
        minimum_confidence: below it there is no claim, only `estimate`; 0 always claims.
    """

    name: ClassVar[str] = "adaptive_label_recovery"
    citations: ClassVar[tuple[Citation, ...]] = (FANG_2024,)
    summary: ClassVar[str] = "Class counts from the bias gradient and the mean probabilities of dummy inputs."

    dummies: int = 128
    minimum_confidence: Probability = 0.5

    def _recover(self, update: Update, knowledge: Knowledge, generator: torch.Generator) -> LabelRecovery:
        reading = read(update, knowledge, generator)
        if isinstance(reading, Unreadable):
            return reading.recovery()
        ran = run_dummies(reading, knowledge, self.dummies, generator)
        if isinstance(ran, Unreadable):
            return ran.recovery()
        head, dummies = ran
        gradient = reading.bias if reading.bias is not None else _along_mean(reading, head)
        if isinstance(gradient, Unreadable):
            return gradient.recovery()
        mean = head.probabilities.mean(dim=0)
        values = counts_at(reading, gradient, mean)
        if isinstance(values, Unreadable):
            return values.recovery()
        relative = expected_predictions(reading, values, reading.bias, mean)
        source = reading.head.bias_name if reading.bias is not None else reading.head.weight_name
        return recovery(
            values,
            reading,
            relative=relative,
            minimum_confidence=self.minimum_confidence,
            how=f"counts by adaptive label recovery from {source} and {dummies}",
            doubt=_TRAINED if head.decided else "",
        )


def _along_mean(reading: Reading, head: Head) -> Tensor | Unreadable:
    mean = head.features.mean(dim=0)
    square = float(mean.square().sum())
    if square == 0:
        return Unreadable(reason="the inputs of the classifier are zero for dummies (dead units), and it has no bias")
    assert reading.weight is not None
    return reading.weight @ mean / square


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
        found = recovery(
            values,
            reading,
            relative=(probabilities @ values.clamp(min=0)).clamp(min=0),
            minimum_confidence=self.minimum_confidence,
            how=f"counts that are consistent with {reading.source}{start}",
        )
        # One of two classes explains any gradient at some scale.
        if len(values) == 2 and _scale_is_free(reading) and found.confidence > UNCHECKED:
            return replace(found, confidence=UNCHECKED, expected_accuracy=UNCHECKED)
        return found

    def at_first(self, reading: Reading) -> LabelRecovery | None:
        """The counts that weight and bias gradient say together, without dummies; None where they say none."""
        if reading.weight is None or reading.bias is None:
            return None
        found = self._from(reading, reading.weight, _regressed(reading, reading.weight), "")
        return found if isinstance(found, LabelRecovery) and found.estimate is not None else None

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
            free = _scale_is_free(reading) or unit is not None
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


def _scale_is_free(reading: Reading) -> bool:
    """True if the scale of the update is hidden, or depends on the labels by their weights."""
    return not reading.scaled or reading.form.weighted


def _points(sums: Tensor, sizes: Tensor, reading: Reading, unit: Tensor | None, total: float) -> Tensor:
    """The mean features of each present class."""
    safe = torch.where(sizes.abs() > 1e-12 * float(sizes.abs().max()), sizes, torch.inf)
    if unit is None:
        return sums[:, :-1] / safe[:, None]
    # Without a bias the length of the features follows from the scale, and where that is hidden from dummy inputs.
    if not _scale_is_free(reading):
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


@dataclass(frozen=True, kw_only=True)
class ZeroShotLabels(LabelAttack):
    """The K classes whose rows of the classifier's weight gradient reach the lowest values; distinct labels only.

    A row of ∂L/∂W is (1/K) Σ_k (p_k,c − y_k,c) h_kᵀ. With non-negative inputs h (ReLU, sigmoid) the row of a class that
    does not occur has no negative entry, so that a negative entry proves a class present. With repeated labels fewer
    than K rows are negative, and the rule, which always names K different classes, fills up with absent ones: it is
    wrong, and the confidence is 0. With more examples than classes there are no K classes to name: not identifiable.

    **Assumptions**: distinct labels, non-negative inputs of the classifier, hard labels and no smoothing. If exactly K
    rows are negative beyond noise and round-off, the labels are proven: confidence 1, or 1 − 1e-6 under known Gaussian
    noise. That labels are hard is checked with the bias gradient: both together have to make whole numbers
    (`ConsistentLabels`). Where they make other labels there is no claim, where they do not tell, 0.9 at most. A class
    that every one of its examples is already given with near certainty can stay hidden; then K negative rows are
    missing too. Clipping, scale and local steps keep the signs.

    **Cost**: one forward pass of a few inputs.

    **Source**: Yin et al. 2021, "See through gradients" (batch label restoration), as Fang et al. 2024
    compare with it. The proof from counting negative rows, and so the confidence, is ours.

    Attributes:
        minimum_confidence: below it there is no claim; 0 names the K lowest rows whatever they are worth, as the paper.
    """

    name: ClassVar[str] = "zero_shot_labels"
    citations: ClassVar[tuple[Citation, ...]] = (YIN_2021,)
    summary: ClassVar[str] = (
        "Distinct labels from the smallest entries of the rows of the classifier's weight gradient."
    )

    minimum_confidence: Probability = 0.5

    def _recover(self, update: Update, knowledge: Knowledge, generator: torch.Generator) -> LabelRecovery:
        reading = read(update, knowledge, generator)
        if isinstance(reading, Unreadable):
            return reading.recovery()
        weight, total = reading.weight, reading.examples
        if weight is None:
            return Unreadable(reason="the gradient of the classifier's weight is not shared by itself").recovery()
        if total > len(weight):
            return Unreadable(
                reason=f"the zero-shot rule names different classes, and {total} examples have only {len(weight)}"
            ).recovery()
        lowest = weight.min(dim=1).values
        negative = int((lowest < -self._threshold(reading, weight, update, knowledge)).sum())
        confidence, why = _proof(reading, negative)
        if confidence and negative == len(weight) and not self._noise_is_known(knowledge):
            confidence, why = 0.0, "every row has a negative entry, as unknown noise would make it"
        chosen = lowest.argsort(stable=True)[:total]
        counts = torch.zeros(len(weight), dtype=torch.long).index_fill(0, chosen, 1)
        if confidence:
            confidence, why = _beside_bias(reading, counts, confidence, why)
        note = f"different labels by the zero-shot rule from {reading.head.weight_name}: {why}"
        claimed = confidence >= self.minimum_confidence
        return LabelRecovery(
            targets=spelled_out(counts) if claimed else None,
            confidence=confidence,
            outcome=Outcome.CONVERGED if claimed else Outcome.NOT_IDENTIFIABLE,
            note=note,
            counts=counts if claimed else None,
        )

    def _threshold(self, reading: Reading, weight: Tensor, update: Update, knowledge: Knowledge) -> float:
        """Distance below 0 that round-off and noise alone reach in the whole gradient, but once in a million times."""
        name = reading.head.weight_name
        assert name is not None
        largest = float(weight.abs().max())
        round_off = 64 * float(torch.finfo(update.tensors[name].dtype).eps) * largest
        noise = _noise_of(knowledge)
        if not isinstance(noise, DiagonalGaussian) or largest == 0:
            return round_off
        factor = largest / float(update.tensors[name].double().abs().max())
        return round_off + noise.std[name] * factor * math.sqrt(2 * math.log(weight.numel() / 1e-6))

    def _noise_is_known(self, knowledge: Knowledge) -> bool:
        """True if the law of the noise is known, or there is none."""
        return knowledge.defenses is not None and not isinstance(_noise_of(knowledge), NotGaussian)


def _beside_bias(reading: Reading, counts: Tensor, confidence: float, why: str) -> tuple[float, str]:
    """The proof beside what weight and bias gradient say together, where hard labels leave whole numbers.

    With one example a class `ConsistentLabels` is exact. Labels that the client smooths without telling make entries of
    absent classes negative, and a trained model then shows as many rows as there are examples, but others.
    """
    both = ConsistentLabels().at_first(reading)
    if both is not None and both.estimate is not None and float((both.estimate - counts).abs().max()) <= _WHOLE:
        return confidence, why
    if both is not None and both.counts is not None and both.confidence > SURE and not torch.equal(both.counts, counts):
        return 0.0, f"{why}, but with the bias gradient they make other counts: labels are smoothed, mixed or soft"
    return min(confidence, UNCHECKED), f"{why}, if labels are hard, which the update does not show"


def _noise_of(knowledge: Knowledge) -> Noise:
    """The law of the noise as far as it is known."""
    if knowledge.defenses is None or knowledge.protocol is None or knowledge.objective is None:
        return None
    return knowledge.release.noise(knowledge.objective, examples=knowledge.batch_size)


def _proof(reading: Reading, negative: int) -> tuple[float, str]:
    """The confidence in different labels, and its reason."""
    if reading.doubt:
        return 0.0, reading.doubt
    if not reading.form.one_hot:
        return 0.0, "the loss smooths labels, under which rows of absent classes have negative entries too"
    if not reading.head.non_negative:
        return 0.0, "the inputs of the classifier can be negative, so that a negative entry proves nothing"
    if negative == reading.examples:
        return (1 - 1e-6 if reading.noisy else 1.0), "as many rows have a negative entry as there are examples"
    if negative < reading.examples:
        return 0.0, f"{negative} rows have a negative entry and there are {reading.examples} examples: labels repeat"
    return 0.0, f"{negative} rows have a negative entry, more than the {reading.examples} examples: labels are soft"

"""The van Trees bound: what no attacker with a given prior can do better than, on average."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import scipy.stats
import torch
from torch import Tensor

from gradleak.core import Batch, DiagonalGaussian, Domain, Exposure, NotGaussian, Objective, Release
from gradleak.linalg import dense_gram
from gradleak.operators import DENSE_LIMIT, GradientJacobian, example_matrices
from gradleak.results import (
    GILL_LEVIT_1995,
    LEDOIT_WOLF_2004,
    VAN_TREES_1968,
    Citation,
    Evidence,
    InputError,
    Leakier,
    Outcome,
    Score,
    UnsupportedError,
)
from gradleak.risk.continuity import largest_jump
from gradleak.risk.measure import Unit
from gradleak.risk.prior import GaussianPrior, posterior_factor

# Relative jumps above this break the theorem. Kinks, which it allows, leave less than 1e-7 in `largest_jump`.
LARGEST_JUMP = 1e-5
LINES = 2


@dataclass(frozen=True, kw_only=True, eq=False)
class BayesianCramerRao:
    """A lower bound on the mean squared error of every attacker over a stated Gaussian prior: van Trees' inequality.

    For x ~ N(m, Σ) and a release g(x) + N(0, σ²I), every estimator x̂, biased or not, has

        E‖x̂ − x‖² >= f(E[AᵀA]),   f(G) = tr((G/σ² + Σ⁻¹)⁻¹),

    A = ∂g/∂x, both expectations over the prior (and the noise). The prior is N(m, Σ) itself, fitted to public examples
    or given, and the samples of A are drawn from it, so the inequality is a theorem for that prior.

    **The average is sampled, and f is convex**: f of a sample mean is on average too large, no bound. The value is
    therefore a lower confidence limit. The first half of the samples gives any M₀ = Ḡ₀/σ² + Σ⁻¹; by Cauchy-Schwarz

        f(E[AᵀA]) >= tr(M₀⁻¹)² / E[tr(M₀⁻¹(AᵀA/σ² + Σ⁻¹)M₀⁻¹)],

    with equality for M₀ = E[AᵀA]/σ² + Σ⁻¹. The right side holds the mean of a scalar, whose upper confidence limit
    (Student's t with a correction for skewness) comes from the second half.

    Assumptions: evidence is lower_bound where (i) the prior is the adversary's: it knows N(m, Σ), the model, the
    release and the labels, and nothing else on x (pixel bounds are not in a Gaussian); (ii) g has no jumps. The
    gradients of ReLU and max pooling networks jump in x; there the inequality does not hold, and what a search along
    lines between prior samples finds turns the evidence into estimate. It is a bound on the average over the prior, not
    for the private batch: single examples may leak far more. Fixed labels bound the attack on inputs with these labels
    under the same prior; labels drawn from the public ones, independently of x, bound the mean over them (f is convex).
    With unit `pixel_rmse` it is the root of a bound on the expected squared pixel error over d.

    Args:
        noise_std: σ > 0 on every entry of the release. If the release itself carries less, the bound is for the same
            release with this noise, and the note says so.
        public: public examples, as a tensor (n, *shape) in model-input units or a Batch (its labels are used where no
            targets are given); or None with `prior`.
        prior: a Gaussian; or None with `public`.
        samples: draws from the prior, at least 16; half of them choose M₀.
        confidence: of the lower confidence limit, over the draw of the samples.
        unit: `input` (default) or `pixel_rmse`.
        dense_limit: largest d.

    Raises:
        InputError: for fields out of range, or none or both of public and prior.

    Cost: `samples` times A and AᵀA, then about 10 d³ multiplications, and 240 plain gradients for the search for jumps.

    Source: Van Trees 1968, section 2.4; multivariate form and conditions in Gill and Levit 1995. The confidence limit
    is ours; its skewness correction is that of Johnson 1978.
    """

    name: ClassVar[str] = "bayesian_cramer_rao"
    citations: ClassVar[tuple[Citation, ...]] = (VAN_TREES_1968, GILL_LEVIT_1995, LEDOIT_WOLF_2004)
    summary: ClassVar[str] = "van Trees bound on the mean error of every attacker over a Gaussian prior"
    leakier: ClassVar[Leakier] = Leakier.LOWER

    noise_std: float
    public: Tensor | Batch | None = field(default=None, repr=False)
    prior: GaussianPrior | None = field(default=None, repr=False)
    samples: int = 64
    confidence: float = 0.95
    unit: Unit | str = Unit.INPUT
    dense_limit: int = DENSE_LIMIT

    def __post_init__(self) -> None:
        """Check the fields."""
        if not 0.0 < self.noise_std < math.inf:
            raise InputError(f"noise_std: expected a finite positive number, got {self.noise_std}")
        if (self.public is None) == (self.prior is None):
            raise InputError("BayesianCramerRao: expected one of public and prior")
        if self.samples < 16:
            raise InputError(f"samples: expected at least 16, got {self.samples}")
        if not 0.5 < self.confidence < 1.0:
            raise InputError(f"confidence: expected a number between 0.5 and 1, got {self.confidence}")
        object.__setattr__(self, "unit", Unit.named(self.unit))

    def __call__(
        self,
        objective: Objective,
        release: Release,
        *,
        targets: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Score:
        """The score for a release of a batch of len(targets) independent examples (one if targets are drawn).

        Args:
            objective: the client's loss.
            release: protocol and defenses.
            targets: (b, ...) the labels of the batch, known to the adversary; None draws one of the public labels for
                each sample.
            generator: of the samples; None is a fresh one with seed 0.

        Raises:
            InputError: without targets and without public labels, or for a model that does not take the examples.
            UnsupportedError: if the release cannot be differentiated.
        """
        noise = release.noise(objective)
        if isinstance(noise, NotGaussian):
            return self._without(Outcome.UNSUPPORTED, f"the noise of this release is not Gaussian: {noise.reason}")
        prior = self.prior if self.prior is not None else GaussianPrior.from_public(_given(self.public))
        count = 1 if targets is None else int(targets.shape[0])
        size = count * prior.mean.numel()
        if size > self.dense_limit:
            note = f"d = {size} is above the limit of {self.dense_limit} for a whole Gram matrix; raise dense_limit"
            return self._without(Outcome.UNSUPPORTED, note)
        generator = generator or torch.Generator().manual_seed(0)
        drawn = self._draw(prior, targets, count, generator)
        objective.check(drawn[0])
        objective = objective.to(torch.float64)
        root = torch.block_diag(*[prior.root()] * count)
        weights = torch.ones(size, dtype=root.dtype, device=root.device)
        guessed = False
        if self.unit == Unit.PIXEL_RMSE:
            scale, guessed = self._pixel_scale(prior)
            weights = scale.repeat(count) ** 2 / size
        details: dict[str, Any] = {
            "noise_std": self.noise_std,
            "prior": prior.card(),
            "prior_error": self._in_unit(float((weights[:, None] * root**2).sum())),
            "labels": "drawn from the public labels" if targets is None else "given",
            "samples": self.samples,
            "confidence": self.confidence,
        } | ({"domain": "guessed from the public examples"} if guessed else {})
        found = self._limit(_grams(objective, release, drawn), root, weights)
        if found is None:
            note = "the derivative of the release is zero at every prior sample, which is no evidence of safety"
            return self._without(Outcome.NOT_INFORMATIVE, note, **details)
        limit, plug_in, high = found
        jump = max(_jump(objective, release, drawn[2 * line], drawn[2 * line + 1]) for line in range(LINES))
        smooth = jump <= LARGEST_JUMP
        return Score(
            name=self.name,
            value=self._in_unit(limit),
            unit=str(self.unit),
            leakier=self.leakier,
            evidence=Evidence.LOWER_BOUND if smooth else Evidence.ESTIMATE,
            interval=(self._in_unit(limit), self._in_unit(max(high, limit))),
            n=self.samples,
            note=self._note(noise, smooth),
            details=details | {"plug_in": self._in_unit(plug_in), "largest_jump": jump},
        )

    def _draw(
        self, prior: GaussianPrior, targets: Tensor | None, count: int, generator: torch.Generator
    ) -> list[Batch]:
        inputs = prior.draw(self.samples * count, generator).unflatten(0, (self.samples, count))
        if targets is None:
            if not isinstance(self.public, Batch):
                raise InputError("BayesianCramerRao: expected targets=..., or a Batch of public examples with labels")
            labels = self.public.targets
            chosen = torch.randint(labels.shape[0], (self.samples,), generator=generator, device=generator.device)
            return [Batch(x, labels[place : place + 1], prior.domain).to(torch.float64)
                    for x, place in zip(inputs, chosen.tolist(), strict=True)]  # fmt: skip
        return [Batch(x, targets, prior.domain).to(torch.float64) for x in inputs]

    def _limit(self, grams: Iterator[Tensor], root: Tensor, weights: Tensor) -> tuple[float, float, float] | None:
        """The lower confidence limit of f(E[AᵀA]), f at the mean of all samples, and an upper confidence limit of f."""
        half, information = self.samples // 2, self.noise_std**-2
        first = _mean(next(grams) for _ in range(half))
        factor = posterior_factor(first * information, root)
        start = float((weights[:, None] * factor**2).sum())
        inverse = factor @ factor.T
        slope = inverse @ (weights[:, None] * inverse)
        rest = start - information * float((slope * first).sum())  # the part of the prior in tr(slope · M₀) = f(M₀)
        ratios, second = [], torch.zeros_like(first)
        for gram in grams:
            ratios.append((information * float((slope * gram).sum()) + rest) / start)
            second += gram
        total = (half * first + second) / self.samples
        if float(total.diagonal().max()) == 0.0:
            return None
        plug_in = float((weights[:, None] * posterior_factor(total * information, root) ** 2).sum())
        sample = torch.tensor(ratios, dtype=torch.float64)
        quantile = float(scipy.stats.t.ppf(self.confidence, sample.numel() - 1))
        error = quantile * float(sample.std()) * plug_in / math.sqrt(self.samples)
        return start / upper_limit(sample, self.confidence), plug_in, plug_in + error

    def _note(self, noise: DiagonalGaussian | None, smooth: bool) -> str:
        notes = [f"average over the stated prior, at {self.confidence:.0%} confidence over its samples"]
        if noise is None or min(noise.std.values()) < self.noise_std * (1 - 1e-9):
            notes.append(f"for this release with noise of std {self.noise_std:g}, more than it carries")
        if not smooth:
            notes.append("no bound: the release jumps as the input moves (ReLU, max pooling), which van Trees excludes")
        return "; ".join(notes)

    def _pixel_scale(self, prior: GaussianPrior) -> tuple[Tensor, bool]:
        if prior.domain is not None or self.public is None:
            return prior.pixel_scale(), False
        inputs = self.public.inputs if isinstance(self.public, Batch) else self.public
        return Domain.guess(inputs).pixel_scale(prior.mean).reshape(-1), True

    def _without(self, outcome: Outcome, note: str, **details: Any) -> Score:
        return Score(
            name=self.name,
            value=None,
            unit=str(self.unit),
            leakier=self.leakier,
            evidence=Evidence.ESTIMATE,
            outcome=outcome,
            note=note,
            details=details,
        )

    def _in_unit(self, squared: float) -> float:
        return squared if self.unit == Unit.INPUT else math.sqrt(squared)


def upper_limit(sample: Tensor, confidence: float) -> float:
    """An upper confidence limit of the mean of independent numbers (n,), Student's t corrected for skewness.

    mean + s/√n · (t + γ(1 + 2t²)/(6√n)), s the standard deviation, γ the sample skewness where it is positive: numbers
    that are bounded below and skewed to the right, as squares are, would break the plain t limit too often.

    Source: Johnson 1978, Modified t tests and confidence intervals for asymmetrical populations.
    """
    count, mean, std = sample.numel(), float(sample.mean()), float(sample.std())
    if std == 0.0:
        return mean
    skewness = max(0.0, float((((sample - mean) / std) ** 3).mean()))
    t = float(scipy.stats.t.ppf(confidence, count - 1))
    return mean + std / math.sqrt(count) * (t + skewness * (1 + 2 * t**2) / (6 * math.sqrt(count)))


def _given(public: Tensor | Batch | None) -> Tensor | Batch:
    assert public is not None
    return public


def _mean(tensors: Iterator[Tensor]) -> Tensor:
    total, count = torch.zeros(()), 0
    for tensor in tensors:
        total, count = (tensor.clone() if count == 0 else total.add_(tensor)), count + 1
    return total / count


def _grams(objective: Objective, release: Release, drawn: list[Batch]) -> Iterator[Tensor]:
    """AᵀA (d, d) at every drawn batch; single examples go in lockstep where that is cheaper."""
    if drawn[0].size == 1:
        together = Batch(torch.cat([batch.inputs for batch in drawn]), torch.cat([batch.targets for batch in drawn]))
        matrices: Iterator[Tensor | None] = example_matrices(Exposure(objective, together, release))
    else:
        matrices = iter([None] * len(drawn))
    for batch, matrix in zip(drawn, matrices, strict=True):
        if matrix is None:
            yield GradientJacobian(Exposure(objective, batch, release)).gram()
            continue
        gram = dense_gram(matrix)
        if not bool(torch.isfinite(gram).all()):
            raise UnsupportedError("expected a finite derivative of the release at a prior sample, got NaN or infinity")
        yield gram


def _jump(objective: Objective, release: Release, first: Batch, second: Batch) -> float:
    start, end = Exposure(objective, first, release), Exposure(objective, second, release)
    return largest_jump(start.mean, start.inputs, end.inputs)

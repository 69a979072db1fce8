"""The van Trees bound: what no attacker with a given prior can do better than, on average."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import scipy
import torch
from torch import Tensor

from gradleak.core import Batch, Domain, Exposure, NotGaussian, Objective, Release
from gradleak.linalg import dense_gram
from gradleak.operators import DENSE_LIMIT, GradientJacobian, example_matrices
from gradleak.results import (
    GILL_LEVIT_1995,
    LEDOIT_WOLF_2004,
    VAN_TREES_1968,
    Citation,
    Evidence,
    Finite,
    InputError,
    Natural,
    Number,
    Outcome,
    Positive,
    Score,
    UnsupportedError,
    Whole,
)
from gradleak.risk.measure import Unit, earned, outcome_of
from gradleak.risk.posterior import GaussianPrior, posterior_factor
from gradleak.risk.setting_measure import Setting, SettingMeasure, largest_jump

# Relative jumps above this break the theorem. Kinks, which it allows, leave less than 1e-7 in `largest_jump`.
LARGEST_JUMP = 1e-5
LINES = 2


@dataclass(frozen=True, kw_only=True, eq=False)
class BayesianCramerRao(SettingMeasure):
    """A lower bound on the mean squared error of every attacker over a stated Gaussian prior: van Trees' inequality.

    For x ~ N(m, Σ) and a release g(x) + N(0, σ²I), every estimator x̂, biased or not, has

        E‖x̂ − x‖² >= f(E[AᵀA]),   f(G) = tr((G/σ² + Σ⁻¹)⁻¹),

    A = ∂g/∂x, both expectations over the prior (and the noise). The prior is N(m, Σ) itself, fitted to public examples
    or given, and the samples of A are drawn from it, so the inequality is a theorem for that prior.

    **The average is sampled, and f is convex**: f of a sample mean is on average too large, no bound. The value is
    therefore a lower confidence limit. The first half of the samples gives any M₀ = Ḡ₀/σ² + Σ⁻¹; by Cauchy-Schwarz

        f(E[AᵀA]) >= tr(M₀⁻¹)² / E[tr(M₀⁻¹(AᵀA/σ² + Σ⁻¹)M₀⁻¹)],

    with equality for M₀ = E[AᵀA]/σ² + Σ⁻¹. The right side holds the mean of a scalar, whose upper confidence limit
    (`upper_limit`) comes from the second half.

    Assumptions: evidence is lower_bound where (i) the prior is the adversary's: it knows N(m, Σ), the model, the
    release and the labels, and nothing else on x (pixel bounds are not in a Gaussian); (ii) g has no jumps. The
    gradients of ReLU and max pooling networks jump in x; there the inequality does not hold, and what a search along
    lines between prior samples finds turns the evidence into estimate. It is a bound on the average over the prior, not
    for the private batch: single examples may leak far more. Fixed labels bound the attack on inputs with these labels
    under the same prior; labels drawn from the public ones, independently of x, bound the mean over them (f is convex).
    With unit `pixel_rmse` it is the root of a bound on the expected squared pixel error over d.

    It is for one release. Who sees several of the same batch (rounds) averages the noise, and the bound does not hold.

    Args:
        noise_std: σ > 0 on every entry of the release; None takes what the release carries, the smallest where tensors
            carry different noise (less noise makes the bound smaller, so it still holds). If the release carries less
            than what is stated, the bound is for the same release with this noise, and the note says so.
        public: public examples, as a tensor (n, *shape) in model-input units or a Batch (its labels are used where no
            targets are given); or None.
        prior: a Gaussian; or None.
        prior_std: standard deviation of an isotropic prior, in units of the valid range (pixels in [0, 1]), whose domain
            comes with the call; or None. Just one of public, prior and prior_std is given.
        prior_mean: mean of that prior.
        samples: draws from the prior, at least 16; half of them choose M₀.
        confidence: of the lower confidence limit, over the draw of the samples.
        unit: `input` (default) or `pixel_rmse`.
        dense_limit: largest d.

    Raises:
        InputError: for fields out of range, or none or several of public, prior and prior_std; when measured: without
            targets and without public labels, without a domain for prior_std, or for a model that does not take the
            examples.

    Cost: `samples` times A and AᵀA, then about 10 d³ multiplications, and 240 plain gradients for the search for jumps.

    Source: Van Trees 1968, section 2.4; multivariate form and conditions in Gill and Levit 1995. The confidence limit
    is ours; its skewness correction is that of Johnson 1978.
    """

    name: ClassVar[str] = "bayesian_cramer_rao"
    citations: ClassVar[tuple[Citation, ...]] = (VAN_TREES_1968, GILL_LEVIT_1995, LEDOIT_WOLF_2004)
    summary: ClassVar[str] = "van Trees bound on the mean error of every attacker over a Gaussian prior"

    noise_std: Positive | None = None
    public: Tensor | Batch | None = field(default=None, repr=False)
    prior: GaussianPrior | None = field(default=None, repr=False)
    prior_std: Positive | None = None
    prior_mean: Finite = 0.5
    samples: Annotated[int, Whole(16)] = 64
    confidence: Annotated[float, Number(0.5, 1, excluded="both")] = 0.95
    unit: Unit | str = Unit.INPUT
    dense_limit: Natural = DENSE_LIMIT

    def __post_init__(self) -> None:
        """Check what depends on more than one field."""
        super().__post_init__()
        if sum(given is not None for given in (self.public, self.prior, self.prior_std)) != 1:
            raise InputError("BayesianCramerRao: expected one of public, prior and prior_std")

    @property
    def assumed_noise(self) -> str:
        """Its own, in place of that of the release."""
        return "" if self.noise_std is None else f"noise of std {self.noise_std:g}"

    @property
    def public_inputs(self) -> Tensor | None:
        """The public examples (n, ...), or None."""
        return self.public.inputs if isinstance(self.public, Batch) else self.public

    def estimate(self, unknowns: int) -> float:
        """The cost in plain gradients: half a gradient a column of A and sample, and the search for jumps."""
        return 0.5 * unknowns * self.samples + 120.0 * LINES

    @property
    def _unit(self) -> str:
        return Unit(self.unit).squared

    def _measure(self, setting: Setting, generator: torch.Generator) -> Score:
        objective, release = setting.objective, setting.release
        noise = release.noise(objective, examples=setting.batch_size)
        if isinstance(noise, NotGaussian):
            return self._without_value(
                Outcome.UNSUPPORTED, f"the noise of this release is not Gaussian: {noise.reason}"
            )
        carried = 0.0 if noise is None else min(noise.std.values())
        if setting.copies > 1:
            note = f"an example stands {setting.copies} times in the batch, and the prior draws each by itself"
            return self._without_value(Outcome.UNSUPPORTED, note)
        noise_std = carried if self.noise_std is None else self.noise_std
        if noise_std == 0.0:
            note = "the release carries no noise" if noise is None else "some tensors of the release carry no noise"
            return self._without_value(Outcome.NOT_INFORMATIVE, f"{note}, so that there is nothing to bound from")
        prior = self._prior_of(setting)
        size = setting.batch_size * prior.mean.numel()
        if size > self.dense_limit:
            note = f"d = {size} is above the limit of {self.dense_limit} for a whole Gram matrix; raise dense_limit"
            return self._without_value(Outcome.UNSUPPORTED, note)
        drawn = self._draw(prior, setting, generator)
        objective.check(drawn[0])
        objective = objective.to(torch.float64)
        root = torch.block_diag(*[prior.root()] * setting.batch_size)
        weights = torch.ones(size, dtype=root.dtype, device=root.device)
        guessed = False
        if self.unit == Unit.PIXEL_RMSE:
            scale, guessed = self._pixel_scale(prior, setting)
            weights = scale.repeat(setting.batch_size) ** 2 / size
        details: dict[str, Any] = {
            "noise_std": noise_std,
            "release_noise_std": carried,
            "holds_for_release": noise_std <= carried * (1 + 1e-9),
            "prior": prior.card(),
            "prior_error": self._in_unit(float((weights[:, None] * root**2).sum())),
            "labels": "drawn from the public labels" if setting.targets is None else "given",
            "samples": self.samples,
            "confidence": self.confidence,
        } | ({"domain": "guessed from the public examples"} if guessed else {})
        check = setting.check or GradientJacobian(Exposure(objective, drawn[0], release)).check
        if check.refusal:
            return self._without_value(outcome_of(check), check.refusal, **details)
        found = self._limit(_grams(objective, release, drawn), root, weights, noise_std)
        if found is None:
            note = "the derivative of the release is zero at every prior sample, which is no evidence of safety"
            return self._without_value(Outcome.NOT_INFORMATIVE, note, **details)
        limit, plug_in, high = found
        jump = max(_jump(objective, release, drawn[2 * line], drawn[2 * line + 1]) for line in range(LINES))
        smooth = jump <= LARGEST_JUMP
        score = Score(
            name=self.name,
            value=self._in_unit(limit),
            unit=self._unit,
            leakier=self.leakier,
            evidence=Evidence.LOWER_BOUND if smooth else Evidence.ESTIMATE,
            interval=(self._in_unit(limit), self._in_unit(max(high, limit))),
            n=self.samples,
            note=self._note(details, smooth),
            details=details | {"plug_in": self._in_unit(plug_in), "largest_jump": jump},
        )
        return earned(score, check)

    def _prior_of(self, setting: Setting) -> GaussianPrior:
        if self.prior is not None:
            return self.prior
        if self.public is not None:
            known = setting.domain if isinstance(self.public, Tensor) else self.public.domain or setting.domain
            return GaussianPrior.from_public(self.public, domain=known)
        if setting.domain is None:
            raise InputError("BayesianCramerRao: expected domain=... with prior_std, which is in units of its range")
        assert self.prior_std is not None
        return GaussianPrior.isotropic(setting.domain, std=self.prior_std, mean=self.prior_mean)

    def _draw(self, prior: GaussianPrior, setting: Setting, generator: torch.Generator) -> list[Batch]:
        count = setting.batch_size
        inputs = prior.draw(self.samples * count, generator).unflatten(0, (self.samples, count))
        if setting.targets is not None:
            return [Batch(x, setting.targets, prior.domain).to(torch.float64) for x in inputs]
        if not isinstance(self.public, Batch):
            raise InputError("BayesianCramerRao: expected targets=..., or a Batch of public examples with labels")
        labels = self.public.targets
        chosen = torch.randint(labels.shape[0], (self.samples, count), generator=generator, device=generator.device).to(
            labels.device
        )
        return [
            Batch(x, labels[places], prior.domain).to(torch.float64) for x, places in zip(inputs, chosen, strict=True)
        ]

    def _limit(
        self, grams: Iterator[Tensor], root: Tensor, weights: Tensor, noise_std: float
    ) -> tuple[float, float, float] | None:
        """The lower confidence limit of f(E[AᵀA]), f at the mean of all samples, and an upper confidence limit of f."""
        half, information = self.samples // 2, noise_std**-2
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
        return start / upper_limit(sample, self.confidence, floor=rest / start), plug_in, plug_in + error

    def _note(self, details: dict[str, Any], smooth: bool) -> str:
        notes = [f"average over the stated prior, at {self.confidence:.0%} confidence over its samples"]
        if "domain" in details:
            notes.append("the range that a pixel is a share of was guessed from the public examples")
        if not details["holds_for_release"]:
            notes.append(f"for this release with noise of std {details['noise_std']:g}, more than it carries")
        if not smooth:
            notes.append("no bound: the release jumps as the input moves (ReLU, max pooling), which van Trees excludes")
        return "; ".join(notes)

    def _pixel_scale(self, prior: GaussianPrior, setting: Setting) -> tuple[Tensor, bool]:
        if prior.domain is not None:
            return prior.pixel_scale(), False
        if setting.domain is not None:
            return setting.domain.pixel_scale(prior.mean).reshape(-1), False
        if self.public_inputs is None:
            raise InputError(
                "BayesianCramerRao: expected a domain for unit='pixel_rmse', got none; errors in pixels mean nothing "
                "without it. Pass domain=... to the call or to GaussianPrior, or take unit='input'"
            )
        return Domain.guess(self.public_inputs).pixel_scale(prior.mean).reshape(-1), True

    def _in_unit(self, squared: float) -> float:
        return squared if self.unit == Unit.INPUT else math.sqrt(squared)


def upper_limit(sample: Tensor, confidence: float, *, floor: float = 0.0) -> float:
    """An upper confidence limit of the mean of independent numbers (n,) that are never below `floor`.

    The larger of two. Student's t corrected for skewness: mean + s/√n · (t + γ(1 + 2t²)/(6√n)), s the standard
    deviation, γ the sample skewness where it is positive. And that of a scaled chi-squared law above the floor with the
    same mean and variance, m·k/χ²ₖ(1 − c), k = 2n·m²/s² · (n − 1)/(n + 2). Squares are bounded below and skewed to the
    right: of 95 % limits of the mean of χ²₁ from 8, 32 and 128 numbers the plain t limit holds 81, 88 and 92 %, the
    corrected one 84, 91 and 94 %, the larger of both 93, 94 and 95 %. For laws with heavier tails (log-normal) all of
    them hold less often.

    Source: Johnson 1978, Modified t tests and confidence intervals for asymmetrical populations; Satterthwaite 1946 for
    the degrees of freedom, whose last factor is ours.
    """
    count, mean, std = sample.numel(), float(sample.mean()), float(sample.std())
    if std == 0.0:
        return mean
    skewness = max(0.0, float((((sample - mean) / std) ** 3).mean()))
    t = float(scipy.stats.t.ppf(confidence, count - 1))
    corrected = mean + std / math.sqrt(count) * (t + skewness * (1 + 2 * t**2) / (6 * math.sqrt(count)))
    above = mean - floor
    degrees = 2 * count * (above / std) ** 2 * (count - 1) / (count + 2)
    quantile = float(scipy.stats.chi2.ppf(1 - confidence, degrees))
    return max(corrected, floor + above * degrees / quantile) if quantile > 0.0 else math.inf


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

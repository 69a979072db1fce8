"""The prior of an attacker and its Gaussian posterior given the update."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, final

import torch
from torch import Tensor

from gradleak.core import Batch, Domain, Exposure
from gradleak.core.process import ONE_CALL
from gradleak.linalg import Gram, LanczosQuadrature, LinearOperator, TraceSolver
from gradleak.operators import DENSE_LIMIT, GradientJacobian
from gradleak.results import (
    LEDOIT_WOLF_2004,
    VAN_TREES_1968,
    Citation,
    Evidence,
    Hint,
    InputError,
    Natural,
    Outcome,
    Positive,
    Score,
    check_finite,
    check_positive,
)
from gradleak.risk.measure import Measure, Unit, not_gaussian


@dataclass(frozen=True, kw_only=True, eq=False)
class GaussianPrior:
    """A Gaussian law of one example, N(mean, covariance), in model-input units; examples are independent.

    Attributes:
        mean: (e,), flat.
        covariance: (e, e), symmetric positive definite.
        domain: shape, range and normalization of an example, or None for unknown: then an input unit is a pixel.
        shape: of an example; by default that of the domain, else (e,).
        origin: where it comes from, for the record.

    Raises:
        InputError: for what is no real tensor, sizes that disagree, or a covariance that is not symmetric, finite and
            positive definite.

    Source: shrinkage as in Ledoit and Wolf 2004.
    """

    mean: Tensor
    covariance: Tensor
    domain: Domain | None = None
    shape: tuple[int, ...] | None = None
    origin: str = "given"

    def __post_init__(self) -> None:
        """Check sizes and definiteness."""
        for name, given in (("mean", self.mean), ("covariance", self.covariance)):
            if not isinstance(given, Tensor) or not given.is_floating_point():
                kind = given.dtype if isinstance(given, Tensor) else type(given).__name__
                raise InputError(f"{name}: expected a tensor of floating point numbers, got {kind}")
        if not isinstance(self.domain, Domain | None):
            raise InputError(f"domain: expected a Domain or None, got {type(self.domain).__name__}")
        size = self.mean.numel()
        if self.mean.dim() != 1 or tuple(self.covariance.shape) != (size, size) or size == 0:
            raise InputError(
                f"GaussianPrior: expected a mean (e,) and a covariance (e, e), got {tuple(self.mean.shape)} and "
                f"{tuple(self.covariance.shape)}"
            )
        if self.domain is not None and self.domain.size != size:
            raise InputError(f"GaussianPrior: expected the {self.domain.size} entries of the domain, got {size}")
        shape = self.shape or (self.domain.shape if self.domain is not None else (size,))
        if torch.Size(shape).numel() != size:
            raise InputError(f"GaussianPrior: expected a shape of {size} entries, got {shape}")
        object.__setattr__(self, "shape", tuple(shape))
        object.__setattr__(self, "mean", self.mean.detach().double())
        object.__setattr__(self, "covariance", self.covariance.detach().double())
        if not torch.allclose(self.covariance, self.covariance.T) or not bool(torch.isfinite(self.mean).all()):
            raise InputError("GaussianPrior: expected a finite mean and a symmetric covariance")
        self.root()

    @classmethod
    def from_public(cls, public: Tensor | Batch, *, domain: Domain | None = None) -> GaussianPrior:
        """The Gaussian with mean and shrunk covariance of public examples.

        The covariance is (1 − s)·S + s·(tr S/e)·I, S the sample covariance and s the intensity of Ledoit and Wolf.

        Args:
            public: at least two examples (n, *shape) in model-input units, as a tensor or a batch.
            domain: of an example; by default that of the batch.

        Raises:
            InputError: for fewer than two examples, or examples that do not differ.

        Cost: n·e² multiplications.
        """
        inputs = public.inputs if isinstance(public, Batch) else public
        if not isinstance(inputs, Tensor) or inputs.dim() < 2 or inputs.shape[0] < 2:
            raise InputError("public: expected at least two examples (n, ...), as a tensor or a Batch")
        if domain is None and isinstance(public, Batch):
            domain = public.domain
        flat = inputs.detach().cpu().double().flatten(1)
        if not bool(torch.isfinite(flat).all()) or bool((flat == flat[0]).all()):
            raise InputError("public: expected finite examples that differ from each other")
        # A second of every process that never needs it.
        from sklearn.covariance import LedoitWolf

        with ONE_CALL, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Only one sample available")
            fitted = LedoitWolf().fit(flat.numpy())
        covariance = torch.from_numpy(fitted.covariance_)
        return cls(
            mean=torch.from_numpy(fitted.location_).to(inputs.device),
            covariance=((covariance + covariance.T) / 2).to(inputs.device),
            domain=domain,
            shape=tuple(inputs.shape[1:]),
            origin=f"Gaussian fitted to {flat.shape[0]} public examples, Ledoit-Wolf shrinkage {fitted.shrinkage_:.3g}",
        )

    @classmethod
    def isotropic(cls, domain: Domain, *, std: float, mean: float = 0.5) -> GaussianPrior:
        """Independent entries of the same mean and standard deviation, in units of the valid range (pixels in [0, 1]).

        No law on that range has a standard deviation above 0.5.

        Args:
            domain: of an example.
            std: standard deviation, positive.
            mean: by default the middle of the range.

        Raises:
            InputError: for a standard deviation that is not positive, or a mean that is not finite.

        Examples:
            >>> prior = GaussianPrior.isotropic(Domain(shape=(2,), high=10.0, kind="tabular"), std=0.3)
            >>> prior.mean.tolist(), round(float(prior.covariance[0, 0]), 6)
            ([5.0, 5.0], 9.0)
        """
        check_positive("std", std)
        check_finite("mean", mean)
        if not isinstance(domain, Domain):
            raise InputError(f"domain: expected a Domain, got {type(domain).__name__}")
        middle = domain.from_pixels(torch.full(domain.shape, mean, dtype=torch.float64)).reshape(-1)
        deviations = std / domain.pixel_scale(middle).reshape(-1)
        return cls(
            mean=middle,
            covariance=torch.diag(deviations**2),
            domain=domain,
            origin=f"isotropic Gaussian, mean {mean:g} and std {std:g} of the valid range, all entries independent",
        )

    def root(self) -> Tensor:
        """The lower Cholesky factor L (e, e) of the covariance, LLᵀ.

        Raises:
            InputError: if the covariance is not positive definite.
        """
        factor: Tensor
        factor, failed = torch.linalg.cholesky_ex(self.covariance)
        if int(failed) or not bool(torch.isfinite(factor).all()):
            raise InputError(
                "GaussianPrior: expected a positive definite covariance; add a small multiple of the identity"
            )
        return factor

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """`count` independent examples (count, *shape)."""
        assert self.shape is not None
        drawn = torch.randn(
            (count, self.mean.numel()), generator=generator, dtype=torch.float64, device=generator.device
        )
        return (self.mean + drawn.to(self.mean.device) @ self.root().T).reshape(count, *self.shape)

    def pixel_scale(self) -> Tensor:
        """Factor by which each entry changes its pixel in [0, 1], (e,); ones where the domain is unknown."""
        if self.domain is None:
            return torch.ones_like(self.mean)
        return self.domain.pixel_scale(self.mean).reshape(-1)

    def card(self) -> dict[str, Any]:
        """Description for a record; no values of examples."""
        return {"origin": self.origin, "entries": self.mean.numel(), "trace": float(self.covariance.trace())}


def posterior_factor(information: Tensor, root: Tensor) -> Tensor:
    """F (d, d) with FFᵀ = (H + Σ⁻¹)⁻¹ for the information H (d, d) of a release and a root L of the prior, Σ = LLᵀ.

    (H + Σ⁻¹)⁻¹ = L(I + LᵀHL)⁻¹Lᵀ needs no inverse of Σ, and the matrix that is inverted is never ill-conditioned from
    below.

    Cost: about 3 d³ multiplications.
    """
    inner = root.T @ information @ root
    inner = (inner + inner.T) / 2 + torch.eye(root.shape[1], dtype=root.dtype, device=root.device)
    lower = torch.linalg.cholesky(inner)
    transposed: Tensor = torch.linalg.solve_triangular(lower, root.T, upper=False)
    return transposed.T


@dataclass(frozen=True, kw_only=True)
class LinearizedPosteriorError(Measure):
    """The expected squared error of a Bayesian attacker if the release were linear with its derivative at the truth.

    tr((AᵀA/σ² + Σ⁻¹)⁻¹), A at the truth, σ the standard deviation of the noise on the release and Σ the covariance of a
    Gaussian prior on x: the trace of the posterior covariance. With Σ = τ²I it is Σᵢ 1/(λᵢ/σ² + 1/τ²), and it gives the
    ε of I²F a meaning, ε = σ²/τ². With unit `pixel_rmse` it is the root of the expected squared pixel error over d.

    Assumptions: exact for a linear release, noise N(0, σ²I) and that prior; for a network an estimate, since A changes
    over the width of the posterior. It is no bound: see `BayesianCramerRao` for that. Where A = 0 the linearized
    release says nothing and there is no value (not_informative); the prior's own error is in the details. Beyond
    `dense_limit` the trace itself is estimated, with an interval of 95 % for the sampling; with little noise the small
    eigenvalues of AᵀA are not resolved and the value is too small (budget_spent; the interval then ends at the prior's
    own error).

    Args:
        noise_std: σ, positive.
        prior_std: τ in pixels scaled to [0, 1] (in model-input units where the batch has no stated domain), the same
            for all entries; or None with `prior`.
        prior: a Gaussian in model-input units, for instance `GaussianPrior.from_public(images)`; or None with
            `prior_std`. The examples of a batch are independent under it.
        unit: `input` (default, a squared error in model-input units) or `pixel_rmse`.
        dense_limit: largest d for the whole Gram matrix.
        solver: how the trace is estimated beyond it: `LanczosQuadrature()`, `HutchPlusPlus()` or `Hutchinson()`.

    Raises:
        InputError: for a standard deviation that is not positive, none or both of the two priors, a solver that computes
            no trace, or (when measured) a prior of another size.

    Cost: that of AᵀA, and about 3 d³ multiplications; nothing more for an isotropic prior with a spectrum at hand.
    Beyond `dense_limit`, that of the solver: for the default 16 · 64 products with AᵀA, and for a prior with a
    covariance as many with its root.

    Source: the Gaussian posterior of a linear model, as in the van Trees bound (Van Trees 1968) with A at the truth
    in place of its average over the prior.
    """

    name: ClassVar[str] = "linearized_posterior_error"
    citations: ClassVar[tuple[Citation, ...]] = (VAN_TREES_1968, LEDOIT_WOLF_2004)
    summary: ClassVar[str] = "error left to an attacker with a Gaussian prior, linearized at the truth"

    noise_std: Positive
    prior_std: Positive | None = None
    prior: GaussianPrior | None = None
    unit: Unit | str = Unit.INPUT
    dense_limit: Natural = DENSE_LIMIT
    solver: Annotated[TraceSolver, Hint("LanczosQuadrature, for instance")] = field(default_factory=LanczosQuadrature)

    def __post_init__(self) -> None:
        """Check what depends on more than one field."""
        super().__post_init__()
        if (self.prior_std is None) == (self.prior is None):
            raise InputError("LinearizedPosteriorError: expected one of prior_std and prior")

    @property
    def assumed_noise(self) -> str:
        """Its own, in place of that of the release."""
        return f"noise of std {self.noise_std:g}"

    @property
    def _unit(self) -> str:
        return Unit(self.unit).squared

    def _measure(self, exposure: Exposure, delta: Tensor | None, operator: GradientJacobian) -> Score:
        reason = not_gaussian(exposure)
        if reason is not None:
            return self._without_value(Outcome.UNSUPPORTED, f"the noise of this release is not Gaussian: {reason}")
        size = operator.shape[1]
        stated = exposure.batch.domain is not None
        # Without a domain nothing below is in pixels.
        pixels = (exposure.pixel_scale() if stated else torch.ones_like(exposure.inputs)).to(operator.dtype)
        if self.prior_std is not None:
            matrix = self.prior_std / pixels
            origin = f"isotropic, std {self.prior_std:g} in {'pixels' if stated else 'model-input units (no domain)'}"
        else:
            matrix, origin = self._root_of_example(exposure, operator), self._given_prior.origin
        weights = torch.ones_like(pixels) if self.unit == Unit.INPUT else pixels / math.sqrt(size)
        root = _Root(matrix, weights)
        details: dict[str, Any] = {
            "noise_std": self.noise_std,
            "prior": origin,
            "prior_error": self._in_unit(root.squared_norm()),
            "linearization": "A at the truth, not averaged over the prior",
        }
        if size > self.dense_limit:
            return self._by_sampling(operator, matrix, root, details)
        if float(operator.gram().diagonal().max()) == 0.0:
            return self._without_value(Outcome.NOT_INFORMATIVE, self._zero_map(operator).note, **details)
        isotropic = matrix.dim() == 1 and bool((matrix == matrix[0]).all())
        if isotropic and self.unit == Unit.INPUT:
            left = float((1 / (operator.gram_spectrum() / self.noise_std**2 + matrix[0] ** -2)).sum())
        else:
            whole = torch.diag(matrix) if matrix.dim() == 1 else torch.block_diag(*[matrix] * exposure.batch.size)
            factor = posterior_factor(operator.gram() / self.noise_std**2, whole)
            squares = (weights[:, None] * factor) ** 2
            left = float(squares.sum())
            if self.unit == Unit.PIXEL_RMSE:
                examples = exposure.batch.size
                each = (squares.view(examples, -1).sum(dim=1) * examples).sqrt()
                details["per_example"] = [float(error) for error in each]
        return self._score(
            self._in_unit(left),
            Evidence.ESTIMATE,
            note="linearized at the truth: an estimate for this example, no bound",
            details=details | {"route": operator.route},
        )

    def _by_sampling(self, operator: GradientJacobian, matrix: Tensor, root: _Root, details: dict[str, Any]) -> Score:
        """σ² · tr(WL (LᵀAᵀAL + σ²I)⁻¹ LᵀW), W the weights of the entries and L the root of the prior."""
        gram = _Whitened(Gram(operator), _Root(matrix, torch.ones_like(root.weights)))
        # One product first: of a zero map nothing can be sampled.
        drawn = torch.randn(operator.shape[1], 1, generator=torch.Generator().manual_seed(0), dtype=operator.dtype)
        if float(gram.matmat(drawn.to(operator.device)).norm()) == 0.0:
            return self._without_value(Outcome.NOT_INFORMATIVE, self._zero_map(operator).note, **details)
        found = self.solver.estimate(gram, self.noise_std**2, root)
        details |= {
            "solver": self.solver.label,
            "picked": f"d = {operator.shape[1]} is above {self.dense_limit}, the limit for a whole Gram matrix",
            "matvecs": found.matvecs,
            "samples": found.samples,
            "residual": found.inner_error,
            "route": operator.route,
        }
        if found.value is None:
            return self._without_value(found.outcome, f"{self.solver.label} found no value", **details)

        def stated(trace: float) -> float:
            return self._in_unit(max(0.0, self.noise_std**2 * trace))

        note = "linearized at the truth: an estimate for this example, no bound"
        interval = None if found.interval is None else (stated(found.interval[0]), stated(found.interval[1]))
        if interval is not None and found.outcome is Outcome.BUDGET_SPENT:
            # What is missing makes a quadrature too small; more than the prior alone it can never be.
            interval = (interval[0], max(interval[1], details["prior_error"]))
            note += "; the trace was not resolved to the tolerance of the solver, so that it is rather too small"
        return self._score(
            stated(found.value),
            Evidence.ESTIMATE,
            interval=interval,
            n=found.samples,
            outcome=found.outcome,
            note=note,
            details=details,
        )

    @property
    def _given_prior(self) -> GaussianPrior:
        assert self.prior is not None
        return self.prior

    def _root_of_example(self, exposure: Exposure, operator: GradientJacobian) -> Tensor:
        single = exposure.batch.inputs[0].numel()
        if self._given_prior.mean.numel() != single:
            raise InputError(f"prior: expected a Gaussian of the {single} entries of an example, got "
                             f"{self._given_prior.mean.numel()}")  # fmt: skip
        return self._given_prior.root().to(operator.device, operator.dtype)

    def _in_unit(self, squared: float) -> float:
        return squared if self.unit == Unit.INPUT else math.sqrt(squared)


@final
class _Root(LinearOperator):
    """diag(weights) · blockdiag(L, L, ...), for the root L of the prior of an example, or a diagonal (d,)."""

    def __init__(self, matrix: Tensor, weights: Tensor) -> None:
        super().__init__((weights.numel(), weights.numel()), dtype=weights.dtype, device=weights.device)
        self._matrix = matrix
        self.weights = weights

    def squared_norm(self) -> float:
        """The trace of the product with the adjoint: the expected squared error of the prior alone."""
        if self._matrix.dim() == 1:
            return float(((self.weights * self._matrix) ** 2).sum())
        rows = (self._matrix**2).sum(dim=1)
        return float((self.weights.reshape(-1, rows.numel()) ** 2 * rows).sum())

    def _matmat(self, block: Tensor) -> Tensor:
        return self.weights[:, None] * self._by_example(block, self._matrix)

    def _adjoint_matmat(self, block: Tensor) -> Tensor:
        return self._by_example(
            self.weights[:, None] * block, self._matrix.T if self._matrix.dim() == 2 else self._matrix
        )

    def _by_example(self, block: Tensor, matrix: Tensor) -> Tensor:
        if matrix.dim() == 1:
            return matrix[:, None] * block
        return (matrix @ block.reshape(-1, matrix.shape[0], block.shape[1])).reshape(block.shape)


@final
class _Whitened(LinearOperator):
    """LᵀGL for a symmetric G."""

    def __init__(self, gram: LinearOperator, root: _Root) -> None:
        super().__init__(gram.shape, dtype=gram.dtype, device=gram.device)
        self._gram, self._root = gram, root

    def _matmat(self, block: Tensor) -> Tensor:
        return self._root.adjoint_matmat(self._gram.matmat(self._root.matmat(block)))

    def _adjoint_matmat(self, block: Tensor) -> Tensor:
        return self._matmat(block)

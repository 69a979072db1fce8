"""Fisher information of the release, the Cramér-Rao bound, its extremes over the batch, and the gradient's norm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from gradleak.core import Exposure
from gradleak.linalg import (
    DenseSolver,
    Gram,
    LinearOperator,
    Solver,
    TraceSolver,
    block_lanczos,
    choose_trace_solver,
    lobpcg,
)
from gradleak.operators import DENSE_LIMIT, GradientJacobian
from gradleak.results import (
    HANNUN_2021,
    HONG_2024,
    ZHANG_2023,
    Citation,
    Evidence,
    Hint,
    Leakier,
    Natural,
    Outcome,
    Positive,
    Score,
    Share,
)
from gradleak.risk.measure import EXACT_TO, Measure, Unit, not_gaussian, rank_facts


@dataclass(frozen=True, kw_only=True)
class Extreme:
    """An extreme eigenvalue.

    Attributes:
        value: the eigenvalue, or None if the products were not finite.
        outcome: converged, budget_spent or not_finite; for the smallest one also not_identifiable (it is 0) and
            not_informative (the zero operator).
        details: solver, residual, multiplicity and products, for the score.
    """

    value: float | None
    outcome: Outcome
    details: dict[str, Any]

    @property
    def evidence(self) -> Evidence:
        """Exact for a dense value, or one certified to 0.1 % by its residual, else an estimate."""
        certain = self.outcome in (Outcome.CONVERGED, Outcome.NOT_IDENTIFIABLE)
        close = not self.value or self.details.get("residual", 0.0) <= EXACT_TO * self.value
        return Evidence.EXACT if certain and close else Evidence.ESTIMATE


def largest_gram_eigenvalue(operator: GradientJacobian, *, dense_limit: int, tolerance: float) -> Extreme:
    """λmax(AᵀA): from the dense spectrum up to `dense_limit` unknowns or where it is there, else by block Lanczos."""
    if operator.has_spectrum or operator.shape[1] <= dense_limit:
        details = {"solver": "dense spectrum", "route": operator.route}
        return Extreme(value=float(operator.gram_spectrum()[-1]), outcome=Outcome.CONVERGED, details=details)
    return largest_by_lanczos(operator, tolerance=tolerance)


def largest_by_lanczos(factor: LinearOperator, *, tolerance: float, max_matvecs: int = 4000) -> Extreme:
    """λmax(BᵀB) of an operator B by block Lanczos; the start vectors come from a fresh generator with seed 0."""
    generator = torch.Generator().manual_seed(0)
    found = block_lanczos(Gram(factor), generator=generator, tolerance=tolerance, max_matvecs=max_matvecs)
    details: dict[str, Any] = {"solver": "block Lanczos", "matvecs": found.matvecs}
    if found.outcome is Outcome.NOT_FINITE:
        return Extreme(value=None, outcome=Outcome.NOT_FINITE, details=details)
    if found.outcome is Outcome.NOT_INFORMATIVE:  # the zero operator, which is an answer here
        return Extreme(value=0.0, outcome=Outcome.CONVERGED, details=details)
    details |= {"residual": float(found.residuals[0]), "multiplicity": found.multiplicity}
    return Extreme(value=float(found.values[0]), outcome=found.outcome, details=details)


def smallest_by_lobpcg(factor: LinearOperator, *, tolerance: float, max_matvecs: int = 4000) -> Extreme:
    """λmin(BᵀB) of an operator B by LOBPCG; 0 where the null space is not empty, not_finite without a value.

    Where the budget ends first (ill-conditioned operators) the value is too large.
    """
    generator = torch.Generator().manual_seed(0)
    found = lobpcg(Gram(factor), largest=False, generator=generator, tolerance=tolerance, max_matvecs=max_matvecs)
    details: dict[str, Any] = {"solver": "LOBPCG", "matvecs": found.matvecs}
    if found.outcome is Outcome.NOT_FINITE:
        return Extreme(value=None, outcome=Outcome.NOT_FINITE, details=details)
    details |= {"residual": float(found.residuals[0])}
    if found.outcome in (Outcome.NOT_INFORMATIVE, Outcome.NOT_IDENTIFIABLE):
        return Extreme(value=0.0, outcome=found.outcome, details=details)
    return Extreme(value=float(found.values[0]), outcome=found.outcome, details=details)


@dataclass(frozen=True, kw_only=True)
class FisherInformationLoss(Measure):
    """The Fisher information loss η = ‖A‖₂/σ of a release with noise N(0, σ²) on every entry.

    The Fisher information of the release about x is AᵀA/σ²; η is the root of its largest eigenvalue. Any unbiased
    attacker has variance of at least 1/η² along every direction of the input.

    Assumptions: exact for a dense or certified λmax. It describes the most visible direction alone, and unbiased
    attackers alone: no verdict reads safety from it.

    Args:
        std: σ, standard deviation of the noise on every entry of the release, positive.
        dense_limit: largest d for the whole spectrum; beyond, λmax comes from block Lanczos.
        tolerance: relative residual of the block Lanczos value.

    Raises:
        InputError: for a standard deviation that is not positive.

    Cost: λmax(AᵀA): the spectrum, or tens of products.

    Source: Hannun et al. 2021, definition of η by the spectral norm of the Fisher information matrix.
    """

    name: ClassVar[str] = "fisher_information_loss"
    citations: ClassVar[tuple[Citation, ...]] = (HANNUN_2021,)
    summary: ClassVar[str] = "spectral norm of A over the noise, the Fisher information loss"
    leakier: ClassVar[Leakier] = Leakier.HIGHER

    std: Positive
    dense_limit: Natural = DENSE_LIMIT
    tolerance: Share = 1e-9

    @property
    def assumed_noise(self) -> str:
        """Its own, in place of that of the release."""
        return f"noise of std {self.std:g}"

    @property
    def _unit(self) -> str:
        return "1/input"

    def _measure(self, exposure: Exposure, delta: Tensor | None, operator: GradientJacobian) -> Score:
        reason = not_gaussian(exposure)
        if reason is not None:
            return self._without_value(Outcome.UNSUPPORTED, f"the noise of this release is not Gaussian: {reason}")
        found = largest_gram_eigenvalue(operator, dense_limit=self.dense_limit, tolerance=self.tolerance)
        if found.value is None:
            return self._without_value(found.outcome, "the derivative of the release is not finite", **found.details)
        if found.value == 0.0:
            return self._zero_map(operator)
        return self._score(
            math.sqrt(found.value) / self.std,
            found.evidence,
            outcome=found.outcome,
            note="of unbiased attackers, along the most visible direction",
            details=found.details | {"eigenvalue_max": found.value, "std": self.std},
        )


_SQUARED = "expected squared error"
_SINGULAR = (
    "needs an AᵀA that is invertible, and this release leaves some directions of the input unseen; take "
    "LanczosQuadrature or DenseSolver"
)
_ROOT = "root of the expected squared pixel error over d"


@dataclass(frozen=True, kw_only=True)
class GaussianReconstructionError(Measure):
    """The expected squared error of the L2-matching attacker under noise N(0, std²) on every shared entry.

    E‖x̂ − x‖² = std² · Σ 1/λᵢ(AᵀA), the sum over the non-zero eigenvalues: the mean of squared I²F over the noise, and
    the Cramér-Rao bound of an unbiased attacker. With unit `pixel_rmse` it is the root of the expected squared pixel
    error over d, √(std² · Σᵢ sᵢ² [(AᵀA)⁺]ᵢᵢ / d), s the pixel scale.

    Assumptions: first order in the noise. A biased attacker (one with a prior or a box) beats it, so no verdict reads
    safety from it. For rank r < d it covers the range of A only (not_identifiable); for A = 0 there is no value.

    Args:
        std: standard deviation of the noise on every entry of the release, positive.
        unit: `input` (default, a squared error in model-input units) or `pixel_rmse` (a root mean square in pixels).
        solver: `DenseSolver()`, `LanczosQuadrature()`, `HutchPlusPlus()` or `Hutchinson()`; None picks the spectrum
            where it fits, else the quadrature (`choose_trace_solver`). The estimators come with an interval of 95 %
            that covers their sampling and a residual for what is inside. Where they did not reach the small
            eigenvalues (budget_spent) there is no interval: the value is too small, or too large if the release has a
            null space. Hutchinson and Hutch++ need an AᵀA that is invertible (unsupported otherwise).
        dense_limit: largest d for which the whole spectrum is picked.

    Raises:
        InputError: for a standard deviation that is not positive, or a solver that computes no trace.

    Cost: that of the spectrum of AᵀA, or of the solver.

    Source: Zhang et al. 2023, equation 6 (which writes JᵀJ; the sum runs over the non-zero eigenvalues, those of
    JJᵀ = AᵀA); Fisher information of the release as in Hannun et al. 2021.
    """

    name: ClassVar[str] = "gaussian_reconstruction_error"
    citations: ClassVar[tuple[Citation, ...]] = (ZHANG_2023, HANNUN_2021)
    summary: ClassVar[str] = "expected error under Gaussian noise, the Cramér-Rao bound of unbiased attackers"

    std: Positive
    unit: Unit | str = Unit.INPUT
    solver: Annotated[DenseSolver | TraceSolver | None, Hint("LanczosQuadrature, for instance")] = None
    dense_limit: Natural = DENSE_LIMIT

    @property
    def assumed_noise(self) -> str:
        """Its own, in place of that of the release."""
        return f"noise of std {self.std:g}"

    def predicts_noise(self, std: float) -> Unit | None:
        """Its unit, for its own std."""
        return Unit(self.unit) if std == self.std else None

    @property
    def _unit(self) -> str:
        return Unit(self.unit).squared

    def _measure(self, exposure: Exposure, delta: Tensor | None, operator: GradientJacobian) -> Score:
        reason = not_gaussian(exposure)
        if reason is not None:
            return self._without_value(Outcome.UNSUPPORTED, f"the noise of this release is not Gaussian: {reason}")
        size = operator.shape[1]
        solver: Solver | None = self.solver
        reason = "asked for"
        if solver is None:
            choice = choose_trace_solver(
                operator.shape,
                max_bytes=operator.max_bytes,
                limit=self.dense_limit,
                at_hand=operator.has_spectrum,
                item_bytes=operator.value.element_size(),
            )
            solver, reason = choice.solver, choice.reason
        if isinstance(solver, TraceSolver):
            return self._by_sampling(exposure, operator, solver, reason)
        outcome, note, details = rank_facts(operator)
        if details["rank"] == 0:
            return self._zero_map(operator)
        spectrum = operator.spectrum
        kept = spectrum.values > spectrum.threshold
        if self.unit == Unit.INPUT:
            value = self.std * self.std * float((1 / spectrum.values[kept]).sum())
            quantity = _SQUARED
        else:
            scale = exposure.pixel_scale().to(operator.dtype)
            weights = ((scale[:, None] * spectrum.vectors[:, kept]) ** 2).sum(dim=0)
            value = self.std * math.sqrt(float((weights / spectrum.values[kept]).sum()) / size)
            quantity = _ROOT
        return self._score(
            value,
            Evidence.ESTIMATE,
            outcome=outcome,
            note=note,
            details=details | {"picked": reason, "std": self.std, "quantity": quantity},
        )

    def _by_sampling(self, exposure: Exposure, operator: GradientJacobian, solver: TraceSolver, reason: str) -> Score:
        size = operator.shape[1]
        pixels = self.unit == Unit.PIXEL_RMSE
        weights = exposure.pixel_scale().to(operator.dtype) if pixels else None
        gram = Gram(operator)
        # One product first: of a zero map nothing can be sampled.
        probe = torch.randn(size, 1, generator=torch.Generator().manual_seed(0), dtype=operator.dtype)
        if float(gram.matmat(probe.to(operator.device)).norm()) == 0.0:
            return self._zero_map(operator)
        found = solver.estimate(gram, 0.0, weights)
        details: dict[str, Any] = {
            "solver": solver.label,
            "picked": reason,
            "route": operator.route,
            "matvecs": found.matvecs,
            "samples": found.samples,
            "residual": found.inner_error,
            "std": self.std,
            "quantity": _ROOT if pixels else _SQUARED,
        }
        if found.value is None or found.outcome.has_value is False:
            singular = found.outcome is Outcome.UNSUPPORTED
            why = _SINGULAR if singular else "found no value"
            return self._without_value(found.outcome, f"{solver.label} {why}", **details)

        def stated(trace: float) -> float:
            trace = max(trace, 0.0)
            return self.std * math.sqrt(trace / size) if pixels else self.std * self.std * trace

        note = ""
        if found.outcome is Outcome.NOT_IDENTIFIABLE:
            details["null_dimension"] = found.null_dimension
            note = f"about {found.null_dimension:.0f} of {size} directions are left out: the release does not see them"
        elif found.outcome is Outcome.BUDGET_SPENT:
            note = "the smallest eigenvalues were not resolved: too small, or too large if the release has a null space"
        return self._score(
            stated(found.value),
            Evidence.ESTIMATE,
            interval=None
            if found.interval is None or found.outcome is Outcome.BUDGET_SPENT
            else (stated(found.interval[0]), stated(found.interval[1])),
            outcome=found.outcome,
            note=note,
            details=details,
        )


@dataclass(frozen=True, kw_only=True)
class GradientNorm(Measure):
    """The L2 norm of the released mean, ‖g(x)‖, over all shared tensors.

    Assumptions: a heuristic. Prior studies take a large norm for vulnerable; Hong et al. find both signs of the
    correlation, so it is kept as the baseline that better measures are compared with. It is in gradient units and has
    no pixel form. A zero release has no value (no_signal).

    Cost: one plain gradient.

    Source: Hong et al. 2024, the baseline proxy of tables 1 and 2.
    """

    name: ClassVar[str] = "gradient_norm"
    citations: ClassVar[tuple[Citation, ...]] = (HONG_2024,)
    summary: ClassVar[str] = "L2 norm of the released mean, a heuristic baseline"
    leakier: ClassVar[Leakier] = Leakier.HIGHER
    reads_derivative: ClassVar[bool] = False

    @property
    def assumed_noise(self) -> str:
        """Its own, in place of that of the release."""
        return "no noise"

    @property
    def _unit(self) -> str:
        return "gradient"

    def _measure(self, exposure: Exposure, delta: Tensor | None, operator: GradientJacobian) -> Score:
        value = float(operator.value.norm())
        if value == 0.0:
            return self._without_value(Outcome.NO_SIGNAL, "the released mean is zero")
        return self._score(value, Evidence.EXACT, note="a heuristic: studies disagree on its sign")

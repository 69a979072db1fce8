"""Two cases of what the derivative of a release decides: poisoning by an example, and a network of one layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.core import Batch
from gradleak.operators import DENSE_LIMIT, GradientJacobian
from gradleak.results import InputError, Outcome, check_positive
from gradleak.risk.cramer_rao import largest_gram_eigenvalue
from gradleak.risk.measure import outcome_of


@dataclass(frozen=True, kw_only=True, eq=False)
class PoisoningAmplification:
    """The rise of a test loss by a small change of one private batch, and its bound by ‖A‖.

    Attributes:
        amplification: the largest rise to first order, η · radius · ‖Aᵀv‖; None without a derivative.
        bound: η · radius · ‖A‖ · ‖v‖, never below it; None without a derivative.
        spectral_norm: ‖A‖.
        test_gradient: ‖v‖, the norm of the gradient of the test loss after the step.
        direction: the change of the inputs that reaches it, of norm `radius`, shaped like them; None where there is none.
        outcome: converged, not_informative where nothing that the inputs do changes the test loss, or why there is no value.
        note: more about the outcome.
    """

    amplification: float | None
    bound: float | None
    spectral_norm: float | None
    test_gradient: float | None
    direction: Tensor | None
    outcome: Outcome
    note: str = ""


def poisoning_amplification(
    operator: GradientJacobian,
    tests: Batch,
    *,
    learning_rate: float = 1.0,
    radius: float = 1.0,
    dense_limit: int = DENSE_LIMIT,
) -> PoisoningAmplification:
    """The most that a change δ of the private inputs, ‖δ‖ <= radius, raises a test loss after one step with its release.

    The server steps to θ'(x) = θ − η g(x). To first order L(tests; θ'(x + δ)) − L(tests; θ'(x)) = −η δᵀAᵀv, with A = ∂g/∂x
    and v = ∇L(tests; θ'(x)). Its largest value is η · radius · ‖Aᵀv‖ <= η · radius · ‖A‖ · ‖v‖: what leaks through a large
    ‖A‖ also bends the training most. Steps of a whole round are those of its release; noise is left out.

    **Assumptions**: first order in δ. The paper's inequality has the derivative at x + δ; here it is taken at x.

    Args:
        operator: A, with objective, private batch and release.
        tests: examples whose mean loss rises.
        learning_rate: η of the server's step, positive.
        radius: the largest norm of δ, in model-input units, positive.
        dense_limit: largest d for ‖A‖ from the whole spectrum; beyond, block Lanczos.

    Raises:
        InputError: for a number that is not positive, or examples that the model does not take.

    **Cost**: ‖A‖, one product with Aᵀ, and two plain gradients.

    **Source**: Zhang et al. 2023, section 5.2, whose step has η = 1 and whose radius is 1. Deviation: the sign, which the paper
    leaves out and a norm does not see.
    """
    check_positive("poisoning_amplification.learning_rate", learning_rate)
    check_positive("poisoning_amplification.radius", radius)
    if not isinstance(operator, GradientJacobian):
        raise InputError(f"poisoning_amplification: expected a GradientJacobian, got {type(operator).__name__}")
    if operator.check.refusal:
        return _none(outcome_of(operator.check), operator.check.refusal)
    objective = operator.exposure.objective
    objective.check(tests)
    step = objective.unflatten(operator.value)
    moved = {name: tensor - learning_rate * step[name] for name, tensor in objective.params.items()}
    inputs = tests.inputs.to(operator.device)
    here = tests.with_inputs(inputs.to(operator.dtype) if inputs.is_floating_point() else inputs)
    slope = objective.flatten(objective.gradient(moved, here)).to(operator.dtype)
    largest = largest_gram_eigenvalue(operator, dense_limit=dense_limit, tolerance=1e-9)
    if largest.value is None or not bool(torch.isfinite(slope).all()):
        return _none(
            Outcome.NOT_FINITE, "the derivative of the release, or the test loss after the step, is not finite"
        )
    pulled = operator.adjoint_matmat(slope[:, None])[:, 0]
    size, norm, length = float(pulled.norm()), math.sqrt(largest.value), float(slope.norm())
    flat = size == 0.0
    return PoisoningAmplification(
        amplification=learning_rate * radius * size,
        bound=learning_rate * radius * norm * length,
        spectral_norm=norm,
        test_gradient=length,
        direction=None if flat else (-radius / size * pulled).reshape(operator.exposure.batch.inputs.shape),
        outcome=Outcome.NOT_INFORMATIVE if flat else largest.outcome,
        note="no small change of the inputs moves the test loss to first order" if flat else "",
    )


def _none(outcome: Outcome, note: str) -> PoisoningAmplification:
    return PoisoningAmplification(
        amplification=None,
        bound=None,
        spectral_norm=None,
        test_gradient=None,
        direction=None,
        outcome=outcome,
        note=note,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class OneLayerDerivative:
    """A = α I + β x θᵀ, the derivative by x of the gradient by θ of L = ½ (σ(θᵀx) − b)².

    With a = θᵀx and the residual r = σ(a) − b: α = σ'(a) r and β = σ'(a)² + σ''(a) r. A has the singular value |α| d − 2
    times; of the other two the product is |α| |α + β a| and the sum of squares 2α² + 2αβ a + β² ‖x‖² ‖θ‖².

    Where the network fits its target, r = 0, A is β x θᵀ, of rank one, and the gradient 0: nothing is told. Near it all but
    one singular value are small, and noise hides the input well.

    Attributes:
        inputs: x, (d,).
        weight: θ, (d,).
        residual: r.
        scale: α.
        coupling: β.
    """

    inputs: Tensor
    weight: Tensor
    residual: float
    scale: float
    coupling: float

    @property
    def matrix(self) -> Tensor:
        """A, (d, d)."""
        identity = torch.eye(len(self.inputs), dtype=self.inputs.dtype, device=self.inputs.device)
        return self.scale * identity + self.coupling * torch.outer(self.inputs, self.weight)

    @property
    def singular_values(self) -> Tensor:
        """All d singular values, in closed form, descending."""
        size, alpha, beta = len(self.inputs), self.scale, self.coupling
        along = float(self.inputs @ self.weight)
        product = abs(alpha * (alpha + beta * along))
        if size == 1:
            values = [abs(alpha + beta * along)]
        else:
            lengths = float(self.inputs @ self.inputs) * float(self.weight @ self.weight)
            squares = 2 * alpha**2 + 2 * alpha * beta * along + beta**2 * lengths
            # (s₁ ± s₂)² = s₁² + s₂² ± 2 s₁ s₂
            plus, minus = (math.sqrt(max(squares + sign * 2 * product, 0.0)) for sign in (1, -1))
            first = (plus + minus) / 2
            # Not (plus - minus)/2, whose digits cancel.
            second = product / first if first > 0.0 else 0.0
            values = [first, *[abs(alpha)] * (size - 2), second]
        return torch.tensor(values, dtype=self.inputs.dtype).sort(descending=True).values

    def gaussian_error(self, std: float) -> float:
        """The expected squared error under noise of this std on every entry of the gradient: std² Σ 1/s², infinite at r = 0.

        Raises:
            InputError: for a std that is not positive.
        """
        check_positive("gaussian_error.std", std)
        values = self.singular_values
        return math.inf if float(values[-1]) == 0.0 else std**2 * float((1 / values.square()).sum())


def one_layer_derivative(
    inputs: Tensor, weight: Tensor, target: float, activation: Callable[[Tensor], Tensor] = torch.sigmoid
) -> OneLayerDerivative:
    """The derivative of the gradient of a one-layer network, with its singular values in closed form.

    Args:
        inputs: x, (d,), finite.
        weight: θ, (d,), finite.
        target: b.
        activation: σ, a function of a tensor entry by entry with two derivatives (`torch.sigmoid`, `torch.tanh`).

    Raises:
        InputError: for other shapes, or numbers that are not finite.

    **Cost**: a few products of vectors.

    **Source**: Zhang et al. 2023, section 5.3. Deviation: the paper writes σ'(a) {r I + x θᵀ}; the factor of x θᵀ is
    σ'(a)² + σ''(a) r, which equals theirs for the identity alone. What it concludes holds for both.

    Examples:
        >>> found = one_layer_derivative(torch.tensor([1.0, 2.0]), torch.tensor([0.5, -1.0]), 0.0, activation=lambda a: a)
        >>> found.scale, found.coupling, found.matrix.tolist()
        (-1.5, 1.0, [[-1.0, -1.0], [1.0, -3.5]])
    """
    if inputs.dim() != 1 or weight.shape != inputs.shape or len(inputs) == 0:
        raise InputError(
            f"one_layer_derivative: expected inputs and weight of one shape (d,), got {tuple(inputs.shape)} and "
            f"{tuple(weight.shape)}"
        )
    if not bool(torch.isfinite(inputs).all() & torch.isfinite(weight).all()) or not math.isfinite(target):
        raise InputError("one_layer_derivative: expected finite inputs, weight and target")
    inputs, weight = inputs.detach().double(), weight.detach().double()
    first = torch.func.grad(activation)
    at = inputs @ weight
    value, slope, bend = (float(one(at)) for one in (activation, first, torch.func.grad(first)))
    residual = value - target
    return OneLayerDerivative(
        inputs=inputs, weight=weight, residual=residual, scale=slope * residual, coupling=slope**2 + bend * residual
    )

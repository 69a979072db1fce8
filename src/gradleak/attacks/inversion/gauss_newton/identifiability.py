"""Test whether the update determines the input that explains it: the null space of the derivative there."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.inversion.gauss_newton.krylov_steps import KrylovModel
from gradleak.attacks.inversion.gauss_newton.local_model import LocalModel
from gradleak.attacks.inversion.gauss_newton.residual_system import ResidualSystem
from gradleak.attacks.inversion.problem import LabelSource, Problem
from gradleak.linalg import dense_eigenvalues
from gradleak.results import Outcome

MOST_ALLOWED_RMSE = 0.05
"""Inputs that differ by more than this pixel RMSE and explain an update alike are other inputs."""

UNIFORM_VARIANCE = 12.0
"""One over the variance of a uniform number in [0, 1]."""

PROBES = 4
"""Random directions in which a null space without a matrix is looked for."""

PROBE_ITERATIONS = 200
"""Conjugate gradients for each of them."""

POWER_STEPS = 12
"""Products for the largest eigenvalue, which only sets the size of round-off."""


@dataclass(frozen=True, kw_only=True)
class Identifiability:
    """Number of directions of the input that the update leaves open, at the point where it is explained.

    Attributes:
        null_dimension: the number of directions that are not determined; a lower estimate where `resolved` is False.
        free: of so many entries strictly inside their range.
        threshold: eigenvalues of AᵀA up to it, relative to the largest, count as zero; None where none was computed.
        resolved: whether the whole spectrum was looked at.
        smallest: the smallest eigenvalue relative to the largest, or None.
        allowed_rmse: the pixel RMSE, to first order at the claim, by which an input may differ along the weakest
            direction and still explain the update to its floor, ‖floor‖/√(λmin · n); None where the spectrum was not
            looked at.
    """

    null_dimension: int
    free: int
    threshold: float | None
    resolved: bool
    smallest: float | None = None
    allowed_rmse: float | None = None

    @property
    def open_rmse(self) -> float:
        """The pixel RMSE that the open directions alone allow, where what they hold is uniform over the range."""
        return math.sqrt(self.null_dimension / (UNIFORM_VARIANCE * max(1, self.free)))


def identifiability(
    system: ResidualSystem, model: LocalModel, point: Tensor, generator: torch.Generator
) -> Identifiability:
    """The null space of AᵀA over the input entries that are strictly inside their range.

    With every entry in units of its valid range, a direction counts as open where its eigenvalue λ is at most

        max(n · eps · λmax, 12 s²),

    the first term what rounding of the matrix leaves, the second where an error s of an entry of the update (that of
    the noise, or of round-off) leaves a direction less well known than the range itself does: 1/λ · s² ≥ 1/12, the
    variance of a uniform number. Unknown labels are eliminated first (Schur complement), so that what they hide
    counts, and the shift that a softmax does not see does not.

    Entries at the box are left out: the box may determine them. Without a matrix (Krylov steps) the number is the trace
    of τ(AᵀA + τ)⁻¹, τ the threshold, from a few random directions by conjugate gradients, which only ever underestimate
    it: `resolved` says whether they came to an end.

    **Cost**: the eigenvalues of an n × n matrix, 4n³/3 multiplications; or 800 products with AᵀA at most.
    """
    inside = (point > system.low) & (point < system.high)
    inside[system.inputs :] = False
    free = int(inside.sum())
    if free == 0:
        return Identifiability(null_dimension=0, free=0, threshold=None, resolved=True)
    spans = system.spans
    floor = UNIFORM_VARIANCE * system.entry_std**2
    gram = model.gram()
    if gram is None:
        return _by_probes(system, model, inside, spans, floor, generator)
    places = inside.nonzero()[:, 0]
    scales = spans[places]
    information = gram[places][:, places] * scales[:, None] * scales
    labels = torch.arange(system.inputs, len(point), device=point.device)
    if len(labels):
        beside = gram[labels][:, places] * scales
        own = gram[labels][:, labels]
        ridge = max(floor, float(own.diagonal().max()) * len(own) * torch.finfo(own.dtype).eps, 1e-300)
        own = own + ridge * torch.eye(len(own), dtype=own.dtype, device=own.device)
        information = information - beside.T @ torch.linalg.solve(own, beside)
    values = dense_eigenvalues((information + information.T) / 2)
    largest = float(values[-1])
    if not largest > 0:
        return Identifiability(null_dimension=free, free=free, threshold=None, resolved=True)
    threshold = max(free * torch.finfo(values.dtype).eps * largest, floor)
    return Identifiability(
        null_dimension=int((values <= threshold).sum()),
        free=free,
        threshold=threshold / largest,
        resolved=True,
        smallest=float(values[0]) / largest,
        allowed_rmse=system.floor / math.sqrt(max(float(values[0]), threshold) * free),
    )


def judged(found: Identifiability, noisy: bool) -> tuple[Outcome, str]:
    """Outcome of a residual at the floor, and a note."""
    if found.null_dimension > 0:
        least = "" if found.resolved else "at least "
        return Outcome.NOT_IDENTIFIABLE, (
            f"the update is explained, but {least}{found.null_dimension} of {found.free} directions of the input are "
            f"not determined by it; they alone allow a pixel RMSE of {found.open_rmse:.2g}"
        )
    if found.allowed_rmse is not None and found.allowed_rmse > MOST_ALLOWED_RMSE and not noisy:
        return Outcome.NOT_IDENTIFIABLE, (
            "the update is explained, but along the weakest direction inputs that differ by a pixel RMSE of "
            f"{found.allowed_rmse:.2g} explain it to its round-off as well"
        )
    if not found.resolved:
        return Outcome.BUDGET_SPENT, (
            "the update is explained; whether other inputs nearby explain it as well was not resolved without a matrix"
        )
    return Outcome.CONVERGED, ""


def order_note(problem: Problem) -> str:
    """Note on the order of a batch that the update does not tell; "" where the release depends on it."""
    size = problem.space.batch_size
    batches = problem.release.protocol.mini_batch_weights(size)
    if size == 1 or (batches is not None and len(batches) > 1):
        return ""
    if problem.source is not LabelSource.DISCLOSED or problem.labels is None:
        return "the order of a batch is not identifiable"
    if len(problem.labels.unique(dim=0)) < size:
        return "the order of examples with the same label is not identifiable"
    return ""


def _largest(model: KrylovModel, scale: Tensor, generator: torch.Generator) -> float:
    """The largest eigenvalue of S AᵀA S, S a diagonal scale (n,), to some per cent: the power method."""
    vector = scale * torch.randn(scale.numel(), generator=generator, device=generator.device, dtype=scale.dtype)
    largest = 0.0
    for _ in range(POWER_STEPS):
        norm = float(vector.norm())
        if not norm > 0:
            return 0.0
        image = scale * model.curvature(scale * vector / norm)
        largest, vector = float(image.norm()), image
    return largest


def _by_probes(
    system: ResidualSystem,
    model: LocalModel,
    inside: Tensor,
    spans: Tensor,
    floor: float,
    generator: torch.Generator,
) -> Identifiability:
    free = int(inside.sum())
    # Counting alone: more unknowns than entries that are not zero.
    counted = max(0, free - int(system.live_rows.sum()))
    if not isinstance(model, KrylovModel):
        return Identifiability(null_dimension=counted, free=free, threshold=None, resolved=False)
    scale = torch.ones_like(model.weights)
    scale[: system.inputs] = spans
    largest = _largest(model, scale * inside, generator)
    threshold = max(free * torch.finfo(scale.dtype).eps * largest, floor)
    found, resolved = 0.0, True
    for _ in range(PROBES):
        signs = torch.randint(0, 2, (free,), generator=generator, device=generator.device) * 2 - 1
        probe = signs.to(scale)
        solution = model.shifted(probe, threshold, scale, inside, PROBE_ITERATIONS, 1e-3)
        resolved &= solution.residual <= 2e-3
        found += threshold * float(probe @ solution.solution) / PROBES
    return Identifiability(
        null_dimension=max(counted, round(found)),
        free=free,
        threshold=threshold / largest if largest > 0 else None,
        resolved=resolved,
    )

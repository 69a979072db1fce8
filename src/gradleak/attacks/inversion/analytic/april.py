"""The patches of an image from the gradients of positions and patch embedding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradleak.attacks.attack import Attack, Monitor
from gradleak.attacks.inversion.analytic.claims import Case, first_layer_for
from gradleak.attacks.inversion.problem import NEEDS
from gradleak.core import Knowledge, Reconstruction, Update
from gradleak.results import LU_2022, Citation, Outcome, UnsupportedError

# A direction of places is open where its error is larger than this share of the largest number that goes in, and certain where
# it is smaller than that one.
_MOST_OPEN, _CERTAIN = 0.1, 0.01
_ASKER = "the attack april"


@dataclass(frozen=True, kw_only=True)
class APRIL(Attack):
    """The patches of one image by linear least squares, from the gradients of learned positions and of the patch embedding.

    A vision transformer adds a position p_n to each embedded patch, W z_n + b. The gradient of p_n therefore is δ_n, the
    gradient at the embedding's output, one row a place, and that of W is

        ∂L/∂W = Σ_n δ_n z_nᵀ = Δᵀ Z:

    linear equations for all patches Z (n, k) at once, with a known matrix Δᵀ (width, n). They determine every patch where the
    n rows of Δ are independent, at most as many as the model is wide; and there are more equations than unknowns by
    (width − n)·k, whose misfit is the certificate. Nothing is asked of what follows: skip connections, normalization, any
    number of blocks.

    The same holds for a linear layer at one place, whose bias is such a parameter: one example, then, as `LinearRows` reads it.

    Outcomes: `converged` where all places are independent beyond round-off, the equations agree, the gradient of the embedding's
    bias is the sum of the rows (where it is shared), and the claim explains the whole update (where the label is disclosed or
    recovered; elsewhere it has to lie in the range of an image); `not_identifiable` elsewhere: open directions are filled by the
    least change from a gray image. Under noise, in both Δ and the right side, directions weaker than it are left open, and
    nothing is called certain.

    **Assumptions**: one example. Patches do not overlap; positions are learned, shared, and added place by place (not rotary, nor
    fixed waves). Clipping of the update as a whole, and local steps of plain SGD, which add up such equations, change nothing.

    **Cost**: one plain gradient for the check at the end; one singular value decomposition of a matrix (n, width). Four forward
    passes and one gradient that read the model in float64 are not counted.

    **Source**: Lu et al. 2022. Deviation: their closed form solves for embedded patches from the gradients of query, key and
    value, A zᵀ = M with A = ∂L/∂z and M = Σ Wᵀ ∂L/∂W of the three, and inverts the embedding then. It holds for a first
    attention that reads the embedding without normalization and that no skip connection goes around. The embedding's own
    gradient asks for neither, so that it is used in place of those.
    """

    name: ClassVar[str] = "april"
    needs: ClassVar[tuple[str, ...]] = NEEDS
    citations: ClassVar[tuple[Citation, ...]] = (LU_2022,)
    summary: ClassVar[str] = (
        "The image behind a vision transformer's gradient, in closed form by its learned positions."
    )

    def estimate(self, knowledge: Knowledge) -> float:
        """One plain gradient."""
        del knowledge
        return 1.0

    def _check(self, knowledge: Knowledge) -> None:
        if knowledge.batch_size is not None and knowledge.batch_size != 1:
            raise UnsupportedError(
                f"{_ASKER} takes the gradient of one example apart, got {knowledge.batch_size}, whose positions share one "
                "gradient; use GradInversion"
            )
        first_layer_for(knowledge, _ASKER, whole=False)

    def _recover(
        self, update: Update, knowledge: Knowledge, generator: torch.Generator, monitor: Monitor
    ) -> Reconstruction:
        del generator, monitor
        case = Case.of(update, knowledge, first_layer_for(knowledge, _ASKER, whole=False))
        layer = case.layer
        passed, gradient = layer.added(dict(case.tensors)), layer.matrix(case.tensors[layer.weight])
        middle = layer.rows(_gray(case))[0]
        solved = _Solved.of(case, passed, gradient, middle)
        agrees = solved.misfit <= case.summed and _bias_agrees(case, passed)
        open_ = layer.places - solved.rank
        facts: dict[str, Any] = {
            "layer": layer.weight,
            "positions": (layer.positions or ("",))[0],
            "places": layer.places,
            "rank": solved.rank,
            "open": open_ * layer.width + layer.unread,
            "condition": solved.condition,
            "misfit": solved.misfit,
            "error": solved.error,
        }
        note = (
            f"{layer.width * len(gradient.reshape(-1, layer.width))} equations for {layer.places} patches of {layer.width} "
            f"numbers, rank {solved.rank} of {layer.places} places, condition {solved.condition:.1e}, relative misfit "
            f"{solved.misfit:.1e}"
        )
        if open_:
            note += f"; {open_} of {layer.places} directions of places are open, and filled with gray"
        elif solved.error > _CERTAIN:
            note += f"; round-off or noise may move the weakest direction of places by {solved.error:.1e} of the range"
        if layer.unread:
            note += f"; {layer.unread} pixels are read by no patch, and claimed as the middle of their range"
        if case.exact and not agrees:
            note += "; the equations contradict each other: the update is not the gradient of one such example"
        sure = agrees and case.exact and not open_ and not layer.unread and solved.error <= _CERTAIN
        inputs = case.inputs(solved.rows[None])
        done = case.claim(
            inputs if sure else case.clamped(inputs),
            None,
            outcome=Outcome.NOT_IDENTIFIABLE,
            note=note + case.noise_words,
            details=facts,
        )
        return case.judged(done) if sure else done


@dataclass(frozen=True, kw_only=True, eq=False)
class _Solved:
    """Solution of Δᵀ Z = G.

    Attributes:
        rows: Z (n, k).
        rank: of Δ beyond errors.
        condition: of what is kept of it.
        misfit: relative.
        error: expected in the weakest direction that is kept, as a share of the largest number that goes in.
    """

    rows: Tensor
    rank: int
    condition: float
    misfit: float
    error: float

    @classmethod
    def of(cls, case: Case, passed: Tensor, gradient: Tensor, middle: Tensor) -> _Solved:
        """The solution that is nearest to a middle (n, k), without directions that errors hide."""
        layer = case.layer
        left, values, right = torch.linalg.svd(passed, full_matrices=False)
        size = float(middle.abs().max() + 1 / layer.scale.abs().min())
        # Both sides are off: the matrix times what goes in, and the right side.
        assert layer.positions is not None
        of_matrix = math.hypot(case.eps * float(passed.square().mean().sqrt()), case.std(layer.positions[0]))
        of_right = math.hypot(case.eps * float(gradient.square().mean().sqrt()), case.std(layer.weight))
        error = math.hypot(of_matrix * size * math.sqrt(layer.places), of_right)
        errors = error / (values.clamp(min=torch.finfo(values.dtype).tiny) * size)
        kept = errors < _MOST_OPEN
        rank = int(kept.sum())
        rest = gradient - passed.T @ middle
        along = (right[kept] @ rest) / values[kept, None]
        rows = middle + left[:, kept] @ along
        condition = float(values[0] / values[kept][-1]) if rank else math.inf
        misfit = float((passed.T @ rows - gradient).norm() / gradient.norm())
        largest = float(errors[kept].max()) if rank else math.inf
        return cls(rows=rows, rank=rank, condition=condition, misfit=misfit, error=largest)


def _gray(case: Case) -> Tensor:
    domain = case.knowledge.domain
    assert domain is not None
    return domain.middle(case.layer.shift)[0].reshape(1, -1)


def _bias_agrees(case: Case, passed: Tensor) -> bool:
    """True if the gradient of the embedding's bias is the sum of those of the positions, or is not shared."""
    name = case.layer.bias
    if name is None or name == (case.layer.positions or ("",))[0]:
        return True
    summed = passed.sum(dim=0)
    missed = float((case.tensors[name].reshape(-1) - summed).norm())
    return missed <= case.summed * float(passed.norm()) * math.sqrt(case.layer.places)

"""A batch unmixed from the gradient of a wide linear layer by independent component analysis."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import scipy
import torch
from torch import Tensor

from gradleak.attacks.attack import Attack, Monitor
from gradleak.attacks.inversion.analytic.claims import Case, first_layer_for, options_expected
from gradleak.attacks.inversion.analytic.first_layer import keeps_scale
from gradleak.attacks.inversion.analytic.unmixing import Span, independent
from gradleak.attacks.inversion.problem import NEEDS
from gradleak.attacks.inversion.reading import LabelSource
from gradleak.core import DomainKind, Knowledge, Reconstruction, Update
from gradleak.results import KARIYAPPA_2023, Citation, Count, Natural, Outcome

# Values an example that statistics need at least for each source; steps without progress of the refinement; its damping.
_SAMPLES, _PATIENCE, _DAMPING, _STEP = 8, 3, 1e-6, 1e-5
# Largest batch whose refinement is solved as one system, and the condition from which on it has more than one solution.
_MOST_TOGETHER, _ALONE = 32, 1e-10
# Steps that a batch is expected to take: seen were two to eight.
_STEPS = 8
_ASKER = "the attack cocktail_party"


@dataclass(frozen=True, kw_only=True)
class CocktailParty(Attack):
    """Examples of a batch as independent sources that the gradient of a wide linear layer mixes.

    ∂L/∂W = Σ_k δ_k x_kᵀ = Δᵀ X has rank b: its rows span the b examples, whatever the activation behind. Which of all bases of
    that span is X is told by three things, one after the other:

    1. *Statistics*: sources are as far from Gaussian as can be. FastICA on the whitened span finds directions of largest
       negentropy, E[log cosh s]. For images it looks at differences of neighboring pixels, which are mixed by the same matrix,
       independent between images where pixels are not, and sparse: total variation, so to say, as the measure of independence.
    2. *The bias*: Σ_k δ_k = ∂L/∂b gives each source its scale and sign, by least squares over all units.
    3. *The model*: Δ is a function of X. b² unknowns M, X = M V in the span V, are refined until what the model passes back is
       the gradient, Δ(M V)ᵀ M V = ∂L/∂W: steps of Levenberg-Marquardt, and of X = Δ⁺ ∂L/∂W where that comes nearer. Each
       example depends on its own row of M, so that 2 b + 1 gradients make the whole derivative.

    Outcomes: `converged` where the refined claim explains the whole update to round-off and the refinement has one solution
    around it; `not_identifiable` elsewhere: sources by statistics alone, which are no proof.

    **Assumptions**: a linear layer with bias on the example as a whole, with at least b units; examples that are linearly
    independent. As for `LinearRows`, clipping and local steps of plain SGD leave the first two stages as they are, and stop
    before the third.

    **Cost**: statistics cost no gradient. c plain gradients for the labels, with c classes, one before the first step, 2 b + 2
    for each step; one for the check at the end.

    **Source**: Kariyappa et al. 2023. Deviations: FastICA with Hyvärinen's symmetric decorrelation in place of Adam on a sum of
    negentropy, total variation and a penalty on likeness; differences of pixels; scale and sign from the bias, where the paper
    takes the range of pixels. The refinement is ours. The paper also inverts features behind convolutions, which is left out.

    Attributes:
        starts: of FastICA; the one with the largest negentropy counts.
        differences: whether images are unmixed by differences of neighboring pixels, as here, or by pixels, as in the paper.
        steps: of the refinement, at most; 0 leaves what statistics say.
    """

    name: ClassVar[str] = "cocktail_party"
    needs: ClassVar[tuple[str, ...]] = NEEDS
    citations: ClassVar[tuple[Citation, ...]] = (KARIYAPPA_2023,)
    summary: ClassVar[str] = (
        "A batch behind a wide linear layer, unmixed by independent components and refined by the model."
    )

    starts: Count = 4
    differences: bool = True
    steps: Natural = 30

    def estimate(self, knowledge: Knowledge) -> float:
        """One plain gradient a class, 2 b + 2 for each of the steps that are expected, and one at either end."""
        classes = options_expected(knowledge, _ASKER)
        assert knowledge.batch_size is not None
        return classes + 2.0 + min(self.steps, _STEPS) * (2.0 * knowledge.batch_size + 2.0)

    def _check(self, knowledge: Knowledge) -> None:
        first_layer_for(knowledge, _ASKER, whole=True)

    def _recover(
        self, update: Update, knowledge: Knowledge, generator: torch.Generator, monitor: Monitor
    ) -> Reconstruction:
        case = Case.of(update, knowledge, first_layer_for(knowledge, _ASKER, whole=True))
        layer = case.layer
        assert layer.bias is not None
        span = Span.of(layer.matrix(case.tensors[layer.weight]), case.examples, case.summed, case.std(layer.weight))
        unmixing = self._independent(case, span, generator)
        passed = span.left @ torch.linalg.inv(unmixing)
        shares = torch.linalg.lstsq(passed, case.tensors[layer.bias].reshape(-1, 1)).solution[:, 0]
        least = torch.finfo(shares.dtype).eps * shares.abs().max().clamp(min=torch.finfo(shares.dtype).tiny)
        shares = torch.where(shares.abs() < least, least, shares)
        mixing, passed = unmixing / shares[:, None], passed * shares
        note = [f"the gradient of {layer.weight} spans {span.rank} directions"]
        whole = span.rank == case.examples
        if not whole:
            note.append(f"{case.examples} examples were expected: the others are claimed as the mean of what was found")
        targets, spent, steps, alone = None, 0.0, 0, False
        options = case.options() if whole else None
        if options is not None:
            targets, mixing = _targets(case, span, mixing, passed, options)
            spent += len(options)
            if case.exact and keeps_scale(case.knowledge) and bool(torch.isfinite(mixing).all()):
                refined = _refine(case, span, mixing, targets, self.steps, monitor)
                mixing, steps, alone = refined.mixing, refined.steps, refined.alone
                spent += refined.spent
        rows = mixing @ span.right
        rows = torch.cat([rows, rows.mean(dim=0).expand(case.examples - span.rank, -1)])
        inputs = case.inputs(rows[:, None])
        facts: dict[str, Any] = {"rank": span.rank, "refinements": steps, "condition": span.condition}
        may = alone and not layer.unread
        done = case.claim(
            inputs if may else case.clamped(inputs),
            targets,
            outcome=Outcome.NOT_IDENTIFIABLE,
            note="",
            details=facts,
            iterations=max(steps, 1),
            spent=spent,
        )
        sure = may and case.explains(done)
        note.append(
            "unmixed by statistics, and refined until the model passes back what was shared"
            if sure
            else "unmixed by statistics, which are no proof"
        )
        return replace(
            done,
            outcome=Outcome.CONVERGED if sure else Outcome.NOT_IDENTIFIABLE,
            note="; ".join(note) + case.noise_words,
        )

    def _independent(self, case: Case, span: Span, generator: torch.Generator) -> Tensor:
        """M (r, r) whose rows are the most independent directions of the span."""
        domain, layer = case.knowledge.domain, case.layer
        assert domain is not None
        basis = span.right[:, None] + layer.shift
        values = layer.example(basis, torch.zeros(domain.size, dtype=basis.dtype, device=basis.device))
        pixels = values.reshape(len(values), *domain.shape) * domain.pixel_scale(values)
        samples = pixels.flatten(1)
        if self.differences and domain.kind is DomainKind.IMAGE:
            apart = [pixels.diff(dim=axis).flatten(1) for axis in range(2, pixels.dim())]
            joined = torch.cat(apart, dim=1) if apart else samples
            samples = joined if joined.shape[1] >= _SAMPLES * span.rank else samples
        return independent(samples, self.starts, generator)


def _targets(case: Case, span: Span, mixing: Tensor, passed: Tensor, options: Tensor) -> tuple[Tensor, Tensor]:
    """Target of each example whose part is nearest to what was unmixed, and the mixing in the order of disclosed ones."""
    parts = case.contributions(case.inputs((mixing @ span.right)[:, None]), options)
    # The size of the update may be hidden.
    along = (
        torch.einsum("bco,ob->bc", parts, passed) / parts.norm(dim=2).clamp(min=1e-300) / passed.norm(dim=0)[:, None]
    )
    if case.source != LabelSource.DISCLOSED.value or case.targets is None:
        return options[along.argmax(dim=1)], mixing
    known = torch.stack([(options == target).flatten(1).all(dim=1) if options.dim() > 1 else options == target
                         for target in case.targets])  # fmt: skip
    likeness = along @ known.to(along).T
    rows, places = scipy.optimize.linear_sum_assignment(-likeness.cpu().numpy())
    order = torch.empty(len(rows), dtype=torch.int64)
    order[torch.as_tensor(places)] = torch.as_tensor(rows)
    return case.targets.clone(), mixing[order.to(mixing.device)]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Refined:
    """Mixing (b, b) that the model confirms best, steps, cost, and whether there is one solution around it."""

    mixing: Tensor
    steps: int
    spent: float
    alone: bool


def _refine(case: Case, span: Span, mixing: Tensor, targets: Tensor, most: int, monitor: Monitor) -> _Refined:
    scale = case.knowledge.release.protocol.gradient_scale() or 1.0
    size = float(span.left.norm())
    spent = 0.0

    def passed_back(rows: Tensor) -> Tensor:
        nonlocal spent
        spent += 1
        return scale * case.passed_back(case.inputs((rows @ span.right)[:, None]), targets)

    def missed(rows: Tensor, passed: Tensor) -> Tensor:
        return passed.T @ rows - span.left

    def by_squares(left: Tensor, right: Tensor) -> list[Tensor]:
        finite = bool(torch.isfinite(left).all()) and bool(torch.isfinite(right).all())
        return [torch.linalg.lstsq(left, right).solution] if finite else []

    passed = passed_back(mixing)
    rest = missed(mixing, passed)
    damping, idle, steps, alone = _DAMPING, 0, 0, False
    together = len(mixing) <= _MOST_TOGETHER
    for steps in range(1, most + 1):
        proposals = by_squares(passed.T, span.left)
        if together:
            normal, right = _normal(passed_back, mixing, passed, rest)
            scales = normal.diagonal().sqrt().clamp(min=1e-300)
            scaled = normal / scales / scales[:, None]
            damped = scaled + damping * torch.eye(len(scaled), dtype=scaled.dtype, device=scaled.device)
            found = by_squares(damped, (right / scales)[:, None])
            proposals += [mixing - (one[:, 0] / scales).reshape(mixing.shape) for one in found]
            if float(rest.norm()) <= case.computed * size and found:
                roots = torch.linalg.eigvalsh(scaled)
                alone = float(roots[0]) > _ALONE * float(roots[-1])
        if float(rest.norm()) <= case.summed * size / 8:
            break
        tried = [(float(missed(one, made).norm()), one, made) for one in proposals for made in (passed_back(one),)]
        tried = [one for one in tried if math.isfinite(one[0])]
        best = min(tried, key=lambda one: one[0], default=None)
        gained = best is not None and best[0] < 0.9 * float(rest.norm())
        if best is not None and best[0] < float(rest.norm()):
            mixing, passed = best[1], best[2]
            rest = missed(mixing, passed)
            damping = max(damping / 10, 1e-14)
        else:
            damping *= 100
        idle = 0 if gained else idle + 1
        monitor(steps, most, float(rest.norm()) / size)
        if idle >= _PATIENCE:
            break
    return _Refined(mixing=mixing, steps=steps, spent=spent, alone=alone)


def _normal(
    passed_back: Callable[[Tensor], Tensor], mixing: Tensor, passed: Tensor, rest: Tensor
) -> tuple[Tensor, Tensor]:
    """JᵀJ (b², b²) and Jᵀr (b²,) with J the derivative of Δ(M V)ᵀ M by M, entries (k, j) in rows.

    Central differences give what Δ moves along each direction of the span, for all examples at once. With s_kj that of example k
    along j, J moves by s_kj m_kᵀ + δ_k e_jᵀ with M[k, j].
    """
    count = len(mixing)
    step = _STEP * float(mixing.norm()) / math.sqrt(count)
    slopes = []
    for place in range(count):
        moved = torch.zeros_like(mixing)
        moved[:, place] = step
        slopes.append((passed_back(mixing + moved) - passed_back(mixing - moved)) / (2 * step))
    slope = torch.stack(slopes, dim=1)
    flat = slope.flatten(0, 1)
    both = (flat @ flat.T).reshape(count, count, count, count) * (mixing @ mixing.T)[:, None, :, None]
    mixed = torch.einsum("kjo,lo->kjl", slope, passed)[..., None] * mixing[:, None, None, :]
    unit = torch.eye(count, dtype=mixing.dtype, device=mixing.device)
    own = (passed @ passed.T)[:, None, :, None] * unit[None, :, None, :]
    normal = (both + mixed + mixed.permute(2, 3, 0, 1) + own).reshape(count**2, count**2)
    right = torch.einsum("kjo,ko->kj", slope, mixing @ rest.T) + passed @ rest
    return normal, right.reshape(-1)

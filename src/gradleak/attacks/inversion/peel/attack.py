"""Peeling: an example read off the gradient of one, layer by layer from the head down, without a search."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import scipy
import torch
from torch import Tensor

from gradleak.attacks.attack import Attack, Monitor
from gradleak.attacks.inversion.peel.completion import Grid, OpenImage, alone_on_grid, on_grid
from gradleak.attacks.inversion.peel.head import Head, read_heads
from gradleak.attacks.inversion.peel.joined import read_network
from gradleak.attacks.inversion.peel.network import Chain
from gradleak.attacks.inversion.peel.pairs import PAIR, peel_pair, read_pair
from gradleak.attacks.inversion.peel.peeling import Peeled, Shared
from gradleak.attacks.inversion.problem import NEEDS, readable
from gradleak.attacks.inversion.reading import LabelSource, claimed_labels, known_facts, known_law
from gradleak.core import (
    Batch,
    DiagonalGaussian,
    Domain,
    DomainKind,
    Knowledge,
    Objective,
    Reconstruction,
    Release,
    Update,
)
from gradleak.results import BABAI_1986, LENSTRA_1982, ZHU_2021, Citation, Count, Natural, Outcome, UnsupportedError

# Probes of defenses: entries so large that none is clipped or rounded at them.
_LARGE = 1e6
# Pixels that are further out of their range are no example.
_BEYOND = 0.1
# Misfit of an image on the grid beside that of the equations, and misfit from which on these contradict each other.
_ALLOWED, _CONSISTENT = 4.0, 30.0
# Misfit under known noise from which on equations contradict each other, where it comes by chance once in a million times.
_APART, _BY_CHANCE = 2.0, 1e-6


@dataclass(frozen=True, kw_only=True)
class Peel(Attack):
    """The input of every layer by linear least squares, from the head down to the example.

    For one example the head's gradients give its input h = Wᵍᵀ b^g / ‖b^g‖² and the gradient δ = b^g at its output. Below, with
    δ known at the output of a layer and its output known where the activation has an inverse there (where a ReLU is active),

    - the gradient of the weight, Σ_p δ[o, p] x[i, p + k], is linear in the layer's input x;
    - the known outputs, W x + b, are linear in x, too.

    Both are solved together, each divided by what it may be off: round-off, known noise, and what was solved above. That gives
    x, the units that are active (those that stand clear of zero by their standard deviations), and δ one layer further down;
    no unit's side is left to a search. The last unknown is the example.

    Where the first layer's equations do not determine an image, the open directions are filled by the least total variation of
    its colors within the range and on the right side of inactive units. Then the grid on which the pixels of a file lie
    (`levels`) makes them whole numbers, which few sharp equations determine: window by window by a reduced lattice
    (`on_grid`). An image on that grid that satisfies all equations is a certificate where no second one is to be expected
    (`alone_on_grid`): every change of one or two pixels by a level breaks them, and equations are so many, and so sharp, that of
    all images on the grid none comes near by chance.

    Outcomes: `converged` where the equations determine the example, or the grid does, and its gradient is the update to
    round-off or known noise; `not_identifiable` where directions are left open, in the first layer (filled, then, by what
    images are like) or further up (nothing is claimed); `plateau` where the claim does not explain the update: under noise
    units stand so near to zero that their side is a guess. Details give unknowns, equations, rank, open directions, condition
    and misfit of each layer: what decides is the number of active units and filters beside that of inputs.

    Where branches are joined (a skip connection, with or without a convolution on it), what goes into an activation is affine in
    several earlier values: these are solved from the last one down, two together where one alone lacks rank (`peel_joined`).

    **Assumptions**: one example; its gradient, to which known noise may be added; linear layers and convolutions with activations
    that have an inverse, affine maps in between. Pooling behind an activation is refused. Labels are not needed, nor the loss,
    where the last layer has a bias. Where it has none, they tell the size of its input (`read_heads`); a class that nobody told
    is tried like all others.

    **Cost**: one plain gradient for the check at the end, two where an image on the grid fails it, as many again for every
    further size of the head's input that explains the loss of a head without bias. Linear algebra is not
    counted: an eigendecomposition of a matrix (n, n) for a layer of n inputs, 4 s in all for a digit on the LeNet, half a
    minute for a color image with what it leaves open.

    **Source**: Zhu and Blaschko 2021 (R-GAP), for the way from the head down and both kinds of equations. All equations of a
    layer in one least squares, the sides of units from its covariance, completion and grid are ours; the reduction of lattices
    is Lenstra, Lenstra and Lovász 1982's, rounding along it Babai 1986's.

    Attributes:
        max_unknowns: largest layer whose equations are written as a matrix.
        complete: whether open directions of an image are filled by what images are like.
        levels: of a pixel between the ends of its range; 0 for a continuum.
    """

    name: ClassVar[str] = "peel"
    needs: ClassVar[tuple[str, ...]] = NEEDS
    citations: ClassVar[tuple[Citation, ...]] = (ZHU_2021, LENSTRA_1982, BABAI_1986)
    summary: ClassVar[str] = "The example of one gradient by linear least squares, layer by layer from the head down."

    max_unknowns: Count = 4096
    complete: bool = True
    levels: Natural = 256

    def estimate(self, knowledge: Knowledge) -> float:
        """One plain gradient."""
        del knowledge
        return 1.0

    def _check(self, knowledge: Knowledge) -> None:
        """Refuse batches, releases that are not one gradient, and networks that are no chain."""
        readable(knowledge)
        if knowledge.batch_size not in (None, 1, PAIR):
            raise UnsupportedError(
                f"the attack peel takes the gradient of one example or two apart, got {knowledge.batch_size}"
            )
        assert knowledge.objective is not None
        assert knowledge.domain is not None
        refuse_other_than_gradient(knowledge.release, knowledge.objective)
        if read_network(knowledge.objective, knowledge.domain).joined is not None and knowledge.batch_size == PAIR:
            raise UnsupportedError(
                "the attack peel takes two examples apart in a chain of layers, got a skip connection"
            )

    def _recover(
        self, update: Update, knowledge: Knowledge, generator: torch.Generator, monitor: Monitor
    ) -> Reconstruction:
        del generator
        assert knowledge.objective is not None
        assert knowledge.domain is not None
        domain, objective = knowledge.domain, knowledge.objective.to(torch.float64)
        network = read_network(objective, domain)
        chain = network.chain
        shared = _shared(update, replace(knowledge, objective=objective), knowledge.objective.dtype)
        targets, source, said = claimed_labels(update, knowledge)
        details: dict[str, Any] = {
            "labels": source,
            "information": known_facts(knowledge, labels=source, first_order=False),
            "inputs_of": [],
        }
        if knowledge.batch_size == PAIR:
            return self._pair(chain, domain, shared, targets, details)
        heads = read_heads(chain, shared, objective, _in_double(knowledge.targets))
        if isinstance(heads, str):
            return _nothing(heads, details)
        found: list[_Found] = []
        for head in heads:
            peeled = network.peel(domain, shared, head.delta, head.relative, max_unknowns=self.max_unknowns)
            if peeled.solution is None:
                found.append(_Found(peeled=peeled, head=head))
                continue
            for pixels, sure, words in self._claims(peeled, domain, monitor):
                inputs = domain.from_pixels(pixels.reshape(1, *domain.shape))
                if head.targets is None:
                    made = chain.gradient(inputs, head.delta)
                else:
                    made = objective.gradient(objective.params, Batch(inputs, head.targets, domain))
                missed = shared.distance(made)
                explained, inside = missed <= shared.floor(made), bool(((pixels - 0.5).abs() < 0.5 + _BEYOND).all())
                found.append(_Found(peeled, head, inputs, sure, words, missed, explained, inside))
                if explained:
                    break
        best = min(found, key=lambda one: (not one.explained, not one.inside, one.missed))
        details["inputs_of"] = best.peeled.layers
        if best.inputs is None:
            return _nothing(best.peeled.stopped, details)
        residual = best.missed / shared.norm
        torn = "" if not shared.noisy else next(filter(None, map(_contradiction, best.peeled.layers)), "")
        others = any(one.explained and one.inside >= best.inside for one in found if one is not best)
        outcome = Outcome.NOT_IDENTIFIABLE
        if best.sure and not others:
            outcome = Outcome.CONVERGED if best.explained and not torn else Outcome.PLATEAU
        told = best.told + torn
        if others:
            told += "; another example, with another size of what goes into the last layer, explains the update as well"
        if not best.explained:
            told += f"; its gradient misses the update by {residual:.2g}: other values, or units near to zero on the other side"
        if best.head.targets is not None and knowledge.targets is None:
            targets, said = best.head.targets, "the label was found with the size of what goes into the last layer"
            details["labels"] = LabelSource.RECOVERED.value
        return Reconstruction(
            inputs=best.inputs,
            targets=targets,
            loss=residual**2,
            outcome=outcome,
            iterations=len(chain.stages),
            plain_gradients=float(sum(one.inputs is not None for one in found)),
            note=f"{said}; {told}",
            details={**details, "relative_residual": residual},
        )

    def _pair(
        self, chain: Chain, domain: Domain, shared: Shared, targets: Tensor | None, details: dict[str, Any]
    ) -> Reconstruction:
        """Both of two examples, where the head's gradient tells them apart."""
        deltas = read_pair(chain, shared)
        if isinstance(deltas, str):
            return _nothing(deltas, details)
        peeled = peel_pair(chain.from_pixels(domain), shared, deltas, max_unknowns=self.max_unknowns)
        details["inputs_of"] = peeled.layers
        if peeled.solution is None:
            return _nothing(peeled.stopped, details)
        channels, left = domain.shape[0], peeled.solution.open.shape[1]
        pixels = peeled.solution.values.reshape(channels, PAIR, -1).transpose(0, 1).reshape(PAIR, *domain.shape)
        if left:
            pixels = pixels.clamp(0, 1)
        inputs = domain.from_pixels(pixels)
        missed = shared.distance(made := chain.gradient(inputs, deltas))
        explained = missed <= shared.floor(made)
        outcome = Outcome.NOT_IDENTIFIABLE
        if not left:
            outcome = Outcome.CONVERGED if explained else Outcome.PLATEAU
        # A gradient at the outputs is negative at the label, if at any.
        if targets is not None and targets.shape == (PAIR,) and not targets.is_floating_point():
            swapped = float(deltas[0, targets[0]] + deltas[1, targets[1]]) > float(
                deltas[1, targets[0]] + deltas[0, targets[1]]
            )
            targets = targets.flip(0) if swapped else targets
        told = f"the first layer's equations leave {left} of {len(peeled.solution.values)} directions of both examples open"
        return Reconstruction(
            inputs=inputs,
            targets=targets,
            loss=(missed / shared.norm) ** 2,
            outcome=outcome,
            iterations=len(chain.stages),
            plain_gradients=1.0,
            note=told if left else "the equations of every layer determine its inputs, of both examples",
            details={**details, "relative_residual": missed / shared.norm},
        )

    def _claims(self, peeled: Peeled, domain: Domain, monitor: Monitor) -> Iterator[tuple[Tensor, bool, str]]:
        """Pixels, whether nothing else explains the update, and what was done, in words; a next one for where this misses it."""
        solution, system = peeled.solution, peeled.system
        assert solution is not None
        assert system is not None
        left = solution.open.shape[1]
        if left == 0:
            yield solution.values, True, "the equations of every layer determine its input"
            return
        lacking = f"the first layer's equations leave {left} of {len(solution.values)} directions open"
        image = OpenImage(start=solution.values, basis=solution.open, shape=domain.shape, inactive=peeled.inactive)
        if not self.complete or domain.kind is not DomainKind.IMAGE:
            yield image.middle().clamp(0, 1), False, f"{lacking}; there the middle of the range is claimed"
            return
        code, precision = image.smooth(torch.zeros(left, dtype=torch.float64, device=solution.values.device))
        if self.levels > 1 and solution.misfit < _CONSISTENT:
            fit = (_ALLOWED * max(solution.misfit, 1.0)) ** 2 * solution.rows

            def tell(open_: int) -> None:
                monitor(left - open_, left, math.nan)

            grid = Grid(
                steps=self.levels - 1, error=solution.error, explains=lambda guess: system.squares(guess) <= fit
            )
            found = on_grid(image, code, precision, grid, tell)
            if found is not None:
                certain = alone_on_grid(solution, system.gram(len(found)), self.levels - 1, fit)
                others = "" if certain else ", as others may"
                yield found, certain, f"{lacking}, and an image of {self.levels} levels satisfies all equations{others}"
        yield image.at(code).clamp(0, 1), False, f"{lacking}; filled by total variation"


def read_rectified(update: Update, knowledge: Knowledge, *, max_unknowns: int) -> Reconstruction | None:
    """The claim of `Peel` where it applies to a network with units that can be off; None elsewhere.

    Args:
        update: aligned with the model.
        knowledge: of the adversary.
        max_unknowns: of `Peel`.

    **Cost**: that of `Peel`, or a few forward passes of one example where it does not apply.
    """
    attack = Peel(max_unknowns=max_unknowns)
    if knowledge.batch_size != 1 or attack.refusal(knowledge) is not None:
        return None
    assert knowledge.objective is not None
    assert knowledge.domain is not None
    if not read_network(knowledge.objective, knowledge.domain).rectified:
        return None
    return attack._recover(update, knowledge, torch.Generator(), Monitor())


@dataclass(frozen=True)
class _Found:
    """Claim that one gradient at the head's output leads to, whether it explains the update, and whether it is in range."""

    peeled: Peeled
    head: Head
    inputs: Tensor | None = None
    sure: bool = False
    told: str = ""
    missed: float = math.inf
    explained: bool = False
    inside: bool = False


def _nothing(why: str, details: Mapping[str, Any]) -> Reconstruction:
    return Reconstruction(
        inputs=None,
        targets=None,
        loss=None,
        outcome=Outcome.NOT_IDENTIFIABLE,
        note=f"nothing is claimed: {why}",
        details=details,
    )


def _in_double(targets: Tensor | None) -> Tensor | None:
    return targets.double() if targets is not None and targets.is_floating_point() else targets


def _contradiction(layer: Mapping[str, Any]) -> str:
    """Words on equations of a layer that are further apart than noise leaves them, or ""."""
    misfit, left = float(layer["misfit"]), int(layer["equations"]) - int(layer["rank"])
    if misfit < _APART or left < 1 or scipy.stats.chi2.sf(misfit**2 * left, left) > _BY_CHANCE:
        return ""
    return f"; the equations of {layer['layer']} contradict each other, {misfit:.1f} times as much as the noise allows"


def _shared(update: Update, knowledge: Knowledge, sent: torch.dtype) -> Shared:
    objective = knowledge.objective
    assert objective is not None
    scale = knowledge.release.protocol.gradient_scale() or 1.0
    law = known_law(knowledge.release, objective, 1)
    stds: Mapping[str, float] = law.std if isinstance(law, DiagonalGaussian) else {}
    return Shared(
        gradients={
            name: update.tensors[name].to(tensor.device, torch.float64) / scale
            for name, tensor in objective.params.items()
        },
        stds={name: std / abs(scale) for name, std in stds.items()},
        eps=max(torch.finfo(dtype).eps for dtype in (update.dtype, sent)),
    )


def refuse_other_than_gradient(release: Release, objective: Objective) -> None:
    """Refuse a release whose mean is not the gradient, or a multiple of it, whatever its size.

    Raises:
        UnsupportedError: saying what to use instead.
    """
    after, scale = release.after_gradient, release.protocol.gradient_scale()
    if after is not None and scale is not None:
        stream = torch.Generator().manual_seed(0)
        probe = {
            name: torch.randn(tensor.shape, generator=stream).to(tensor) * _LARGE
            for name, tensor in objective.params.items()
        }
        made = after(probe)
        if all(torch.allclose(made[name], scale * tensor) for name, tensor in probe.items()):
            return
    raise UnsupportedError(
        "the attack peel needs the gradient itself, with noise at most, and this protocol or these defenses make "
        "something else of it; use GaussNewton"
    )

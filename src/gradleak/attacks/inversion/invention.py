"""Check of a claim against the update: does it bear the claim out, or did a prior invent it? The truth is not asked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradleak.attacks.attack import Monitor
from gradleak.attacks.inversion.gauss_newton import GaussNewton, KrylovSteps
from gradleak.attacks.inversion.gauss_newton.attack import search_from
from gradleak.attacks.inversion.gauss_newton.gates import POWER_STEPS, PROBE_ITERATIONS, PROBES
from gradleak.attacks.inversion.gauss_newton.residual_system import PLAIN_GRADIENTS_PER_PRODUCT
from gradleak.attacks.inversion.problem import NEEDS, OPTIMIZED_LABELS, LabelPolicy, Problem
from gradleak.attacks.inversion.reading import draws_of
from gradleak.attacks.inversion.variables import Pixels
from gradleak.core import Batch, Knowledge, Reconstruction, Update
from gradleak.operators.kernels import differentiable_kernels
from gradleak.results import Count, Natural, Outcome, Settings, Share

EXPLAINS = 1e-2
"""Relative residual up to which a refined picture counts as explaining the update."""

RULED = 6
"""Releases for the claim and the refined picture: each on the whole update, and on its two parts."""


class Support(StrEnum):
    """Support of the update for a claim.

    SUPPORTED: from the claim on, what explains the update lies nearby. CONTRADICTED: it lies elsewhere, or any picture of
    the prior explains the update as well; the claim is wrong then, and the update may still give the input away: look at
    the refined picture. UNDECIDED: the update could not be asked, which is no sign for the claim.
    """

    SUPPORTED = "supported"
    CONTRADICTED = "contradicted"
    UNDECIDED = "undecided"


@dataclass(frozen=True, kw_only=True)
class ClaimSupport:
    """Result of `InventionCheck`, and the picture that it made on the way.

    Attributes:
        support: supported, contradicted or undecided.
        sentence: the same in words, for a report.
        relative_residual: ‖g − g*‖ / ‖g*‖ of the claim.
        alternatives: how many other pictures of the prior (and of public data) were held against the update.
        best_alternative: the smallest relative residual among them; None without any.
        moved: pixel RMSE between claim and refined claim, by example: where the test on the held-out part is passed, an
            estimate of the claim's error that needs no truth. Empty where there was nothing to refine.
        used: relative residual on the part of the update that the refinement saw, before and after.
        held_out: the same on the part that it did not see; None where the update cannot be parted.
        plain_gradients: what the check cost.
        refined: the claim refined without the prior, made from update and knowledge alone: a claim of its own, and where
            the prior's is contradicted the better one. Its loss is the squared relative residual on the whole update, its
            cost that of the check; None where there was nothing to refine or nothing came of it. Not among the facts.
    """

    support: Support
    sentence: str
    relative_residual: float | None
    alternatives: int = 0
    best_alternative: float | None = None
    moved: tuple[float, ...] = ()
    used: tuple[float, float] | None = None
    held_out: tuple[float, float] | None = None
    plain_gradients: float = 0.0
    refined: Reconstruction | None = field(default=None, compare=False, repr=False)

    def facts(self) -> dict[str, Any]:
        """JSON-ready, for the line of an attack, without a value of any picture."""
        return {
            "support": self.support.value,
            "relative_residual": self.relative_residual,
            "alternatives": self.alternatives,
            "best_alternative": self.best_alternative,
            "moved_pixel_rmse": list(self.moved),
            "used_before_after": None if self.used is None else list(self.used),
            "held_out_before_after": None if self.held_out is None else list(self.held_out),
            "plain_gradients": self.plain_gradients,
        }


@dataclass(frozen=True, kw_only=True)
class InventionCheck(Settings):
    """A test of a claim that a prior may have invented: does the update itself lead away from the picture?

    A generator turns any latent into a plausible picture, and the best of them always has a smaller matching loss than
    most: neither look nor loss tells a leak from an invention. So every second layer of the update is put aside, the
    claim is refined by Levenberg-Marquardt on the other layers in pixels, with neither generator nor prior, and the
    refined picture is held against what was put aside. If the residual there falls to `drop` of what it was, the
    refinement found something true, and the way that the picture moved says how far the claim was off:

    - at most `tolerance` (pixel RMSE, in every example): *supported*;
    - beyond: *contradicted*, the prior invented at least that part. That is said of the prior's picture, not of the update:
      where the refined picture explains the update, the update itself gives it away.

    The refined picture (`ClaimSupport.refined`) never sees the truth either: it is what an attacker can claim, and audits
    score it beside the claim that it began with.

    If it does not fall, nothing is known (*undecided*): steps of second order do not get far on many ReLU networks, on
    noise, and from claims that are right already to the precision that the update has. One more thing contradicts a
    claim: that some other picture of the prior, or of public data, explains the update as well as it does.

    Updates of several local steps and defended ones cannot be parted (a norm ties their entries together); then the whole
    update is used, and its residual has to fall to `drop` squared.

    **Assumptions**: that two halves of an update do not agree on a wrong picture. Holding out needs two layers that are
    not zero. The labels are those of the claim; where they are wrong the residual does not fall.
    What the update does not depend on at all (null directions, dead units of one example) neither part can show: there a
    prior may have put anything into a claim that is called supported.

    Measured on the sigmoid LeNet (Fashion-MNIST, claims of a generator of digits and of one of clothes, errors from 0.03
    to 0.48): the way moved is within 6 % of the true error, 0.334 for 0.345; matching losses alone put an invented
    picture (0.345) beside a good one (0.107). On a ReLU LeNet with strides it says *undecided* throughout.

    **Cost**: at most 2 · `alternatives` + 6 releases, and `steps` inexact Levenberg-Marquardt steps of three solves of
    `products` + 1 products with AᵀA each: with these numbers some 3,300 plain gradients (1,600 to 3,700 measured:
    trials that fail are repeated, and a solve may end early). It grows in
    proportion to what a release costs: for T local steps each of these is T plain gradients. An update that cannot be
    parted is also asked, once it is explained, which directions it leaves open, up to 3,300 more: 6,600 T at most with
    one proposal a step (2,700 T to 5,400 T measured, 22,000 for four local steps). `estimate` says it beforehand.

    **Source**: none; the steps are those of `GaussNewton` from the claim on.

    Attributes:
        steps: Levenberg-Marquardt steps.
        products: products with AᵀA a solve.
        alternatives: other pictures: draws of the generator with the claim's labels, and as many public examples.
        tolerance: pixel RMSE from which a claim counts as another picture.
        drop: share of the held-out residual that may be left.

    Raises:
        InputError: for counts below 1 or shares out of range.
    """

    steps: Count = 8
    products: Count = 30
    alternatives: Natural = 16
    tolerance: Share = 0.1
    drop: Share = 0.5

    def estimate(self, knowledge: Knowledge) -> float:
        """The cost in plain gradients of a check that takes all its steps, one proposal each.

        Where the update cannot be parted it includes the search for open directions, made only if it is explained.

        Args:
            knowledge: of the attack whose claim is checked.

        Raises:
            KnowledgeError: if a fact that it depends on is not disclosed.
        """
        knowledge.require(NEEDS, asker="the cost of the check of a claim")
        assert knowledge.objective is not None
        assert knowledge.domain is not None
        assert knowledge.batch_size is not None
        steps = KrylovSteps(iterations=self.products)
        # Conjugate gradients end after as many products as there are unknowns; one more makes sure of the residual.
        unknowns = knowledge.domain.size * knowledge.batch_size
        solve = 2 * (min(self.products, unknowns) + 1)
        # Slope, diagonal and gain; then solves, and between them the moves of entries that stay at the box.
        a_step = steps.probes + 3 + steps.rounds * solve + 2 * (steps.rounds - 1)
        products, releases = self.steps * a_step, 3 * self.steps + RULED
        layers = {name.rpartition(".")[0] for name in knowledge.objective.params}
        if not _can_be_parted(knowledge) or len(layers) < 2:
            products += 2 * (POWER_STEPS + PROBES * (min(PROBE_ITERATIONS, unknowns) + 1))
        releases += self.alternatives * ((knowledge.generator is not None) + (knowledge.public is not None))
        release = knowledge.release.protocol.plain_gradients(knowledge.batch_size)
        release *= len(draws_of(knowledge, knowledge.objective, knowledge.targets))
        return release * (releases + PLAIN_GRADIENTS_PER_PRODUCT * products)

    def __call__(
        self, found: Reconstruction, update: Update, knowledge: Knowledge, *, generator: torch.Generator
    ) -> ClaimSupport:
        """Check a claim against the update.

        Args:
            found: an attack's claim.
            update: what the attack was given.
            knowledge: what the attack was given; its generator and public data give the alternatives.
            generator: the only source of randomness.

        Raises:
            KnowledgeError: naming what is needed and not disclosed.
            InconsistentUpdateError: if the update does not fit the model.
            UnsupportedError: for releases that nobody can read.
        """
        knowledge.require(NEEDS, asker="the check of a claim")
        assert knowledge.objective is not None
        if found.inputs is None or found.targets is None:
            return ClaimSupport(
                support=Support.UNDECIDED, sentence="nothing was claimed, so there is nothing to check",
                relative_residual=None,
            )  # fmt: skip
        aligned = update.align(knowledge.objective)
        claim = Batch(found.inputs.detach(), found.targets.detach())
        given = knowledge if claim.targets.is_floating_point() else replace(knowledge, targets=claim.targets)
        problem = Problem.pose(aligned, given, pixels=Pixels(), policy=LabelPolicy.OPTIMIZE, dtype=torch.float64)
        ruler = _Ruler(problem)
        residual = ruler(claim.inputs, claim.targets)
        others = [ruler(inputs, claim.targets) for inputs in self._others(given, claim, generator)]
        best = min(others, default=None)
        if residual <= problem.round_off:
            # A dead unit lets any picture explain the update.
            any_does = best is not None and best <= problem.round_off
            return ClaimSupport(
                support=Support.CONTRADICTED if any_does else Support.SUPPORTED,
                sentence="the claim explains the update to within round-off"
                + (", and so does another picture of the prior: the update does not tell them apart" if any_does else ""),
                relative_residual=residual, alternatives=len(others), best_alternative=best,
                plain_gradients=problem.release_cost * ruler.asked,
            )  # fmt: skip
        seen, aside = _parts(problem) if _can_be_parted(given) else (list(aligned.tensors), [])
        refined = self._refine(claim, aligned, given, seen, generator)
        moved: tuple[float, ...] = ()
        used = held = whole = None
        if refined.inputs is not None:
            # Labels that were not given move with the picture.
            labels = claim.targets if refined.targets is None else refined.targets
            moved = _moved(problem, claim.inputs, refined.inputs)
            used = ruler(claim.inputs, claim.targets, seen), ruler(refined.inputs, labels, seen)
            if aside:
                held = ruler(claim.inputs, claim.targets, aside), ruler(refined.inputs, labels, aside)
            whole = ruler(refined.inputs, labels)
        cost = problem.release_cost * ruler.asked + refined.plain_gradients
        support, sentence = self._judge(_Told(residual, best, moved, used, held, whole, refined.outcome))
        return ClaimSupport(
            support=support,
            sentence=sentence,
            relative_residual=residual,
            alternatives=len(others),
            best_alternative=best,
            moved=moved,
            used=used,
            held_out=held,
            plain_gradients=cost,
            refined=None
            if whole is None
            else _as_claim(refined, found, claim, residual=whole, cost=cost, parted=bool(aside)),
        )

    def _others(self, knowledge: Knowledge, claim: Batch, generator: torch.Generator) -> Iterable[Tensor]:
        """Other pictures for the places of the batch: of the generator, and public ones."""
        size = claim.size
        images = knowledge.generator
        for _ in range(self.alternatives if images is not None else 0):
            assert images is not None
            labels = claim.targets if images.conditional and not claim.targets.is_floating_point() else None
            if images.conditional and labels is None:
                break
            with torch.no_grad():
                yield images(images.draw(size, generator), labels=labels)
        public = knowledge.public
        for _ in range(self.alternatives if public is not None else 0):
            assert public is not None
            yield public.inputs[torch.randint(public.size, (size,), generator=generator)]

    def _refine(
        self, claim: Batch, update: Update, knowledge: Knowledge, seen: Sequence[str], generator: torch.Generator
    ) -> Reconstruction:
        objective = knowledge.objective
        assert objective is not None
        if len(seen) < len(update.tensors):
            rest = {name: tensor for name, tensor in objective.params.items() if name not in seen}
            part = {name: objective.params[name] for name in seen}
            objective = replace(objective, params=part, frozen={**objective.frozen, **rest})
            update = replace(update, tensors={name: update.tensors[name] for name in seen})
        attack = GaussNewton(
            max_steps=self.steps, starts=1, steps=KrylovSteps(iterations=self.products), free_gates=False
        )
        return search_from(attack, update, replace(knowledge, objective=objective), claim, generator, Monitor())

    def _judge(self, told: _Told) -> tuple[Support, str]:
        residual, best, moved, used, held, _, _ = told
        if best is not None and residual >= best:
            return Support.CONTRADICTED, (
                f"another picture of the prior explains the update as well as the claim does (relative residual {best:.2g} "
                f"against {residual:.2g}): the prior made the picture, not the update; {_instead(told)}"
            )
        test, share, where = (held, self.drop, "on the layers put aside ") if held else (used, self.drop**2, "")
        if test is None or not all(math.isfinite(value) for value in test) or test[1] > share * test[0]:
            return Support.UNDECIDED, (
                f"whether the update bears the claim out (relative residual {residual:.2g}) could not be told: refining it "
                f"without the prior did not explain the update better{' elsewhere' if held else ''}; a plausible look is no "
                "evidence"
            )
        worst = max(moved)
        text = (
            f"refined without the prior, the residual {where}falls from {test[0]:.2g} to {test[1]:.2g} and the picture "
            f"moves by a pixel RMSE of {worst:.2g}"
        )
        if worst <= self.tolerance:
            return Support.SUPPORTED, f"{text}: the update bears the claim out to about that error"
        return Support.CONTRADICTED, (
            f"{text}: the picture of the prior is wrong by about that much, the prior invented it; {_instead(told)}"
        )


class _Told(NamedTuple):
    """Relative residuals of claim and best alternative, the way moved, residuals before and after, how refining ended."""

    residual: float
    best: float | None
    moved: tuple[float, ...]
    used: tuple[float, float] | None
    held: tuple[float, float] | None
    whole: float | None
    outcome: Outcome


def _instead(told: _Told) -> str:
    """Note on the update where a picture of the prior is wrong."""
    # The floor of the whole update may be its noise.
    at_floor = told.held is None and told.outcome in (Outcome.CONVERGED, Outcome.NOT_IDENTIFIABLE)
    if told.whole is not None and (told.whole <= EXPLAINS or at_floor):
        # Only where it ended at the floor were open directions looked for.
        alone = {
            Outcome.NOT_IDENTIFIABLE: ", as others nearby do",
            Outcome.CONVERGED: ", so the update itself determines the picture",
        }.get(told.outcome, ", so the update itself leads to it")
        return (
            f"the refined picture explains the update (relative residual {told.whole:.2g}){alone}: what the update gives "
            "away is in the refined picture"
        )
    return "that is said of this picture alone, and is no sign that the update gives nothing away"


def _as_claim(
    refined: Reconstruction, found: Reconstruction, claim: Batch, *, residual: float, cost: float, parted: bool
) -> Reconstruction:
    """The refined picture as a claim about the whole update, with what the attack before it went by."""
    seen = "every second layer of the update" if parted else "the update"
    outcome = refined.outcome
    if parted and outcome in (Outcome.CONVERGED, Outcome.NOT_IDENTIFIABLE) and not residual <= EXPLAINS:
        # At the floor of the part that was seen alone.
        outcome = Outcome.PLATEAU
    given = not claim.targets.is_floating_point()
    # Classes of the claim were given to the refinement; why it had to move labels is said of a part of the update.
    own = "labels were disclosed to the attack" if given else OPTIMIZED_LABELS
    notes = [part for part in refined.note.split("; ") if part and not part.startswith(own)]
    before = {key: found.details[key] for key in ("labels", "label_confidence") if given and key in found.details}
    step = f"begins at the claim that the generator made, then goes by {seen} alone, without generator and priors"
    details = {
        **refined.details,
        **before,
        "information": [*found.details.get("information", ()), step],
        "relative_residual": residual,
        "relative_residual_seen": refined.details.get("relative_residual"),
    }
    return replace(
        refined,
        targets=claim.targets if given or refined.targets is None else refined.targets,
        loss=residual**2 if math.isfinite(residual) else None,
        outcome=outcome,
        plain_gradients=cost,
        note="; ".join([f"refined from a picture of a generator by {seen} alone", *notes]),
        details=details,
    )


class _Ruler:
    """The relative residual of a guess, on all tensors of the update or on some; it counts the releases."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._target = problem.objective.unflatten(problem.target)
        self.asked = 0

    def __call__(self, inputs: Tensor, targets: Tensor, names: Sequence[str] | None = None) -> float:
        self.asked += 1
        problem = self._problem
        inputs = inputs.to(problem.objective.device, problem.objective.dtype)
        targets = targets.to(problem.objective.device)
        targets = targets.to(inputs.dtype) if targets.is_floating_point() else targets
        with torch.no_grad(), differentiable_kernels():
            made = problem.objective.unflatten(problem.read(problem.released(inputs, targets)))
        chosen = list(made) if names is None else names
        gap = math.sqrt(sum(float((made[name] - self._target[name]).square().sum()) for name in chosen))
        size = math.sqrt(sum(float(self._target[name].square().sum()) for name in chosen))
        return gap / size if size > 0 else math.inf


def _can_be_parted(knowledge: Knowledge) -> bool:
    """True if each tensor of the update is a function of the batch by itself."""
    return not knowledge.defenses and knowledge.protocol is not None and knowledge.protocol.shares_gradient


def _parts(problem: Problem) -> tuple[list[str], list[str]]:
    """Every second layer that is not zero, beginning with the first, and the others; all and none for one layer."""
    layers: dict[str, list[str]] = {}
    for name, tensor in problem.objective.unflatten(problem.target).items():
        if bool(tensor.any()):
            layers.setdefault(name.rpartition(".")[0], []).append(name)
    groups = list(layers.values())
    if len(groups) < 2:
        return list(problem.objective.params), []
    return [name for group in groups[::2] for name in group], [name for group in groups[1::2] for name in group]


def _moved(problem: Problem, claim: Tensor, refined: Tensor) -> tuple[float, ...]:
    """Pixel RMSE between two batches, example by example; the claim is taken as the refinement began, in its box."""
    domain = problem.space.domain
    first = domain.to_pixels(claim.to(refined)).clamp(0, 1)
    gap = (domain.to_pixels(refined) - first).flatten(start_dim=1)
    return tuple(gap.square().mean(dim=1).sqrt().tolist())

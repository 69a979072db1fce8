"""Priors of an inversion: total variation, BatchNorm statistics, agreement of the starts after registration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

import scipy
import torch
from torch import Tensor

from gradleak.attacks.inversion.problem import Problem
from gradleak.attacks.inversion.reading import in_words
from gradleak.attacks.inversion.variables import Part
from gradleak.core import Domain, DomainKind, LayerStatistics, describe, running_statistics
from gradleak.results import (
    GEIPING_2020,
    HUANG_2021,
    YIN_2021,
    BelowOne,
    Citation,
    Count,
    InputError,
    KnowledgeError,
    Natural,
    NonNegative,
    Settings,
)


class Registration(Settings, ABC):
    """A transformation of guesses that makes them comparable; plain numbers, never differentiated."""

    @abstractmethod
    def __call__(self, moving: Tensor, fixed: Tensor, domain: Domain) -> Tensor:
        """`moving` (b, *shape) moved onto `fixed` (b, *shape), example by example."""


@dataclass(frozen=True, kw_only=True)
class NoRegistration(Registration):
    """Leaves guesses as they are: right where position is identified, as with a linear layer on top of all pixels."""

    def __call__(self, moving: Tensor, fixed: Tensor, domain: Domain) -> Tensor:
        """The guess itself."""
        return moving


@dataclass(frozen=True, kw_only=True)
class Translation(Registration):
    """The cyclic shift of whole pixels that correlates best with the fixed image, over all channels at once.

    Convolutional networks with global pooling barely tell shifted images apart, so that starts of one target find it at
    different places. Non-images are left as they are.

    **Source**: Kuglin and Hines 1975 (phase correlation), here plain cross correlation of centered images, which is
    steadier on noisy guesses.

    Attributes:
        largest: shifts of more pixels than this are not looked at.

    Examples:
        >>> image = torch.zeros(1, 1, 8, 8)
        >>> image[0, 0, 2, 3] = 1.0
        >>> domain = Domain.image(channels=1, height=8, width=8)
        >>> moved = Translation(largest=2)(image.roll((1, -2), dims=(2, 3)), image, domain)
        >>> bool((moved == image).all())
        True
    """

    largest: Natural = 4

    def __call__(self, moving: Tensor, fixed: Tensor, domain: Domain) -> Tensor:
        """The shifted guess."""
        if domain.kind is not DomainKind.IMAGE:
            return moving
        height, width = moving.shape[-2:]
        centered = [images - images.mean(dim=(-2, -1), keepdim=True) for images in (fixed, moving)]
        first, second = (torch.fft.rfft2(images) for images in centered)
        correlation = torch.fft.irfft2((first * second.conj()).sum(dim=1), s=(height, width))
        rows = torch.tensor(_shifts(height, self.largest), device=moving.device)
        columns = torch.tensor(_shifts(width, self.largest), device=moving.device)
        near = correlation[:, rows][:, :, columns].flatten(1)
        best = near.argmax(dim=1)
        moved = []
        for image, place in zip(moving, best.tolist(), strict=True):
            shift = (int(rows[place // len(columns)]), int(columns[place % len(columns)]))
            moved.append(image.roll(shift, dims=(-2, -1)))
        return torch.stack(moved)


def _shifts(size: int, largest: int) -> list[int]:
    """0, 1, … largest, and their negatives as places in a cyclic axis."""
    reach = min(largest, (size - 1) // 2)
    return [shift % size for shift in range(-reach, reach + 1)]


@dataclass(frozen=True, kw_only=True, eq=False)
class Guess:
    """View of a guess that a prior may look at.

    Attributes:
        inputs: (b, *shape), in model-input units.
        domain: shape and kind of an example.
        layers: moments that the guess leaves in BatchNorm layers, by layer; empty unless a prior reads them.
        expected: moments that it ought to leave there.
        consensus: what the starts of this target agree on, like `inputs`; None where there is none (yet).
        latents: of a generator, (b, k), as the search has them; None where inputs are no code of one.
        changes: by how much each example's own generator weights differ from the generator's, w - w₀, (b, W), or None.
    """

    inputs: Tensor
    domain: Domain
    layers: Mapping[str, LayerStatistics] = field(default_factory=dict)
    expected: Mapping[str, LayerStatistics] = field(default_factory=dict)
    consensus: Tensor | None = None
    latents: Tensor | None = None
    changes: Tensor | None = None


class Prior(Settings, ABC):
    """A penalty on a guess, added to the matching loss; pure and safe under torch.func transforms.

    Attributes:
        citations: where it comes from.
        reads_layers: whether it looks at BatchNorm moments.
        reads: the part of the unknowns that it looks at, latents or weights of a generator; None for the inputs.
    """

    citations: tuple[Citation, ...] = ()
    reads_layers: ClassVar[bool] = False
    reads: ClassVar[Part | None] = None

    @abstractmethod
    def __call__(self, guess: Guess) -> Tensor:
        """The weighted penalty, a scalar of at least 0."""

    def expected(self, problem: Problem) -> Mapping[str, LayerStatistics]:
        """The BatchNorm moments that this prior compares with; none unless it reads them."""
        del problem
        return {}

    def note(self, problem: Problem) -> str:
        """Note on this prior in this problem for the reader, or ""."""
        del problem
        return ""

    def information(self, problem: Problem) -> str:
        """Information that it adds to the attack's, in words."""
        del problem
        return f"prior: {in_words(describe(self))}"


def weighted(*priors: Prior | None) -> tuple[Prior, ...]:
    """Those whose weight is not 0."""
    return tuple(prior for prior in priors if prior is not None and getattr(prior, "weight", 1.0) != 0)


@dataclass(frozen=True, kw_only=True)
class TotalVariation(Prior):
    """weight · Σ_axes mean |difference of neighbors|, in model-input units.

    For images that is mean|x[..., 1:] − x[..., :-1]| + mean|x[..., 1:, :] − x[..., :-1, :]|, each mean over all
    neighbor pairs of that direction, channels and examples; for signals the last axis alone; for tables 0.

    This is the definition of Geiping et al.'s published code. A definition that *sums* over pairs is b·C·H·(W−1) times
    larger along the rows: divide its weight's counterpart by that, for instance weight 1e-4 here is 1e-4/756 per pair
    of a 28×28 image. With a normalized domain, pixel differences count 1/std times as much. It decides as much as the
    attack does, so the weight stands in every record.

    **Source**: Geiping et al. 2020, equation 4 (the paper leaves the definition open).

    Attributes:
        weight: at least 0.

    Raises:
        InputError: for a negative weight.

    Examples:
        >>> import torch
        >>> image = torch.tensor([[[[0.0, 1.0], [1.0, 3.0]]]])
        >>> domain = Domain.image(channels=1, height=2, width=2)
        >>> float(TotalVariation(weight=1.0)(Guess(inputs=image, domain=domain)))
        3.0
    """

    citations = (GEIPING_2020,)

    weight: NonNegative

    def __call__(self, guess: Guess) -> Tensor:
        """The weighted total variation."""
        total = guess.inputs.new_zeros(())
        for axis in _neighbor_axes(guess.domain):
            total = total + guess.inputs.diff(dim=axis).abs().mean()
        return self.weight * total

    def note(self, problem: Problem) -> str:
        """Note that it does nothing, for examples without neighbors such as table rows."""
        if self.weight == 0 or _neighbor_axes(problem.space.domain):
            return ""
        return f"total variation did nothing: {_without_neighbors(problem.space.domain)}"

    def information(self, problem: Problem) -> str:
        """Its weight and, where not those of images, the neighbors it looks at; or that there are none."""
        domain = problem.space.domain
        if not _neighbor_axes(domain):
            return f"no total variation: {_without_neighbors(domain)}"
        along = ", along the signal alone" if domain.kind is DomainKind.SIGNAL else ""
        return super().information(problem) + along


def _neighbor_axes(domain: Domain) -> list[int]:
    """The axes along which entries of an example have neighbors."""
    axes = {DomainKind.IMAGE: (-1, -2), DomainKind.SIGNAL: (-1,), DomainKind.TABULAR: ()}[domain.kind]
    return [axis for axis in axes if len(domain.shape) >= -axis and domain.shape[axis] > 1]


def _without_neighbors(domain: Domain) -> str:
    if domain.kind is DomainKind.TABULAR:
        return "the entries of a table row have no neighbors"
    return f"an example of shape {domain.shape} has no neighboring entries"


@dataclass(frozen=True, kw_only=True)
class MeanSquare(Prior):
    """weight · mean x²: the energy of the guess, in model-input units.

    **Source**: Yin et al. 2021, section 3.3 (R_l2). Deviation: a mean over entries in place of a norm.

    Attributes:
        weight: at least 0.
    """

    citations = (YIN_2021,)

    weight: NonNegative

    def __call__(self, guess: Guess) -> Tensor:
        """The weighted mean square."""
        return self.weight * guess.inputs.square().mean()


class Statistics(StrEnum):
    """Source of the BatchNorm moments that a guess is compared with.

    RUNNING: those that the model remembers, which every server has. KNOWN: those that the private batch left, where the
    threat model discloses them (a truth, printed in every report). INFERRED, Huang et al.'s third case, stands for no
    prior: with an objective in train mode the guess is normalized by its own moments.
    """

    RUNNING = "running"
    INFERRED = "inferred"
    KNOWN = "known"


@dataclass(frozen=True, kw_only=True)
class BatchNormStatistics(Prior):
    """weight · Σ_layers (‖μ(guess) − μ‖₂ + ‖σ²(guess) − σ²‖₂) over the inputs of BatchNorm layers, by channel.

    For a model without such layers the prior is 0, and the reconstruction says so: nothing is assumed in its place.

    **Source**: Yin et al. 2021, equation 10, against running statistics; Huang et al. 2021, section 4, names the cases
    (`Statistics`). Variances are biased ones on the side of the guess.

    **Cost**: where the update is a function of the plain gradient, nothing but the moments; else one forward and
    backward pass more.

    Attributes:
        weight: at least 0.
        statistics: what the guess is compared with, `running` or `known`.

    Raises:
        InputError: for a negative weight, or statistics to compare with that are neither.
    """

    citations = (YIN_2021, HUANG_2021)
    reads_layers = True

    weight: NonNegative
    statistics: Statistics = Statistics.RUNNING

    def __post_init__(self) -> None:
        """Check what depends on more than one field."""
        super().__post_init__()
        if self.statistics is Statistics.INFERRED:
            raise InputError(
                "BatchNormStatistics.statistics: expected 'running' or 'known', got 'inferred', which is the absence of this "
                "prior: give the attack an objective in train mode"
            )

    def __call__(self, guess: Guess) -> Tensor:
        """The weighted distance of moments."""
        total = guess.inputs.new_zeros(())
        for name, expected in guess.expected.items():
            found = guess.layers.get(name)
            if found is not None:
                total = total + torch.linalg.vector_norm(found.mean - expected.mean.to(found.mean))
                total = total + torch.linalg.vector_norm(found.variance - expected.variance.to(found.variance))
        return self.weight * total

    def expected(self, problem: Problem) -> Mapping[str, LayerStatistics]:
        """Running or disclosed moments by layer.

        Raises:
            KnowledgeError: if disclosed ones are asked for and there are none.
        """
        if self.statistics is Statistics.RUNNING:
            return running_statistics(problem.objective)
        if problem.statistics is None:
            raise KnowledgeError(
                "BatchNormStatistics(statistics='known') needs the BatchNorm statistics of the private batch, which the "
                "threat model does not disclose; disclose them (HonestButCurious(statistics=True)), or use 'running'"
            )
        return problem.statistics

    def note(self, problem: Problem) -> str:
        """Note on the statistics that were used, or that there are none."""
        expected = self.expected(problem)
        if not expected:
            return "the model has no BatchNorm statistics, so the BatchNorm prior was left out"
        if self.statistics is Statistics.KNOWN:
            return "BatchNorm statistics of the private batch were disclosed to the attack"
        remembered = all(
            bool((layer.mean == 0).all()) and bool((layer.variance == 1).all()) for layer in expected.values()
        )
        return "running BatchNorm statistics are those of a fresh model (0 and 1)" if remembered else ""

    def information(self, problem: Problem) -> str:
        """Owner of the statistics, or that there were none."""
        if not self.expected(problem):
            return "no BatchNorm statistics: the model has none"
        whose = "of the private batch, disclosed" if self.statistics is Statistics.KNOWN else "that the model remembers"
        return f"prior: BatchNorm statistics {whose}, weight {self.weight:g}"


@dataclass(frozen=True, kw_only=True)
class GroupConsistency(Prior):
    """weight · mean (x − consensus)²: pulls the starts of a target to what they agree on.

    The consensus is the mean over the target's starts, after each was registered to that mean. It is made anew every
    `every` evaluations from the share `begin` of a stage on, from current guesses, and counts as a constant. Examples of a
    batch that the update does not tell apart (one label, one mini-batch; all of them where labels are unknowns) stand in
    another order in every start: they are put in the order of the first by optimal assignment before the mean.

    With one start the prior is 0.

    **Source**: Yin et al. 2021, equations 13 and 14. Deviations: a mean square in place of a norm; registration as
    `Registration` says, in place of RANSAC-flow, a network of its own; the paper's batches have different labels, so that
    it needs no assignment.

    Attributes:
        weight: at least 0.
        every: evaluations between two consensus images.
        begin: share of a stage before the first, in [0, 1).
        registration: how starts are moved onto their mean.
    """

    citations = (YIN_2021,)

    weight: NonNegative
    every: Count = 50
    begin: BelowOne = 0.25
    registration: Registration = field(default_factory=NoRegistration)

    def __call__(self, guess: Guess) -> Tensor:
        """The weighted distance from the consensus, 0 before there is one."""
        if guess.consensus is None:
            return guess.inputs.new_zeros(())
        return self.weight * (guess.inputs - guess.consensus).square().mean()

    def due(self, evaluation: int, evaluations: int) -> bool:
        """True if a new consensus is to be made before this evaluation."""
        first = int(self.begin * evaluations)
        return evaluation >= max(first, 1) and (evaluation - first) % self.every == 0

    def consensus(self, inputs: Tensor, domain: Domain, alike: Sequence[Sequence[int]] = ()) -> Tensor:
        """Consensus of the guesses (s, b, *shape) of one target, in the order of each, (s, b, *shape).

        Args:
            inputs: the guesses.
            domain: of an example.
            alike: places of a batch that the update does not tell apart, so that each start has its own order there.
        """
        orders = [_order_like(guess, inputs[0], alike) for guess in inputs]
        sorted_ = torch.stack([guess[order] for guess, order in zip(inputs, orders, strict=True)])
        mean = sorted_.mean(dim=0)
        agreed = torch.stack([self.registration(guess, mean, domain) for guess in sorted_]).mean(dim=0)
        return torch.stack([agreed[order.argsort()] for order in orders])


def _order_like(guess: Tensor, first: Tensor, alike: Sequence[Sequence[int]]) -> Tensor:
    """The order (b,) of a guess (b, *shape) that brings its examples next to those of the first, one to one."""
    order = torch.arange(len(guess), device=guess.device)
    for places in alike:
        if len(places) > 1:
            here = torch.tensor(places, device=guess.device)
            mine, theirs = guess[here].flatten(1).double(), first[here].flatten(1).double()
            squared = (theirs[:, None] - mine[None]).square().sum(dim=2)
            _, columns = scipy.optimize.linear_sum_assignment(squared.cpu().nan_to_num(posinf=1e300).numpy())
            order[here] = here[torch.as_tensor(columns, device=guess.device)]
    return order

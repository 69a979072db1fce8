"""A batch with and without one example, as a pair of hypotheses about its release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from gradleak.core import Batch, Objective, Release
from gradleak.privacy.gaussian import GaussianPair
from gradleak.privacy.lower_bounds import TrialScores
from gradleak.privacy.pair import HypothesisPair
from gradleak.privacy.released import SampledPair, released_pair
from gradleak.privacy.theory import PAIR, without_value
from gradleak.results import InputError, Score


@dataclass(frozen=True, kw_only=True, eq=False)
class MembershipPair(HypothesisPair):
    """H0: the release of a batch without an example, or with another in its place; H1: that of the batch with it.

    Without a replacement the batch of H1 is one larger. Where a divisor or the noise depends on the number of examples
    (a mean, noise per example) the release tells the number too, and the bound may exceed what the noise alone was
    counted for: that is what this pair is to find.

    **Source**: the neighbors of differential privacy; Li et al. 2024, section 7, audit the attribute in their place.

    Attributes:
        objective: the client's loss at the parameters of the release.
        release: protocol and defenses.
        example: the one example that is in question.
        others: the rest of the batch, or None where there is no other.
        replacement: what stands in its place under H0, or None for nothing.

    Raises:
        InputError: for more than one example or replacement, or no batch under H0.
    """

    objective: Objective = field(repr=False)
    release: Release
    example: Batch = field(repr=False)
    others: Batch | None = field(default=None, repr=False)
    replacement: Batch | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Check the sizes."""
        for name, batch in (("example", self.example), ("replacement", self.replacement)):
            if batch is not None and batch.size != 1:
                raise InputError(f"MembershipPair.{name}: expected one example, got {batch.size}")
        if self.others is None and self.replacement is None:
            raise InputError(
                "MembershipPair.others: expected the rest of the batch, or a replacement, got neither; a batch of no "
                "example has no release of its own here"
            )

    @cached_property
    def law(self) -> GaussianPair | SampledPair:
        """The two laws of the release."""
        parts = [part for part in (self.others, self.replacement, self.example) if part is not None]
        rows = Batch(
            torch.cat([part.inputs for part in parts]),
            torch.cat([part.targets for part in parts]),
            self.example.domain,
            None
            if any(part.sensitive is None for part in parts)
            else torch.cat([part.sensitive for part in parts if part.sensitive is not None]),
        )
        shared = list(range(0 if self.others is None else self.others.size))
        null = [*shared, *([] if self.replacement is None else [len(shared)])]
        return released_pair(self.objective, self.release, rows, null=null, alternatives=[[*shared, rows.size - 1]])

    def trials(self, count: int, *, generator: torch.Generator) -> Mapping[str, TrialScores]:
        """Distance and likelihood ratio, or matched filter where the law of the noise is not known."""
        return self.law.trials(count, generator=generator)

    def theory(self, *, delta: float) -> list[Score]:
        """The epsilon of these two batches, exactly, where the noise is Gaussian and the same for both."""
        if isinstance(self.law, GaussianPair):
            return self.law.theory(delta=delta)
        return [without_value(PAIR, "no Gaussian noise of a known law is on every entry")]

    @property
    def facts(self) -> Mapping[str, Any]:
        """The neighbors, and the law of the release."""
        others = 0 if self.others is None else self.others.size
        return {
            "neighbors": "without it" if self.replacement is None else "another in its place",
            "others": others,
            **self.law.facts,
        }

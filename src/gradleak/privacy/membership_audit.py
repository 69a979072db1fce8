"""Epsilon of a record's membership: the pair, its truth, and the audit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch

from gradleak.core import Adjacency, Batch, Objective, Release, derive_generator
from gradleak.data import Population, Split
from gradleak.privacy.canary import random_records
from gradleak.privacy.lower_bounds import TrialScores
from gradleak.privacy.privacy_audit import AuditedPair, PrivacyAudit, numbered
from gradleak.privacy.released import GaussianPair, HypothesisPair, SampledPair, released_pair
from gradleak.privacy.theory import PAIR, total_epsilons, without_value
from gradleak.results import Count, InputError, Score


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


@dataclass(frozen=True, kw_only=True, eq=False)
class MembershipAudit(PrivacyAudit):
    """Audit of the epsilon that the release of a batch shows of one example in it: the usual neighbors of DP.

    The example and the rest of the batch are public rows by chance: a bound for such records, not for the worst one.

    Attributes:
        population: the rows; positional.
        adjacency: "add_or_remove" (the batch without it is one smaller) or "replace" (another row in its place).
        members: how many examples of the batch with it, the example included.
        examples: how many examples are audited an epoch, each in a batch of its own.

    Raises:
        InputError: for a number out of range; "add_or_remove" needs another example in the batch.
    """

    kind: ClassVar[str] = "membership"

    population: Population = field(kw_only=False, repr=False)
    adjacency: Adjacency | str = Adjacency.ADD_OR_REMOVE
    members: Count = 16
    examples: Count = 1

    def __post_init__(self) -> None:
        """Check what depends on more than one field."""
        super().__post_init__()
        if self.members < 2 and self.adjacency is not Adjacency.REPLACE:
            raise InputError(
                f"MembershipAudit.members: expected a whole number of at least 2, got {self.members}; one "
                "will do for adjacency 'replace'"
            )

    def describe(self) -> dict[str, Any]:
        """A JSON-ready description, without a value of a row."""
        return super().describe() | {"population": f"{self.population.name}, {self.population.size} rows"}

    def rows(self) -> Population:
        """The rows that it is done with."""
        return self.population

    def _baselines(self, objective: Objective, split: Split, epoch: int, seed: int) -> list[AuditedPair]:
        """Public rows by chance, the same at every epoch."""
        replaced = self.adjacency is Adjacency.REPLACE
        needed = self.members + (1 if replaced else 0)
        found = []
        for number in range(self.examples):
            rows = random_records(split.public_rows, needed, generator=derive_generator(seed, "members", str(number)))
            others = self.members - 1
            rest = None
            if others:
                places = slice(0, others)
                rest = Batch(rows.inputs[places], rows.targets[places], rows.domain)
            pair = MembershipPair(
                objective=objective,
                release=self.release,
                example=rows.example(others),
                others=rest,
                replacement=rows.example(others + 1) if replaced else None,
            )
            name = f"{numbered('example', number, self.examples)}, epoch {epoch}"
            found.append(AuditedPair(name=name, pair=pair, facts={"epoch": epoch, "record": "random"}))
        return found

    def _total(self, objective: Objective) -> list[Score]:
        return total_epsilons(self.release, objective, examples=self.members, attributes=None, delta=self.delta)

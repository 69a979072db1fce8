"""The audit of an example in a batch: the usual neighbors of differential privacy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from gradleak.core import Adjacency, Batch, Objective, derive_generator
from gradleak.data import Population, Split
from gradleak.privacy.canary import random_records
from gradleak.privacy.membership import MembershipPair
from gradleak.privacy.privacy_audit import AuditedPair, PrivacyAudit, numbered
from gradleak.privacy.theory import total_epsilons
from gradleak.results import Count, InputError, Score


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

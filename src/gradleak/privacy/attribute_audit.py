"""The audit of one attribute of a record, for canaries and for random records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

from gradleak.core import Batch, Objective, derive_generator
from gradleak.data import Encoding, Population, Split, Table
from gradleak.privacy.attribute import AttributePair
from gradleak.privacy.canary import Canary, random_records
from gradleak.privacy.privacy_audit import AuditedPair, PrivacyAudit, Say, numbered, public_rows
from gradleak.privacy.record import RecordAttribute, RecordConstraints, input_columns
from gradleak.privacy.theory import total_epsilons
from gradleak.results import Count, InputError, Outcome, Score

_VALID = "the canary is a valid record: every column is within its range, as a person's record would be"
_FREE = (
    "the canary may be any numbers and is not a valid record (columns out of range, parts of several categories), so that it "
    "shows the worst case of the mechanism and not that of a person's record"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class AttributeAudit(PrivacyAudit):
    """Audit of the epsilon that the release of one record shows of one attribute, for canaries and for random records.

    The game of definition 7.2 with k = 1, as a test between H0 (the record) and H1 (its attribute drawn uniformly from
    the other values), at the parameters after some epochs of training through the release. The adversary knows the
    record, the model and the noise. Beside every bound stand the exact per-attribute epsilon of that record and the
    conventions of the paper.

    **Source**: Li et al. 2024, section 7 and appendix A.3.

    Attributes:
        table: rows with their columns described; positional.
        target: what the model is trained for, a category or label.
        attribute: a category or one-hot group among the inputs.
        without: columns that are no inputs.
        encoding: of categories.
        canary: how canaries are made; None for none.
        valid: whether canaries are valid records, within the ranges of the public rows.
        canaries: how many are audited an epoch, the best ones.
        random_records: how many public rows by chance are audited an epoch; with neither there is nothing to audit.
        attributes: N, by which the paper divides the total; None for the number of columns that are inputs.
    """

    kind: ClassVar[str] = "attribute"

    table: Table = field(kw_only=False, repr=False)
    target: str
    attribute: str
    without: Sequence[str] = ()
    encoding: Encoding | str = Encoding.ONE_HOT
    canary: Canary | None = field(default_factory=Canary)
    valid: bool = False
    canaries: Count = 1
    random_records: Count = 1
    attributes: Count | None = None

    def __post_init__(self) -> None:
        """Check the fields, and that the attribute is an input."""
        super().__post_init__()
        if self.canary is not None and self.canaries > self.canary.starts:
            raise InputError(
                f"AttributeAudit.canaries: expected at most {self.canary.starts}, the starts of the canary, got {self.canaries}"
            )
        if self.valid and self.canary is not None and self.canary.valid is not None:
            raise InputError("AttributeAudit.valid: expected valid or canary.valid, got both")
        assert self.record_attribute is not None

    @cached_property
    def record_attribute(self) -> RecordAttribute:
        """Place of the attribute in a record."""
        return RecordAttribute.of(self.table, self.attribute, without=self._left_out, encoding=self.encoding)

    def describe(self) -> dict[str, Any]:
        """A JSON-ready description, without a value of a row."""
        canary = None if self.canary is None else super().describe()["canary"] | {"valid": self._constrained}
        return super().describe() | {"table": f"{self.table.name}, {self.table.size} rows", "canary": canary}

    @property
    def _constrained(self) -> bool:
        return self.valid or (self.canary is not None and self.canary.valid is not None)

    @property
    def _left_out(self) -> tuple[str, ...]:
        return (*self.without, self.target)

    def rows(self) -> Population:
        """The rows that it is done with."""
        return self._population

    @cached_property
    def _population(self) -> Population:
        return self.table.population(
            target=self.target,
            sensitive=self.attribute,
            keep_sensitive=True,
            without=self.without,
            encoding=self.encoding,
        )

    def _baselines(self, objective: Objective, split: Split, epoch: int, seed: int) -> list[AuditedPair]:
        """Random public records, the same at every epoch."""
        rows = random_records(
            public_rows(split), self.random_records, generator=derive_generator(seed, "random records")
        )
        return [
            self._pair(objective, rows.example(number), numbered("random record", number, rows.size), epoch, "random")
            for number in range(rows.size)
        ]

    def _crafted(self, objective: Objective, split: Split, epoch: int, seed: int, say: Say) -> list[AuditedPair]:
        """The best canaries at the parameters of this epoch."""
        if self.canary is None:
            return []
        public, canary = public_rows(split), self.canary
        if self.valid:
            rules = RecordConstraints.of(self.table, without=self._left_out, encoding=self.encoding, rows=public.inputs)
            canary = replace(canary, valid=rules)
        made = canary.craft(
            objective,
            self.release,
            self.record_attribute,
            like=public,
            generator=derive_generator(seed, "canary", str(epoch)),
        )
        say(f"epoch {epoch}: {canary.starts} canaries in {made.seconds:.1f} s")
        if made.outcome is Outcome.NOT_FINITE:
            say(f"epoch {epoch}: no canary has finite gradients")
            return []
        found = []
        for number in range(min(self.canaries, made.records.size)):
            name = numbered("canary", number, self.canaries)
            entry = self._pair(objective, made.records.example(number), name, epoch, "canary")
            facts = {**entry.facts, "canary": made.facts, "valid": canary.valid is not None}
            note = _VALID if canary.valid is not None else _FREE
            found.append(replace(entry, facts=facts, note=note))
        return found

    def _pair(self, objective: Objective, record: Batch, name: str, epoch: int, kind: str) -> AuditedPair:
        pair = AttributePair(objective=objective, release=self.release, record=record, attribute=self.record_attribute)
        return AuditedPair(name=f"{name}, epoch {epoch}", pair=pair, facts={"epoch": epoch, "record": kind})

    def _total(self, objective: Objective) -> list[Score]:
        many = self.attributes or len(input_columns(self.table, self._left_out))
        return total_epsilons(self.release, objective, examples=1, attributes=many, delta=self.delta)

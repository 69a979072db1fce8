"""Epsilon of one attribute of a record: the pair, its truth, and the audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch

from gradleak.core import Batch, Objective, Release, UpdateDefense, derive_generator
from gradleak.data import Encoding, Population, Split, Table
from gradleak.privacy.canary import Canary, RecordAttribute, RecordConstraints, input_columns, random_records
from gradleak.privacy.lower_bounds import TrialScores
from gradleak.privacy.privacy_audit import AuditedPair, PrivacyAudit, Say, numbered, public_rows
from gradleak.privacy.released import GaussianPair, HypothesisPair, SampledPair, released_pair
from gradleak.privacy.theory import PER_ATTRIBUTE, note_of_attribute, total_epsilons, without_value
from gradleak.results import Count, Evidence, InputError, Outcome, Score


@dataclass(frozen=True, kw_only=True, eq=False)
class AttributePair(HypothesisPair):
    """H0: the release of a record z alone; H1: that of z with its attribute drawn uniformly from the other m − 1 values.

    **Source**: Li et al. 2024, definition 7.2 with k = 1.

    Attributes:
        objective: the client's loss at the parameters of the game.
        release: protocol and defenses.
        record: one example.
        attribute: which entries change, and to what.

    Raises:
        InputError: for more than one example, or a record that does not have one of the values.
    """

    objective: Objective = field(repr=False)
    release: Release
    record: Batch = field(repr=False)
    attribute: RecordAttribute

    def __post_init__(self) -> None:
        """Check that there is one record, and that it has a value."""
        if self.record.size != 1:
            raise InputError(f"AttributePair.record: expected one example (k = 1), got {self.record.size}")
        if max(self.attribute.places) >= self.record.inputs[0].numel():
            raise InputError(
                f"AttributePair.attribute: expected entries from 0 to {self.record.inputs[0].numel() - 1}, got "
                f"{max(self.attribute.places)}"
            )
        if not torch.equal(self.attribute.with_value(self.record.inputs, self.value), self.record.inputs):
            raise InputError(
                f"AttributePair.record: expected one of the values of {self.attribute.name} in its entries "
                f"{list(self.attribute.places)}, got other numbers; set one with attribute.with_value(inputs, value)"
            )

    @property
    def value(self) -> int:
        """Value that the record has under H0."""
        return self.attribute.value_of(self.record.inputs)

    @cached_property
    def law(self) -> GaussianPair | SampledPair:
        """The two laws of the release."""
        values = [self.value, *(other for other in range(len(self.attribute.values)) if other != self.value)]
        records = replace(
            self.record,
            inputs=torch.cat([self.attribute.with_value(self.record.inputs, value) for value in values]),
            targets=torch.cat([self.record.targets] * len(values)),
            sensitive=None,
        )
        alternatives = [[place] for place in range(1, len(values))]
        return released_pair(self.objective, self.release, records, null=[0], alternatives=alternatives)

    def trials(self, count: int, *, generator: torch.Generator) -> Mapping[str, TrialScores]:
        """Distance and likelihood ratio, or matched filter where the law of the noise is not known."""
        return self.law.trials(count, generator=generator)

    def theory(self, *, delta: float) -> list[Score]:
        """The per-attribute epsilon of this record: exact for Gaussian noise, an upper bound where something follows it."""
        note = note_of_attribute(len(self.attribute.values) - 1)
        if isinstance(self.law, GaussianPair):
            return [self.law.epsilon(PER_ATTRIBUTE, delta, note=note)]
        noisy = self._gaussian_part
        if noisy is None:
            return [without_value(PER_ATTRIBUTE, "no Gaussian noise of a known law is on every entry")]
        note = f"{note}; of the noisy update, to which {type(self.release.defenses[-1]).__name__} adds nothing"
        score = noisy.epsilon(PER_ATTRIBUTE, delta, note=note)
        return [Score(**{**vars(score), "evidence": Evidence.UPPER_BOUND})]

    @property
    def facts(self) -> Mapping[str, Any]:
        """The attribute, and the law of the release."""
        return {"attribute": self.attribute.name, "values": len(self.attribute.values), **self.law.facts}

    @cached_property
    def _gaussian_part(self) -> GaussianPair | None:
        """The pair up to the noise, where everything after it looks at the update alone."""
        defenses = list(self.release.defenses)
        while defenses and isinstance(defenses[-1], UpdateDefense):
            defenses.pop()
            earlier = replace(self, release=Release(self.release.protocol, defenses))
            if isinstance(earlier.law, GaussianPair):
                return earlier.law
        return None


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

    def through(self, release: Release) -> Self:
        """The same audit of another release; the table is not encoded again."""
        found = super().through(release)
        # What is computed once of fields that stay.
        vars(found).update(_population=self._population, record_attribute=self.record_attribute)
        return found

    @property
    def _crafts(self) -> bool:
        return self.canary is not None

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

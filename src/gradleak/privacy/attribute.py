"""A record against itself with another attribute, as a pair of hypotheses about its release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from gradleak.core import Batch, Objective, Release, UpdateDefense
from gradleak.privacy.gaussian import GaussianPair
from gradleak.privacy.lower_bounds import TrialScores
from gradleak.privacy.pair import HypothesisPair
from gradleak.privacy.record import RecordAttribute
from gradleak.privacy.released import SampledPair, released_pair
from gradleak.privacy.theory import PER_ATTRIBUTE, note_of_attribute, without_value
from gradleak.results import Evidence, InputError, Score


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

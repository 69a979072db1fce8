"""Distributional inference: which share of a batch has a property."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Self

import torch
from torch import Tensor

from gradleak.attacks.inference import Classifier, Ordinal, balanced_labels
from gradleak.core import Batch
from gradleak.data import Split
from gradleak.games.game import Challenge, Control
from gradleak.games.reading import Draw, digits, rows_without_replacement
from gradleak.games.value_game import ValueGame, values_of
from gradleak.results import InputError, Natural, Whole

# Rows of a batch at which the counts of two bins seldom meet.
LEAST_OF_CONTROL = 128
INSIDE = (
    "the inputs hold the sensitive variable: these are shares of an attribute, the paper's are of a property outside"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class DistributionGame(ValueGame):
    """Game about the share α of a batch that has a property, inferred as one of m bins.

    The bins are {0}, (0, 1/(m−1)], …, ((m−2)/(m−1), 1]. A bin a is drawn uniformly, α uniformly within it, and ⌊αk⌋ rows
    with the property and k − ⌊αk⌋ without make the batch. Hence a batch of bin 1 may hold no row with the property: at
    k = 16 and m = 6 it does with probability 5/16, at k = 128 with 5/128, and no adversary can tell those from bin 0.
    So it goes at the other bounds: the share ⌊αk⌋/k may lie in the bin below. The paper draws it so, and so does this.

    The prior is uniform, for challenger and adversary: p* = 1/m. Adversarial perturbation sees the property of the rows,
    not the bin.

    **Source**: Li et al. 2024, sections 3.1, 4.1 and 5.1.4 (m = 6, k = 128). Deviation: the posteriors of the ordinal
    adversary are clipped at 0, see `Ordinal`.

    Attributes:
        bins: m, at least 3.
        having: which value of the sensitive variable is the property.
    """

    kind: ClassVar[str] = "distribution"

    batch_size: int = 128
    adversary: Classifier = field(default_factory=Ordinal)
    bins: Annotated[int, Whole(3)] = 6
    having: Natural = 1

    def __post_init__(self) -> None:
        """Check what depends on more than one field."""
        super().__post_init__()
        if not 0 <= self.having < len(self.population.values):
            raise InputError(
                f"DistributionGame.having: expected 0 to {len(self.population.values) - 1}, a value of the sensitive variable, "
                f"got {self.having!r}"
            )

    @property
    def names(self) -> list[str]:
        """Names of the bins."""
        return ["0"] + [
            f"({(place - 1) / (self.bins - 1):g}, {place / (self.bins - 1):g}]" for place in range(1, self.bins)
        ]

    def counts(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """⌊αk⌋ for bins (T,), α uniform within each, (T,) int64.

        Args:
            labels: bins.
            generator: of the draw.
        """
        # The upper end belongs to the bin, the lower one does not.
        inside = 1.0 - torch.rand(len(labels), generator=generator, dtype=torch.float64)
        share = (labels - 1 + inside) / (self.bins - 1)
        return torch.where(labels == 0, 0, (share * self.batch_size).floor().long())

    def shadow(self, public: Batch, generator: torch.Generator) -> Draw:
        """Batches of every bin, drawn with replacement from the public rows."""
        labels = balanced_labels(self.shadow_batches, self.bins, generator)
        return self._batches(labels, public, replacement=True, generator=generator, whose="public")

    def _challenge(self, split: Split, generator: torch.Generator) -> Challenge:
        private = split.private_rows
        uniform = torch.full((self.bins,), 1.0 / self.bins, dtype=torch.float64)
        labels = torch.randint(self.bins, (self.trials,), generator=generator)
        return Challenge(
            split=split,
            private=private,
            public=split.public_rows,
            values=self.names,
            trials=self._batches(labels, private, replacement=False, generator=generator, whose="private"),
            law=uniform,
            prior=self._prior(uniform),
            notes=[INSIDE] if self.population.holds_sensitive else [],
        )

    def _small(self, control: Control) -> Self:
        """In small batches a share and the one in the next bin may be the same count, which nobody can tell apart."""
        small = super()._small(control)
        return (
            replace(small, batch_size=max(small.batch_size, LEAST_OF_CONTROL)) if control is Control.PLANTED else small
        )

    def _secret_of_rows(self, rows: Batch, entries: int) -> Tensor:
        if len(self.population.values) <= entries:
            return super()._secret_of_rows(rows, entries)
        return digits((values_of(rows) == self.having).long(), 2, entries)

    def _batches(
        self, labels: Tensor, rows: Batch, *, replacement: bool, generator: torch.Generator, whose: str
    ) -> Draw:
        counts = self.counts(labels, generator)
        values = values_of(rows)
        having, lacking = ((values == self.having) == wanted for wanted in (True, False))
        held = {True: having.nonzero().flatten(), False: lacking.nonzero().flatten()}
        for wanted, places in held.items():
            if not len(places):
                raise InputError(
                    f"DistributionGame: expected {whose} rows {'with' if wanted else 'without'} "
                    f"{self.population.values[self.having]}, got none of {rows.size}"
                )
        drawn = torch.empty(len(labels), self.batch_size, dtype=torch.int64)
        for trial, count in enumerate(counts.tolist()):
            parts = []
            for places, share in ((held[True], count), (held[False], self.batch_size - count)):
                if replacement:
                    parts.append(places[torch.randint(len(places), (share,), generator=generator)])
                else:
                    parts.append(rows_without_replacement(places, share, generator))
            drawn[trial] = torch.cat(parts)
        few = min(len(places) for places in held.values())
        twice = not replacement and few < self.batch_size
        note = f"some batches of {self.batch_size} hold rows twice: {few} {whose} rows of one kind" if twice else ""
        return Draw(labels=labels, rows=drawn, note=note)

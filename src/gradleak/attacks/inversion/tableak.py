"""TabLeak: rows of a table by a softmax over categories, and an ensemble of starts pooled cell by cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradleak.attacks.inversion.engine import Inversion, Preset
from gradleak.attacks.inversion.matching import CosineDistance
from gradleak.attacks.inversion.optimizers import Adam, Iterations, SearchStage
from gradleak.attacks.inversion.pooling import PoolBy, Pooling
from gradleak.attacks.inversion.problem import NEEDS, LabelPolicy
from gradleak.attacks.inversion.reading import LocalTraining
from gradleak.attacks.inversion.table_rows import TableRows
from gradleak.core import DomainKind, Knowledge
from gradleak.results import VERO_2023, Citation, Count, Positive, UnsupportedError


@dataclass(frozen=True, kw_only=True)
class TabLeak(Preset):
    """Rows of a table that minimize 1 − cos(g, g*) as softmax and sigmoid of free numbers, pooled over many starts.

    Categories are known by `Domain.columns`, which tables and the census state; without it every entry is searched as a
    number. Each start moves by Adam on gradient signs; the claim is the middle of all starts, row by row and cell by cell,
    with one value a category (`Pooling`, which says what `details["entropies"]` are: what the attacker holds certain).
    Where a start explains the update to round-off it is the claim, without the others.

    `loss` is the matching loss of the pooled claim, and `start_losses` in the details are those of the starts, which are
    smaller as a rule: a middle of rows is not a solution.

    **Source**: Vero et al. 2023, and the settings of their code for FedSGD: 30 starts, 1,500 steps of 0.06 on
    signs, cosine distance, median. Deviations: of a start the iterate with the smallest matching loss goes in, not the
    last; a start at round-off ends the search; labels that are not disclosed are read off the update where it gives them,
    else optimized together with the rows, where the paper takes them for known or optimizes them; how starts are aligned
    (`Pooling`).

    **Cost**: 3 plain gradients an iteration and start, and as many for the last guess: 135,090 by default.

    Attributes:
        iterations: Adam steps.
        restarts: starts a target, in lockstep.
        learning_rate: of a step on the free numbers.
        pool: median or mean of the starts.
        local_training: how several local steps are read: unrolled, or as the average gradient.
        patience: stop after so many steps without progress of any start; None never.
    """

    name: ClassVar[str] = "tableak"
    needs: ClassVar[tuple[str, ...]] = NEEDS
    citations: ClassVar[tuple[Citation, ...]] = (VERO_2023,)
    summary: ClassVar[str] = "Rows of a table: softmax over categories, many starts pooled by cell (Vero et al. 2023)."

    iterations: Iterations = 1500
    restarts: Count = 30
    learning_rate: Positive = 0.06
    pool: PoolBy = PoolBy.MEDIAN
    local_training: LocalTraining = LocalTraining.UNROLLED
    patience: Count | None = None

    def compose(self) -> Inversion:
        """The composition that runs."""
        adam = Adam(learning_rate=self.learning_rate, signed=True)
        return Inversion(
            matching=CosineDistance(),
            variables=TableRows(),
            stages=(SearchStage(optimizer=adam, iterations=self.iterations),),
            restarts=self.restarts,
            pooling=Pooling(by=self.pool),
            labels=LabelPolicy.RECOVER,
            local_training=self.local_training,
            patience=self.patience,
        )

    def _check(self, knowledge: Knowledge) -> None:
        """Refuse what is no row of a table, and what the composition refuses."""
        domain = knowledge.domain
        if domain is not None and (domain.kind is not DomainKind.TABULAR or len(domain.shape) != 1):
            raise UnsupportedError(
                f"the attack tableak searches rows of a table, and the examples are {domain.kind.value} of shape "
                f"{domain.shape}; use InvertingGradients"
            )
        super()._check(knowledge)

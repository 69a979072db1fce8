"""Gradient inversion with BatchNorm statistics that are remembered, inferred or known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from gradleak.attacks.inversion.engine import Inversion
from gradleak.attacks.inversion.matching import CosineDistance
from gradleak.attacks.inversion.optimizers import Adam
from gradleak.attacks.inversion.preset import Preset
from gradleak.attacks.inversion.priors import BatchNormStatistics, Statistics, TotalVariation, weighted
from gradleak.attacks.inversion.problem import NEEDS, LabelPolicy
from gradleak.attacks.inversion.schedules import StepDecay
from gradleak.attacks.inversion.search_stage import Iterations, SearchStage
from gradleak.attacks.inversion.variables import Pixels, Start
from gradleak.attacks.monitor import Monitor
from gradleak.core import Knowledge, Mode, Reconstruction, Update
from gradleak.results import HUANG_2021, Citation, Count, NonNegative, Positive, UnsupportedError

_TOTAL_VARIATION: Mapping[Statistics, float] = {
    Statistics.RUNNING: 0.05,
    Statistics.INFERRED: 0.05,
    Statistics.KNOWN: 0.1,
}
_BATCH_NORM: Mapping[Statistics, float] = {
    Statistics.RUNNING: 1e-3,
    Statistics.INFERRED: 0.0,
    Statistics.KNOWN: 5e-3,
}


@dataclass(frozen=True, kw_only=True)
class BatchNormInversion(Preset):
    """Inputs that minimize 1 − cos(g, g*) + w_TV · TV + w_BN · R_BN by signed Adam in the box, in three cases.

    What the adversary knows of the BatchNorm statistics of the private batch decides the case: `running`, those that the
    model remembers of its training, which every server has; `inferred`, those of the guess itself, by which a client in
    train mode normalizes, without a prior; `known`, those of the private batch, which a threat model has to disclose
    (`HonestButCurious(statistics=True)`: a truth, and the report says so).

    **Source**: Huang et al. 2021, section 3 and its published code: Adam on signs with learning rate 0.1, decayed by 0.1
    at 3/8, 5/8 and 7/8 of 10,000 iterations, projection on the box, total variation 0.05 and BatchNorm weight 1e-3 for an
    attacker without private statistics and labels, 0.1 and 5e-3 for one with them; total variation and R_BN are defined
    there as here. Deviations: a guess always goes through the client's own mode; the published code evaluates guesses with
    running statistics (`running`) or with the private ones (`known`) in place of the batch's, so that its gradients are
    not those of a client in train mode. Labels that are not disclosed are read off the update where it gives them, else
    optimized together with the inputs, as there.

    **Cost**: 3 plain gradients an iteration and start, and as many for the last guess of each stage.

    Attributes:
        statistics: the case.
        iterations: Adam steps.
        restarts: starts a target, in lockstep; the paper has one.
        learning_rate: in model-input units.
        total_variation: w_TV; None for the paper's value of the case.
        batch_norm: w_BN; None for the paper's value of the case.
        patience: stop after so many steps without progress of any start; None never.

    Raises:
        InputError: for an unknown case, or a BatchNorm weight in the case `inferred`.
        UnsupportedError: when run in the case `inferred` on a client in eval mode.
    """

    name: ClassVar[str] = "batch_norm_inversion"
    needs: ClassVar[tuple[str, ...]] = NEEDS
    citations: ClassVar[tuple[Citation, ...]] = (HUANG_2021,)
    summary: ClassVar[str] = (
        "Cosine matching with BatchNorm statistics remembered, inferred or known (Huang et al. 2021)."
    )

    statistics: Statistics = Statistics.RUNNING
    iterations: Iterations = 10_000
    restarts: Count = 1
    learning_rate: Positive = 0.1
    total_variation: NonNegative | None = None
    batch_norm: NonNegative | None = None
    patience: Count | None = None

    def compose(self) -> Inversion:
        """The composition that runs."""
        case = self.statistics
        smooth = _TOTAL_VARIATION[case] if self.total_variation is None else self.total_variation
        weight = _BATCH_NORM[case] if self.batch_norm is None else self.batch_norm
        adam = Adam(learning_rate=self.learning_rate, signed=True, schedule=StepDecay())
        return Inversion(
            matching=CosineDistance(),
            variables=Pixels(start=Start.NORMAL, box=True),
            priors=weighted(
                TotalVariation(weight=smooth),
                BatchNormStatistics(weight=weight, statistics=case)
                if case is not Statistics.INFERRED or weight != 0
                else None,
            ),
            stages=(SearchStage(optimizer=adam, iterations=self.iterations),),
            restarts=self.restarts,
            labels=LabelPolicy.RECOVER,
            patience=self.patience,
        )

    def _recover_many(
        self,
        updates: Sequence[Update],
        knowledge: Sequence[Knowledge],
        generators: Sequence[torch.Generator],
        monitor: Monitor,
    ) -> list[Reconstruction]:
        for facts in knowledge:
            assert facts.objective is not None
            if self.statistics is Statistics.INFERRED and facts.objective.mode is not Mode.TRAIN:
                raise UnsupportedError(
                    "BatchNormInversion(statistics='inferred'): expected a client in train mode, which normalizes by its "
                    "batch, got eval mode, where running statistics are used and nothing is to be inferred; use 'running'"
                )
        return super()._recover_many(updates, knowledge, generators, monitor)

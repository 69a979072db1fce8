"""Presets whose prior are BatchNorm statistics: GradInversion and BatchNormInversion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from gradleak.attacks.attack import Monitor
from gradleak.attacks.inversion.engine import Inversion, Preset
from gradleak.attacks.inversion.matching import CosineDistance, SquaredError
from gradleak.attacks.inversion.optimizers import Adam, CosineDecay, Iterations, SearchStage, StepDecay
from gradleak.attacks.inversion.priors import (
    BatchNormStatistics,
    GroupConsistency,
    MeanSquare,
    Registration,
    Statistics,
    TotalVariation,
    Translation,
    weighted,
)
from gradleak.attacks.inversion.problem import NEEDS, LabelPolicy
from gradleak.attacks.inversion.variables import Pixels, Start
from gradleak.core import Knowledge, Mode, Reconstruction, Update
from gradleak.results import HUANG_2021, YIN_2021, Citation, Count, Natural, NonNegative, Positive, UnsupportedError

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


@dataclass(frozen=True, kw_only=True)
class GradInversion(Preset):
    """Inputs that minimize ‖g − g*‖²/‖g*‖² + R_TV + R_l2 + R_BN + R_group by Adam with Langevin noise, starts in concert.

    Labels come from the update where they can be read off it (the paper's zero-shot rule is one of several that are
    tried), else they are optimized too. On a model without BatchNorm layers R_BN is left out, and the reconstruction says
    so; nothing takes its place.

    **Source**: Yin et al. 2021, equations 2 to 4 and 8 to 14: Adam with learning rate 0.1, 50 iterations of warm-up and
    cosine decay over 20,000; noise 0.2 times the learning rate. The weights 1e-4 (total variation), 1e-6 (l2), 0.1
    (BatchNorm) and 0.01 (group) are those by which public re-implementations reproduce the paper. Deviations: the
    matching term is relative to ‖g*‖², where the paper weighs an absolute one, so that no weight transfers exactly; total
    variation, l2 and group consistency are means over pixels (`TotalVariation`, `MeanSquare`, `GroupConsistency`), and
    registration is by whole-pixel shifts in place of RANSAC-flow; the claim is the start with the smallest matching loss.

    **Cost**: 3 plain gradients an iteration and start, of which there are 20,000 and 8 by default.

    Attributes:
        iterations: Adam steps.
        restarts: starts a target, in lockstep; the group of `GroupConsistency`.
        learning_rate: at its largest, in model-input units.
        warm_up: iterations of linear warm-up.
        noise: of a step, as a multiple of the learning rate.
        total_variation: weight of `TotalVariation`.
        mean_square: weight of `MeanSquare`.
        batch_norm: weight of `BatchNormStatistics`.
        statistics: which moments it compares with.
        consistency: weight of `GroupConsistency`.
        registration: how starts are moved onto each other before they are averaged.
    """

    name: ClassVar[str] = "grad_inversion"
    needs: ClassVar[tuple[str, ...]] = NEEDS
    citations: ClassVar[tuple[Citation, ...]] = (YIN_2021,)
    summary: ClassVar[str] = (
        "L2 matching with BatchNorm and group-consistency priors over several starts (Yin et al. 2021)."
    )

    iterations: Iterations = 20_000
    restarts: Count = 8
    learning_rate: Positive = 0.1
    warm_up: Natural = 50
    noise: NonNegative = 0.2
    total_variation: NonNegative = 1e-4
    mean_square: NonNegative = 1e-6
    batch_norm: NonNegative = 0.1
    statistics: Statistics = Statistics.RUNNING
    consistency: NonNegative = 0.01
    registration: Registration = field(default_factory=Translation)

    def compose(self) -> Inversion:
        """The composition that runs."""
        # A run shorter than four warm-ups warms up over its first quarter.
        warm_up = min(self.warm_up / max(self.iterations, 1), 0.25)
        adam = Adam(learning_rate=self.learning_rate, schedule=CosineDecay(warm_up=warm_up), noise=self.noise)
        return Inversion(
            matching=SquaredError(),
            variables=Pixels(start=Start.NORMAL, box=True),
            priors=weighted(
                TotalVariation(weight=self.total_variation),
                MeanSquare(weight=self.mean_square),
                BatchNormStatistics(weight=self.batch_norm, statistics=self.statistics),
                GroupConsistency(weight=self.consistency, registration=self.registration),
            ),
            stages=(SearchStage(optimizer=adam, iterations=self.iterations),),
            restarts=self.restarts,
            labels=LabelPolicy.RECOVER,
        )

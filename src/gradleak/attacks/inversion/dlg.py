"""Presets that match gradients with little or no prior: DLG, iDLG, DGL and GS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradleak.attacks.inversion.engine import Inversion, Preset
from gradleak.attacks.inversion.matching import CosineDistance, SquaredError
from gradleak.attacks.inversion.optimizers import LBFGS, Adam, Iterations, SearchStage, StepDecay
from gradleak.attacks.inversion.priors import BatchNormStatistics, TotalVariation, weighted
from gradleak.attacks.inversion.problem import NEEDS, LabelPolicy
from gradleak.attacks.inversion.variables import Pixels, Start
from gradleak.results import (
    GEIPING_2020,
    HUANG_2021,
    ZHANG_2023,
    ZHAO_2020,
    ZHU_2019,
    Citation,
    Count,
    NonNegative,
    Positive,
)


@dataclass(frozen=True, kw_only=True)
class DLG(Preset):
    """Inputs and soft labels that minimize ‖g − g*‖² by L-BFGS from N(0, 1), without box or prior.

    **Source**: Zhu et al. 2019, algorithm 1 and its published code: L-BFGS with learning rate 1, 20 inner steps an
    iteration, history 100, 300 iterations. Deviations: the loss is divided by ‖g*‖² (the first step and the curvature
    test depend on the loss's scale), torch's stopping tolerances are left out, and labels that the threat model
    discloses are used instead of optimized.

    **Cost**: 60 plain gradients an iteration and start.

    Attributes:
        iterations: of 20 inner steps each.
        restarts: starts a target; the paper has one.
        restart_after: a start goes back to its best iterate with half the step after so many inner steps without
            progress; None, as the paper, for never.
    """

    name: ClassVar[str] = "dlg"
    needs: ClassVar[tuple[str, ...]] = NEEDS
    citations: ClassVar[tuple[Citation, ...]] = (ZHU_2019,)
    summary: ClassVar[str] = "L2 gradient matching by L-BFGS with jointly optimized labels (Zhu et al. 2019)."

    iterations: Iterations = 300
    restarts: Count = 1
    restart_after: Count | None = None

    def compose(self) -> Inversion:
        """The composition that runs."""
        stage = SearchStage(optimizer=LBFGS(), iterations=self.iterations, restart_after=self.restart_after)
        return Inversion(
            matching=SquaredError(),
            variables=Pixels(start=Start.NORMAL, box=False),
            stages=(stage,),
            restarts=self.restarts,
            labels=LabelPolicy.OPTIMIZE,
        )


@dataclass(frozen=True, kw_only=True)
class IDLG(Preset):
    """Inputs that minimize ‖g − g*‖² by L-BFGS from N(0, 1) without a box, for the label that the sign rule finds.

    **Source**: Zhao et al. 2020, algorithm 1 and its published code: L-BFGS with learning rate 1, 20 inner steps an
    iteration, history 100, 300 iterations; the paper is on single examples. Deviations: as `DLG`; where no label can be
    read off the update (a batch with repeats, a layer without bias and with mixed signs), labels are optimized too, which
    makes it `DLG`, and the reconstruction says so.

    **Cost**: 60 plain gradients an iteration and start.

    Attributes:
        iterations: of 20 inner steps each.
        restarts: starts a target; the paper has one.
        learning_rate: of L-BFGS, without a line search.
        restart_after: a start goes back to its best iterate with half the step after so many inner steps without progress;
            None, as the paper, for never.
    """

    name: ClassVar[str] = "idlg"
    needs: ClassVar[tuple[str, ...]] = NEEDS
    citations: ClassVar[tuple[Citation, ...]] = (ZHAO_2020,)
    summary: ClassVar[str] = "L2 gradient matching by L-BFGS with the label from the sign rule (Zhao et al. 2020)."

    iterations: Iterations = 300
    restarts: Count = 1
    learning_rate: Positive = 1.0
    restart_after: Count | None = None

    def compose(self) -> Inversion:
        """The composition that runs."""
        stage = SearchStage(
            optimizer=LBFGS(learning_rate=self.learning_rate),
            iterations=self.iterations,
            restart_after=self.restart_after,
        )
        return Inversion(
            matching=SquaredError(),
            variables=Pixels(start=Start.NORMAL, box=False),
            stages=(stage,),
            restarts=self.restarts,
            labels=LabelPolicy.RECOVER,
        )


@dataclass(frozen=True, kw_only=True)
class DGL(Preset):
    """Inputs that minimize ‖g − g*‖² + priors by Adam from N(0, 1), without a box, for labels that are given.

    The first of the two attacks that Zhang et al. hold I²F against; `DLG` is the attack of the paper that it is named
    after. It is refused unless the threat model discloses the targets: the report says so.

    **Source**: Zhang et al. 2023, section 4 and appendix C.1, and its published code: Adam with learning rate 0.1 and no
    schedule, start N(0, 1), no box, no total variation. The paper adds BatchNorm statistics after Huang et al. 2021 for
    ResNet-18 and gives no weight for them; see `GS` on what to choose. Deviations: the loss is divided by ‖g*‖², which
    Adam does not notice without priors; the number of iterations, which the paper leaves open, is the default of its
    code's reconstruction class (the scripts ask for 24,000).

    **Cost**: 3 plain gradients an iteration and start, and as many for the last guess of each stage.

    Attributes:
        iterations: Adam steps.
        restarts: starts a target, in lockstep; the paper has one.
        learning_rate: in model-input units.
        total_variation: weight of `TotalVariation`.
        batch_norm: weight of `BatchNormStatistics` (running statistics).
        patience: stop after so many steps without progress of any start; None never.
    """

    name: ClassVar[str] = "dgl"
    needs: ClassVar[tuple[str, ...]] = (*NEEDS, "targets")
    citations: ClassVar[tuple[Citation, ...]] = (ZHANG_2023, ZHU_2019, HUANG_2021)
    summary: ClassVar[str] = "L2 gradient matching by Adam with the label given (Zhang et al. 2023)."

    iterations: Iterations = 3000
    restarts: Count = 1
    learning_rate: Positive = 0.1
    total_variation: NonNegative = 0.0
    batch_norm: NonNegative = 0.0
    patience: Count | None = None

    def compose(self) -> Inversion:
        """The composition that runs."""
        return Inversion(
            matching=SquaredError(),
            variables=Pixels(start=Start.NORMAL, box=False),
            priors=weighted(TotalVariation(weight=self.total_variation), BatchNormStatistics(weight=self.batch_norm)),
            stages=(SearchStage(optimizer=Adam(learning_rate=self.learning_rate), iterations=self.iterations),),
            restarts=self.restarts,
            patience=self.patience,
        )


@dataclass(frozen=True, kw_only=True)
class GS(Preset):
    """Inputs that minimize 1 − cos(g, g*) + priors by signed Adam from N(0, 1) in the box, for labels that are given.

    The second of the two attacks that Zhang et al. hold I²F against. It is `InvertingGradients` without total variation,
    with BatchNorm statistics where the model has them, and with given labels: it is refused unless the threat model
    discloses the targets, and the report says so.

    **Source**: Zhang et al. 2023, section 4 and appendix C.1, and its published code: Adam on signs with learning rate
    0.1, decayed by 0.1 at 3/8, 5/8 and 7/8 of the run, start N(0, 1), projection on pixels in [0, 1] after each step, no
    total variation. For ResNet-18 the paper adds BatchNorm statistics "following Huang et al." without saying with which
    weight; the default is that of Huang et al.'s published example for an attacker who knows running statistics alone.
    Deviation: the number of iterations, which the paper leaves open, is the default of its code's reconstruction class
    (the scripts ask for 24,000).

    **Cost**: 3 plain gradients an iteration and start, and as many for the last guess of each stage.

    Attributes:
        iterations: Adam steps.
        restarts: starts a target, in lockstep; the paper has one.
        learning_rate: in model-input units.
        total_variation: weight of `TotalVariation`.
        batch_norm: weight of `BatchNormStatistics` (running statistics); without BatchNorm layers it does nothing.
        patience: stop after so many steps without progress of any start; None never.
    """

    name: ClassVar[str] = "gs"
    needs: ClassVar[tuple[str, ...]] = (*NEEDS, "targets")
    citations: ClassVar[tuple[Citation, ...]] = (ZHANG_2023, GEIPING_2020, HUANG_2021)
    summary: ClassVar[str] = "Cosine gradient matching by signed Adam with the label given (Zhang et al. 2023)."

    iterations: Iterations = 3000
    restarts: Count = 1
    learning_rate: Positive = 0.1
    total_variation: NonNegative = 0.0
    batch_norm: NonNegative = 1e-3
    patience: Count | None = None

    def compose(self) -> Inversion:
        """The composition that runs."""
        adam = Adam(learning_rate=self.learning_rate, signed=True, schedule=StepDecay())
        return Inversion(
            matching=CosineDistance(),
            variables=Pixels(start=Start.NORMAL, box=True),
            priors=weighted(TotalVariation(weight=self.total_variation), BatchNormStatistics(weight=self.batch_norm)),
            stages=(SearchStage(optimizer=adam, iterations=self.iterations),),
            restarts=self.restarts,
            patience=self.patience,
        )

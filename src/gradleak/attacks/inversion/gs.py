"""Gradient similarity as Zhang et al. run it: cosine matching by signed Adam inside the box, the label given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradleak.attacks.inversion.engine import Inversion
from gradleak.attacks.inversion.matching import CosineDistance
from gradleak.attacks.inversion.optimizers import Adam
from gradleak.attacks.inversion.preset import Preset
from gradleak.attacks.inversion.priors import BatchNormStatistics, TotalVariation, weighted
from gradleak.attacks.inversion.problem import NEEDS
from gradleak.attacks.inversion.schedules import StepDecay
from gradleak.attacks.inversion.search_stage import Iterations, SearchStage
from gradleak.attacks.inversion.variables import Pixels, Start
from gradleak.results import GEIPING_2020, HUANG_2021, ZHANG_2023, Citation, Count, NonNegative, Positive


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

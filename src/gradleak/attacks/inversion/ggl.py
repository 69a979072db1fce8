"""GGL: latents alone, by CMA-ES."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from gradleak.attacks.inversion.engine import Inversion
from gradleak.attacks.inversion.latent_priors import LatentKL
from gradleak.attacks.inversion.latents import Latents
from gradleak.attacks.inversion.local_training import LocalTraining
from gradleak.attacks.inversion.matching import SquaredError
from gradleak.attacks.inversion.populations import CMAES, HandOn
from gradleak.attacks.inversion.preset import Preset
from gradleak.attacks.inversion.priors import weighted
from gradleak.attacks.inversion.problem import NEEDS, LabelPolicy
from gradleak.attacks.inversion.search_stage import Iterations, SearchStage
from gradleak.results import FANG_2024, HANSEN_2016, LI_2022, Citation, Count, NonNegative, Whole


@dataclass(frozen=True, kw_only=True)
class GGL(Preset):
    """Images G(z) of the generator as it came that minimize ‖g − g*‖²/‖g*‖² + w · KL(z), z by CMA-ES.

    What the generator cannot make is not found: the weights stay as they are, and the claim is the nearest image on
    its manifold, which can look right and be wrong. Where the matching loss stays high, the image is the prior's.

    **Source**: Li et al. 2022 and published code: CMA-ES with 50 candidates, 500 iterations; KL of the latent's moments
    with weight 0.1, or the generator given tanh(z) and no penalty. Deviations: the matching is relative to ‖g*‖², where
    the code has the mean over layers of the absolute one, so that the weight 0.1 does not transfer exactly; the
    distribution starts at N(0, I), where the code draws its mean uniformly from [0, 1]; the claim is the best candidate by
    matching loss. TuRBO is left out.

    **Cost**: 1 plain gradient a candidate, `population` · `iterations` a start.

    Attributes:
        iterations: populations.
        population: candidates in each.
        restarts: starts a target.
        latent_kl: w, the weight of `LatentKL`; not used with `tanh`.
        tanh: whether the generator is given tanh(z).
        local_training: how several local steps are read, as the average gradient or unrolled.
        patience: stop after so many populations without progress of any start; None never.
    """

    name: ClassVar[str] = "ggl"
    needs: ClassVar[tuple[str, ...]] = (*NEEDS, "generator")
    citations: ClassVar[tuple[Citation, ...]] = (LI_2022, HANSEN_2016, FANG_2024)
    summary: ClassVar[str] = "Latents of a generator by CMA-ES, its weights as they came (Li et al. 2022)."

    iterations: Iterations = 500
    population: Annotated[int, Whole(2)] = 50
    restarts: Count = 1
    latent_kl: NonNegative = 0.1
    tanh: bool = False
    local_training: LocalTraining = LocalTraining.AVERAGE_GRADIENT
    patience: Count | None = None

    def compose(self) -> Inversion:
        """The composition that runs."""
        cmaes = CMAES(population=self.population, hand_on=HandOn.BEST)
        return Inversion(
            matching=SquaredError(),
            variables=Latents(tanh=self.tanh),
            priors=() if self.tanh else weighted(LatentKL(weight=self.latent_kl)),
            stages=(SearchStage(optimizer=cmaes, iterations=self.iterations),),
            restarts=self.restarts,
            labels=LabelPolicy.RECOVER,
            local_training=self.local_training,
            patience=self.patience,
        )

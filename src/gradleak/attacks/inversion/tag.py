"""TAG: gradient matching over the embeddings of a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradleak.attacks.inversion.embeddings import Embeddings
from gradleak.attacks.inversion.engine import Inversion, Preset
from gradleak.attacks.inversion.matching import LayerwiseError
from gradleak.attacks.inversion.optimizers import Adam, Iterations, LinearDecay, SearchStage
from gradleak.attacks.inversion.problem import NEEDS, LabelPolicy
from gradleak.results import DENG_2021, Citation, Count, NonNegative, Positive

WARM_UP = 50


@dataclass(frozen=True, kw_only=True)
class TAG(Preset):
    """Sentences whose embeddings minimize Σ_l ‖g_l − g*_l‖² + α_l ‖g_l − g*_l‖₁ by AdamW, each place the nearest word at the end.

    By default everything is relative: each tensor of the update to its own size (`LayerwiseError`), steps and starts to the
    std of the table of words, so that the scale at which a model starts makes no difference. `as_published` has absolute
    norms, steps and N(0, 1) starts in their place, with which the attack finds words where weights are large alone.

    Where the table of words is shared, only words whose rows moved are claimed. Special tokens with a fixed place are taken
    as given, lengths and labels as the threat model has them. The outcome says whether the *embeddings* explain the update.

    **Source**: Deng et al. 2021, equation 5, as breaching has it: AdamW with learning rate 0.05, decay 0.01, gradients clipped
    at 1, warm-up of 50 iterations and linear decay, a = 0.1, α_l falling from the first tensor to the last. Deviations: labels
    are recovered or optimized as everywhere here; the nearest word is that of the smallest angle between embeddings without
    their means, which the LayerNorms of the model do not see; relative units as described, whose learning rate is ours.

    **Cost**: 3 plain gradients an iteration and start, and as many for the last guess.

    Attributes:
        iterations: AdamW steps; breaching has 1,000, Zhang et al. 2023 took 12,000.
        restarts: starts a target, in lockstep.
        learning_rate: in units of the table's std; in model-input units where `as_published`, for which 0.05 was published.
        absolute: weight of absolute errors beside squares.
        from_table: whether words are those of the table's rows that moved, where it is shared.
        as_published: absolute in place of relative units.
        patience: stop after so many steps without progress of any start; None never.
    """

    name: ClassVar[str] = "tag"
    needs: ClassVar[tuple[str, ...]] = NEEDS
    citations: ClassVar[tuple[Citation, ...]] = (DENG_2021,)
    summary: ClassVar[str] = (
        "L2 and L1 gradient matching over the embeddings of a sentence by AdamW (Deng et al. 2021)."
    )
    claims_tokens: ClassVar[bool] = True

    iterations: Iterations = 1000
    restarts: Count = 1
    learning_rate: Positive = 0.3
    absolute: NonNegative = 0.1
    from_table: bool = True
    as_published: bool = False
    patience: Count | None = None

    def compose(self) -> Inversion:
        """The composition that runs."""
        adam = Adam(
            learning_rate=self.learning_rate,
            schedule=LinearDecay(warm_up=min(WARM_UP / self.iterations, 0.5)),
            weight_decay=0.01,
            clip=1.0,
        )
        return Inversion(
            matching=LayerwiseError(absolute=self.absolute, fading=True, relative=not self.as_published),
            variables=Embeddings(from_table=self.from_table, scaled=not self.as_published),
            stages=(SearchStage(optimizer=adam, iterations=self.iterations),),
            restarts=self.restarts,
            labels=LabelPolicy.RECOVER,
            patience=self.patience,
        )

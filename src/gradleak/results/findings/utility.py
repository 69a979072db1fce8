"""Findings of utility: what models trained through a release are worth on rows they have not seen."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal

from gradleak.results.finding import Finding, NumberOrNone, OutcomeLabel, Part, ScoreLine
from gradleak.results.score import Score


class Standing(StrEnum):
    """Standing of a model against the best answer that ignores the input."""

    ABOVE = "above"
    NOT_ABOVE = "not_above"
    UNRESOLVED = "not_resolvable"


class ReleaseSize(Part):
    """Size that makes two releases comparable: the number of examples behind one, and its noise.

    Attributes:
        examples: expected under Poisson sampling.
        noise_std: on every entry; 0 without noise, None where it differs or is not Gaussian.
    """

    examples: int
    noise_std: NumberOrNone = None


class SentUpdate(Part):
    """Share of the undefended update that a release lets through; see `gradleak.training.Closeness`."""

    kept_share: NumberOrNone = None
    cosine: NumberOrNone = None
    relative_norm: NumberOrNone = None
    probes: int = 0


class Replacement(Part):
    """A layer that another one stands in for; see `gradleak.training.ReplacedLayer`."""

    name: str
    was: str = ""
    now: str = ""
    values: int | None = None
    erases: bool = False


class TrainingRun(Part):
    """One training of a seed; see `gradleak.training.Run`."""

    seed: int
    outcome: OutcomeLabel = None
    rounds: int = 0
    empty_rounds: int = 0
    silent_rounds: int = 0
    note: str = ""


class UtilityFinding(Finding):
    """The worth of models trained through a release. Its scores: the worth, and epsilon by four formulas.

    Attributes:
        task: name of the task.
        release: protocol and defenses, described.
        training: rounds and rates, described.
        standing: of the models, against the best answer that ignores the input; None where nothing was trained.
        trained: a release of the training.
        attacked: the releases of the scenario that were attacked, each size once.
        closeness: of releases to undefended updates, mean over seeds; None where nothing was compared.
        replaced: layers of the model that others stand in for.
        runs: one a seed.
    """

    kind: Literal["utility"] = "utility"
    task: str = ""
    release: Mapping[str, Any] = {}
    training: Mapping[str, Any] = {}
    standing: Standing | None = None
    trained: ReleaseSize | None = None
    attacked: tuple[ReleaseSize, ...] = ()
    closeness: SentUpdate | None = None
    replaced: tuple[Replacement, ...] = ()
    runs: tuple[TrainingRun, ...] = ()

    @property
    def worth(self) -> Score | None:
        """The utility on test rows: the mean over seeds of accuracy, AUROC or R²; None where nothing was trained."""
        return next((score for score in self.scores if score.name.startswith("test_")), None)

    @property
    def epsilon(self) -> Score | None:
        """The epsilon of the whole training."""
        return self.score("pld_epsilon")

    @property
    def credit(self) -> bool:
        """True if a defense may be credited with what it hides: its models beat every answer that ignores the input."""
        return self.standing is Standing.ABOVE


class CurvePoint(Part):
    """One setting of a defense: what it is worth, and what it hides.

    Attributes:
        family: the defense, which makes a line of the plot.
        label: the setting in words.
        learning_rate: of the server.
        utility: what models trained through it are worth.
        privacy: scores of a probe of single examples.
    """

    family: str
    label: str
    learning_rate: float
    utility: UtilityFinding
    privacy: tuple[ScoreLine, ...] = ()

    def score(self, name: str) -> Score | None:
        """The score of the probe with this name."""
        return next((score for score in self.privacy if score.name == name), None)


class CurveSummary(Part):
    """A privacy-utility curve, as tables and pictures read it.

    Attributes:
        task: name of the task.
        settings_tried: how many settings the epsilons are not enlarged for.
        points: one a setting, those without a defense first.
        reference: the place among them of the one without a defense that the others are held against.
    """

    task: str
    settings_tried: int
    points: tuple[CurvePoint, ...]
    reference: int = 0

    @property
    def undefended(self) -> CurvePoint:
        """The point that the others are held against."""
        return self.points[self.reference]

"""Utility: what a model trained through a release is worth, with its interval, its epsilon and what was replaced in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch

from gradleak.accounting import Accounting, can_be_empty, mechanism_of
from gradleak.core import DiagonalGaussian, NoGuarantee, Objective, Release, Unit, describe
from gradleak.results import Evidence, InputError, Leakier, Outcome, Score
from gradleak.results.findings.utility import (
    ReleaseSize,
    Replacement,
    SentUpdate,
    Standing,
    TrainingRun,
    UtilityFinding,
)
from gradleak.results.score import jsonable
from gradleak.training import (
    AnyRelease,
    Closeness,
    ReleaseOfRound,
    ReplacedLayer,
    Run,
    Task,
    Training,
    train,
)
from gradleak.training.trajectory import score_of

EPSILONS = ("classical_gaussian_epsilon", "gaussian_epsilon", "pld_epsilon", "rdp_epsilon")


@dataclass(frozen=True, kw_only=True, eq=False)
class Utility:
    """Worth of a model trained through a release, and its price in privacy.

    Attributes:
        task: its name.
        release: its description.
        training: rounds and rates.
        score: `test_accuracy`, `test_auroc` or `test_r2`: the mean over seeds. Details: every seed's, and `blind`, what
            the best answer that ignores the input reaches.
        epsilons: one step by the classical formula and exactly, the whole training by PLD and RDP; without a value and
            with the reason ("none") for a heuristic release.
        closeness: of releases to undefended updates, mean over seeds; None where nothing was compared.
        replaced: layers of the model that others stand in for.
        runs: one a seed.
        examples: of a release of the training, expected under Poisson sampling.
        noise_std: on every entry of such a release; 0 without noise, None where it differs or is not Gaussian.
    """

    task: str
    release: dict[str, Any]
    training: Training
    score: Score
    epsilons: tuple[Score, ...]
    closeness: Closeness | None
    replaced: tuple[ReplacedLayer, ...]
    runs: tuple[Run, ...]
    examples: int = 0
    noise_std: float | None = None

    @property
    def epsilon(self) -> Score:
        """Epsilon of the whole training, by PLD."""
        return next(score for score in self.epsilons if score.name == "pld_epsilon")

    @property
    def standing(self) -> Standing:
        """Comparison of the model with every answer that ignores the input, by the whole interval of its score.

        Above: the interval lies above `blind`, and no seed diverged or came out constant. Not above: a seed did, or the
        interval lies at or below it. Otherwise rows and seeds are too few to tell.
        """
        if self.score.outcome is not Outcome.CONVERGED or self.score.interval is None:
            return Standing.NOT_ABOVE
        (low, high), blind = self.score.interval, self.score.details["blind"]
        if low > blind:
            return Standing.ABOVE
        return Standing.NOT_ABOVE if high <= blind else Standing.UNRESOLVED

    @property
    def credit(self) -> bool:
        """True if a defense may be credited with what it hides: `standing` is above."""
        return self.standing is Standing.ABOVE

    def finding(self) -> UtilityFinding:
        """The same as a record and a page hold it, without outputs or weights."""
        close = self.closeness
        return UtilityFinding(
            item=self.task,
            audit="utility",
            outcome=self.score.outcome,
            note=self.score.note,
            scores=(self.score, *self.epsilons),
            task=self.task,
            release=jsonable(self.release),
            training=describe(self.training),
            standing=self.standing,
            trained=ReleaseSize(examples=self.examples, noise_std=self.noise_std),
            closeness=None if close is None else SentUpdate(**vars(close)),
            replaced=tuple(Replacement(**vars(layer), erases=layer.erases) for layer in self.replaced),
            runs=tuple(
                TrainingRun(
                    seed=run.seed,
                    outcome=run.outcome,
                    rounds=run.rounds,
                    empty_rounds=run.empty_rounds,
                    silent_rounds=run.silent_rounds,
                    note=run.note,
                )
                for run in self.runs
            ),
        )


def measure_utility(
    task: Task,
    release: AnyRelease,
    training: Training,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    settings_tried: int = 1,
    rates_compared: int = 1,
    runs: Sequence[Run] | None = None,
) -> Utility:
    """Worth of models trained through a release on rows they have not seen, with a 95 % interval, and epsilon.

    One federated training a seed (`train`); the metric and its interval are those of `worth`. A training that diverged
    makes the whole score *not_finite*; one that gives the same answer for every row makes it *constant*, with its value
    beside: a model that lost its input hides everything, and its defense gets no credit for it (`Utility.credit`).

    Epsilon is counted by `gradleak.accounting` for the release as it was trained with: how often an example takes part follows
    from the training, and Poisson sampling amplifies. It covers the updates, not the choice among settings: with
    `settings_tried` or `rates_compared` above 1 a note says so. No guarantee is left where BatchNorm statistics of all
    training rows go into the model that is judged.

    Args:
        task: rows and model.
        release: protocol and defenses, or what makes them anew every round.
        training: rounds and rates.
        seeds: different from each other; three or more show the spread.
        settings_tried: how many settings were tried on the private rows, this one among them.
        rates_compared: of how many learning rates that of the training was the best on private rows.
        runs: the trainings, one a seed, where they were made already.

    Raises:
        InputError: without a seed, with one twice, or for data that do not fit.
        UnsupportedError: where the release is refused by the model.

    **Cost**: one training a seed.
    """
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(f"measure_utility: expected different seeds, at least one, got {list(seeds)}")
    start = task.start(torch.Generator().manual_seed(0))
    runs = tuple(train(task, release, training, seed=seed) for seed in seeds) if runs is None else tuple(runs)
    return Utility(
        task=task.name,
        release=_description(release),
        training=training,
        score=score_of(task, training, runs),
        epsilons=training_epsilons(
            task, release, training, settings_tried=settings_tried, rates_compared=rates_compared
        ),
        closeness=_closeness(runs),
        replaced=start.replaced,
        runs=runs,
        examples=_examples(task, training),
        noise_std=_noise_std(task, release, training, start.objective),
    )


def refused(task: Task, release: AnyRelease, training: Training, reason: str) -> Utility:
    """The utility of a release that the model refuses: without a value, with the reason."""
    score = Score(
        name="test_utility",
        value=None,
        unit="share",
        leakier=Leakier.NEITHER,
        evidence=Evidence.ESTIMATE,
        n=task.test.size,
        outcome=Outcome.UNSUPPORTED,
        note=reason,
    )
    return Utility(
        task=task.name,
        release=_description(release),
        training=training,
        score=score,
        epsilons=_without("the release is refused", Outcome.UNSUPPORTED),
        closeness=None,
        replaced=(),
        runs=(),
    )


def training_epsilons(
    task: Task,
    release: AnyRelease,
    training: Training,
    *,
    settings_tried: int = 1,
    rates_compared: int = 1,
) -> tuple[Score, ...]:
    """Epsilon of one step (two formulas) and of the whole training (two accountants), or "none" with the reason."""
    objective = task.start(torch.Generator().manual_seed(0)).objective
    at_first = release if isinstance(release, Release) else release.at(objective, torch.Generator().manual_seed(0))
    examples = _examples(task, training)
    mechanism = mechanism_of(at_first, objective, examples)
    if objective.batch_statistics:
        return _without(
            f"BatchNorm statistics of the training rows ({', '.join(objective.batch_statistics)}) go into the model "
            "without noise"
        )
    sampled = training.sampling_rate is not None and training.sampling_rate < 1
    # Also with the client as unit: it is there in every round, and whichever of its rows are drawn may be none.
    if not isinstance(mechanism, NoGuarantee) and sampled and not can_be_empty(at_first, objective):
        return _without(
            "a round whose sample is empty sends nothing, which reveals that it is empty", Outcome.UNSUPPORTED
        )
    by_client = not isinstance(mechanism, NoGuarantee) and mechanism.unit is Unit.CLIENT
    accounting = Accounting(
        delta=training.delta,
        rounds=training.rounds if by_client else training.takes_part(task.train.size),
        # A client is there in every round, whichever of its rows are drawn.
        sampling_rate=1.0 if by_client or not sampled else training.sampling_rate or 1.0,
        adjacency=training.adjacency,
        settings_tried=settings_tried,
        units=training.clients if by_client else task.train.size,
    )
    chosen = (
        f"the best of {rates_compared} learning rates was chosen on private rows, which this epsilon does not cover"
    )
    warning = chosen if rates_compared > 1 else ""
    return tuple(
        replace(score, note="; ".join(filter(None, (score.note, warning))))
        for score in accounting(at_first, objective, examples)
    )


def _examples(task: Task, training: Training) -> int:
    """Number of examples of a release: a batch, or as many as Poisson sampling draws on average."""
    return training.batch_size or max(1, round((training.sampling_rate or 1.0) * task.train.size / training.clients))


def _noise_std(task: Task, release: AnyRelease, training: Training, objective: Objective) -> float | None:
    at_first = release if isinstance(release, Release) else release.at(objective, torch.Generator().manual_seed(0))
    noise = at_first.noise(objective, examples=_examples(task, training))
    if noise is None:
        return 0.0
    return noise.level if isinstance(noise, DiagonalGaussian) else None


def _without(reason: str, outcome: Outcome = Outcome.NOT_INFORMATIVE) -> tuple[Score, ...]:
    return tuple(
        Score(
            name=name,
            value=None,
            unit="epsilon",
            leakier=Leakier.HIGHER,
            evidence=Evidence.UPPER_BOUND,
            outcome=outcome,
            note=f"none: {reason}",
        )
        for name in EPSILONS
    )


def _closeness(runs: Sequence[Run]) -> Closeness | None:
    found = [run.closeness for run in runs if run.closeness is not None]
    if not found:
        return None
    cosines = [close.cosine for close in found if close.cosine is not None]
    norms = [close.relative_norm for close in found if close.relative_norm is not None]
    return Closeness(
        kept_share=fmean(close.kept_share for close in found),
        cosine=fmean(cosines) if len(cosines) == len(found) else None,
        relative_norm=fmean(norms) if len(norms) == len(found) else None,
        probes=sum(close.probes for close in found),
    )


def _description(release: AnyRelease) -> dict[str, Any]:
    described: dict[str, Any] = describe(release) if isinstance(release, ReleaseOfRound) else release.describe()
    return described

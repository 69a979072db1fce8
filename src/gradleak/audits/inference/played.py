"""From the results of games to findings, of an audit or of games that were played in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from gradleak.audits.inference.sizes import sizes_of
from gradleak.games import GameResult, Knows, SeedResult
from gradleak.results import InputError, Score
from gradleak.results.findings.inference import ADVERSARY, ROUND, SEED, Fits, InferenceFinding, Run
from gradleak.results.score import jsonable
from gradleak.scoring.classification import AUROC, score_posteriors


def finding_of_game(
    result: GameResult, *, item: str = "", audit: str = "", scenario: str | None = None
) -> InferenceFinding:
    """The finding of one game: the scores of every adversary, all observed rounds together and each alone.

    No posterior of a trial, no truth and no row is in it.

    Args:
        result: of the game.
        item: a name that is unique in a record; "" for the kind of the game and its population.
        audit: the name of the game; "" for its population.
        scenario: the release that it was played against, or None.
    """
    scores = [replace(run.utility, about={SEED: run.seed}) for run in result.runs if run.utility is not None]
    for adversary in result.adversaries:
        about: dict[str, str | int] = {ADVERSARY: str(adversary)}
        together = [*result.scores(adversary), *result.information(adversary)]
        scores += [replace(score, about=about) for score in together]
        for number, alone in result.by_round(adversary).items():
            scores += [replace(score, about={**about, ROUND: number}) for score in alone]
    return InferenceFinding(
        item=item or f"{result.kind} inference on {result.population}",
        audit=audit or result.population,
        scenario=scenario,
        outcome=result.outcome,
        note="; ".join(result.notes),
        seconds=result.seconds,
        scores=tuple(scores),
        game=jsonable(result.game),
        values=tuple(result.values),
        observed=tuple(result.observed),
        adversaries=tuple(str(adversary) for adversary in result.adversaries),
        runs=tuple(_run(run, result) for run in result.runs),
    )


def findings_of_games(
    results: GameResult | Mapping[str, GameResult | Sequence[GameResult]],
) -> list[InferenceFinding]:
    """The findings of games that were already played: what `record_of` makes a record of.

    Controls are not among them: an audit by a plan plays two of every game, in Python `null_control` and `planted_control`
    do.

    Args:
        results: one result; or results by scenario, the release that they were played against in words ("undefended",
            "signs"), which stand side by side. Several of one scenario that differ in batch size or public rows alone make
            lines of the plots over these.

    Raises:
        InputError: without a result.
    """
    given = {"release": results} if isinstance(results, GameResult) else dict(results)
    found: dict[str, InferenceFinding] = {}
    for scenario, played in given.items():
        several = [played] if isinstance(played, GameResult) else list(played)
        for result in several:
            label = result.population if len(several) == 1 else ", ".join([result.population, *sizes_of(result.game)])
            taken = [label, *(f"{label}, {number}" for number in range(2, len(found) + 2))]
            label = next(free for free in taken if f"{scenario}/{free}" not in found)
            item = f"{scenario}/{label}"
            found[item] = finding_of_game(result, item=item, audit=label, scenario=scenario)
    if not found:
        raise InputError("findings_of_games: expected at least one result, got none")
    return list(found.values())


def _run(run: SeedResult, result: GameResult) -> Run:
    """Numbers over all trials that a finding holds of a seed."""
    return Run(
        seed=run.seed,
        outcome=run.outcome,
        trials=len(run.truth),
        rows=dict(run.rows),
        prior=tuple(run.prior.tolist()),
        blind=run.blind,
        routes=tuple(run.routes),
        seconds=jsonable(dict(run.seconds)),
        fits=tuple(_fits(run, adversary, range(len(result.observed))) for adversary in result.adversaries),
    )


def _fits(run: SeedResult, adversary: Knows, places: Sequence[int]) -> Fits:
    rounds = tuple(jsonable(dict(details)) for details in run.details[adversary])
    if not run.log_posteriors[adversary]:
        return Fits(adversary=str(adversary), rounds=rounds)
    together = run.posterior(adversary, places)
    auroc: Score = next(
        score for score in score_posteriors(together, run.truth, blind=run.blind) if score.name == AUROC
    )
    of_truth = together[np.arange(len(run.truth)), run.truth]
    return Fits(
        adversary=str(adversary),
        rounds=rounds,
        roc=jsonable(auroc.details.get("roc")),
        log_posterior_of_truth={
            "mean": float(of_truth.mean()),
            "quantiles": [float(found) for found in np.quantile(of_truth, [0.05, 0.25, 0.5, 0.75, 0.95])],
        },
    )

"""Result of a game: posteriors of every trial, scored by round and together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradleak.attacks.inference import combine_rounds
from gradleak.games.information import fano_advantage, information_scores
from gradleak.games.reading import Floats, Knows
from gradleak.results import InputError, Outcome, Score
from gradleak.scoring.classification import score_posteriors
from gradleak.scoring.pooling import pooled


@dataclass(frozen=True, kw_only=True, eq=False)
class SeedResult:
    """One seed of a game.

    Attributes:
        seed: of everything that was drawn.
        outcome: of the training; after *not_finite* nothing was released, and there are no posteriors.
        truth: a of every trial, (T,).
        log_posteriors: by adversary, one (T, m) an observed round, of models fitted on balanced sets.
        details: by adversary, of the fit of every observed round (features, share of clipped posteriors).
        prior: P(a) as the adversary takes it, (m,).
        blind: p*, the largest P(a) by which a was drawn.
        utility: of the trained model; None where no test rows judged it.
        rows: numbers of private, test and public rows.
        routes: how the gradients were computed.
        notes: for the reader.
        seconds: of wall time of the training and of every round, and of processor time of all together ("cpu").
        law: P(a) by which the trials were drawn, (m,); None for not known.
        drawn: places in the population of the rows of every trial, (T, k); in user inference its candidates, (T, m). None
            for not known, and then intervals are of the trials alone.
        drew_users: whether `drawn` are users, of whom every trial takes other rows.
        bound: on the information of all observed updates of a batch; None where nothing was observed, or the adversary
            knows more of the batch than its updates.
    """

    seed: int
    outcome: Outcome
    truth: NDArray[np.int64] = field(repr=False)
    log_posteriors: Mapping[Knows, Sequence[Floats]] = field(repr=False)
    details: Mapping[Knows, Sequence[Mapping[str, Any]]] = field(repr=False)
    prior: Floats
    blind: float
    utility: Score | None
    rows: Mapping[str, int]
    routes: Sequence[str] = ()
    notes: Sequence[str] = ()
    seconds: Mapping[str, Any] = field(default_factory=dict)
    law: Floats | None = field(default=None, repr=False)
    drawn: NDArray[np.int64] | None = field(default=None, repr=False)
    drew_users: bool = False
    bound: Score | None = field(default=None, repr=False)

    def posterior(self, adversary: Knows, places: Sequence[int]) -> Floats:
        """The log-posterior of every trial, (T, m), from the observed rounds at these places of the list; prior once.

        Raises:
            InputError: if the training diverged, so that there is none.
        """
        logs = self.log_posteriors[adversary]
        if not logs:
            raise InputError(f"seed {self.seed}: expected posteriors, got none: {', '.join(self.notes)}")
        # A value that the adversary takes for impossible is as good as that; the logarithm stays finite.
        return combine_rounds(np.stack(list(logs)), np.log(np.maximum(self.prior, 1e-300)), rounds=places)


@dataclass(frozen=True, kw_only=True, eq=False)
class GameResult:
    """Result of the adversaries on the updates, one seed or several pooled.

    The posteriors and the truth of the trials are kept in memory, for further scores; no record holds them.

    Attributes:
        kind: "attribute", "property", "distribution" or "user".
        game: a description of the game.
        population: its name.
        values: names of the m values.
        observed: the rounds, from 0.
        adversaries: which ones played.
        runs: one a seed.
        jobs: how many processes.
        seconds: of wall time.
    """

    kind: str
    game: Mapping[str, Any] = field(repr=False)
    population: str
    values: Sequence[str]
    observed: Sequence[int]
    adversaries: Sequence[Knows]
    runs: Sequence[SeedResult]
    jobs: int
    seconds: float

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds."""
        return tuple(run.seed for run in self.runs)

    def scores(
        self,
        adversary: Knows | str | None = None,
        *,
        rounds: Sequence[int] | None = None,
        false_positive_rates: Sequence[float] = (0.01,),
    ) -> list[Score]:
        """Success rate, AUROC, advantage and true-positive rates of one adversary; several seeds are pooled.

        Args:
            adversary: "static" or "adaptive"; None for the strongest that played.
            rounds: those of the observed rounds, by number, that it saw; None for all of them, combined.
            false_positive_rates: where true-positive rates are asked for.

        Returns:
            What `score_posteriors` gives for one seed and `pooled` for more. If the training of a seed diverged, all of
            them are without a value, *not_finite*: what diverges is not safe.

        Raises:
            InputError: for an adversary that did not play, or a round that was not observed.
        """
        kind = self._adversary(adversary)
        seen = list(self.observed) if rounds is None else list(rounds)
        if not seen or any(number not in self.observed for number in seen):
            raise InputError(f"scores: expected some of the observed rounds {list(self.observed)}, got {seen}")
        places = [list(self.observed).index(number) for number in seen]
        diverged = [run for run in self.runs if not run.log_posteriors[kind]]
        per_seed = [
            score_posteriors(
                run.posterior(kind, places) if run.log_posteriors[kind] else np.empty((0, len(self.values))),
                run.truth if run.log_posteriors[kind] else np.empty(0, dtype=np.int64),
                blind=run.blind,
                rows=run.drawn if run.log_posteriors[kind] else None,
                of_users=run.drew_users,
                false_positive_rates=false_positive_rates,
            )
            for run in self.runs
        ]
        if diverged:
            note = f"{len(diverged)} of {len(self.runs)} seeds: {diverged[0].notes[-1]}"
            lost = per_seed[self.seeds.index(diverged[0].seed)]
            return [replace(score, outcome=Outcome.NOT_FINITE, note=note) for score in lost]
        return per_seed[0] if len(per_seed) == 1 else pooled(per_seed, shared=self._shared_rows())

    def score(self, name: str, adversary: Knows | str | None = None, *, rounds: Sequence[int] | None = None) -> Score:
        """One of `scores`, by its name.

        Raises:
            InputError: if there is none of that name.
        """
        found = [score for score in self.scores(adversary, rounds=rounds) if score.name == name]
        if not found:
            names = [score.name for score in self.scores(adversary)]
            raise InputError(f"score: expected one of {', '.join(names)}, got {name!r}")
        return found[0]

    def by_round(self, adversary: Knows | str | None = None) -> dict[int, list[Score]]:
        """The scores of an adversary who saw one round alone, by observed round."""
        return {number: self.scores(adversary, rounds=[number]) for number in self.observed}

    def information(self, adversary: Knows | str | None = None) -> list[Score]:
        """Information of all observed updates, and the advantage that it allows: bounded, and estimated by an adversary.

        The estimate is over the trials of all seeds, with the mean P(a) over seeds. Bounds are the largest of the seeds':
        each seed's allowed advantage follows from its own bound and its own P(a).

        Args:
            adversary: "static" or "adaptive".

        Returns:
            What `information_scores` gives; no estimate where a value was never drawn, and nothing where a training diverged.

        Raises:
            InputError: for an adversary that did not play.
        """
        kind = self._adversary(adversary)
        laws = [run.law for run in self.runs if run.law is not None and run.log_posteriors[kind]]
        if len(laws) < len(self.runs):
            return []
        places = range(len(self.observed))
        found: list[Score] = []
        if all((law > 0).all() for law in laws):
            found = information_scores(
                np.concatenate([run.posterior(kind, places) for run in self.runs]),
                np.concatenate([run.truth for run in self.runs]),
                np.mean(laws, axis=0),
            )
        bounds = [(law, run.bound) for law, run in zip(laws, self.runs, strict=True) if run.bound is not None]
        if len(bounds) < len(self.runs):
            return found
        allowed = [fano_advantage(law, bound) for law, bound in bounds]
        return [_largest([bound for _, bound in bounds]), _largest(allowed), *found]

    @property
    def outcome(self) -> Outcome:
        """Outcome of the trainings: the worst of them."""
        for outcome in (Outcome.NOT_FINITE, Outcome.CONSTANT):
            if any(run.outcome is outcome for run in self.runs):
                return outcome
        return Outcome.CONVERGED

    @property
    def notes(self) -> list[str]:
        """Notes for the reader, each once."""
        return list(dict.fromkeys(note for run in self.runs for note in run.notes))

    def _adversary(self, adversary: Knows | str | None) -> Knows:
        if adversary is None:
            return Knows.ADAPTIVE if Knows.ADAPTIVE in self.adversaries else Knows.STATIC
        if adversary not in tuple(self.adversaries):
            raise InputError(f"scores: expected one of {', '.join(self.adversaries)}, who played, got {adversary!r}")
        return Knows(adversary)

    def _shared_rows(self) -> float:
        """The largest share of the rows of one seed's trials that another seed's trials were drawn from too."""
        found = [np.unique(run.drawn) for run in self.runs if run.drawn is not None]
        pairs = [(one, other) for place, one in enumerate(found) for other in found[:place]]
        return max(
            (len(np.intersect1d(one, other)) / max(min(len(one), len(other)), 1) for one, other in pairs), default=0.0
        )


def _largest(bounds: Sequence[Score]) -> Score:
    """Bound that holds for all seeds: the largest; one without a value counts as the largest."""
    return max(bounds, key=lambda bound: math.inf if bound.value is None else bound.value)

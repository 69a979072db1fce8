"""Trajectory of a training run, and the score of its model."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gradleak.core import Batch, Objective, Release, derive_generator, derive_seed
from gradleak.core.objective import Tensors
from gradleak.data import rows_of
from gradleak.results import Evidence, Leakier, Outcome, Score, UnsupportedError
from gradleak.training.federated import AnyRelease, ReleaseOfRound, Run, Training
from gradleak.training.metric import Metric, worth
from gradleak.training.releases.released import updated
from gradleak.training.task import Task


def score_of(task: Task, training: Training, runs: Sequence[Run]) -> Score:
    """The score of finished trainings; see `gradleak.measure_utility`."""
    metric = _metric(task, runs)
    counts = Counter(run.outcome for run in runs)
    notes = list(dict.fromkeys(run.note for run in runs if run.note))
    details: dict[str, Any] = {
        "seeds": [run.seed for run in runs],
        "test_rows": task.test.size,
        "train_rows": task.train.size,
        "rounds": training.rounds,
        "empty_rounds": [run.empty_rounds for run in runs],
        "silent_rounds": [run.silent_rounds for run in runs],
    }
    given = [run.outputs for run in runs if run.outputs is not None]
    found = worth(metric, given, task.truth(), seed=runs[0].seed) if given else None
    if found is not None:
        details |= {"blind": found.blind, "per_seed": list(found.per_seed)}
    outcome = Outcome.CONVERGED
    if counts[Outcome.NOT_FINITE]:
        outcome = Outcome.NOT_FINITE
        notes = [f"{counts[outcome]} of {len(runs)} seeds: {notes[0]}"]
    elif counts[Outcome.CONSTANT]:
        outcome = Outcome.CONSTANT
        notes = [f"{counts[outcome]} of {len(runs)} seeds: {notes[0]}"]
    elif len(runs) == 1:
        notes = ["one seed: the interval covers the choice of test rows alone"]
    value = None if found is None or outcome is Outcome.NOT_FINITE else found.value
    return Score(
        name=f"test_{metric.value}",
        value=value,
        unit="share" if metric is Metric.ACCURACY else metric.value,
        leakier=Leakier.NEITHER,
        evidence=Evidence.ESTIMATE,
        interval=None if found is None or value is None else found.interval,
        n=task.test.size,
        outcome=outcome,
        note="; ".join(notes),
        details=details,
    )


def _metric(task: Task, runs: Sequence[Run]) -> Metric:
    outputs = next((run.outputs for run in runs if run.outputs is not None), None)
    return task.judged_by((task.outputs(runs[0].objective) if outputs is None else outputs).shape[1])


@dataclass(frozen=True, kw_only=True, eq=False)
class Trajectory:
    """One training, with the parameters that an adversary sees.

    All trials of a seed share it. At round i, from 0, the parameters θ_i are kept before the epoch of that round, so that
    round 0 is the random start.

    Attributes:
        seed: of weights, order and noise.
        start: the loss at θ_0.
        params: by observed round, θ_i.
        releases: by observed round, what updates leave through; the same object every round unless it is made anew.
        outcome: converged (all rounds done), not_finite (diverged) or constant (the model gives one answer).
        utility: the score of the model after the last round on the test rows; None where there are no test rows.
        note: a sentence for the reader, or "".
        seconds: of wall time.
        cpu_seconds: of processor time.
    """

    seed: int
    start: Objective = field(repr=False)
    params: Mapping[int, Tensors] = field(repr=False)
    releases: Mapping[int, Release] = field(repr=False)
    outcome: Outcome
    utility: Score | None
    note: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def at(self, number: int) -> Objective:
        """The loss at the parameters of an observed round."""
        return replace(
            self.start, params=dict(self.params[number]), mask_seed=derive_seed(self.seed, "masks", f"round {number}")
        )


def follow(
    task: Task,
    release: AnyRelease,
    *,
    batch_size: int,
    rounds: int,
    observed: Sequence[int],
    learning_rate: float,
    seed: int,
    judged: bool = True,
) -> Trajectory:
    """The training of one seed: random start, then in every round one epoch of SGD over all private rows.

    Every step is θ ← θ − η·u, u an update of `batch_size` rows through the release (defenses and noise included; the
    last batch of an epoch holds what is left). Rows come in a new random order every epoch.

    A `ReleaseOfRound` is asked once a round, at the parameters of its start, and used for the trials and the epoch of
    that round alike.

    A training that diverges ends *not_finite* and has no parameters after that: it must not be read as hiding anything.

    Args:
        task: private and test rows, model, loss.
        release: protocol and defenses, or what makes them anew every round.
        batch_size: rows of a step.
        rounds: how many epochs.
        observed: the rounds, from 0, whose parameters are kept.
        learning_rate: η.
        seed: of everything that is drawn; equal seeds have equal weights and order whatever the release.
        judged: whether the test rows are to judge the model; if not, the training ends at the last observed round.

    Raises:
        InputError: if rows, model and loss do not fit together.
        UnsupportedError: where the model refuses the release, or normalizes by its batch and cannot do so with one row.

    **Cost**: rounds · rows / batch_size releases.

    **Source**: Li et al. 2024, definition 3.1 (steps 1 and 5 to 8) and section 5.1.4.
    """
    began, cpu = time.perf_counter(), time.process_time()
    objective = task.start(derive_generator(seed, "weights"), mask_seed=derive_seed(seed, "masks")).objective
    if min(batch_size, task.train.size) == 1:
        check_one_row(objective, task.train)
    start = objective
    noise = derive_generator(seed, "training noise")
    order = derive_generator(seed, "training order")
    params: dict[int, Tensors] = {}
    releases: dict[int, Release] = {}
    step = 0
    trouble = ""
    for number in range(rounds):
        through = release
        if isinstance(through, ReleaseOfRound):
            through = through.at(objective, derive_generator(seed, "release of round", str(number)))
        if number in observed:
            params[number], releases[number] = objective.params, through
        if not judged and number >= max(observed):
            break  # nobody asks what comes after
        through.check_model(objective)
        for places in _epoch(task.train.size, batch_size, order, single=not objective.batch_statistics):
            step += 1
            objective = replace(objective, mask_seed=derive_seed(seed, "masks", str(step)))
            update = updated(through, objective, rows_of(task.train, places), noise)
            moved = update and {
                name: tensor - learning_rate * update[name] for name, tensor in objective.params.items()
            }
            if moved is None or not all(bool(torch.isfinite(tensor).all()) for tensor in moved.values()):
                trouble = f"the training diverged in round {number + 1} of {rounds}"
                break
            objective = replace(objective, params=moved)
        if trouble:
            break
    outcome, note, utility = _judge(task, objective, seed=seed, rounds=rounds, trouble=trouble, judged=judged)
    return Trajectory(
        seed=seed,
        start=start,
        params=params,
        releases=releases,
        outcome=outcome,
        utility=utility,
        note=note,
        seconds=time.perf_counter() - began,
        cpu_seconds=time.process_time() - cpu,
    )


def check_one_row(objective: Objective, rows: Batch) -> None:
    """Refuse updates of one row by a model that normalizes by its batch and finds one number a channel in it.

    Raises:
        UnsupportedError: naming the layers and what to do.
    """
    layers = objective.batch_statistics
    if not layers:
        return
    try:
        # Where a channel has several places, one row is enough.
        with torch.no_grad():
            objective.outputs(objective.params, rows.inputs[:1].to(objective.device, objective.dtype))
    except ValueError as error:
        raise UnsupportedError(
            f"expected updates of at least 2 rows, got batch_size=1: BatchNorm in train mode ({', '.join(layers)}) needs more "
            'than one number a channel; take a larger batch_size, mode="eval", or GroupNorm in its place'
        ) from error


def _epoch(rows: int, batch_size: int, generator: torch.Generator, *, single: bool) -> list[Tensor]:
    """The batches of one epoch; a last batch of one row is left out where a batch normalizes itself."""
    batches = list(torch.randperm(rows, generator=generator).split(batch_size))
    return batches if single or len(batches) == 1 or len(batches[-1]) > 1 else batches[:-1]


def _judge(
    task: Task, objective: Objective, *, seed: int, rounds: int, trouble: str, judged: bool
) -> tuple[Outcome, str, Score | None]:
    """Outcome, note and utility of a finished training."""
    if trouble:
        outcome, outputs, note = Outcome.NOT_FINITE, None, trouble
    else:
        outcome, outputs, note = task.judge(objective)
    if not judged:
        # Whether its answers differ is nobody's question then.
        return (Outcome.CONVERGED, "", None) if outcome is Outcome.CONSTANT else (outcome, note, None)
    run = Run(seed=seed, outcome=outcome, outputs=outputs, objective=objective, rounds=rounds, note=note)
    # Only its number of rounds, here epochs, enters the score.
    return outcome, note, score_of(task, Training(rounds=rounds, learning_rate=1.0, batch_size=1), [run])

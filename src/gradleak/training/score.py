"""The score of finished trainings: their metric over the seeds, or why there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from gradleak.results import Evidence, Leakier, Outcome, Score
from gradleak.training.federated import Run, Training
from gradleak.training.metric import Metric, worth
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

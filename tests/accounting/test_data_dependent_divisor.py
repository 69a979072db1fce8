"""A divisor that is the number of rows gives that number away: the epsilon that would be claimed is measurably exceeded."""

from __future__ import annotations

import torch
from torch import nn

from gradleak.accounting import Accounting, exact_gaussian_epsilon
from gradleak.core import Batch, Objective, Release
from gradleak.defenses import DPSGD
from gradleak.privacy.lower_bounds import CorrectedThresholdEpsilon, SplitThresholdEpsilon, TrialScores
from gradleak.protocols import FedSGD

ROWS, TRIALS, DELTA = 4, 400, 1e-5


def _releases(release: Release, objective: Objective, batch: Batch, seed: int) -> torch.Tensor:
    """The norm of the noise of many releases of one batch, whose mean anyone can compute who knows all rows but one."""
    generator = torch.Generator().manual_seed(seed)
    mean = objective.flatten(release.mean(objective, objective.params, batch))
    drawn = [objective.flatten(release(objective, batch, generator).tensors) for _ in range(TRIALS)]
    return torch.stack([(one - mean).norm() for one in drawn])


def test_a_divisor_by_the_rows_exceeds_the_epsilon_that_a_public_one_would_have() -> None:
    # U55. All rows are equal, so that the mean says nothing; the size of the noise does.
    objective = Objective.from_module(nn.Linear(60, 4))
    rows = Batch(torch.full((ROWS, 60), 0.5), torch.zeros(ROWS, dtype=torch.int64))
    fewer = Batch(rows.inputs[1:], rows.targets[1:])
    by_rows = Release(FedSGD(), [DPSGD(clip_norm=1.0, noise_std=3.0, noise="sum")])
    claimed = exact_gaussian_epsilon(1.0, 3.0, DELTA).value
    assert claimed is not None
    full, without = _releases(by_rows, objective, rows, 1), _releases(by_rows, objective, fewer, 2)
    scores = TrialScores(null=full.double().numpy(), alternative=without.double().numpy(), name="norm")
    measured = SplitThresholdEpsilon(delta=DELTA).estimate(scores)
    assert measured.value is not None
    assert measured.value > claimed + 1.0
    assert measured.details["direction"] == "higher_values_for_h1"  # fewer rows, a smaller divisor, more noise
    corrected = CorrectedThresholdEpsilon(delta=DELTA).estimate(scores).value
    assert corrected is not None
    assert corrected > claimed + 1.0
    sampled = Accounting(delta=DELTA, rounds=10, sampling_rate=0.1)(by_rows, objective, ROWS)
    assert all(score.value is None for score in sampled if score.name in ("pld_epsilon", "rdp_epsilon"))

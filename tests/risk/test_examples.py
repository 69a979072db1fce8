from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.oracles import Oracle
from tests.risk.cases import color
from torch import Tensor

from gradleak.core import Batch, Domain, Exposure, Objective, Release
from gradleak.defenses import Clip, GaussianNoise
from gradleak.operators import example_matrices, example_operators
from gradleak.operators.gradient_jacobian import GradientJacobian
from gradleak.protocols import FedSGD
from gradleak.results import InputError
from gradleak.risk import (
    FisherInformationLoss,
    GaussianReconstructionError,
    GradientNorm,
    InversionInfluence,
    InversionInfluenceLowerBound,
    LinearizedPosteriorError,
    Measure,
    Sensitivity,
    Vulnerability,
    VulnerabilityFusion,
    each_example,
)

MEASURES: list[Measure] = [
    InversionInfluence(),
    InversionInfluence(unit="pixel_rmse"),
    InversionInfluenceLowerBound(),
    GaussianReconstructionError(std=0.1),
    GradientNorm(),
    Vulnerability(matching="cosine", eigenvalue="min"),
    VulnerabilityFusion(),
    Sensitivity(norm="one"),
    FisherInformationLoss(std=0.1),
    LinearizedPosteriorError(noise_std=0.1, prior_std=0.3),
]


def _clipped(exposure: Exposure) -> Exposure:
    return replace(exposure, release=Release(FedSGD(), [Clip(0.5), GaussianNoise(std=0.1)]))


def _delta(exposure: Exposure, rows: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return 1e-3 * torch.randn((rows, exposure.objective.size), generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("measure", MEASURES, ids=lambda measure: measure.name)
@pytest.mark.parametrize("clipped", [False, True])
def test_has_the_values_of_one_by_one(mlp: Oracle, measure: Measure, clipped: bool) -> None:
    exposure = _clipped(mlp.exposure) if clipped else mlp.exposure
    stated = Domain.guess(exposure.batch.inputs)
    exposure = replace(exposure, batch=replace(exposure.batch, domain=stated))
    delta = _delta(exposure, 4)
    together = each_example(measure, exposure, delta)
    for index, score in enumerate(together):
        alone = replace(exposure, batch=exposure.batch.example(index))
        want = measure(alone, delta=delta[index], operator=GradientJacobian(alone))
        assert score.value == pytest.approx(want.value, rel=1e-8)
        assert (score.outcome, score.evidence, score.unit) == (want.outcome, want.evidence, want.unit)
    assert len(together) == 4
    assert clipped or len({score.value for score in together}) == 4


def test_matrices_in_lockstep_are_those_of_the_operators() -> None:
    exposure = color(torch.Generator().manual_seed(0))
    matrices = list(example_matrices(exposure))
    for matrix, operator in zip(matrices, example_operators(exposure, lockstep=False), strict=True):
        assert matrix is not None
        assert torch.allclose(matrix, operator.dense(), rtol=1e-10, atol=1e-14)


def test_groups_within_a_memory_budget(mlp: Oracle) -> None:
    whole = list(example_matrices(mlp.exposure))
    needed = 8 * (995 + 12) * 8 * 12  # one example
    assert all(matrix is None for matrix in example_matrices(mlp.exposure, max_bytes=needed))
    pairs = list(example_matrices(mlp.exposure, max_bytes=3 * needed))
    assert all(torch.allclose(a, b, atol=1e-14) for a, b in zip(whole, pairs, strict=True))


def test_falls_back_to_the_loop_where_vmap_fails(mlp: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    want = [score.value for score in each_example(VulnerabilityFusion(), mlp.exposure)]

    mean = Release.mean

    def refuses_batched_targets(self: Release, objective: Objective, params: Mapping[str, Tensor], batch: Batch) -> Any:
        int(batch.targets[0])  # as data-dependent code does: an error under vmap over examples only
        return mean(self, objective, params, batch)

    monkeypatch.setattr(Release, "mean", refuses_batched_targets)
    assert all(matrix is None for matrix in example_matrices(mlp.exposure))
    assert [score.value for score in each_example(VulnerabilityFusion(), mlp.exposure)] == pytest.approx(want, rel=1e-8)


def test_one_delta_for_all_and_wrong_numbers(mlp: Oracle) -> None:
    delta = _delta(mlp.exposure, 1)[0]
    measure = InversionInfluence()
    shared_one = each_example(measure, mlp.exposure, delta)
    repeated = each_example(measure, mlp.exposure, [delta] * 4)
    assert [score.value for score in shared_one] == [score.value for score in repeated]
    with pytest.raises(InputError, match="one perturbation for each of 4 examples, got 3"):
        each_example(measure, mlp.exposure, delta.expand(3, -1))
    with pytest.raises(InputError, match="needs delta"):
        each_example(measure, mlp.exposure)

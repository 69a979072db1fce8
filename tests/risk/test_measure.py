from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.oracles import Oracle
from tests.risk.cases import diagonal

from gradleak.core import Release
from gradleak.defenses import Clip, GaussianNoise
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedSGD
from gradleak.results import InputError, Outcome
from gradleak.risk import InversionInfluence


def test_a_missing_delta_is_named(mlp: Oracle) -> None:
    with pytest.raises(InputError, match=r"InversionInfluence needs delta.*expected 995 entries, got None"):
        InversionInfluence()(mlp.exposure)


def test_names_and_shapes_of_delta_are_checked(mlp: Oracle) -> None:
    named = mlp.exposure.objective.unflatten(mlp.delta)
    del named["0.bias"]
    named["4.bias"] = torch.zeros(4)
    named["head"] = torch.zeros(1)
    with pytest.raises(InputError, match=r"another shape: 0\.bias, 4\.bias, head"):
        InversionInfluence()(mlp.exposure, delta=named)


def test_an_operator_of_another_release_is_refused(mlp: Oracle) -> None:
    other = GradientJacobian(diagonal([1.0], [1.0]))
    with pytest.raises(InputError, match=r"of shape \(995, 48\), got shape \(1, 1\)"):
        InversionInfluence()(mlp.exposure, delta=mlp.delta, operator=other)


def test_a_perturbation_that_is_not_finite_has_no_value(mlp: Oracle) -> None:
    score = InversionInfluence()(mlp.exposure, delta=torch.full_like(mlp.delta, torch.nan))
    assert (score.value, score.outcome) == (None, Outcome.NOT_FINITE)


def test_an_operator_of_another_batch_or_defense_is_refused(mlp: Oracle, mlp_operator: GradientJacobian) -> None:
    moved = replace(mlp.exposure, batch=mlp.exposure.batch.with_inputs(mlp.exposure.batch.inputs + 1e-3))
    with pytest.raises(InputError, match="got that of another batch"):
        InversionInfluence()(moved, delta=mlp.delta, operator=mlp_operator)
    clipped = replace(mlp.exposure, release=Release(FedSGD(), [Clip(0.5)]))
    with pytest.raises(InputError, match="got that of another released mean"):
        InversionInfluence()(clipped, delta=mlp.delta, operator=mlp_operator)


def test_releases_that_differ_by_noise_share_an_operator(mlp: Oracle, mlp_operator: GradientJacobian) -> None:
    noisy = replace(mlp.exposure, release=Release(FedSGD(), [GaussianNoise(std=0.1)]))
    score = InversionInfluence()(noisy, delta=mlp.delta, operator=mlp_operator)
    assert score.value == pytest.approx(mlp.values["i2f_exact"], rel=1e-6)

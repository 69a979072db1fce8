from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.operators.models import Sequence, exposure_of
from tests.oracles import Oracle
from tests.risk.cases import diagonal
from torch import nn

import gradleak.risk
from gradleak.core import Batch, Domain, Release
from gradleak.defenses import Clip, GaussianNoise
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedSGD
from gradleak.results import Evidence, InputError, Outcome
from gradleak.risk import (
    BayesianCramerRao,
    FisherInformationLoss,
    GaussianReconstructionError,
    GradientNorm,
    InversionInfluence,
    InversionInfluenceLowerBound,
    LinearizedPosteriorError,
    LipschitzBound,
    Measure,
    ReconstructionProbability,
    Sensitivity,
    SettingMeasure,
    Vulnerability,
    VulnerabilityFusion,
    each_example,
)
from gradleak.risk.cramer_rao import Extreme


def test_a_missing_delta_is_named(mlp: Oracle) -> None:
    with pytest.raises(InputError, match=r"InversionInfluence needs delta.*expected 995 entries, got None"):
        InversionInfluence()(mlp.exposure)


@pytest.mark.parametrize(
    "measure",
    [
        InversionInfluence(unit="pixel_rmse"),
        InversionInfluenceLowerBound(unit="pixel_rmse"),
        LipschitzBound(unit="pixel_rmse"),
        GaussianReconstructionError(std=1.0, unit="pixel_rmse"),
        LinearizedPosteriorError(noise_std=1.0, prior_std=1.0, unit="pixel_rmse"),
    ],
    ids=lambda measure: measure.name,
)
def test_errors_in_pixels_need_a_domain(measure: Measure) -> None:
    """As `score_images` says: nothing is guessed in silence."""
    exposure = diagonal([1.0, 2.0], [1.0, 0.5])
    with pytest.raises(InputError, match=r"expected a declared domain .*, got None; errors in pixels mean nothing"):
        measure(exposure, delta=torch.ones(2))
    stated = replace(exposure, batch=replace(exposure.batch, domain=Domain.guess(exposure.batch.inputs)))
    assert measure(stated, delta=torch.ones(2)).unit == "pixel_rmse"


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


def test_an_operator_of_exchanged_kernels_is_of_the_same_release() -> None:
    # Written out attention differs from the fused one in entries that are zero but for round-off.
    exposure = exposure_of(Sequence(nn.MultiheadAttention(8, 2, batch_first=True), 8), (2, 8))
    score = Vulnerability()(exposure, operator=GradientJacobian(exposure))
    assert score.value == pytest.approx(Vulnerability()(exposure).value, rel=1e-9)
    assert all(each.outcome is Outcome.CONVERGED for each in each_example(Vulnerability(), exposure))


def test_releases_that_differ_by_noise_share_an_operator(mlp: Oracle, mlp_operator: GradientJacobian) -> None:
    noisy = replace(mlp.exposure, release=Release(FedSGD(), [GaussianNoise(std=0.1)]))
    score = InversionInfluence()(noisy, delta=mlp.delta, operator=mlp_operator)
    assert score.value == pytest.approx(mlp.values["i2f_exact"], rel=1e-6)


@pytest.mark.parametrize(
    ("delta", "got"),
    [
        (np.zeros(995), "ndarray"),
        ([0.0] * 995, "list"),
        (torch.zeros(995, dtype=torch.complex128), r"torch\.strided of torch\.complex128"),
        (torch.zeros(995).to_sparse(), r"torch\.sparse_coo of torch\.float32"),
        (torch.zeros(995, device="meta"), r"torch\.strided of torch\.float32"),
        ({"0.weight": np.zeros(3)}, "ndarray"),
    ],
)
def test_a_perturbation_that_is_no_real_tensor_is_refused(mlp: Oracle, delta: Any, got: str) -> None:
    with pytest.raises(InputError, match=f"delta: expected a real dense tensor, or one a shared parameter, got {got}"):
        InversionInfluence()(mlp.exposure, delta=delta)


def test_a_perturbation_with_a_graph_is_taken_as_a_number(mlp: Oracle, mlp_operator: GradientJacobian) -> None:
    plain = InversionInfluence()(mlp.exposure, delta=mlp.delta, operator=mlp_operator)
    tracked = mlp.delta.clone().requires_grad_()
    by_name = {key: torch.nn.Parameter(value) for key, value in mlp.exposure.objective.unflatten(mlp.delta).items()}
    for delta in (tracked, by_name):
        assert InversionInfluence()(mlp.exposure, delta=delta, operator=mlp_operator).value == plain.value


def test_what_is_no_exposure_or_operator_is_refused(mlp: Oracle) -> None:
    with pytest.raises(InputError, match="InversionInfluence: expected an Exposure, got Batch"):
        InversionInfluence()(mlp.exposure.batch, delta=mlp.delta)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="operator: expected a GradientJacobian or None, got Tensor"):
        InversionInfluence()(mlp.exposure, delta=mlp.delta, operator=torch.eye(3))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="each_example: expected a measure, got str"):
        each_example("i2f", mlp.exposure)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="each_example: expected an Exposure, got Objective"):
        each_example(GradientNorm(), mlp.exposure.objective)  # type: ignore[arg-type]
    for delta, got in ((torch.tensor(1.0), "a tensor without axes"), (5, "int")):
        with pytest.raises(InputError, match=f"delta: expected one perturbation for each of 4 examples, got {got}"):
            each_example(InversionInfluence(), mlp.exposure, delta)  # type: ignore[arg-type]
    for max_bytes in (0, "1", None, math.nan):
        with pytest.raises(InputError, match="max_bytes: expected a whole number of at least 1, got "):
            each_example(Vulnerability(), mlp.exposure, max_bytes=max_bytes)  # type: ignore[arg-type]


def test_a_batch_that_the_model_does_not_take_is_named_by_every_measure(mlp: Oracle) -> None:
    inputs, targets = mlp.exposure.batch.inputs, mlp.exposure.batch.targets
    for batch, match in (
        (Batch(inputs[:, :7], targets), r"the model does not accept inputs of shape \(4, 7\)"),
        (Batch(inputs, targets + 9), "targets: expected class indices from 0 to 2"),
        (Batch(inputs.round().long(), targets), r"expected floating point numbers, got torch\.int64"),
    ):
        with pytest.raises(InputError, match=match):
            GradientNorm()(replace(mlp.exposure, batch=batch))


def test_a_value_that_overflows_is_a_word(mlp: Oracle, mlp_operator: GradientJacobian) -> None:
    largest = 1e308 / float(mlp.delta.abs().max())
    huge = InversionInfluence()(mlp.exposure, delta=mlp.delta * largest, operator=mlp_operator)
    assert (huge.value, huge.outcome) == (None, Outcome.NOT_FINITE)
    noise = GaussianReconstructionError(std=1e200)(mlp.exposure, operator=mlp_operator)
    assert (noise.value, noise.outcome) == (None, Outcome.NOT_FINITE)


NO_NUMBERS: list[tuple[type, str]] = [
    (InversionInfluence, "epsilon"),
    (InversionInfluence, "dense_limit"),
    (InversionInfluenceLowerBound, "epsilon"),
    (InversionInfluenceLowerBound, "tolerance"),
    (GaussianReconstructionError, "std"),
    (GaussianReconstructionError, "dense_limit"),
    (FisherInformationLoss, "std"),
    (FisherInformationLoss, "tolerance"),
    (FisherInformationLoss, "dense_limit"),
    (Vulnerability, "tolerance"),
    (Vulnerability, "dense_limit"),
    (VulnerabilityFusion, "dense_limit"),
    (LipschitzBound, "radius"),
    (LipschitzBound, "samples"),
    (LipschitzBound, "dense_limit"),
    (LinearizedPosteriorError, "noise_std"),
    (LinearizedPosteriorError, "prior_std"),
    (LinearizedPosteriorError, "dense_limit"),
    (BayesianCramerRao, "noise_std"),
    (BayesianCramerRao, "prior_std"),
    (BayesianCramerRao, "samples"),
    (BayesianCramerRao, "confidence"),
    (BayesianCramerRao, "dense_limit"),
    (ReconstructionProbability, "within"),
    (ReconstructionProbability, "candidates"),
    (ReconstructionProbability, "rounds"),
    (ReconstructionProbability, "confidence"),
    (ReconstructionProbability, "delta"),
    (Sensitivity, "samples"),
    (Sensitivity, "dense_limit"),
]
NEEDED: dict[type, dict[str, object]] = {
    GaussianReconstructionError: {"std": 1.0},
    FisherInformationLoss: {"std": 1.0},
    LinearizedPosteriorError: {"noise_std": 1.0, "prior_std": 1.0},
    BayesianCramerRao: {"noise_std": 1.0, "prior_std": 1.0},
    ReconstructionProbability: {"candidates": 10},
}


@pytest.mark.parametrize("value", ["1", None, -1, math.nan, math.inf, True, 1j, [1]])
@pytest.mark.parametrize(("kind", "field"), NO_NUMBERS)
def test_fields_that_are_no_numbers_in_their_range_are_refused(kind: type, field: str, value: object) -> None:
    if value is None and kind.__dataclass_fields__[field].default is None:  # type: ignore[attr-defined]
        return  # the word for "not given"
    with pytest.raises(InputError, match=f"{field}: expected "):
        kind(**{**NEEDED.get(kind, {}), field: value})


@pytest.mark.parametrize("value", ["1", None, math.nan, 1.5, True, 2**64])
@pytest.mark.parametrize("kind", [Sensitivity, LipschitzBound])
def test_a_seed_that_torch_does_not_take_is_refused(kind: type, value: object) -> None:
    with pytest.raises(InputError, match="seed: expected a whole number of at most 64 bits"):
        kind(seed=value)


def test_every_number_of_every_measure_is_tried() -> None:
    """So that a new field cannot be forgotten."""
    for kind in (getattr(gradleak.risk, name) for name in gradleak.risk.__all__):
        if not (isinstance(kind, type) and issubclass(kind, Measure | SettingMeasure)):
            continue
        for field in fields(kind):
            # Seeds are tried above, and any finite number is a mean.
            if str(field.type).split(" | ")[0] in ("int", "float") and field.name not in ("seed", "prior_mean"):
                assert (kind, field.name) in NO_NUMBERS


@pytest.mark.parametrize(("residual", "evidence"), [(0.02, Evidence.ESTIMATE), (1e-3, Evidence.EXACT)])
def test_an_eigenvalue_with_a_large_residual_is_no_exact_number(residual: float, evidence: Evidence) -> None:
    assert Extreme(value=2.0, outcome=Outcome.CONVERGED, details={"residual": 2 * residual}).evidence is evidence
    spent = Extreme(value=2.0, outcome=Outcome.BUDGET_SPENT, details={"residual": 2 * residual})
    assert spent.evidence is Evidence.ESTIMATE
    assert Extreme(value=2.0, outcome=Outcome.CONVERGED, details={}).evidence is Evidence.EXACT

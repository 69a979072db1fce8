"""Every number of every reference file, through the public measures, to 1e-6."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.oracles import NAMES, Oracle, load_oracle

import gradleak as gl

KEYS = (
    "gradient_norm",
    "parameters",
    "input_size",
    "gram_eigenvalue_max",
    "gram_eigenvalue_min",
    "gram_eigenvalues_top5",
    "gram_trace",
    "J_delta_norm",
    "delta_norm",
    "i2f_lower_bound",
    "i2f_epsilon_1",
    "i2f_epsilon_0.001",
    "i2f_exact",
    "lavp_l2_max",
    "lavp_l2_min",
    "lavp_cosine_max",
    "lavp_cosine_min",
    "lavp_fusion",
    "bayesian_cramer_rao_trace_sigma_0.01_prior_std_0.3",
    "gaussian_expected_squared_error_per_unit_variance",
    "sensitivity_per_parameter",
)


@pytest.fixture(scope="module", params=NAMES)
def case(request: pytest.FixtureRequest, shared: Path) -> tuple[Oracle, gl.GradientJacobian]:
    """A reference case with one operator, whose matrix and spectrum all keys share."""
    oracle = load_oracle(shared, request.param)
    operator = gl.GradientJacobian(oracle.exposure)
    operator.dense()
    return oracle, operator


def found(key: str, oracle: Oracle, operator: gl.GradientJacobian) -> Any:
    """The value of a key, or nested values, as gradleak computes it."""

    def value(measure: Any) -> float:
        score = measure(oracle.exposure, delta=oracle.delta, operator=operator)
        assert score.outcome is gl.Outcome.CONVERGED, score.note
        assert score.value is not None
        return float(score.value)

    if match := re.fullmatch(r"lavp_(l2|cosine)_(max|min)", key):
        return value(gl.Vulnerability(matching=match[1], eigenvalue=match[2]))
    if match := re.fullmatch(r"i2f_epsilon_(.+)", key):
        return value(gl.InversionInfluence(epsilon=float(match[1])))
    if key == "sensitivity_per_parameter":
        norms = {"frobenius": "frobenius", "one_norm": "one", "inf_norm": "inf"}
        scores = {
            name: gl.Sensitivity(norm=norm, by="tensor")(oracle.exposure, operator=operator)
            for name, norm in norms.items()
        }
        return {
            name: {norm: score.details["values"][name] for norm, score in scores.items()}
            for name in oracle.exposure.objective.params
        }
    spectrum = operator.gram_spectrum()
    return {
        "gradient_norm": lambda: value(gl.GradientNorm()),
        "parameters": lambda: operator.shape[0],
        "input_size": lambda: operator.shape[1],
        "gram_eigenvalue_max": lambda: float(spectrum[-1]),
        "gram_eigenvalue_min": lambda: float(spectrum[0]),
        "gram_eigenvalues_top5": lambda: spectrum.flip(0)[:5].tolist(),
        "gram_trace": lambda: float(spectrum.sum()),
        "J_delta_norm": lambda: float(operator.adjoint_matmat(oracle.delta[:, None]).norm()),
        "delta_norm": lambda: float(oracle.delta.norm()),
        "i2f_lower_bound": lambda: value(gl.InversionInfluenceLowerBound()),
        "i2f_exact": lambda: value(gl.InversionInfluence()),
        "lavp_fusion": lambda: value(gl.risk.VulnerabilityFusion()),
        "bayesian_cramer_rao_trace_sigma_0.01_prior_std_0.3": lambda: value(
            gl.LinearizedPosteriorError(noise_std=0.01, prior_std=0.3)
        ),
        "gaussian_expected_squared_error_per_unit_variance": lambda: value(gl.GaussianReconstructionError(std=1.0)),
    }[key]()


@pytest.mark.parametrize("key", KEYS)
def test_value(key: str, case: tuple[Oracle, gl.GradientJacobian]) -> None:
    oracle, operator = case
    expected: Any = oracle.values[key]
    value = found(key, oracle, operator)
    if key == "sensitivity_per_parameter":
        assert set(value) == set(expected)
        for name in expected:
            assert value[name] == pytest.approx(expected[name], rel=1e-6)
    else:
        assert value == pytest.approx(expected, rel=1e-6)


def test_no_key_is_left_out(case: tuple[Oracle, gl.GradientJacobian]) -> None:
    assert sorted(case[0].values) == sorted(KEYS)


@pytest.mark.parametrize("name", ["mlp_tanh_batch4_clipped", "mlp_tanh_batch4_fedavg3"])
def test_both_routes_and_directions_agree_under_protocols_and_defenses(name: str, shared: Path) -> None:
    """Without the matrix: products by blocks within a small budget."""
    oracle = load_oracle(shared, name)
    operator = gl.GradientJacobian(oracle.exposure, max_bytes=2**15)
    norm = float(operator.adjoint_matmat(oracle.delta[:, None]).norm())
    assert norm == pytest.approx(oracle.values["J_delta_norm"], rel=1e-6)
    largest = operator.largest_eigenvalue()
    assert float(largest.values[0]) == pytest.approx(oracle.values["gram_eigenvalue_max"], rel=1e-6)
    assert torch.equal(operator.value, oracle.exposure.released_mean())

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.oracles import Oracle
from tests.risk.cases import color, diagonal, signed

from gradleak.operators import DerivativeCheck, GradientJacobian
from gradleak.results import InputError, Outcome
from gradleak.risk import InversionInfluence, perturbation_directions


@pytest.mark.parametrize("most", [True, False])
def test_a_unit_perturbation_makes_the_predicted_error(mlp: Oracle, mlp_operator: GradientJacobian, most: bool) -> None:
    found = perturbation_directions(mlp_operator, 48, most=most)
    assert found.outcome is Outcome.CONVERGED
    for place in range(48):
        delta = found.vectors[:, place]
        assert float(delta.norm()) == pytest.approx(1.0, rel=1e-12)
        score = InversionInfluence()(mlp.exposure, delta=delta, operator=mlp_operator)
        assert score.value == pytest.approx(float(found.errors[place]), rel=1e-9)
        assert score.value == pytest.approx(float(found.eigenvalues[place]) ** -0.5, rel=1e-9)
    assert (found.errors.diff() * (-1 if most else 1) >= 0).all()


def test_are_the_left_singular_vectors(mlp: Oracle) -> None:
    operator = GradientJacobian(mlp.exposure)
    left, sizes, _ = np.linalg.svd(operator.dense().numpy(), full_matrices=False)
    found = perturbation_directions(operator, 3)
    assert np.allclose(1 / found.errors.numpy(), sizes[::-1][:3], rtol=1e-9)
    assert np.allclose(np.abs(np.sum(found.vectors.numpy() * left[:, ::-1][:, :3], axis=0)), 1.0, atol=1e-8)


def test_least_protective_beyond_the_dense_limit(mlp: Oracle) -> None:
    operator = GradientJacobian(mlp.exposure)
    found = perturbation_directions(operator, 2, most=False, dense_limit=10)
    assert found.errors[0] == pytest.approx(mlp.values["gram_eigenvalue_max"] ** -0.5, rel=1e-9)
    assert not operator.has_spectrum
    unsupported = perturbation_directions(operator, 2, dense_limit=10)
    assert unsupported.outcome is Outcome.UNSUPPORTED
    assert "use most=False" in unsupported.note
    assert unsupported.vectors.shape == (995, 0)


def test_beyond_the_dense_limit_round_off_is_no_direction() -> None:
    exposure = color(torch.Generator().manual_seed(0))  # two joint examples, 36 unknowns ...
    weight = exposure.objective.params["1.weight"]
    params = exposure.objective.params | {"1.weight": weight * (torch.arange(18) < 3)}  # ... of which 6 are used
    blind = replace(exposure, objective=replace(exposure.objective, params=params))
    operator = GradientJacobian(blind)
    rank = GradientJacobian(blind).rank
    found = perturbation_directions(operator, 10, most=False, dense_limit=1)
    want = perturbation_directions(GradientJacobian(blind), 10, most=False)
    assert found.outcome is want.outcome
    assert found.errors.numel() == want.errors.numel() == min(rank, 10)
    np.testing.assert_allclose(found.errors, want.errors, rtol=1e-6)


def test_errors_of_an_ill_conditioned_map_are_those_of_its_singular_values() -> None:
    # Singular values from 1 to 3e-7 in a random basis: from AᵀA alone the smallest has three digits.
    sizes = np.logspace(-6.5, 0, 8)
    left, right = (np.linalg.qr(np.random.default_rng(seed).normal(size=(8, 8)))[0] for seed in (0, 1))
    matrix = torch.from_numpy(left * sizes @ right.T)
    operator = GradientJacobian(diagonal([1.0] * 8, [1.0] * 8))
    operator.hold(matrix)
    assert (
        perturbation_directions(operator, 8).outcome is Outcome.UNSUPPORTED
    )  # it is not the derivative of this release
    operator.check = DerivativeCheck(outcome=Outcome.CONVERGED, exact=True)
    found = perturbation_directions(operator, 8)
    np.testing.assert_allclose(1 / found.errors.numpy(), sizes, rtol=1e-7)
    alignment = np.abs(np.sum(found.vectors.numpy() * left, axis=0))
    np.testing.assert_allclose(alignment, 1.0, rtol=1e-6)


def test_rank_deficient_and_zero_maps(mlp: Oracle) -> None:
    # A = diag(8/3, 0, 4/3)
    found = perturbation_directions(GradientJacobian(diagonal([1.0, 0.0, 1.0], [2.0, 5.0, 1.0])), 3)
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    assert "rank 2" in found.note
    assert found.errors.tolist() == pytest.approx([3 / 4, 3 / 8])
    assert torch.allclose(found.vectors.abs(), torch.eye(3, dtype=torch.float64)[:, [2, 0]])
    nothing = perturbation_directions(GradientJacobian(signed(mlp.exposure)), 1)
    assert nothing.outcome is Outcome.NOT_INFORMATIVE
    assert nothing.errors.numel() == 0
    with pytest.raises(InputError, match="count: expected a whole number of at least 1, got 0"):
        perturbation_directions(GradientJacobian(mlp.exposure), 0)
    with pytest.raises(InputError, match="dense_limit: expected a whole number of at least 0, got nan"):
        perturbation_directions(GradientJacobian(mlp.exposure), 1, dense_limit=math.nan)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="perturbation_directions: expected a GradientJacobian, got Exposure"):
        perturbation_directions(mlp.exposure, 1)  # type: ignore[arg-type]

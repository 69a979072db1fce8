from __future__ import annotations

import statistics
from dataclasses import replace

import numpy as np
import pytest
import scipy.optimize
import torch
from tests.oracles import Oracle
from tests.risk.cases import color, diagonal

import gradleak.attacks
from gradleak.core import Domain, Exposure, Release, Update
from gradleak.defenses import GaussianNoise
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedSGD
from gradleak.results import Evidence, InputError, Outcome, UnsupportedError
from gradleak.risk import InversionInfluence, perfect_attacker


@pytest.fixture(scope="session")
def lenet(lenet: Oracle) -> Oracle:
    """With a domain: the error is in pixels."""
    return _in_pixels(lenet)


@pytest.fixture(scope="session")
def mlp(mlp: Oracle) -> Oracle:
    """With a domain: the error is in pixels."""
    return _in_pixels(mlp)


def _in_pixels(oracle: Oracle) -> Oracle:
    batch = oracle.exposure.batch
    stated = replace(batch, domain=Domain.guess(batch.inputs))
    return replace(oracle, exposure=replace(oracle.exposure, batch=stated))


def _noisy(exposure: Exposure, std: float, seed: int) -> tuple[Exposure, Update]:
    noisy = replace(exposure, release=Release(FedSGD(), [GaussianNoise(std=std)]))
    return noisy, noisy.release(noisy.objective, noisy.batch, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("std", [1e-4, 1e-3, 3e-3])
def test_is_the_minimizer_that_scipy_finds(std: float) -> None:
    exposure, update = _noisy(color(torch.Generator().manual_seed(0)), std, 3)
    found = perfect_attacker(exposure, update)
    target = exposure.objective.flatten(update.tensors).numpy()
    jacobian = GradientJacobian(exposure)

    def residual(x: np.ndarray) -> np.ndarray:
        return exposure.mean(torch.from_numpy(x)).numpy() - target

    def derivative(x: np.ndarray) -> np.ndarray:
        return jacobian.at(torch.from_numpy(x)).dense().numpy()

    truth = exposure.inputs.numpy()
    best = scipy.optimize.least_squares(residual, truth, derivative, xtol=1e-15, ftol=1e-15, gtol=1e-15)
    error = np.linalg.norm(best.x - truth)
    assert found.outcome is Outcome.CONVERGED
    assert np.linalg.norm(found.inputs.reshape(-1).numpy() - best.x) < 1e-3 * error
    assert found.residual == pytest.approx(np.sqrt(2 * best.cost), rel=1e-9)
    scale = exposure.pixel_scale().numpy()
    expected = np.sqrt(np.mean((scale * (best.x - truth)) ** 2))
    assert found.score.value == pytest.approx(expected, rel=1e-3)


def test_noise_on_the_lenet_moves_it_as_far_as_predicted(lenet: Oracle, lenet_operator: GradientJacobian) -> None:
    differences = []
    for variance in (1e-8, 1e-7, 1e-6, 1e-5):
        for seed in (0, 1, 2):
            exposure, update = _noisy(lenet.exposure, variance**0.5, seed)
            delta = exposure.objective.flatten(update.tensors) - exposure.released_mean()
            measure = InversionInfluence(unit="pixel_rmse")
            predicted = measure(exposure, delta=delta, operator=lenet_operator).value
            assert predicted is not None
            if predicted >= 0.05:
                continue
            found = perfect_attacker(exposure, update, operator=lenet_operator)
            assert found.score.value is not None
            assert found.outcome is Outcome.CONVERGED
            differences.append(abs(found.score.value / predicted - 1))
    assert len(differences) >= 9
    assert statistics.median(differences) < 0.1
    # First order: the smaller the noise, the better the prediction.
    assert max(differences[:3]) < 1e-3


def test_without_noise_it_stays_at_the_truth(mlp: Oracle, mlp_operator: GradientJacobian) -> None:
    update = mlp.exposure.release(mlp.exposure.objective, mlp.exposure.batch, torch.Generator())
    found = perfect_attacker(mlp.exposure, update, operator=mlp_operator)
    assert found.score.value == pytest.approx(0.0, abs=1e-10)
    assert found.outcome is Outcome.CONVERGED
    assert found.inputs.shape == mlp.exposure.batch.inputs.shape


def test_it_may_leave_the_valid_range(mlp: Oracle) -> None:
    exposure = color(torch.Generator().manual_seed(0))
    black = exposure.batch.domain.from_pixels(torch.zeros(2, 2, 3, 3, dtype=torch.float64))
    exposure = replace(exposure, batch=exposure.batch.with_inputs(black))
    exposure, update = _noisy(exposure, 1e-3, 0)
    found = perfect_attacker(exposure, update)
    assert float(exposure.batch.domain.to_pixels(found.inputs).min()) < 0


def test_large_noise_ends_with_a_word_and_a_lower_residual(mlp: Oracle, mlp_operator: GradientJacobian) -> None:
    exposure, update = _noisy(mlp.exposure, 0.3, 0)
    found = perfect_attacker(exposure, update, operator=mlp_operator, max_steps=3)
    at_truth = (exposure.objective.flatten(update.tensors) - exposure.released_mean()).norm()
    assert found.outcome in (Outcome.CONVERGED, Outcome.PLATEAU, Outcome.BUDGET_SPENT)
    assert found.residual < float(at_truth)
    assert found.linearizations <= 3


def test_an_update_that_is_not_finite_has_no_value(mlp: Oracle, mlp_operator: GradientJacobian) -> None:
    _, update = _noisy(mlp.exposure, 1e-3, 0)
    broken = replace(update, tensors={name: tensor / 0 for name, tensor in update.tensors.items()})
    found = perfect_attacker(mlp.exposure, broken, operator=mlp_operator)
    assert (found.outcome, found.score.value) == (Outcome.NOT_FINITE, None)


def test_foreign_tensors_are_refused(mlp: Oracle) -> None:
    _, update = _noisy(mlp.exposure, 1e-3, 0)
    foreign = replace(update, tensors={"head": torch.zeros(3)})
    with pytest.raises(InputError, match="update: expected one tensor a shared parameter"):
        perfect_attacker(mlp.exposure, foreign)


def test_bad_arguments(mlp: Oracle) -> None:
    _, update = _noisy(mlp.exposure, 1e-3, 0)
    with pytest.raises(InputError, match="max_steps: expected a whole number of at least 1, got 0"):
        perfect_attacker(mlp.exposure, update, max_steps=0)
    for wrong in ({"exposure": mlp.exposure.objective}, {"update": mlp.delta}, {"operator": 3}, {"max_steps": None}):
        with pytest.raises(InputError, match=r"expected .*, got (Objective|Tensor|.* and Tensor|int|None)"):
            perfect_attacker(**{"exposure": mlp.exposure, "update": update, **wrong})  # type: ignore[arg-type]
    wide = diagonal([1.0] * 5000, [1.0] * 5000)
    with pytest.raises(InputError, match=r"batch.domain: expected a declared domain .*, got None"):
        perfect_attacker(wide, update)
    wide = replace(wide, batch=replace(wide.batch, domain=Domain(shape=(5000,), high=2.0, kind="tabular")))
    with pytest.raises(UnsupportedError, match="d = 5000 is too large"):
        perfect_attacker(wide, update)


def test_it_says_that_it_is_no_attack(mlp: Oracle, mlp_operator: GradientJacobian) -> None:
    assert not hasattr(gradleak.attacks, "perfect_attacker")
    assert "not an attack" in (perfect_attacker.__doc__ or "").splitlines()[0]
    _, update = _noisy(mlp.exposure, 1e-3, 0)
    found = perfect_attacker(mlp.exposure, update, operator=mlp_operator)
    assert found.score.evidence is Evidence.ESTIMATE
    assert "not an attack" in found.score.note

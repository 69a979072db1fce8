from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.oracles import Oracle
from tests.risk.cases import color, diagonal, signed

from gradleak.auditing import configure
from gradleak.core import Exposure
from gradleak.linalg import (
    LSMR,
    ConjugateGradient,
    DenseSolver,
    LanczosQuadrature,
    LeastSquaresDescent,
    NeumannSeries,
    Solver,
)
from gradleak.operators import DerivativeCheck, GradientJacobian
from gradleak.results import Evidence, InputError, Leakier, Outcome
from gradleak.risk import InversionInfluence, InversionInfluenceLowerBound, InversionInfluenceNumerator, Unit


def test_reference_values(reference: tuple[Oracle, GradientJacobian]) -> None:
    oracle, operator = reference
    want = oracle.values

    def value(measure: InversionInfluence | InversionInfluenceLowerBound) -> float | None:
        return measure(oracle.exposure, delta=oracle.delta, operator=operator).value

    assert value(InversionInfluence()) == pytest.approx(want["i2f_exact"], rel=1e-6)
    assert value(InversionInfluence(epsilon=1.0)) == pytest.approx(want["i2f_epsilon_1"], rel=1e-6)
    assert value(InversionInfluence(epsilon=1e-3)) == pytest.approx(want["i2f_epsilon_0.001"], rel=1e-6)
    assert value(InversionInfluenceLowerBound()) == pytest.approx(want["i2f_lower_bound"], rel=1e-6)


def test_reference_values_without_a_spectrum(reference: tuple[Oracle, GradientJacobian]) -> None:
    oracle, _ = reference
    operator = GradientJacobian(oracle.exposure)
    bound = InversionInfluenceLowerBound()(oracle.exposure, delta=oracle.delta, operator=operator)
    assert bound.value == pytest.approx(oracle.values["i2f_lower_bound"], rel=1e-6)
    assert bound.details["solver"] == "block Lanczos"
    iterated = InversionInfluence(epsilon=1.0, dense_limit=1)(oracle.exposure, delta=oracle.delta, operator=operator)
    assert iterated.details["solver"] == "conjugate gradients"
    assert iterated.value == pytest.approx(oracle.values["i2f_epsilon_1"], rel=1e-6)
    assert not operator.has_spectrum


def test_the_lower_bound_stays_below_with_a_loose_eigenvalue() -> None:
    inputs = np.concatenate([[1.0, 0.99, 0.98], np.linspace(0.1, 0.97, 60)])
    exposure = diagonal([1.0] * 63, inputs.tolist())
    delta = torch.ones(63, dtype=torch.float64)
    entries = 4 * inputs / 63
    want = np.linalg.norm(entries) / entries.max() ** 2
    for tolerance in (0.3, 0.1, 1e-2):
        score = InversionInfluenceLowerBound(tolerance=tolerance)(exposure, delta=delta)
        assert score.evidence is Evidence.LOWER_BOUND
        assert score.value <= want * (1 + 1e-12)
        assert score.value >= want / (1 + 2 * tolerance)


def test_lower_bound_with_epsilon(mlp: Oracle) -> None:
    score = InversionInfluenceLowerBound(epsilon=0.5)(mlp.exposure, delta=mlp.delta)
    want = mlp.values["J_delta_norm"] / (mlp.values["gram_eigenvalue_max"] + 0.5)
    assert score.value == pytest.approx(want, rel=1e-9)
    assert score.evidence is Evidence.LOWER_BOUND


def test_the_numerator_is_the_bound_times_the_largest_eigenvalue(mlp: Oracle, mlp_operator: GradientJacobian) -> None:
    found, bound = (
        measure(mlp.exposure, delta=mlp.delta, operator=mlp_operator)
        for measure in (InversionInfluenceNumerator(), InversionInfluenceLowerBound())
    )
    assert found.value == pytest.approx(mlp.values["J_delta_norm"], rel=1e-9)
    assert found.value == pytest.approx(bound.value * mlp.values["gram_eigenvalue_max"], rel=1e-12)
    assert (found.name, found.unit) == ("inversion_influence_numerator", "gradient/input")
    assert "heuristic" in found.note


def test_evidence_and_direction(mlp: Oracle, mlp_operator: GradientJacobian) -> None:
    score = InversionInfluence()(mlp.exposure, delta=mlp.delta, operator=mlp_operator)
    assert (score.name, score.unit, score.leakier) == ("inversion_influence", "input", Leakier.LOWER)
    assert (score.evidence, score.outcome, score.note) == (Evidence.EXACT, Outcome.CONVERGED, "")
    assert score.details["solver"] == "dense spectrum"
    assert score.details["null_dimension"] == 0


def test_delta_by_name_equals_the_flat_one(mlp: Oracle, mlp_operator: GradientJacobian) -> None:
    named = mlp.exposure.objective.unflatten(mlp.delta)
    shuffled = dict(sorted(named.items()))
    measure = InversionInfluence()
    assert (
        measure(mlp.exposure, delta=shuffled, operator=mlp_operator).value
        == measure(mlp.exposure, delta=mlp.delta, operator=mlp_operator).value
    )


def _color_case() -> tuple[Exposure, torch.Tensor, np.ndarray, np.ndarray]:
    exposure = color(torch.Generator().manual_seed(0), low=0.0, high=2.0)
    size = exposure.objective.size
    delta = 1e-4 * torch.randn(size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    matrix = GradientJacobian(exposure).dense().numpy()
    moved = np.linalg.lstsq(matrix, delta.numpy(), rcond=None)[0]
    return exposure, delta, matrix, moved


def test_pixel_unit_undoes_the_normalization_by_channel() -> None:
    exposure, delta, _, moved = _color_case()
    # Per example: nine pixels of channel 0 (std 0.2), nine of channel 1 (std 0.7), over a range of 2.
    scale = np.tile(np.repeat([0.1, 0.35], 9), 2)
    score = InversionInfluence(unit="pixel_rmse")(exposure, delta=delta)
    assert score.unit == "pixel_rmse"
    assert score.value == pytest.approx(np.sqrt(np.mean((scale * moved) ** 2)), rel=1e-8)
    assert InversionInfluence()(exposure, delta=delta).value == pytest.approx(np.linalg.norm(moved), rel=1e-8)


def test_pixel_lower_bound_stays_below_and_uses_the_smallest_scale() -> None:
    exposure, delta, matrix, _ = _color_case()
    bound = InversionInfluenceLowerBound(unit=Unit.PIXEL_RMSE)(exposure, delta=delta).value
    exact = InversionInfluence(unit=Unit.PIXEL_RMSE)(exposure, delta=delta).value
    raw = np.linalg.norm(matrix.T @ delta.numpy()) / np.linalg.norm(matrix, 2) ** 2
    assert bound == pytest.approx(0.1 * raw / 6, rel=1e-8)
    assert bound is not None
    assert exact is not None
    assert bound <= exact


def test_rank_deficient_keeps_the_value_over_the_range() -> None:
    # The second input meets weight 0: A = diag(4·1·2/3, 0, 4·1·1/3).
    exposure = diagonal([1.0, 0.0, 1.0], [2.0, 5.0, 1.0])
    delta = torch.tensor([8 / 3, 7.0, 4 / 3], dtype=torch.float64)
    score = InversionInfluence()(exposure, delta=delta)
    assert score.value == pytest.approx(np.sqrt(2.0))
    assert score.outcome is Outcome.NOT_IDENTIFIABLE
    assert score.details["null_dimension"] == 1
    assert "1 of 3 directions" in score.note
    shifted = InversionInfluence(epsilon=1.0)(exposure, delta=delta)
    first, third = (8 / 3) ** 2, (4 / 3) ** 2
    assert shifted.value == pytest.approx(np.hypot(first / (first + 1), third / (third + 1)))
    assert shifted.outcome is Outcome.CONVERGED
    assert shifted.details["null_dimension"] == 1


@pytest.mark.parametrize(
    "measure",
    [InversionInfluence(), InversionInfluence(epsilon=0.1), InversionInfluenceLowerBound()],
)
def test_a_zero_map_has_no_value(mlp: Oracle, measure: InversionInfluence) -> None:
    score = measure(signed(mlp.exposure), delta=mlp.delta)
    assert score.value is None
    assert score.outcome is Outcome.NOT_INFORMATIVE
    assert "no evidence of safety" in score.note


def test_one_unknown() -> None:
    score = InversionInfluence()(diagonal([3.0], [2.0]), delta=torch.tensor([2.4], dtype=torch.float64))
    assert score.value == pytest.approx(0.1)


def test_a_zero_perturbation_moves_nothing(mlp: Oracle, mlp_operator: GradientJacobian) -> None:
    delta = torch.zeros_like(mlp.delta)
    assert InversionInfluence()(mlp.exposure, delta=delta, operator=mlp_operator).value == 0.0


def test_beyond_the_dense_limit(mlp: Oracle) -> None:
    unshifted = InversionInfluence(dense_limit=10)(mlp.exposure, delta=mlp.delta)
    assert unshifted.value == pytest.approx(mlp.values["i2f_exact"], rel=1e-4)
    assert (unshifted.details["solver"], unshifted.outcome) == ("LSMR", Outcome.CONVERGED)
    assert unshifted.evidence is Evidence.ESTIMATE
    assert unshifted.details["picked"].startswith("d = 48 is above 10")
    shifted = InversionInfluence(epsilon=1e-3, dense_limit=10)(mlp.exposure, delta=mlp.delta)
    assert shifted.value == pytest.approx(mlp.values["i2f_epsilon_0.001"], rel=1e-6)
    assert shifted.details["solver"] == "conjugate gradients"
    assert shifted.evidence is Evidence.EXACT


def test_a_spent_budget_keeps_the_value_as_an_estimate(mlp: Oracle) -> None:
    score = InversionInfluence(epsilon=1e-3, solver=ConjugateGradient(max_iterations=2))(mlp.exposure, delta=mlp.delta)
    assert score.outcome is Outcome.BUDGET_SPENT
    assert score.evidence is Evidence.ESTIMATE
    assert score.value is not None
    assert score.details["residual"] > 1e-8


def test_round_off_of_an_ill_conditioned_map_is_no_exact_value() -> None:
    # Singular values of a ratio of 1e7: in general AᵀA holds the smallest eigenvalue to two digits.
    exposure, delta = diagonal([1.0, 1.0], [1.0, 1e-7]), torch.tensor([0.0, 1.0], dtype=torch.float64)
    solver = DenseSolver()
    score = InversionInfluence(solver=solver)(exposure, delta=delta, operator=GradientJacobian(exposure, max_bytes=8))
    assert score.evidence is Evidence.ESTIMATE
    assert score.details["round_off"] == pytest.approx(2.2e-16 * 1e14, rel=0.02)
    assert "round-off may change the value by a share of 0.02" in score.note
    fair = diagonal([1.0, 1.0], [1.0, 1e-5])
    score = InversionInfluence(solver=solver)(fair, delta=delta, operator=GradientJacobian(fair, max_bytes=8))
    assert score.evidence is Evidence.EXACT
    assert "round-off may change the value by a share of 2e-06" in score.note
    assert InversionInfluence(epsilon=1.0)(exposure, delta=delta).evidence is Evidence.EXACT
    better = InversionInfluence()(diagonal([1.0, 1.0], [1.0, 1e-4]), delta=delta)
    assert (better.evidence, better.note, better.details["solver"]) == (Evidence.EXACT, "", "dense spectrum")


def test_an_ill_conditioned_map_that_fits_is_read_off_its_singular_values() -> None:
    # A = QᵀDQ with singular values from 1 to 3e-7: the Gram matrix holds the smallest to three digits.
    exposure, delta, operator, matrix = _ill_conditioned()
    want = np.linalg.norm(np.linalg.lstsq(matrix, delta.numpy(), rcond=None)[0])
    by_gram = np.linalg.norm(np.linalg.solve(matrix.T @ matrix, matrix.T @ delta.numpy()))
    assert abs(by_gram / want - 1) > 1e-5
    score = InversionInfluence()(exposure, delta=delta, operator=operator)
    assert score.value == pytest.approx(want, rel=1e-8)
    assert (score.evidence, score.note) == (Evidence.EXACT, "")
    assert score.details["solver"] == "singular values of A"
    assert score.details["round_off"] < 1e-8


def test_eigenvalues_of_an_ill_conditioned_map_have_its_digits() -> None:
    _, _, operator, matrix = _ill_conditioned()
    want = np.linalg.svd(matrix, compute_uv=False)[::-1] ** 2
    np.testing.assert_allclose(operator.gram_spectrum().numpy(), want, rtol=1e-8)
    assert operator.eigenvalues_are_of_factor


def _ill_conditioned() -> tuple[Exposure, torch.Tensor, GradientJacobian, np.ndarray]:
    sizes = np.logspace(-6.5, 0, 8)
    left, right = (np.linalg.qr(np.random.default_rng(seed).normal(size=(8, 8)))[0] for seed in (0, 1))
    matrix = left * sizes @ right.T
    exposure = diagonal([1.0] * 8, [1.0] * 8)
    operator = GradientJacobian(exposure)
    operator.hold(torch.from_numpy(matrix))
    operator.check = DerivativeCheck(outcome=Outcome.CONVERGED, exact=True)  # it is not the derivative of this release
    return exposure, torch.from_numpy(left[:, 0] + left[:, 7]), operator, matrix


def test_an_iterative_value_is_exact_only_where_its_residual_bounds_it(mlp: Oracle) -> None:
    for epsilon, evidence in ((1e-3, Evidence.EXACT), (1e-9, Evidence.ESTIMATE)):
        score = InversionInfluence(epsilon=epsilon, solver=ConjugateGradient())(mlp.exposure, delta=mlp.delta)
        assert score.outcome is Outcome.CONVERGED
        assert score.evidence is evidence
        assert (score.details["error_bound"] <= 1e-3 * score.value) == (evidence is Evidence.EXACT)


def test_float32_exposures_are_judged_in_float64(mlp: Oracle) -> None:
    score = InversionInfluence()(mlp.exposure.to(torch.float32), delta=mlp.delta)
    assert score.value == pytest.approx(mlp.values["i2f_exact"], rel=1e-4)


@pytest.mark.parametrize("measure", [InversionInfluence, InversionInfluenceLowerBound])
def test_bad_fields(measure: type[InversionInfluence]) -> None:
    with pytest.raises(InputError, match="epsilon: expected a finite number of at least 0, got -1"):
        measure(epsilon=-1.0)
    with pytest.raises(InputError, match="unit: expected one of input, pixel_rmse, got 'pixels'"):
        measure(unit="pixels")


@pytest.mark.parametrize("epsilon", [1.0, 1e-3])
@pytest.mark.parametrize(
    "solver",
    [
        DenseSolver(),
        ConjugateGradient(),
        LSMR(),
        NeumannSeries(scale=None, max_terms=20_000, tolerance=1e-7),
        LeastSquaresDescent(max_iterations=20_000, tolerance=1e-7),
    ],
    ids=lambda solver: type(solver).__name__,
)
def test_every_solver_gives_the_reference_value(
    mlp: Oracle, mlp_operator: GradientJacobian, solver: Solver, epsilon: float
) -> None:
    operator = GradientJacobian(mlp.exposure)
    operator.dense()  # products on the matrix: many iterations are cheap
    score = InversionInfluence(epsilon=epsilon, solver=solver)(mlp.exposure, delta=mlp.delta, operator=operator)
    want = mlp.values["i2f_epsilon_1" if epsilon == 1.0 else "i2f_epsilon_0.001"]
    assert score.value == pytest.approx(want, rel=1e-6)
    assert score.evidence is Evidence.EXACT
    assert score.details["solver"] == solver.label
    assert score.details["picked"] == "asked for"
    if not isinstance(solver, DenseSolver):
        assert abs(score.value - want) <= score.details["error_bound"] + 1e-12 * want
        assert score.details["matvecs"] > 0


def test_the_papers_series_says_when_it_cannot_converge() -> None:
    # A = diag(4 w x / 3) = diag(4, 2, 1): λmax = 16, and α = 1 needs less than 2.
    exposure = diagonal([1.0, 1.0, 1.0], [3.0, 1.5, 0.75])
    delta = torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64)
    series = InversionInfluence(solver=NeumannSeries())(exposure, delta=delta)
    assert (series.value, series.outcome) == (None, Outcome.UNSUPPORTED)
    assert "cannot converge: scale · (λmax + shift) = 16, and below 2 is needed" in series.note
    descent = InversionInfluence(solver=LeastSquaresDescent(step=0.2))(exposure, delta=delta)
    assert (descent.value, descent.outcome) == (None, Outcome.UNSUPPORTED)
    assert "take a step below 0.125" in descent.note
    scaled = InversionInfluence(solver=NeumannSeries(scale=None))(exposure, delta=delta)
    assert scaled.value == pytest.approx(np.sqrt(1 / 16 + 1 / 4 + 1), rel=1e-6)


def test_iteration_on_a_zero_map_has_no_value(mlp: Oracle) -> None:
    for epsilon in (0.0, 1.0):
        score = InversionInfluence(epsilon=epsilon, dense_limit=1)(signed(mlp.exposure), delta=mlp.delta)
        assert (score.value, score.outcome) == (None, Outcome.NOT_INFORMATIVE)


def test_a_rank_deficient_map_beyond_the_dense_limit_keeps_the_range() -> None:
    exposure = diagonal([1.0, 0.0, 1.0], [2.0, 5.0, 1.0])
    delta = torch.tensor([8 / 3, 7.0, 4 / 3], dtype=torch.float64)
    score = InversionInfluence(dense_limit=1)(exposure, delta=delta)
    assert score.value == pytest.approx(np.sqrt(2.0))
    assert score.details["rank"] == "not determined"
    assert score.evidence is Evidence.ESTIMATE


def test_the_pick_follows_the_spectrum_and_the_budget(mlp: Oracle, mlp_operator: GradientJacobian) -> None:
    mlp_operator.gram_spectrum()
    there = InversionInfluence(dense_limit=1)(mlp.exposure, delta=mlp.delta, operator=mlp_operator)
    assert there.details["picked"] == "the spectrum is at hand"
    tight = GradientJacobian(mlp.exposure, max_bytes=100_000)  # A needs 382,080
    shifted = InversionInfluence(epsilon=1e-3)(mlp.exposure, delta=mlp.delta, operator=tight)
    assert shifted.details["solver"] == "conjugate gradients"
    assert "A needs 382080 bytes of 100000" in shifted.details["picked"]
    assert InversionInfluence()(mlp.exposure, delta=mlp.delta, operator=tight).details["solver"] == "dense spectrum"


def test_a_solver_of_another_kind_is_refused() -> None:
    with pytest.raises(InputError, match=r"solver: expected .*Solver.*, got LanczosQuadrature; \w+, for instance"):
        InversionInfluence(solver=LanczosQuadrature())


def test_a_plan_can_name_the_solver() -> None:
    table = {"epsilon": 1.0, "solver": {"use": "ConjugateGradient", "tolerance": 1e-4}}
    measure = configure(InversionInfluence, table, where="measures.influence")
    assert measure == InversionInfluence(epsilon=1.0, solver=ConjugateGradient(tolerance=1e-4))


@pytest.mark.parametrize("dense_limit", [4096, 0])
@pytest.mark.parametrize("size", [1e-300, 1e-160, 1e160, 1e300])
def test_squares_that_leave_the_range_of_floating_point_numbers_do_no_harm(size: float, dense_limit: int) -> None:
    # A = 4 w x / d = (2, 1): A⁺δ for δ = s(1, 1) is s(1/2, 1); with a large ε the value is ‖Aᵀδ‖/ε.
    exposure, delta = diagonal([1.0, 1.0], [1.0, 0.5]), size * torch.ones(2, dtype=torch.float64)
    score = InversionInfluence(dense_limit=dense_limit)(exposure, delta=delta)
    assert score.value == pytest.approx(size * math.sqrt(1.25), rel=1e-9)
    far = InversionInfluence(epsilon=1e300, dense_limit=dense_limit)(exposure, delta=delta / size)
    assert far.value == pytest.approx(math.sqrt(5) * 1e-300, rel=1e-9)

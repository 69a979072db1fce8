"""How damped steps are computed: each way against numpy and scipy, and against each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import lsq_linear
from torch import Tensor

from gradleak.attacks import DenseSteps, GaussNewton, KrylovSteps, RowSampledSteps, SketchedSteps, Steps
from gradleak.attacks.inversion.gauss_newton.krylov_steps import choose_steps
from gradleak.attacks.inversion.gauss_newton.local_model import GramModel, bounded_move
from gradleak.attacks.inversion.gauss_newton.residual_system import Cost, ResidualSystem
from gradleak.attacks.inversion.problem import LabelPolicy, Problem
from gradleak.attacks.inversion.variables import Pixels
from gradleak.core import Batch, Domain, HonestButCurious
from gradleak.defenses import GaussianNoise
from gradleak.models import mlp
from gradleak.protocols import FedAvg
from gradleak.results import InputError, Outcome, UnsupportedError
from tests.attacks.setting import Setting, rows, setting, small_net

EACH = pytest.mark.parametrize(
    "steps",
    [DenseSteps(), SketchedSteps(), RowSampledSteps(), SketchedSteps(rows_per_unknown=8.0), KrylovSteps()],
    ids=repr,
)


def _generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=_generator(seed), dtype=torch.float64)


def _system(case: Setting) -> ResidualSystem:
    problem = Problem.pose(
        case.update, case.knowledge, pixels=Pixels(), policy=LabelPolicy.RECOVER, dtype=torch.float64
    )
    return ResidualSystem(problem, 2**30, Cost())


@EACH
@pytest.mark.parametrize("label", [0, 2])
def test_each_finds_a_table_row_exactly(steps: Steps, label: int) -> None:
    case = setting(small_net(), rows(label))
    found = GaussNewton(steps=steps)(case.update, case.knowledge, generator=_generator())
    assert found.outcome is Outcome.CONVERGED
    assert found.details["steps"]["use"] == type(steps).__name__
    assert found.details["steps_because"] == "named"
    assert found.details["null_dimension"] == 0
    assert case.error(found.inputs) < 1e-20


@EACH
def test_each_reaches_the_minimizer_of_the_whole_residual_under_noise(steps: Steps) -> None:
    case = setting(small_net(), rows(2), defenses=[GaussianNoise(std=1e-4)])
    found = GaussNewton(steps=steps)(case.update, case.knowledge, generator=_generator())
    assert found.outcome is Outcome.CONVERGED
    dense = GaussNewton(steps=DenseSteps())(case.update, case.knowledge, generator=_generator())
    assert found.loss == pytest.approx(dense.loss, rel=1e-4)
    assert (found.inputs - dense.inputs).abs().max() < 0.03 * (dense.inputs - case.truth.inputs).norm()


@pytest.mark.parametrize("std", [0.0, 1e-4])
def test_a_step_from_an_older_matrix_is_the_step_and_ends_at_the_same_point(std: float) -> None:
    net = mlp(features=64, classes=4, hidden=(48,), activation="tanh", generator=_generator()).double()
    row = torch.rand(1, 64, generator=_generator(7), dtype=torch.float64)
    truth = Batch(row, torch.tensor([2]), Domain(shape=(64,), kind="tabular"))
    case = setting(net, truth, defenses=[GaussianNoise(std=std)] if std else [])
    each = [
        GaussNewton(steps=DenseSteps(reuse=reuse))(case.update, case.knowledge, generator=_generator())
        for reuse in (0, 40)
    ]
    assert [found.outcome for found in each] == [Outcome.CONVERGED] * 2
    assert each[0].details["null_dimension"] == each[1].details["null_dimension"] == 0
    assert each[1].details["products"] < 0.8 * each[0].details["products"]
    assert (each[0].inputs - each[1].inputs).abs().max() < max(1e-11, 0.03 * std)


def test_an_older_matrix_solves_the_system_of_the_new_point_and_gives_way_to_a_new_one() -> None:
    net = mlp(features=64, classes=4, hidden=(48,), activation="tanh", generator=_generator()).double()
    row = torch.rand(1, 64, generator=_generator(7), dtype=torch.float64)
    truth = Batch(row, torch.tensor([2]), Domain(shape=(64,), kind="tabular"))
    system = _system(setting(net, truth))
    steps, free = DenseSteps(), torch.arange(64) % 3 > 0
    inputs = truth.inputs.flatten()
    held = steps.linearize(system, inputs[None] + 1e-3, _generator())[0]
    model = steps.again(system, inputs + 2e-3, held, 1.0)
    assert model is not None
    found = model.solve(model.slope, 1e-6, free)
    assert found is not None
    spent = system.cost.products
    residual, columns = system.jacobians(inputs[None] + 2e-3)[0]
    a, places = columns.numpy().T, free.numpy()
    right, weights = a.T @ residual.numpy(), model.weights.numpy()
    wanted = np.linalg.solve((a.T @ a + 1e-6 * np.diag(weights))[places][:, places], right[places])
    assert not found[~free].any()
    assert np.linalg.norm(found[free].numpy() - wanted) < 0.05 * np.linalg.norm(wanted)
    assert spent < 2 * 64
    gram = model.gram()
    assert gram is not None
    np.testing.assert_allclose(gram.numpy(), a.T @ a, rtol=0, atol=1e-12 * float(np.abs(a.T @ a).max()))
    assert steps.again(system, inputs, held, 0.4) is None
    assert DenseSteps(reuse=0).again(system, inputs, held, 1.0) is None


@EACH
def test_each_counts_releases_and_products(steps: Steps) -> None:
    protocol = FedAvg(learning_rate=0.1, epochs=3)
    case = setting(small_net(), rows(1), protocol=protocol)
    attack = GaussNewton(steps=steps, starts=1)
    found = attack(case.update, case.knowledge, generator=_generator())
    counted = found.details["releases"] + 2 * found.details["products"]
    assert found.plain_gradients == 3 * counted
    once = GaussNewton(steps=steps, max_steps=1).estimate(case.knowledge)
    assert attack.estimate(case.knowledge) == 60 * once
    plain = setting(small_net(), rows(1))
    assert once == 3 * GaussNewton(steps=steps, max_steps=1).estimate(plain.knowledge)


def test_a_step_without_a_box_is_the_damped_least_squares_solution() -> None:
    matrix, residual = _normal(9, 4), _normal(9, seed=2)
    model = GramModel(residual, residual, matrix.T.contiguous())
    wide = torch.full((4,), 1e6, dtype=torch.float64)
    found = bounded_move(model, torch.zeros(4, dtype=torch.float64), -wide, wide, 0.3)
    a, r = matrix.numpy(), residual.numpy()
    expected = -np.linalg.solve(a.T @ a + 0.3 * np.diag(np.diag(a.T @ a)), a.T @ r)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10)
    # Another residual with the same factor.
    other = _normal(9, seed=3)
    expected = -np.linalg.solve(a.T @ a + 0.3 * np.diag(np.diag(a.T @ a)), a.T @ other.numpy())
    np.testing.assert_allclose(model.correct(other).numpy(), expected, rtol=1e-10)


@pytest.mark.parametrize("seed", range(6))
def test_a_step_in_the_box_is_stationary_where_it_is_free(seed: int) -> None:
    """Its value against SciPy's exact bounded least squares; the working set only grows, so it may fall a bit short."""
    size, damping = 12, 1e-3
    matrix, residual = _normal(40, size, seed=seed), 3 * _normal(40, seed=seed + 100)
    model = GramModel(residual, residual, matrix.T.contiguous())
    point = torch.rand(size, generator=_generator(seed), dtype=torch.float64)
    low, high = torch.zeros(size, dtype=torch.float64), torch.ones(size, dtype=torch.float64)
    move = bounded_move(model, point, low, high, damping)
    target = point + move
    assert bool(((target >= 0) & (target <= 1)).all())
    inside = (target > 1e-12) & (target < 1 - 1e-12)
    assert bool(inside.any())
    assert not bool(inside.all())
    slope = model.slope + model.curvature(move) + damping * model.weights * move
    assert slope[inside].abs().max() < 1e-9 * model.slope.norm()
    rows_below = torch.diag((damping * model.weights).sqrt())
    stacked = torch.cat([matrix, rows_below]).numpy()
    right = -torch.cat([residual, torch.zeros(size, dtype=torch.float64)]).numpy()
    exact = lsq_linear(stacked, right, bounds=((low - point).numpy(), (high - point).numpy()), tol=1e-12)

    def value(step: np.ndarray) -> float:
        return float(np.square(stacked @ step - right).sum())

    worst, best, ours = value(np.zeros(size)), value(exact.x), value(move.numpy())
    assert ours - best <= 0.2 * (worst - best)


@pytest.mark.parametrize(
    "steps", [SketchedSteps(rows_per_unknown=4.0), RowSampledSteps(rows_per_unknown=4.0)], ids=repr
)
def test_a_reduction_keeps_squared_norms_on_average(steps: SketchedSteps | RowSampledSteps) -> None:
    vector = _normal(400)
    live = torch.ones(400, dtype=torch.bool)
    seen = [float(steps.draw(live, 80, _generator(seed))(vector).square().sum()) for seed in range(300)]
    mean, error = np.mean(seen), np.std(seen) / np.sqrt(len(seen))
    assert abs(mean - float(vector.square().sum())) < 4 * error
    # Linear, along the last axis.
    block = _normal(3, 400, seed=2)
    draw = steps.draw(live, 80, _generator())
    torch.testing.assert_close(draw(block)[1], draw(block[1]))


def test_sampled_rows_are_those_that_hold_something() -> None:
    live = torch.zeros(100, dtype=torch.bool)
    live[10:40] = True
    draw = RowSampledSteps().draw(live, 30, _generator())
    assert draw.rows.tolist() == list(range(10, 40))
    more = RowSampledSteps().draw(live, 50, _generator())
    assert set(range(10, 40)) <= set(more.rows.tolist())
    assert len(set(more.rows.tolist())) == 50


def test_products_solve_the_system_that_the_matrix_solves() -> None:
    case = setting(small_net(), rows(1))
    system, point = _system(case), torch.rand(1, 12, generator=_generator(), dtype=torch.float64)
    dense = DenseSteps().linearize(system, point, _generator())[0]
    krylov = KrylovSteps(iterations=200, forcing=1e-12, probes=4000).linearize(system, point, _generator())[0]
    torch.testing.assert_close(krylov.residual, dense.residual)
    torch.testing.assert_close(krylov.slope, dense.slope)
    torch.testing.assert_close(krylov.curvature(point[0]), dense.curvature(point[0]))
    # D as the mean of 4,000 squares with relative variance below 2.
    assert (krylov.weights / dense.weights - 1).abs().max() < 6 * (2 / 4000) ** 0.5
    free = torch.arange(12) != 3
    krylov.weights = dense.weights
    expected = dense.solve(dense.slope, 1e-2, free)
    torch.testing.assert_close(krylov.solve(krylov.slope, 1e-2, free), expected, rtol=1e-8, atol=1e-12)
    assert expected[3] == 0


def test_starts_side_by_side_have_the_derivatives_of_each_alone() -> None:
    case = setting(small_net(), rows(1, 2), threat=HonestButCurious(targets=True))
    system = _system(case)
    points = torch.rand(5, 24, generator=_generator(), dtype=torch.float64)
    together = system.jacobians(points)
    assert system.cost.products == 5 * 24
    for point, (residual, columns) in zip(points, together, strict=True):
        alone, exact = system.jacobians(point[None])[0]
        torch.testing.assert_close(residual, alone)
        torch.testing.assert_close(columns, exact)
        expected = torch.autograd.functional.jacobian(system.mean, point)
        torch.testing.assert_close(columns.T, expected)
    torch.testing.assert_close(system.residuals(points)[3], together[3][0])


def test_further_starts_go_side_by_side_and_end_when_one_of_them_explains_the_update() -> None:
    # One step is too little for the first start; the others, ten of them, are linearized together.
    case = setting(small_net(seed=5), rows(0, 2, seed=5), threat=HonestButCurious(targets=True))
    found = GaussNewton(starts=11, warm_iterations=0, max_steps=25)(
        case.update, case.knowledge, generator=_generator(7)
    )
    losses = found.details["start_losses"]
    assert len(losses) in (1, 11)
    assert found.loss == min(losses)
    cut = GaussNewton(starts=11, warm_iterations=0, max_steps=1)(case.update, case.knowledge, generator=_generator(7))
    assert len(cut.details["start_losses"]) == 11
    assert cut.iterations == 11
    assert cut.outcome is Outcome.BUDGET_SPENT


def test_steps_are_chosen_by_size_and_memory() -> None:
    def chosen(entries: int, unknowns: int, memory: int = 2**32) -> tuple[type[Steps], str]:
        choice = choose_steps(None, entries=entries, unknowns=unknowns, max_unknowns=4096, max_bytes=memory)
        return type(choice.steps), choice.reason

    assert chosen(15_826, 3072)[0] is DenseSteps
    kind, reason = chosen(11_173_962, 3072)
    assert kind is SketchedSteps
    assert "does not fit the memory, a sketch of it does" in reason
    kind, reason = chosen(15_826, 12_288)
    assert kind is KrylovSteps
    assert "12288 unknowns are more than max_unknowns=4096" in reason
    assert chosen(11_173_962, 3072, memory=2**28)[0] is KrylovSteps
    named = choose_steps(KrylovSteps(), entries=100, unknowns=10, max_unknowns=4096, max_bytes=2**32)
    assert named.steps == KrylovSteps()


def test_named_steps_that_do_not_fit_are_refused_with_what_to_use() -> None:
    case = setting(small_net(), rows(1))
    with pytest.raises(UnsupportedError, match=r"DenseSteps for 12 unknowns and 995 entries.* use KrylovSteps"):
        GaussNewton(steps=DenseSteps(), max_jacobian_bytes=1000)(case.update, case.knowledge, generator=_generator())


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: SketchedSteps(rows_per_unknown=1.0),
        lambda: RowSampledSteps(rows_per_unknown=-2.0),
        lambda: KrylovSteps(iterations=0),
        lambda: KrylovSteps(forcing=1.0),
        lambda: KrylovSteps(probes=-1),
        lambda: GaussNewton(steps="dense"),
    ],
)
def test_settings_out_of_range_are_refused(wrong: object) -> None:
    with pytest.raises(InputError, match="expected"):
        wrong()

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse.linalg
import torch

from gradleak.linalg import DenseOperator, TopEigenpairs, block_lanczos
from gradleak.results import InputError, Outcome


def _symmetric(values: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """A dense matrix with these eigenvalues, in a random basis."""
    size = values.numel()
    drawn = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    basis = torch.linalg.qr(drawn)[0]
    return basis * values.double() @ basis.T


def _top(matrix: torch.Tensor, count: int = 1, *, seed: int = 7, **options: float) -> TopEigenpairs:
    return block_lanczos(DenseOperator(matrix), count, generator=torch.Generator().manual_seed(seed), **options)


def _check_pairs(matrix: torch.Tensor, found: TopEigenpairs, tolerance: float = 1e-9) -> None:
    errors = (matrix @ found.vectors - found.vectors * found.values).norm(dim=0)
    torch.testing.assert_close(errors, found.residuals, rtol=0.1, atol=1e-12 * float(found.values[0]))
    assert bool((errors <= 1.01 * tolerance * found.values + 1e-12 * found.values[0]).all())
    gram = found.vectors.T @ found.vectors
    torch.testing.assert_close(gram, torch.eye(gram.shape[0], dtype=gram.dtype), rtol=0, atol=1e-10)


def test_agrees_with_arpack() -> None:
    matrix = _symmetric(torch.rand(200, generator=torch.Generator().manual_seed(1)) ** 3)
    found = _top(matrix, 6)
    expected = np.sort(scipy.sparse.linalg.eigsh(matrix.numpy(), k=6, return_eigenvectors=False))[::-1]
    np.testing.assert_allclose(found.values, expected, rtol=1e-12)
    assert found.outcome is Outcome.CONVERGED
    assert found.multiplicity == 1
    _check_pairs(matrix, found)


@pytest.mark.parametrize("copies", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_repeated_top_eigenvalue_is_found_with_its_multiplicity(copies: int, seed: int) -> None:
    """U42."""
    values = torch.cat([torch.full((copies,), 3.0), torch.linspace(0.0, 2.5, 120)])
    matrix = _symmetric(values, seed)
    found = _top(matrix, seed=seed)
    assert found.multiplicity == copies
    assert float(found.values[0]) == pytest.approx(3.0, rel=1e-12)
    assert found.outcome is Outcome.CONVERGED


@pytest.mark.parametrize("copies", [5, 13])
def test_copies_of_smaller_eigenvalues_are_found_where_more_are_asked_for_than_a_block(copies: int) -> None:
    values = [5.0, 4.0] + [3.0] * copies + torch.linspace(0.0, 2.5, 60).tolist()
    for count in (3, 4, 8, copies + 4):
        found = _top(_symmetric(torch.tensor(values)), count)
        want = np.sort(values)[::-1][:count]
        np.testing.assert_allclose(found.values, want, rtol=1e-9)
        assert (found.outcome, found.multiplicity) == (Outcome.CONVERGED, 1)
        _check_pairs(_symmetric(torch.tensor(values)), found)


def test_close_but_different_values_are_told_apart() -> None:
    matrix = _symmetric(torch.cat([torch.tensor([3.0, 3.0 * (1 - 1e-4)]), torch.linspace(0.0, 2.5, 120)]))
    found = _top(matrix, 2)
    assert found.multiplicity == 1
    np.testing.assert_allclose(found.values, [3.0, 3.0 * (1 - 1e-4)], rtol=1e-7)


def test_restarts_keep_the_basis_small_and_still_converge() -> None:
    values = torch.linspace(0.0, 1.0, 500, dtype=torch.float64)
    matrix = _symmetric(values)
    found = _top(matrix, max_basis=24)
    assert float(found.values[0]) == pytest.approx(1.0, rel=1e-12)
    assert found.matvecs > 24
    assert found.outcome is Outcome.CONVERGED
    _check_pairs(matrix, found)


@pytest.mark.parametrize("count", [10, 11, 50])
def test_count_of_the_dimension_or_more_gives_the_whole_spectrum(count: int) -> None:
    values = torch.linspace(1.0, 2.0, 10, dtype=torch.float64)
    found = _top(_symmetric(values), count)
    np.testing.assert_allclose(found.values, values.flip(0), rtol=1e-12)
    assert found.outcome is Outcome.CONVERGED


def test_one_dimension() -> None:
    found = _top(torch.tensor([[2.5]], dtype=torch.float64))
    assert found.values.tolist() == [pytest.approx(2.5)]
    assert (found.multiplicity, found.outcome, found.matvecs) == (1, Outcome.CONVERGED, 1)


@pytest.mark.parametrize("size", [1, 30])
def test_the_zero_operator_is_not_informative(size: int) -> None:
    found = _top(torch.zeros(size, size, dtype=torch.float64), 1)
    assert found.outcome is Outcome.NOT_INFORMATIVE
    assert found.values.tolist() == [0.0]
    assert found.multiplicity == size


def test_rank_deficient_gives_zeros_after_the_range() -> None:
    values = torch.cat([torch.tensor([5.0, 4.0]), torch.zeros(60)])
    found = _top(_symmetric(values), 4)
    np.testing.assert_allclose(found.values, [5.0, 4.0, 0.0, 0.0], atol=1e-12)
    assert found.outcome is Outcome.CONVERGED


def test_the_identity_has_full_multiplicity() -> None:
    found = _top(torch.eye(20, dtype=torch.float64))
    assert found.multiplicity == 20
    assert found.outcome is Outcome.CONVERGED


def test_budget_end_is_a_word_with_the_residual() -> None:
    matrix = _symmetric(1 - torch.logspace(-6, 0, 400, dtype=torch.float64))
    found = _top(matrix, max_matvecs=12)
    assert found.outcome is Outcome.BUDGET_SPENT
    assert found.matvecs == 12
    assert float(found.residuals[0]) > 1e-6


def test_not_finite_is_a_word_without_values() -> None:
    found = _top(torch.full((5, 5), torch.nan, dtype=torch.float64))
    assert found.outcome is Outcome.NOT_FINITE
    assert found.values.numel() == 0


def test_float32_does_not_ask_for_more_than_it_has() -> None:
    matrix = _symmetric(torch.linspace(0.0, 1.0, 100) ** 2).float()
    found = _top(matrix)
    assert found.outcome is Outcome.CONVERGED
    assert float(found.values[0]) == pytest.approx(1.0, rel=1e-5)


def test_same_generator_same_bits() -> None:
    matrix = _symmetric(torch.linspace(0.0, 1.0, 100) ** 2)
    assert torch.equal(_top(matrix, 3).vectors, _top(matrix, 3).vectors)


def test_bad_arguments() -> None:
    generator = torch.Generator()
    with pytest.raises(InputError, match="expected a square operator"):
        block_lanczos(DenseOperator(torch.ones(2, 3)), generator=generator)
    with pytest.raises(InputError, match="count: expected a whole number of at least 1, got 0"):
        block_lanczos(DenseOperator(torch.eye(3)), 0, generator=generator)


@pytest.mark.parametrize("block", [1, 2])
def test_without_a_certificate_the_value_is_known_to_the_tolerance_in_fewer_products(block: int) -> None:
    values = torch.cat([torch.tensor([10.0, 9.0]), torch.linspace(0, 8, 98)]).double()
    operator = DenseOperator(torch.diag(values))
    for seed in range(10):
        found, certified = (
            block_lanczos(
                operator, generator=torch.Generator().manual_seed(seed), block=block, tolerance=1e-4, certify=certify
            )
            for certify in (False, True)
        )
        assert abs(float(found.values[0]) - 10) < 1e-3
        assert found.outcome is Outcome.CONVERGED
        assert found.matvecs < certified.matvecs


def test_a_good_guess_saves_products_and_a_wrong_one_does_not_hide_the_answer() -> None:
    values = torch.cat([torch.tensor([10.0, 9.0]), torch.linspace(0, 8, 98)]).double()
    operator = DenseOperator(torch.diag(values))
    identity = torch.eye(100, dtype=torch.float64)

    def run(start: torch.Tensor | None) -> TopEigenpairs:
        generator = torch.Generator().manual_seed(0)
        return block_lanczos(operator, generator=generator, block=1, tolerance=1e-4, certify=False, start=start)

    good, wrong = run(identity[0] + 0.1 * identity[5]), run(identity[1])
    assert good.matvecs < run(None).matvecs
    assert float(wrong.values[0]) == pytest.approx(10.0, rel=1e-4)
    assert run(torch.zeros(100, dtype=torch.float64)).matvecs == run(None).matvecs

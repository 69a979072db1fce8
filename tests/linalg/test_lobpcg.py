from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch
from tests.linalg.spectra import symmetric

from gradleak.linalg import DenseOperator, ExtremeEigenpairs, lobpcg
from gradleak.results import InputError, Outcome


def _find(matrix: torch.Tensor, count: int = 1, *, largest: bool, **options: float) -> ExtremeEigenpairs:
    generator = torch.Generator().manual_seed(3)
    found = lobpcg(DenseOperator(matrix), count, largest=largest, generator=generator, **options)
    errors = (matrix @ found.vectors - found.vectors * found.values).norm(dim=0)
    if found.outcome is not Outcome.NOT_FINITE:
        torch.testing.assert_close(errors, found.residuals, rtol=1e-3, atol=1e-13 * float(matrix.abs().max()) + 1e-300)
        gram = found.vectors.T @ found.vectors
        torch.testing.assert_close(gram, torch.eye(gram.shape[0], dtype=gram.dtype), rtol=0, atol=1e-9)
    return found


@pytest.mark.parametrize("largest", [True, False])
def test_agrees_with_scipy_at_both_ends(largest: bool) -> None:
    matrix = symmetric(torch.linspace(0.1, 3.0, 120) ** 2)
    found = _find(matrix, 4, largest=largest, tolerance=1e-8)
    expected = scipy.linalg.eigvalsh(matrix.numpy())
    np.testing.assert_allclose(found.values, expected[::-1][:4] if largest else expected[:4], rtol=1e-10)
    assert (found.outcome, found.converged, found.zeros) == (Outcome.CONVERGED, 4, 0)


@pytest.mark.parametrize("copies", [2, 4])
def test_a_repeated_top_eigenvalue_is_found_as_often(copies: int) -> None:
    found = _find(symmetric([3.0] * copies + torch.linspace(0.0, 2.5, 100).tolist()), copies + 1, largest=True)
    np.testing.assert_allclose(found.values, [3.0] * copies + [2.5], rtol=1e-8)
    assert found.outcome is Outcome.CONVERGED


def test_clustered_small_eigenvalues() -> None:
    cluster = [1.0, 1.0 + 1e-6, 1.0 + 2e-6]
    found = _find(symmetric(cluster + torch.linspace(2.0, 9.0, 100).tolist()), 3, largest=False)
    np.testing.assert_allclose(found.values, cluster, rtol=1e-8)
    assert found.outcome is Outcome.CONVERGED


def test_rank_deficient_names_the_null_space_and_keeps_what_converged() -> None:
    """U41: small eigenvalues of products alone; at the budget the converged part stays, with residuals."""
    matrix = symmetric([0.0, 0.0, 0.0, *torch.linspace(1.0, 5.0, 90).tolist()])
    found = _find(matrix, 4, largest=False)
    np.testing.assert_allclose(found.values, [0.0, 0.0, 0.0, 1.0], atol=1e-9)
    assert (found.outcome, found.zeros, found.converged) == (Outcome.NOT_IDENTIFIABLE, 3, 4)
    short = _find(matrix, 4, largest=False, max_matvecs=60)
    assert short.outcome is Outcome.BUDGET_SPENT
    assert short.converged < 4


@pytest.mark.parametrize("floor", [1e-6, 1e-12])
def test_ill_conditioned_ends_in_a_word_with_an_honest_residual(floor: float) -> None:
    values = torch.logspace(np.log10(floor), 0.0, 80, dtype=torch.float64)
    found = _find(symmetric(values), 1, largest=False, max_matvecs=600)
    assert found.outcome in (Outcome.BUDGET_SPENT, Outcome.CONVERGED)
    assert float((values - found.values).abs().min()) <= float(found.residuals) + 1e-14
    assert float(found.values) >= floor - 1e-14
    assert (found.converged == 1) == (found.outcome is Outcome.CONVERGED)


def test_a_preconditioner_reaches_the_small_end() -> None:
    values = torch.logspace(-6, 0, 80, dtype=torch.float64)
    matrix, inverse = symmetric(values), symmetric(1 / values)
    found = _find(matrix, 2, largest=False, preconditioner=lambda block: inverse @ block)
    np.testing.assert_allclose(found.values, values[:2], rtol=1e-6)
    assert found.outcome is Outcome.CONVERGED
    assert found.matvecs < 200


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("count", [1, 3, 7])
def test_one_dimension_and_counts_of_the_dimension_or_more(count: int, largest: bool) -> None:
    one = _find(torch.tensor([[2.5]], dtype=torch.float64), count, largest=largest)
    assert one.values.tolist() == [pytest.approx(2.5)]
    values = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    found = _find(symmetric(values), count, largest=largest)
    expected = (values.flip(0) if largest else values)[:count]
    np.testing.assert_allclose(found.values, expected, rtol=1e-12)
    assert found.outcome is Outcome.CONVERGED


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("size", [1, 60])
def test_the_zero_operator_is_not_informative(size: int, largest: bool) -> None:
    found = _find(torch.zeros(size, size, dtype=torch.float64), 1, largest=largest)
    assert found.outcome is Outcome.NOT_INFORMATIVE
    assert found.values.tolist() == [0.0]


def test_not_finite_is_a_word_without_values() -> None:
    found = _find(torch.full((60, 60), torch.nan, dtype=torch.float64), largest=False)
    assert (found.outcome, found.values.numel()) == (Outcome.NOT_FINITE, 0)


def test_same_generator_same_bits_and_the_count_of_products() -> None:
    matrix = symmetric(torch.linspace(1.0, 2.0, 60) ** 2)
    operator = DenseOperator(matrix)
    first = lobpcg(operator, 2, largest=False, generator=torch.Generator().manual_seed(1))
    assert operator.matvecs == first.matvecs
    second = lobpcg(operator, 2, largest=False, generator=torch.Generator().manual_seed(1))
    assert torch.equal(first.vectors, second.vectors)


def test_bad_arguments() -> None:
    generator = torch.Generator()
    with pytest.raises(InputError, match="expected a square operator"):
        lobpcg(DenseOperator(torch.ones(2, 3)), generator=generator)
    with pytest.raises(InputError, match="expected block >= count, got 2 and 3"):
        lobpcg(DenseOperator(torch.eye(9)), 3, block=2, generator=generator)

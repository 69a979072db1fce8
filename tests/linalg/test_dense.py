from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.linalg
import torch
from threadpoolctl import ThreadpoolController

from gradleak.linalg import GramSum, dense_eigenvalues, dense_gram, dense_spectrum, operator
from gradleak.results import InputError


def _random(rows: int, columns: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows), dtype=dtype)


@pytest.mark.parametrize("transposed", [True, False])
def test_gram_is_the_full_symmetric_product(transposed: bool) -> None:
    matrix = _random(9, 40).T if transposed else _random(40, 9)
    before = matrix.clone()
    gram = dense_gram(matrix)
    np.testing.assert_allclose(gram, matrix.numpy().T @ matrix.numpy(), rtol=1e-13, atol=1e-13)
    assert torch.equal(gram, gram.T)
    assert torch.equal(matrix, before)


def test_gram_in_float32() -> None:
    matrix = _random(40, 9, torch.float32)
    np.testing.assert_allclose(dense_gram(matrix), matrix.numpy().T @ matrix.numpy(), rtol=1e-4, atol=1e-4)


def test_spectrum_agrees_with_scipy() -> None:
    gram = dense_gram(_random(40, 9))
    spectrum = dense_spectrum(gram)
    np.testing.assert_allclose(spectrum.values, scipy.linalg.eigvalsh(gram.numpy()), rtol=1e-12)
    rebuilt = spectrum.vectors * spectrum.values @ spectrum.vectors.T
    torch.testing.assert_close(rebuilt, gram, rtol=1e-12, atol=1e-12)
    assert spectrum.rank == 9


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_eigenvalues_alone_agree_with_the_spectrum(dtype: torch.dtype) -> None:
    gram = dense_gram(_random(40, 9, dtype))
    torch.testing.assert_close(dense_eigenvalues(gram), dense_spectrum(gram).values)


def test_rank_counts_above_round_off() -> None:
    spectrum = dense_spectrum(dense_gram(_random(3, 9)))
    assert spectrum.rank == 3
    assert bool((spectrum.values >= 0).all())


def test_rank_of_zero_is_zero() -> None:
    assert dense_spectrum(torch.zeros(3, 3)).rank == 0


@pytest.mark.parametrize("function", [dense_spectrum, dense_eigenvalues])
def test_bad_matrices_are_refused(function: Callable[[torch.Tensor], object]) -> None:
    with pytest.raises(InputError, match=r"expected a square matrix, got shape \(2, 3\)"):
        function(torch.ones(2, 3))
    with pytest.raises(InputError, match="expected finite entries"):
        function(torch.full((2, 2), torch.nan))


def test_scipy_runs_on_as_many_threads_as_torch() -> None:
    # Bits may not depend on how many cores a worker sees.
    controller = ThreadpoolController()
    before = [pool["num_threads"] for pool in controller.info()]
    with operator._threads_of_torch():
        assert {pool["num_threads"] for pool in controller.info() if pool["user_api"] == "blas"} == {
            torch.get_num_threads()
        }
    assert [pool["num_threads"] for pool in controller.info()] == before


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_sum_of_gram_matrices_is_that_of_the_rows_together(dtype: torch.dtype) -> None:
    blocks = [_random(9, 7, dtype), _random(9, 3, dtype), _random(9, 0, dtype)]
    left, right = _random(9, 4, dtype), _random(9, 4, dtype) + 1
    total = GramSum(9, blocks[0])
    for block in blocks:
        total.add(block)
    total.add_cross(left, right)
    total.add_cross(right, left)
    together = torch.cat(blocks, 1).numpy()
    cross = left.numpy() @ right.numpy().T
    found = total.total()
    np.testing.assert_allclose(found, together @ together.T + 2 * (cross + cross.T), rtol=1e-5, atol=1e-5)
    assert torch.equal(found, found.T)

from __future__ import annotations

import numpy as np
import pytest
import torch

from gradleak.linalg import DenseOperator, Gram
from gradleak.results import InputError


@pytest.fixture
def matrix() -> torch.Tensor:
    return torch.randn(7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_products_agree_with_numpy(matrix: torch.Tensor) -> None:
    block = torch.randn(4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    image = torch.randn(7, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    operator = DenseOperator(matrix)
    np.testing.assert_allclose(operator.matmat(block), matrix.numpy() @ block.numpy(), rtol=1e-14)
    np.testing.assert_allclose(operator.adjoint_matmat(image), matrix.numpy().T @ image.numpy(), rtol=1e-14)


def test_gram_is_the_product_with_the_adjoint(matrix: torch.Tensor) -> None:
    gram = Gram(DenseOperator(matrix))
    expected = matrix.numpy().T @ matrix.numpy()
    identity = torch.eye(4, dtype=torch.float64)
    assert gram.shape == (4, 4)
    np.testing.assert_allclose(gram.matmat(identity), expected, rtol=1e-14)
    np.testing.assert_allclose(gram.adjoint_matmat(identity), expected, rtol=1e-14)


def test_matvecs_count_columns(matrix: torch.Tensor) -> None:
    factor = DenseOperator(matrix)
    gram = Gram(factor)
    gram.matmat(torch.ones(4, 3, dtype=torch.float64))
    assert gram.matvecs == 3
    assert factor.matvecs == 6


@pytest.mark.parametrize("block", [torch.ones(4), torch.ones(5, 1)])
def test_a_block_of_another_shape_is_refused(matrix: torch.Tensor, block: torch.Tensor) -> None:
    with pytest.raises(InputError, match=r"expected a block of shape \(4, k\), got"):
        DenseOperator(matrix).matmat(block.double())


def test_a_vector_is_no_matrix() -> None:
    with pytest.raises(InputError, match=r"expected a matrix \(m, n\)"):
        DenseOperator(torch.ones(3))

import pytest
import torch

from gradleak.models import linear_model

pytestmark = pytest.mark.usefixtures("global_rng_unchanged")


def test_computes_an_affine_map_of_the_flattened_input() -> None:
    model = linear_model(features=6, classes=2)
    assert sum(p.numel() for p in model.parameters()) == 14
    x = torch.arange(12.0).reshape(2, 1, 2, 3)
    weight, bias = model.parameters()
    expected = torch.einsum("bi,ci->bc", x.reshape(2, 6), weight) + bias
    torch.testing.assert_close(model(x), expected)


def test_one_gradient_gives_the_input_away() -> None:
    model = linear_model(features=6, classes=2).double()
    x = torch.linspace(0, 1, 6, dtype=torch.float64)[None]
    loss = torch.nn.functional.cross_entropy(model(x), torch.tensor([1]))
    weight, bias = torch.autograd.grad(loss, list(model.parameters()))
    torch.testing.assert_close(weight[0] / bias[0], x[0])

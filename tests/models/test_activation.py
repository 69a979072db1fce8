import pytest
import torch
from torch import Tensor

from gradleak.models import Activation
from gradleak.results.errors import InputError

REFERENCES = {
    Activation.SIGMOID: lambda x: 1 / (1 + torch.exp(-x)),
    Activation.TANH: lambda x: (torch.exp(x) - torch.exp(-x)) / (torch.exp(x) + torch.exp(-x)),
    Activation.RELU: lambda x: x * (x > 0),
    Activation.GELU: lambda x: x * (1 + torch.erf(x / 2**0.5)) / 2,
}


def points() -> Tensor:
    return torch.linspace(-4, 4, 33, dtype=torch.float64)


@pytest.mark.parametrize("activation", list(Activation))
def test_module_computes_its_definition(activation: Activation) -> None:
    torch.testing.assert_close(activation.module()(points()), REFERENCES[activation](points()))


@pytest.mark.parametrize("activation", list(Activation))
def test_module_leaves_its_input_alone(activation: Activation) -> None:
    x = points()
    activation.module()(x)
    assert torch.equal(x, points())


def test_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"sigmoid, tanh, relu, gelu, got 'swish'"):
        Activation.named("swish")

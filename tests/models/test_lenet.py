import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import cross_entropy

from gradleak.models import Activation, lenet_dlg, lenet_i2f
from gradleak.results.errors import InputError

pytestmark = pytest.mark.usefixtures("global_rng_unchanged")

ORACLES = {
    "lenet_sigmoid_uniform": Activation.SIGMOID,
    "lenet_tanh_default": Activation.TANH,
    "lenet_relu_default": Activation.RELU,
}


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("name", "activation"), ORACLES.items())
def test_i2f_computes_the_gradient_of_the_reference(shared: Path, name: str, activation: Activation) -> None:
    stored = load_file(shared / "oracles" / f"{name}.safetensors")
    expected = json.loads((shared / "oracles" / f"{name}.json").read_text())["values"]
    model = lenet_i2f(activation=activation).double()
    state = {key.removeprefix("model."): value for key, value in stored.items() if key.startswith("model.")}
    assert {key: value.shape for key, value in model.state_dict().items()} == {
        key: value.shape for key, value in state.items()
    }
    model.load_state_dict(state)
    gradient = torch.autograd.grad(cross_entropy(model(stored["x"]), stored["y"]), list(model.parameters()))
    norm = torch.cat([part.flatten() for part in gradient]).norm()
    assert float(norm) == pytest.approx(expected["gradient_norm"], rel=1e-10)


def test_parameter_counts_of_the_papers() -> None:
    assert parameters(lenet_i2f()) == 17_038
    assert parameters(lenet_dlg()) == 15_826


@pytest.mark.parametrize("build", [lenet_i2f, lenet_dlg])
@pytest.mark.parametrize(("channels", "size", "classes"), [(1, 28, 10), (3, 32, 100), (3, 33, 7)])
def test_logits_for_every_class(build, channels: int, size: int, classes: int) -> None:
    model = build(channels=channels, size=size, classes=classes)
    assert model(torch.zeros(2, channels, size, size)).shape == (2, classes)


def test_dlg_ends_in_768_numbers() -> None:
    assert lenet_dlg()[:-1](torch.zeros(1, 3, 32, 32)).shape == (1, 768)


def test_strides_are_those_of_the_papers() -> None:
    def strides(model: nn.Sequential) -> list[tuple[int, ...]]:
        return [layer.stride for layer in model if isinstance(layer, nn.Conv2d)]

    assert strides(lenet_i2f()) == [(2, 2), (2, 2), (1, 1), (1, 1)]
    assert strides(lenet_dlg()) == [(2, 2), (2, 2), (1, 1)]


@pytest.mark.parametrize("build", [lenet_i2f, lenet_dlg])
def test_weights_come_from_the_generator(build) -> None:
    def first(seed: int) -> torch.Tensor:
        return build(generator=torch.Generator().manual_seed(seed))[0].weight

    assert torch.equal(first(5), first(5))
    assert not torch.equal(first(5), first(6))
    assert torch.equal(build()[0].weight, first(0))


@pytest.mark.parametrize("build", [lenet_i2f, lenet_dlg])
def test_unknown_activation_is_refused(build) -> None:
    with pytest.raises(InputError, match="activation: expected one of sigmoid, tanh"):
        build(activation="step")

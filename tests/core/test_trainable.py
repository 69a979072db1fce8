"""A model of which nothing is trained is refused with what holds its weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gradleak.core import Batch, Objective
from gradleak.core.trainable import check_trainable
from gradleak.results import InputError

# Torch's own of its quantization, which it is about to move to another package.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
IMAGES = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))


def dynamic() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
    quantized: nn.Module = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    return quantized


def static() -> nn.Module:
    stubs = torch.ao.quantization.QuantStub(), torch.ao.quantization.DeQuantStub()
    model = nn.Sequential(stubs[0], nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3), stubs[1]).eval()
    model.qconfig = torch.ao.quantization.get_default_qconfig(torch.backends.quantized.engine)
    prepared = torch.ao.quantization.prepare(model)
    prepared(IMAGES)
    converted: nn.Module = torch.ao.quantization.convert(prepared)
    return converted


class Bytes(nn.Module):
    """Weights of one byte, as a buffer or as a parameter, scaled on the way."""

    def __init__(self, *, parameter: bool) -> None:
        super().__init__()
        weights = torch.arange(48, dtype=torch.int8).reshape(3, 16)
        if parameter:
            self.held = nn.Parameter(weights, requires_grad=False)
        else:
            self.register_buffer("held", weights)

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1) @ (0.01 * self.held.float()).T


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (dynamic, r"got a quantized model, whose weights are integers without a gradient \(1, 3\); audit the floating"),
        (static, r"got a quantized model, .* \(1, 4\); audit the floating point model that the client trains"),
        (lambda: Bytes(parameter=False), r"got a quantized model, .* \(held\)"),
        (lambda: Bytes(parameter=True), r"got a quantized model, .* \(held\)"),
        (
            lambda: nn.Linear(4, 3).requires_grad_(False),
            r"got 2 that are all frozen \(weight, bias\); call requires_grad_",
        ),
        (nn.Flatten, "requires_grad=True, got none$"),
    ],
)
def test_what_holds_the_weights_is_named(model, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Objective.from_module(model())


def test_a_quantized_part_is_noted() -> None:
    model = nn.Sequential(*list(dynamic())[:3], nn.Linear(8, 3))
    objective = Objective.from_module(model)
    assert list(objective.params) == ["3.weight", "3.bias"]
    assert "quantized, neither trained nor shared: 1" in objective.notes
    objective.check(Batch(IMAGES, torch.tensor([0, 2])))


def test_plain_models_have_no_note() -> None:
    assert check_trainable(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2).requires_grad_(False))) == ()

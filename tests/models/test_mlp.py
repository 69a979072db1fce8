import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import cross_entropy

from gradleak.models import mlp

pytestmark = pytest.mark.usefixtures("global_rng_unchanged")


def test_computes_the_gradient_of_the_reference(shared: Path) -> None:
    stored = load_file(shared / "oracles" / "mlp_tanh_batch4.safetensors")
    expected = json.loads((shared / "oracles" / "mlp_tanh_batch4.json").read_text())["values"]
    model = mlp(features=12, hidden=(32, 16), classes=3, activation="tanh").double()
    model.load_state_dict({k.removeprefix("model."): v for k, v in stored.items() if k.startswith("model.")})
    gradient = torch.autograd.grad(cross_entropy(model(stored["x"]), stored["y"]), list(model.parameters()))
    norm = torch.cat([part.flatten() for part in gradient]).norm()
    assert float(norm) == pytest.approx(expected["gradient_norm"], rel=1e-10)


def test_without_hidden_layers_it_is_one_linear_map() -> None:
    model = mlp(features=5, hidden=(), classes=2)
    assert [type(layer) for layer in model] == [nn.Linear]


def test_default_widths() -> None:
    model = mlp(features=784, classes=10)
    assert sum(p.numel() for p in model.parameters()) == 785 * 1024 + 1025 * 1024 + 1025 * 10
    assert model(torch.zeros(3, 784)).shape == (3, 10)

"""The dense reference cases beside the repository: model, batch, perturbation and expected values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from gradleak.core import Batch, Exposure, Objective, Release
from gradleak.defenses import ClipPerExample
from gradleak.protocols import FedAvg, FedSGD

LENETS = ("lenet_sigmoid_uniform", "lenet_tanh_default", "lenet_relu_default")
RELEASES = {
    "mlp_tanh_batch4": Release(FedSGD()),
    "mlp_tanh_batch4_clipped": Release(FedSGD(), [ClipPerExample(0.5)]),
    "mlp_tanh_batch4_fedavg3": Release(FedAvg(learning_rate=0.1, epochs=3)),
}
NAMES = (*LENETS, *RELEASES)

_ACTIVATIONS = {"sigmoid": nn.Sigmoid, "tanh": nn.Tanh, "relu": nn.ReLU}


@dataclass(frozen=True)
class Oracle:
    exposure: Exposure
    delta: Tensor
    values: Mapping[str, float]


def load_oracle(shared: Path, name: str) -> Oracle:
    """A case, in float64; the models are built here from torch alone, without a draw."""
    tensors = load_file(shared / "oracles" / f"{name}.safetensors")
    values = json.loads((shared / "oracles" / f"{name}.json").read_text())["values"]
    model = _lenet(name.split("_")[1]) if name.startswith("lenet") else _mlp()
    model.double().to_empty(device="cpu").load_state_dict(
        {key.removeprefix("model."): tensor for key, tensor in tensors.items() if key.startswith("model.")}
    )
    batch = Batch(tensors["x"].double(), tensors["y"])
    exposure = Exposure(Objective.from_module(model), batch, RELEASES.get(name, Release(FedSGD())))
    return Oracle(exposure, tensors["delta"].double(), values)


def _lenet(activation: str) -> nn.Sequential:
    with torch.device("meta"):
        return _layers(activation)


def _layers(activation: str) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, stride in ((1, 2), (12, 2), (12, 1), (12, 1)):
        layers += [nn.Conv2d(inputs, 12, 5, stride=stride, padding=2), _ACTIVATIONS[activation]()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(588, 10))


def _mlp() -> nn.Sequential:
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 3))

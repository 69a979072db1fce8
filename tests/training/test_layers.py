from __future__ import annotations

import pytest
import torch
from torch import nn

import gradleak as gl
from gradleak.core import example_gradients
from gradleak.models import resnet8
from gradleak.results import InputError
from gradleak.training import GroupNormForBatchNorm, values_normalized


def _small() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))


def test_batch_norm_becomes_group_norm_in_a_copy_and_is_listed() -> None:
    model = _small()
    inputs = torch.rand(2, 1, 8, 8)
    model(inputs)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    other, layers = GroupNormForBatchNorm()(model, inputs)
    assert [(layer.name, layer.now.split(",")[0], layer.values) for layer in layers] == [("1", "GroupNorm(2", 16 * 36)]
    assert layers[0].was.startswith("BatchNorm2d(32")
    assert not layers[0].erases
    assert isinstance(model[1], nn.BatchNorm2d)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert other[0].weight is not model[0].weight
    # What torch's GroupNorm gives, with scale and shift of the old layer.
    expected = nn.functional.group_norm(model[0](inputs), 2, model[1].weight, model[1].bias, model[1].eps)
    assert torch.allclose(other[1](other[0](inputs)), expected)


def test_groups_hold_enough_channels_and_divide_them() -> None:
    found = {}
    for channels in (1, 12, 16, 24, 100):
        _, layers = GroupNormForBatchNorm()(nn.Sequential(nn.BatchNorm1d(channels)))
        found[channels] = int(layers[0].now.removeprefix("GroupNorm(").split(",")[0])
    assert found == {1: 1, 12: 1, 16: 1, 24: 1, 100: 5}
    alone, layers = GroupNormForBatchNorm()(nn.BatchNorm2d(4, affine=False))
    assert isinstance(alone, nn.GroupNorm)
    assert layers[0].name == ""
    with pytest.raises(InputError, match="at least 1, got 0"):
        GroupNormForBatchNorm(channels_per_group=0)


def test_a_residual_network_gets_gradients_of_single_examples() -> None:
    model = resnet8(channels=1, classes=3, activation="tanh", width=4)
    inputs, targets = torch.rand(3, 1, 8, 8), torch.tensor([0, 1, 2])
    other, layers = GroupNormForBatchNorm()(model, inputs)
    assert len(layers) == sum(isinstance(part, nn.BatchNorm2d) for part in model.modules()) > 5
    objective = gl.Objective.from_module(other, mode="train")
    assert not objective.batch_statistics
    rows = example_gradients(objective, objective.params, gl.Batch(inputs, targets))
    whole = objective.gradient(objective.params, gl.Batch(inputs, targets))
    assert all(torch.allclose(rows[name].mean(dim=0), whole[name], atol=1e-6) for name in whole)


def test_layers_that_normalize_single_numbers_are_found() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.BatchNorm1d(6))
    inputs = torch.rand(2, 1, 2, 2)
    _, layers = GroupNormForBatchNorm(channels_per_group=1)(model, inputs)
    assert layers[0].erases
    _, layers = GroupNormForBatchNorm()(model, inputs)
    assert layers[0].values == 6

    norms = nn.Sequential(
        nn.InstanceNorm2d(1), nn.Flatten(), nn.LayerNorm(4), nn.Unflatten(1, (4, 1, 1)), nn.InstanceNorm2d(4)
    )
    assert values_normalized(norms, inputs) == {"0": 4, "2": 4, "4": 1}
    assert norms.training

"""Numbers of a model that keep anything from coming through are named: layer, buffer and magnitude."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from gradleak.core import Batch, Exposure, Objective, Release, out_of_scale
from gradleak.operators import GradientJacobian, check_derivative
from gradleak.protocols import FedSGD
from gradleak.results import InputError, Outcome
from gradleak.risk import FisherInformationLoss

IMAGES = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(1))
LABELS = torch.tensor([0, 2])


def model(activation: type[nn.Module] = nn.Sigmoid) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(0)
        first = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), activation()]
        return nn.Sequential(
            *first, nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), activation(), nn.Flatten(), nn.Linear(64, 3)
        )


def broken(name: str, value: float, place: int | None = None, activation: type[nn.Module] = nn.Sigmoid) -> Objective:
    given = model(activation)
    part, _, tensor = name.rpartition(".")
    with torch.no_grad():
        held = getattr(given[int(part)], tensor)
        (held if place is None else held[place]).fill_(value)
    return Objective.from_module(given)


@pytest.mark.parametrize("activation", [nn.Sigmoid, nn.Tanh, nn.ReLU])
@pytest.mark.parametrize(
    ("name", "value", "place", "said"),
    [
        ("1.running_var", 1e18, None, "running_var of BatchNorm layer 1 is up to 1e+18, far out of proportion"),
        ("1.running_mean", 1e9, None, "running_mean of BatchNorm layer 1 is up to 1e+09, far out"),
        ("1.running_mean", -1e5, None, "running_mean of BatchNorm layer 1 is up to -1e+05, far out"),
        ("4.running_var", 1e12, 3, "running_var of BatchNorm layer 4 is up to 1e+12, far out"),
        ("4.running_var", -1.0, 2, "running_var of BatchNorm layer 4 is negative, down to -1"),
        ("4.running_var", math.inf, 0, "4.running_var holds NaN or infinity in 1 of 4 entries"),
        ("1.weight", math.nan, None, "1.weight holds NaN or infinity in 4 of 4 entries"),
    ],
)
def test_layer_buffer_and_magnitude_are_named(
    name: str, value: float, place: int | None, said: str, activation: type[nn.Module]
) -> None:
    objective = broken(name, value, place, activation)
    assert said in out_of_scale(objective, IMAGES)
    exposure = Exposure(objective, Batch(IMAGES, LABELS), Release(FedSGD()))
    check = check_derivative(exposure, generator=torch.Generator().manual_seed(0))
    if check.outcome is not Outcome.CONVERGED:
        assert said in check.note
        assert "custom autograd" not in check.note
    try:
        operator = GradientJacobian(exposure)
    except InputError as refusal:
        assert said in str(refusal)  # noqa: PT017
        return
    assert said in " ".join(operator.notes)
    assert "dead units" not in " ".join(operator.notes)
    assert "dead units" not in FisherInformationLoss(std=1.0)(exposure).note


@pytest.mark.parametrize("name", ["running_mean 1e9", "running_var 1e18"])
def test_dead_units_and_custom_autograd_are_not_blamed(name: str) -> None:
    buffer, value = name.split()
    exposure = Exposure(broken(f"1.{buffer}", float(value)), Batch(IMAGES, LABELS), Release(FedSGD()))
    check = check_derivative(exposure, generator=torch.Generator().manual_seed(0))
    assert check.outcome is Outcome.NOT_INFORMATIVE
    assert f"{buffer} of BatchNorm layer 1 is up to {float(value):.2g}" in check.note
    if buffer == "running_mean":
        note = FisherInformationLoss(std=1.0)(exposure).note
        assert f"{buffer} of BatchNorm layer 1 is up to 1e+09" in note


def test_a_loss_that_is_not_finite_names_the_buffer() -> None:
    with pytest.raises(InputError, match=r"got nan; 1.running_var holds NaN or infinity in 1 of 4"):
        broken("1.running_var", math.nan, 2).check(Batch(IMAGES, LABELS))


def test_usual_models_have_nothing_to_say() -> None:
    for inputs in (IMAGES, 255 * IMAGES, 1e-3 * IMAGES, torch.zeros_like(IMAGES)):
        assert out_of_scale(Objective.from_module(model()), inputs) == ""
    dead = model(nn.ReLU)
    with torch.no_grad():
        dead[1].bias.fill_(-100.0)  # everything after is zero, and its statistics are those of a new layer
    assert out_of_scale(Objective.from_module(dead), IMAGES) == ""
    exploded = broken("1.running_var", 1e18)
    assert out_of_scale(exploded.in_mode("train"), IMAGES) == ""  # the batch's own moments count there
    assert out_of_scale(Objective.from_module(nn.Linear(8, 3)), IMAGES[:, 0, 0]) == ""


@pytest.mark.parametrize("form", ["one byte", "sparse"])
def test_buffers_that_torch_has_no_rule_for_are_looked_at(form: str) -> None:
    class Kept(nn.Module):
        def __init__(self, entry: float) -> None:
            super().__init__()
            self.inner = nn.Linear(64, 3)
            kept = torch.tensor([1.0, entry])
            self.register_buffer("kept", kept.to(torch.float8_e5m2) if form == "one byte" else kept.to_sparse())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x.flatten(1))

    assert out_of_scale(Objective.from_module(Kept(0.5)), IMAGES) == ""
    found = out_of_scale(Objective.from_module(Kept(math.inf)), IMAGES)
    assert found == "kept holds NaN or infinity in 1 of 2 entries"

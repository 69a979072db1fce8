from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from tests.operators.models import (
    Cube,
    DetachedCube,
    NumpyNoise,
    Residual,
    StraightThrough,
    between,
    exposure_of,
)
from tests.operators.test_any_model import MODELS
from torch import Tensor, nn

from gradleak.core import Batch, Exposure, Guarantee, Objective, Release, UpdateDefense
from gradleak.defenses import Clip, GaussianNoise, Quantize, Sign
from gradleak.models import lenet_dlg, lenet_i2f, resnet8, resnet18
from gradleak.operators import GradientJacobian, central_difference_adjoint, check_derivative
from gradleak.protocols import FedSGD
from gradleak.results import Evidence, InputError, Outcome, UnsupportedError


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _hidden_factor(x: Tensor) -> Tensor:
    return x.detach().sin() * x


@pytest.mark.parametrize(
    "function", [torch.tanh, torch.relu, Cube.apply, _hidden_factor], ids=["tanh", "relu", "custom", "hidden"]
)
def test_a_right_derivative_is_confirmed(function: object) -> None:
    for seed in range(5):
        check = check_derivative(exposure_of(between(function), (4,)), generator=_generator(seed))
        assert check.outcome is Outcome.CONVERGED
        assert check.error is not None
        assert check.error < 1e-5
        # A single product, of a gradient that the loss's own graph holds or (with a stopped factor) does not.
        assert check.route == ("double_vjp(loop)" if function is _hidden_factor else "reverse_over_reverse(loop)")


def test_a_bite_of_a_clip_is_confirmed() -> None:
    exposure = replace(exposure_of(between(torch.tanh), (4,)), release=Release(FedSGD(), [Clip(0.1)]))
    assert check_derivative(exposure, generator=_generator()).outcome is Outcome.CONVERGED


@pytest.mark.parametrize("function", [DetachedCube.apply, StraightThrough.apply], ids=["detached", "straight"])
def test_a_wrong_second_derivative_is_caught(function: object) -> None:
    for seed in range(5):
        check = check_derivative(exposure_of(between(function), (4,)), generator=_generator(seed))
        assert check.outcome is Outcome.INCONSISTENT
        assert check.error is not None
        assert check.error > 1e-2
        assert "custom autograd function" in check.note


@pytest.mark.parametrize("activation", [nn.ReLU, nn.ELU, nn.GELU, nn.Hardtanh], ids=lambda kind: kind.__name__)
def test_ties_at_the_truth_are_no_wrong_derivative(activation: type[nn.Module]) -> None:
    # Black patches: the poolings tie and the activations sit at zero, so that differences to both sides disagree.
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False), activation(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 2)
    )
    exposure = exposure_of(model, (1, 8, 8), examples=1)
    black = exposure.batch.inputs.clone()
    black[..., 2:, :] = 0.0
    exposure = replace(exposure, batch=exposure.batch.with_inputs(black))
    for seed in range(5):
        assert check_derivative(exposure, generator=_generator(seed)).outcome is Outcome.CONVERGED


@pytest.mark.parametrize("name", MODELS)
def test_models_as_users_have_them_raise_no_false_alarm(name: str) -> None:
    build, shape, mode = MODELS[name]
    exposure = exposure_of(build(), shape, mode=mode, examples=4)
    for seed in range(3):
        assert check_derivative(exposure, generator=_generator(seed)).outcome is Outcome.CONVERGED


@pytest.mark.parametrize("build", [lenet_i2f, lenet_dlg, resnet8], ids=lambda build: build.__name__)
def test_networks_of_the_papers_with_kinks_raise_no_false_alarm(build: Callable[..., nn.Module]) -> None:
    model = build(activation="relu", channels=3, generator=_generator())
    side = 28 if build is lenet_i2f else 32
    batch = Batch(torch.rand((1, 3, side, side), generator=_generator(1)), torch.tensor([1]))
    exposure = Exposure(Objective.from_module(model), batch, Release(FedSGD()))
    for seed in range(3):
        assert check_derivative(exposure, generator=_generator(seed)).outcome is Outcome.CONVERGED


@pytest.mark.slow
def test_resnet18_raises_no_false_alarm() -> None:
    batch = Batch(torch.rand((1, 3, 32, 32), generator=_generator(1)), torch.tensor([1]))
    exposure = Exposure(Objective.from_module(resnet18(generator=_generator())), batch, Release(FedSGD()))
    for seed in range(2):
        assert check_derivative(exposure, generator=_generator(seed)).outcome is Outcome.CONVERGED


def test_what_takes_no_inputs_beside_the_truth_is_no_verdict() -> None:
    class Categories(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(2, 4), nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.cat([self.embedding(x[:, 0].long()), x[:, 1:]], dim=1).tanh())

    exposure = exposure_of(Categories(), (2,))
    with_categories = exposure.batch.with_inputs(torch.tensor([[1.0, 0.3], [-0.0, 99.0]]).double())
    check = check_derivative(replace(exposure, batch=with_categories), generator=_generator())
    assert check.outcome is Outcome.NOT_INFORMATIVE
    assert "cannot be computed beside the private batch (" in check.note


def test_the_wrong_function_gives_the_right_gradient() -> None:
    # Which is why only values of the gradient can tell.
    wrong, right = (exposure_of(between(function), (4,)) for function in (DetachedCube.apply, lambda x: x**3))
    torch.testing.assert_close(wrong.released_mean(), right.released_mean(), rtol=1e-12, atol=1e-14)


def test_no_step_to_believe_is_no_verdict() -> None:
    # A function with kinks closer than any step.
    exposure = exposure_of(between(lambda x: x + 1e-4 * (1e9 * x).sin()), (4,))
    check = check_derivative(exposure, generator=_generator())
    assert check.outcome is Outcome.NOT_INFORMATIVE
    assert check.error is None
    assert "not smooth enough" in check.note


def test_a_map_without_derivative_and_a_random_one() -> None:
    smooth = exposure_of(between(torch.tanh), (4,))
    flat = replace(smooth, release=Release(FedSGD(), [Sign()]))
    assert check_derivative(flat, generator=_generator()).outcome is Outcome.NOT_INFORMATIVE
    random = exposure_of(nn.Sequential(nn.Linear(4, 4), NumpyNoise(), nn.Linear(4, 2)), (4,))
    check = check_derivative(random, generator=_generator())
    assert check.outcome is Outcome.UNSUPPORTED
    assert "not deterministic" in check.note


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_rounding_is_flat_and_no_fault_of_the_model(bits: int) -> None:
    smooth = exposure_of(between(torch.tanh), (4,))
    release = Release(FedSGD(), [Clip(0.5), Quantize(bits=bits, stochastic=False)])
    check = check_derivative(replace(smooth, release=release), generator=_generator())
    assert check.outcome is Outcome.NOT_INFORMATIVE
    assert "Quantize is constant almost everywhere" in check.note


@dataclass(frozen=True)
class _Detaching(UpdateDefense):
    """A home-made defense that leaves out its derivative and does not say so."""

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC

    def mean(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.detach() * tensor for name, tensor in update.items()}

    def noise(self, shapes: Mapping[str, Tensor]) -> None:
        return None

    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        return self.mean(update)


def test_a_defense_that_detaches_is_blamed_in_place_of_the_model() -> None:
    smooth, wrong = (exposure_of(between(function), (4,)) for function in (torch.tanh, DetachedCube.apply))
    notes = [
        check_derivative(replace(exposure, release=Release(FedSGD(), [_Detaching()])), generator=_generator())
        for exposure in (smooth, wrong)
    ]
    assert [check.outcome for check in notes] == [Outcome.INCONSISTENT, Outcome.INCONSISTENT]
    assert "the derivative of _Detaching is wrong (that of the model alone is right)" in notes[0].note
    assert "the second derivative of layer 1 (Then) is wrong" in notes[1].note


def _cotangent(exposure: Exposure) -> Tensor:
    return torch.randn(exposure.objective.size, generator=_generator(3), dtype=torch.float64)


def test_central_differences_of_the_input_gradient_are_an_estimate_of_the_adjoint() -> None:
    exposure = exposure_of(between(torch.tanh), (4,))
    u = _cotangent(exposure)
    found = central_difference_adjoint(exposure, u)
    want = GradientJacobian(exposure).adjoint_matmat(u[:, None])[:, 0]
    assert found.outcome is Outcome.CONVERGED
    assert found.evidence is Evidence.ESTIMATE
    assert found.value is not None
    torch.testing.assert_close(found.value, want, rtol=1e-6, atol=1e-9)
    nothing = central_difference_adjoint(exposure, torch.zeros_like(u))
    assert nothing.value is not None
    assert not bool(nothing.value.any())


def test_central_differences_over_kinks_have_no_value() -> None:
    exposure = exposure_of(between(lambda x: x + 1e-4 * (1e9 * x).sin()), (4,))
    found = central_difference_adjoint(exposure, _cotangent(exposure))
    assert found.outcome is Outcome.NOT_INFORMATIVE
    assert found.value is None


def test_central_differences_refuse_other_releases() -> None:
    exposure = exposure_of(Residual(in_place=True), (2, 3, 3))
    with pytest.raises(InputError, match=r"expected \d+ entries, got 3"):
        central_difference_adjoint(exposure, torch.ones(3))
    noisy = replace(exposure, release=Release(FedSGD(), [GaussianNoise(std=1.0)]))
    with pytest.raises(UnsupportedError, match="expected a release that is the plain gradient"):
        central_difference_adjoint(noisy, _cotangent(noisy))


def test_bad_arguments() -> None:
    exposure, generator = exposure_of(between(torch.tanh), (4,)), _generator()
    # With NaN for a tolerance every derivative would be called wrong.
    for tolerance in (math.nan, 0.0, 1.0, "1", None, True):
        with pytest.raises(InputError, match="tolerance: expected a number between 0 and 1, got "):
            check_derivative(exposure, generator=generator, tolerance=tolerance)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"expected an Exposure and a torch\.Generator, got Objective and NoneType"):
        check_derivative(exposure.objective, generator=None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"expected \d+ entries, got str"):
        central_difference_adjoint(exposure, "u")  # type: ignore[arg-type]
    tracked = _cotangent(exposure).requires_grad_()
    found = central_difference_adjoint(exposure, tracked)
    assert found.value is not None
    assert not found.value.requires_grad

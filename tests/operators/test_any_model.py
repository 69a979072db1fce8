"""Models as users have them: attention, recurrence, in-place operations, checkpointing, tied and frozen weights ..."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tests.operators.models import (
    Checkpointed,
    Counting,
    Cube,
    Extractor,
    Fused,
    NumpyNoise,
    Residual,
    Sequence,
    Temperature,
    Tied,
    TorchNoise,
    TwistedScale,
    WrittenOut,
    between,
    differences,
    exposure_of,
    own_slope,
)
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from gradleak.core import Batch, Exposure, Objective, Release
from gradleak.operators import GradientJacobian, Route
from gradleak.protocols import FedSGD
from gradleak.results import UnsupportedError

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "rnn": (lambda: Sequence(nn.RNN(3, 4, batch_first=True), 4), (5, 3), "eval"),
    "gru": (lambda: Sequence(nn.GRU(3, 4, batch_first=True), 4), (5, 3), "eval"),
    "lstm": (lambda: Sequence(nn.LSTM(3, 4, batch_first=True), 4), (5, 3), "eval"),
    "fused attention": (lambda: Sequence(Fused(), 3), (5, 3), "eval"),
    "multihead attention": (lambda: Sequence(nn.MultiheadAttention(4, 2, batch_first=True), 4), (3, 4), "eval"),
    "encoder layer": (
        lambda: Sequence(nn.TransformerEncoderLayer(4, 2, 6, activation="gelu", batch_first=True), 4), (3, 4), "eval",
    ),
    "dropout": (lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.4), nn.Linear(8, 2)), (4,), "train"),
    "batch norm": (lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2)), (4,), "eval"),
    "batch norm, train": (
        lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2)), (4,), "train",
    ),
    "checkpoint": (lambda: Checkpointed(reentrant=False), (4,), "eval"),
    "reentrant checkpoint": (lambda: Checkpointed(reentrant=True), (4,), "eval"),
    "tied, frozen, unused": (Tied, (2,), "eval"),
    "function without setup_context": (lambda: between(Cube.apply), (4,), "eval"),
    "gradient of no loss": (TwistedScale, (4,), "eval"),
    "stop gradient": (lambda: between(lambda x: x * x.detach() + x.sin().data), (4,), "eval"),
    "features without gradients": (Extractor, (4,), "eval"),
    "spectral norm, train": (
        lambda: nn.Sequential(spectral_norm(nn.Linear(4, 4)), nn.Tanh(), nn.Linear(4, 2)), (4,), "train",
    ),
    "attributes and inputs in place": (Counting, (4,), "eval"),
    "scalar and empty parameters": (Temperature, (4,), "eval"),
    "torch.func inside": (lambda: between(own_slope), (4,), "eval"),
    "global generator": (lambda: nn.Sequential(nn.Linear(4, 4), TorchNoise(), nn.Tanh(), nn.Linear(4, 2)), (4,), "eval"),
}  # fmt: skip


def _case(name: str) -> Exposure:
    build, shape, mode = MODELS[name]
    return exposure_of(build(), shape, mode=mode, examples=4)


@pytest.mark.parametrize("name", MODELS)
def test_products_agree_with_central_differences(name: str) -> None:
    exposure = _case(name)
    want = differences(exposure)
    operator = GradientJacobian(exposure)
    rows, columns = operator.shape
    torch.testing.assert_close(operator.matmat(torch.eye(columns).double()), want, rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(operator.matmat(torch.eye(columns).double()[:, :1]), want[:, :1], rtol=1e-5, atol=1e-8)
    left = torch.randn(rows, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(operator.adjoint_matmat(left), want.T @ left, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(operator.normal(want[:1].T), want.T @ (want @ want[:1].T), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", MODELS)
def test_every_route_that_a_model_supports_gives_the_same_value(name: str) -> None:
    exposure = _case(name)
    want = GradientJacobian(exposure).dense()
    worked = []
    for route in Route:
        try:
            got = GradientJacobian(exposure, route=route).dense()
        except UnsupportedError:
            continue
        worked.append(route)
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10 * float(want.abs().max()))
    assert worked


def test_the_route_names_the_kernels_that_were_exchanged_and_restores_them() -> None:
    before = (torch.backends.mha.get_fastpath_enabled(), torch.backends.cuda.flash_sdp_enabled())
    operator = GradientJacobian(_case("multihead attention"))
    operator.matmat(torch.ones(operator.shape[1], 1, dtype=torch.float64))
    assert operator.route == "reverse_over_reverse(loop), math attention"
    assert "math attention" in operator.notes
    assert (torch.backends.mha.get_fastpath_enabled(), torch.backends.cuda.flash_sdp_enabled()) == before


def test_fused_attention_is_attention_written_out() -> None:
    fused, plain = (GradientJacobian(exposure_of(Sequence(layer, 3), (5, 3))) for layer in (Fused(), WrittenOut()))
    torch.testing.assert_close(fused.dense(), plain.dense(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_in_place_operations_equal_their_twins(mode: str) -> None:
    in_place, twin = (
        GradientJacobian(exposure_of(Residual(in_place=form), (2, 3, 3), mode=mode)).dense() for form in (True, False)
    )
    torch.testing.assert_close(in_place, twin, rtol=1e-12, atol=1e-14)


def test_checkpointing_is_put_back() -> None:
    originals = (torch.utils.checkpoint.CheckpointFunction, torch.utils.checkpoint.checkpoint)
    plain = GradientJacobian(exposure_of(Checkpointed(reentrant=None), (4,), examples=4)).dense()
    torch.testing.assert_close(GradientJacobian(_case("reentrant checkpoint")).dense(), plain)
    assert (torch.utils.checkpoint.CheckpointFunction, torch.utils.checkpoint.checkpoint) == originals


@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel], ids=["compiled", "data parallel"])
def test_wrapped_modules_are_taken_out(wrap: Callable[[nn.Module], nn.Module]) -> None:
    module = between(torch.tanh)
    bare = exposure_of(module, (4,))
    wrapped = replace(bare, objective=Objective.from_module(wrap(copy.deepcopy(module))))
    assert torch.equal(GradientJacobian(wrapped).dense(), GradientJacobian(bare).dense())


def test_unused_and_frozen_and_tied_parameters_are_named() -> None:
    operator = GradientJacobian(_case("tied, frozen, unused"))
    names = list(operator.exposure.objective.params)
    assert names == ["embedding.weight", "partly.bias", "unused.weight", "unused.bias"]
    assert operator.notes == (
        "released as zeros (unused by the loss, or dead units): unused.weight, unused.bias",
        "frozen, not released: frozen.weight, frozen.bias, partly.weight",
        "tied, released once: head.weight = embedding.weight",
    )
    rows = operator.dense()
    assert not bool(rows[-12:].any())
    assert bool(rows[:-12].any(dim=1).all())


def test_a_release_of_random_layers_is_one_of_many() -> None:
    assert GradientJacobian(_case("dropout")).notes == ("one of many releases: 2 draw the masks of mask_seed=3",)


def test_a_half_precision_model_is_computed_in_float64() -> None:
    module = between(torch.tanh)
    exposure = exposure_of(module, (4,))
    half = Objective.from_module(module.half())
    operator = GradientJacobian(replace(exposure, objective=half, batch=exposure.batch.to(torch.float16)))
    rounded = replace(exposure, objective=half.to(torch.float64), batch=exposure.batch.to(torch.float16))
    assert operator.dtype == torch.float64
    assert torch.equal(operator.dense(), GradientJacobian(rounded).dense())


def test_a_gradient_of_no_loss_does_not_take_the_symmetric_route() -> None:
    operator = GradientJacobian(_case("gradient of no loss"))
    operator.dense()
    assert operator.route == "double_vjp(vmap)"
    with pytest.raises(UnsupportedError, match="no symmetric second derivative"):
        GradientJacobian(_case("gradient of no loss"), route=Route.REVERSE_OVER_REVERSE_VMAP).dense()


def test_a_model_that_draws_numbers_of_its_own_is_not_deterministic() -> None:
    """U44."""
    model = nn.Sequential(nn.Linear(4, 4), NumpyNoise(), nn.Tanh(), nn.Linear(4, 2))
    for options in ({}, {"max_bytes": 1}, {"route": Route.JVP_LOOP}):
        operator = GradientJacobian(exposure_of(model, (4,)), **options)
        with pytest.raises(UnsupportedError, match="operator not deterministic"):
            operator.matmat(torch.ones(8, 1, dtype=torch.float64))


def test_the_users_module_and_the_global_state_are_as_before() -> None:
    module = Residual(in_place=True).double().train()
    hook = module.register_full_backward_hook(lambda *_: None)
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    rng = torch.random.get_rng_state()
    inputs = torch.randn(2, 2, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    objective = Objective.from_module(module, mode="train")
    exposure = Exposure(objective, Batch(inputs, torch.tensor([0, 1])), Release(FedSGD()))
    GradientJacobian(exposure).largest_eigenvalue()
    assert all(torch.equal(tensor, state[name]) for name, tensor in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())
    assert module.training
    assert list(module._backward_hooks) == [hook.id]
    assert torch.equal(rng, torch.random.get_rng_state())


def test_a_model_that_torch_func_cannot_take_is_refused_by_name() -> None:
    exposure = exposure_of(between(lambda x: x * float(x.detach().numpy().mean())), (4,))
    with pytest.raises(UnsupportedError, match=r"a model that torch.func can differentiate, got one .*numpy"):
        GradientJacobian(exposure)

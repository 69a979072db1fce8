"""Models that stop gradients: the released values are plain autograd's, and derivatives run through what is stopped."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from gradleak.core import Batch, Objective


class _Layers(nn.Module):
    def __init__(self, function: Callable[[_Layers, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.frozen, self.first, self.head = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)
        self.register_buffer("running", torch.full((3,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.function(self, x).tanh())


def _feature_extractor(m: _Layers, x: Tensor) -> Tensor:
    with torch.no_grad():
        features = m.frozen(x).sin()
        with torch.no_grad():
            largest = features.max(dim=1, keepdim=True).values
        features = features / (1 + largest**2)
    return m.first(features)


def _stop_gradient(m: _Layers, x: Tensor) -> Tensor:
    hidden = m.first(x)
    return hidden * hidden.detach() - torch.detach(x).exp()


def _data(m: _Layers, x: Tensor) -> Tensor:
    hidden = m.first(x)
    return hidden * hidden.data


def _running_mean(m: _Layers, x: Tensor) -> Tensor:
    hidden = m.first(x)
    with torch.no_grad():
        m.running.mul_(0.9).add_(hidden.mean(0), alpha=0.1)
        torch.add(m.running, hidden[0], out=m.running)
        m.running[0] = hidden.sum()
    return hidden - m.running


def _mixed(m: _Layers, x: Tensor) -> Tensor:
    with torch.no_grad():
        hidden = m.first(x)
        with torch.enable_grad():
            alive = m.first(x).sin()
        torch.rand(2)  # the draws of both evaluations are the same
    return alive * hidden * torch.rand_like(alive)


MODELS = {"no_grad": _feature_extractor, "detach": _stop_gradient, "data": _data, "in place": _running_mean,
          "nested, random": _mixed}  # fmt: skip


def _module(function: Callable[[_Layers, Tensor], Tensor]) -> _Layers:
    module = _Layers(function).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_(-0.7, 0.7, generator=generator)
    return module


def _batch() -> Batch:
    inputs = torch.randn(4, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return Batch(inputs, torch.tensor([0, 1, 1, 0]))


def _plain(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """The gradient as a client takes it: plain autograd on the module itself, from the same random state."""
    with torch.random.fork_rng(devices=[]):
        torch.random.set_rng_state(torch.Generator().manual_seed(0).get_state())
        loss = F.cross_entropy(module(batch.inputs.clone()), batch.targets)
    names = [name for name, _ in module.named_parameters()]
    found = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True, materialize_grads=True)
    return dict(zip(names, found, strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_is_that_of_plain_autograd(name: str) -> None:
    batch, objective = _batch(), Objective.from_module(_module(MODELS[name]))
    assert objective.stops_gradients(batch)
    torch.testing.assert_close(objective.gradient(objective.params, batch), _plain(_module(MODELS[name]), batch))
    assert bool((objective.buffers["running"] == 0.5).all())


@pytest.mark.parametrize("name", MODELS)
def test_its_derivatives_run_through_what_is_stopped(name: str) -> None:
    objective, batch = Objective.from_module(_module(MODELS[name])), _batch()

    def released(flat: Tensor) -> Tensor:
        gradient = objective.gradient(objective.params, batch.with_inputs(flat.reshape(4, 3)))
        # A local step, whose gradient is taken at parameters that depend on the inputs.
        moved = {key: tensor - 0.5 * gradient[key] for key, tensor in objective.params.items()}
        again = objective.gradient(moved, batch.with_inputs(flat.reshape(4, 3)))
        return objective.flatten({key: gradient[key] + again[key] for key in gradient})

    x, step = batch.inputs.reshape(-1), 1e-5
    want = torch.stack([(released(x + s) - released(x - s)) / (2 * step) for s in step * torch.eye(12).double()], dim=1)
    tolerance = {"rtol": 1e-6, "atol": 1e-8 * float(want.abs().max())}
    torch.testing.assert_close(torch.func.jacfwd(released, randomness="same")(x), want, **tolerance)
    torch.testing.assert_close(torch.func.jacrev(released, chunk_size=1)(x), want, **tolerance)
    inputs = x.clone().requires_grad_()  # double backward, as attacks take it
    row = torch.autograd.grad(released(inputs)[5], inputs)[0]
    torch.testing.assert_close(row, want[5], **tolerance)


def test_spectral_norm_in_train_mode() -> None:
    def build() -> nn.Module:
        generator = torch.Generator().manual_seed(1)
        module = nn.Sequential(spectral_norm(nn.Linear(3, 3)), nn.Tanh(), nn.Linear(3, 2)).double()
        with torch.no_grad():
            for tensor in module.state_dict().values():
                tensor.normal_(generator=generator)
        return module

    objective, batch = Objective.from_module(build(), mode="train"), _batch()
    torch.testing.assert_close(objective.gradient(objective.params, batch), _plain(build(), batch))


def test_a_model_that_stops_nothing_is_evaluated_once_more_and_no_oftener() -> None:
    calls = 0

    def counted(m: _Layers, x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return m.first(x)

    objective, batch = Objective.from_module(_module(counted)), _batch()
    for want in (2, 3, 4):
        objective.gradient(objective.params, batch)
        assert calls == want
    assert not objective.stops_gradients(batch)
    assert calls == 4


def test_a_function_of_its_own_is_left_alone() -> None:
    class Square(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x.detach() * x

        @staticmethod
        def setup_context(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor], output: Tensor) -> None:
            ctx.save_for_backward(inputs[0])

        @staticmethod
        def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
            return 2 * grad * ctx.saved_tensors[0]

    objective = Objective.from_module(_module(lambda m, x: Square.apply(m.first(x))))
    assert not objective.stops_gradients(_batch())


def test_a_view_that_is_changed_in_place_is_stopped_as_usual() -> None:
    def function(m: _Layers, x: Tensor) -> Tensor:
        hidden = m.first(x)
        with torch.no_grad():
            copy = hidden.clone()
            copy[:, 0].mul_(2.0)
        return hidden + copy

    objective, batch = Objective.from_module(_module(function)), _batch()
    assert objective.stops_gradients(batch)
    torch.testing.assert_close(objective.gradient(objective.params, batch), _plain(_module(function), batch))

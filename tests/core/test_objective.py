from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune

from gradleak.core import Batch, Domain, Mode, Objective
from gradleak.results import InputError

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch, on its first jvp

LABELS = torch.tensor([0, 2, 1, 2])
IMAGES = torch.rand(4, 2, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
ROWS = IMAGES.flatten(1)[:, :8]


def conv() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(48, 3))


def batch_norm() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 3))
    model(torch.rand(5, 2, 6, 6))  # running statistics that are not 0 and 1
    return model


def dropout() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(72, 16), nn.Dropout(0.5), nn.Tanh(), nn.Linear(16, 3))


def frozen() -> nn.Module:
    model = conv()
    model[0].weight.requires_grad_(False)
    model[3].requires_grad_(False)
    return model


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1)
        self.relu, self.head = nn.ReLU(inplace=True), nn.Linear(72, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu(self.first(x))
        h = self.second(h)
        h += x
        return self.head(self.relu(h).flatten(1))


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.auxiliary, self.head = nn.Linear(72, 5), nn.Linear(5, 2), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x.flatten(1))))


class Functional(nn.Module):
    """Weights used by functional calls, a buffer, and a constant tensor that is neither parameter nor buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 72) / 8)
        self.register_buffer("shift", torch.randn(72), persistent=False)
        self.constant = torch.linspace(0.0, 1.0, 72)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear((x.flatten(1) + self.shift) * self.constant, self.w)


def weight_norm() -> nn.Module:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(72, 5))
    return nn.Sequential(nn.Flatten(), layer, nn.Tanh(), nn.Linear(5, 3))


def pruned() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 5), nn.Tanh(), nn.Linear(5, 3))
    prune.random_unstructured(model[1], "weight", amount=0.5)
    return model


class TiedAutoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(72, 72), nn.Linear(72, 72, bias=False)
        self.decode.weight = self.encode.weight
        self.head = nn.Linear(72, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.decode(torch.tanh(self.encode(x.flatten(1)))))


MODELS: list[Callable[[], nn.Module]] = [
    conv,
    batch_norm,
    dropout,
    frozen,
    InPlace,
    Unused,
    Functional,
    weight_norm,
    pruned,
    TiedAutoencoder,
]


def autograd(
    model: nn.Module, loss: Callable[[Any, Tensor], Tensor], inputs: Tensor, targets: Tensor
) -> dict[str, Any]:
    """Value and gradient by plain autograd on the module itself."""
    value = loss(model(inputs), targets)
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    gradients = torch.autograd.grad(value, [p for _, p in named], allow_unused=True)
    return {"value": value.detach()} | {
        name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(named, gradients, strict=True)
    }


def state_of(model: nn.Module) -> list[Any]:
    """Everything of a module that an audit could disturb, by identity and by value."""
    parts: list[Any] = [torch.get_rng_state().tolist(), torch.is_grad_enabled(), torch.get_default_dtype()]
    for name, part in model.named_modules():
        parts += [name, type(part), part.training, sorted(vars(part))]
        parts += [{key: list(value.values()) for key, value in vars(part).items() if key.endswith("_hooks")}]
    for name, tensor in [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]:
        gradient = None if tensor.grad is None else (id(tensor.grad), tensor.grad.tolist())
        parts += [name, id(tensor), tensor._version, tensor.tolist(), tensor.requires_grad, gradient, tensor.dtype]
    return parts


@pytest.mark.parametrize("build", MODELS)
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_value_and_gradient_are_those_of_plain_autograd(build: Callable[[], nn.Module], mode: str) -> None:
    model = build().train(mode == "train")
    inputs = IMAGES.float()
    objective = Objective.from_module(model, mode=mode, mask_seed=11)
    with torch.random.fork_rng(devices=[]):
        torch.random.set_rng_state(torch.Generator().manual_seed(11).get_state())
        expected = autograd(model, F.cross_entropy, inputs, LABELS)
    batch = Batch(inputs, LABELS)
    torch.testing.assert_close(objective.loss(objective.params, batch), expected.pop("value"))
    gradient = objective.gradient(objective.params, batch)
    assert list(gradient) == list(expected) == list(objective.params)
    for name, tensor in gradient.items():
        torch.testing.assert_close(tensor, expected[name], msg=lambda text, name=name: f"{name}: {text}")
    again = objective.gradient(objective.params, batch)
    assert all(torch.equal(gradient[name], again[name]) for name in gradient)
    assert objective.size == sum(p.numel() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("build", MODELS)
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_it_works_inside_transforms_and_agrees_with_central_differences(
    build: Callable[[], nn.Module], mode: str
) -> None:
    objective = Objective.from_module(build(), mode=mode, mask_seed=3).to(torch.float64)

    def g(inputs: Tensor) -> Tensor:
        return objective.flatten(objective.gradient(objective.params, Batch(inputs, LABELS)))

    tangents = torch.randn(3, *IMAGES.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def push(tangent: Tensor) -> Tensor:
        return torch.func.jvp(g, (IMAGES,), (tangent,))[1]

    block = torch.func.vmap(push, randomness="same")(tangents)
    step = 1e-6
    for tangent, column in zip(tangents, block, strict=True):
        torch.testing.assert_close(push(tangent), column, rtol=1e-9, atol=1e-12)
        if build is not InPlace:  # a ReLU kink may lie within the step
            difference = (g(IMAGES + step * tangent) - g(IMAGES - step * tangent)) / (2 * step)
            torch.testing.assert_close(column, difference, rtol=1e-4, atol=1e-6)
    cotangent = torch.randn(objective.size, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    value, pull = torch.func.vjp(g, IMAGES)
    assert torch.equal(value, g(IMAGES))
    torch.testing.assert_close((pull(cotangent)[0] * tangents[0]).sum(), cotangent @ block[0], rtol=1e-8, atol=1e-10)
    starts = torch.stack([IMAGES, IMAGES + 0.1])
    lockstep = torch.func.vmap(g, randomness="same")(starts)
    for start, row in zip(starts, lockstep, strict=True):
        torch.testing.assert_close(row, g(start), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("build", MODELS)
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_the_module_is_left_exactly_as_found(build: Callable[[], nn.Module], mode: str) -> None:
    model = build()
    for parameter in list(model.parameters())[:1]:
        parameter.grad = torch.ones_like(parameter)
    seen: list[Any] = []
    handles = [
        model.register_forward_hook(lambda *args: seen.append(args)),
        model.register_forward_pre_hook(lambda *args: seen.append(args)),
        model.register_full_backward_hook(lambda *args: seen.append(args)),
    ]
    before = state_of(model)
    objective = Objective.from_module(model, mode=mode)
    buffers = {name: buffer.clone() for name, buffer in objective.buffers.items()}
    batch = Batch(IMAGES.float(), LABELS)
    objective.check(batch)
    objective.gradient(objective.params, batch)
    objective.classifier(Domain.image(channels=2, height=6, width=6))
    with pytest.raises(RuntimeError):
        objective.gradient(objective.params, Batch(torch.zeros(4, 5, 6, 7), LABELS))
    assert state_of(model) == before
    assert seen == [], "the user's hooks must not see the audit's passes"
    assert objective.notes == ("hooks of the model are not run",)
    assert all(torch.equal(buffers[name], buffer) for name, buffer in objective.buffers.items())
    assert len(handles) == 3


def test_later_changes_of_the_module_do_not_reach_the_objective() -> None:
    model = conv()
    objective = Objective.from_module(model)
    before = objective.loss(objective.params, Batch(IMAGES.float(), LABELS))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert torch.equal(before, objective.loss(objective.params, Batch(IMAGES.float(), LABELS)))


class Remembers(nn.Module):
    """A model that keeps its activations, counts its calls and updates a buffer in eval mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.features, self.calls = nn.Linear(72, 3), None, 0
        self.log: list[Tensor] = []
        self.cache: dict[str, Tensor] = {}
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.features = x
        self.calls += 1
        self.log.append(x)
        self.cache["x"] = x
        self.count.add_(1.0)
        if "seen" not in self._buffers:
            self.register_buffer("seen", x.detach())
        if len(x) == 3:
            raise RuntimeError("three")
        return self.head(x.flatten(1)) * (self.calls + self.count)


def test_an_evaluation_leaves_nothing_behind_in_the_private_copy() -> None:
    objective = Objective.from_module(Remembers())
    batch = Batch(IMAGES.float(), LABELS)
    first = objective.loss(objective.params, batch)
    with pytest.raises(RuntimeError, match="three"):
        objective.loss(objective.params, Batch(IMAGES.float()[:3], LABELS[:3]))
    for twin in (objective, pickle.loads(pickle.dumps(objective)), objective.to(torch.float32)):  # noqa: TID251
        assert torch.equal(twin.loss(twin.params, batch), first)
        private = twin._module
        assert (private.features, private.calls, private.log, private.cache) == (None, 0, [], {})
        assert list(dict(private.named_buffers())) == ["count"]
        assert twin.buffers["count"].item() == 0


class ChangesInPlace(nn.Module):
    """Changes its inputs, and tensors that it keeps as plain attributes, in a list and in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.seen, self.listed, self.named = torch.zeros(3), [torch.zeros(3)], {"x": torch.zeros(3)}

    def forward(self, x: Tensor) -> Tensor:
        x -= 1.0
        for tensor in (self.seen, self.listed[0], self.named["x"]):
            tensor += x.mean(dim=0)
        return self.linear(x * self.seen * self.listed[0] * self.named["x"])


def test_changes_in_place_of_inputs_targets_and_attributes_do_not_last() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        targets -= 1.0
        return (outputs - targets).square().mean()

    objective = Objective.from_module(ChangesInPlace(), loss=loss)
    batch = Batch(torch.rand(4, 3, generator=torch.Generator().manual_seed(0)), torch.ones(4, 2))
    before = batch.inputs.clone()
    objective.check(batch)
    first = objective.loss(objective.params, batch)
    gradient = objective.gradient(objective.params, batch)
    assert torch.equal(objective.loss(objective.params, batch), first)
    assert torch.equal(batch.inputs, before)
    assert torch.equal(batch.targets, torch.ones(4, 2))
    assert float(objective._module.seen.norm()) == 0.0
    weight = objective.params["linear.weight"].clone().requires_grad_()
    mean = (before - 1).mean(dim=0)
    plain = (((before - 1) * mean**3) @ weight.T + objective.params["linear.bias"]).square().mean()
    torch.testing.assert_close(gradient["linear.weight"], torch.autograd.grad(plain, weight)[0])


class Random(nn.Module):
    """Draws random numbers in every mode."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(72, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1) + torch.randn(72))


@pytest.mark.parametrize(("build", "mode"), [(dropout, "train"), (Random, "eval"), (Random, "train")])
def test_random_layers_follow_the_mask_seed_and_leave_the_global_generator(
    build: Callable[[], nn.Module], mode: str
) -> None:
    model, batch = build(), Batch(IMAGES.float(), LABELS)
    one, same, other = (Objective.from_module(model, mode=mode, mask_seed=seed) for seed in (1, 1, 2))
    before = torch.get_rng_state()
    values = [objective.loss(objective.params, batch) for objective in (one, one, same, other)]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(values[0], values[1])
    assert torch.equal(values[0], values[2])
    assert not torch.equal(values[0], values[3])


def test_train_mode_batch_norm_uses_the_batch_and_eval_mode_the_running_statistics() -> None:
    model, batch = batch_norm(), Batch(IMAGES.float(), LABELS)
    objectives = [Objective.from_module(model, mode=mode) for mode in Mode]
    values = [objective.loss(objective.params, batch) for objective in objectives]
    assert not torch.allclose(*values)


@pytest.mark.parametrize("build", MODELS)
def test_in_mode_is_the_objective_built_in_that_mode(build: Callable[[], nn.Module]) -> None:
    model, batch = build(), Batch(IMAGES.float(), LABELS)
    built = {mode: Objective.from_module(model, mode=mode, mask_seed=4) for mode in Mode}
    before = {mode: objective.loss(objective.params, batch) for mode, objective in built.items()}
    for mode, objective in built.items():
        assert objective.in_mode(mode) is objective
        for other in Mode:
            turned = objective.in_mode(other.value)
            assert turned.mode is other
            assert torch.equal(turned.loss(turned.params, batch), before[other])
        assert torch.equal(objective.loss(objective.params, batch), before[mode])


def test_batch_norm_that_stays_in_eval_mode_keeps_its_running_statistics() -> None:
    class Frozen(nn.BatchNorm1d):
        def train(self, mode: bool = True) -> Frozen:
            return super().train(False)

    model = nn.Sequential(nn.Flatten(), Frozen(72), nn.Linear(72, 3)).train()
    model[1].running_mean.fill_(0.3)
    objective = Objective.from_module(model, mode="train")
    batch = Batch(IMAGES.float(), LABELS)
    torch.testing.assert_close(objective.loss(objective.params, batch), F.cross_entropy(model(batch.inputs), LABELS))


@dataclass
class Output:
    scores: Tensor
    mask: Tensor


class TwoHeads(nn.Module):
    def __init__(self, kind: type) -> None:
        super().__init__()
        self.kind, self.body = kind, nn.Conv2d(2, 4, 3)
        self.logits, self.mask = nn.Linear(64, 3), nn.Linear(64, 7)

    def forward(self, x: Tensor) -> Any:
        h = torch.tanh(self.body(x)).flatten(1)
        return self.kind(scores=self.logits(h), mask=self.mask(h))


@pytest.mark.parametrize("kind", [dict, Output])
def test_outputs_of_any_form_go_to_a_callable_loss(kind: type) -> None:
    def loss(outputs: Any, targets: Tensor) -> Tensor:
        logits, mask = (outputs["scores"], outputs["mask"]) if kind is dict else (outputs.scores, outputs.mask)
        return F.cross_entropy(logits, targets) + mask.sigmoid().mean()

    model = TwoHeads(kind)
    objective = Objective.from_module(model, loss=loss)
    batch = Batch(IMAGES.float(), LABELS)
    objective.check(batch)
    expected = autograd(model, loss, batch.inputs, LABELS)
    for name, tensor in objective.gradient(objective.params, batch).items():
        torch.testing.assert_close(tensor, expected[name])
    domain = Domain.image(channels=2, height=6, width=6)
    assert objective.classifier(domain) is None
    assert objective.output_shape(domain) is None
    with pytest.raises(InputError, match=rf"to return a tensor, got {kind.__name__}; pass a callable"):
        Objective.from_module(model).check(batch)


def test_flatten_and_unflatten_are_inverse_and_follow_parameter_order() -> None:
    model = conv()
    objective = Objective.from_module(model)
    flat = objective.flatten(objective.params)
    assert torch.equal(flat, torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    back = objective.unflatten(flat)
    assert list(back) == list(objective.params)
    assert all(torch.equal(back[name], tensor) for name, tensor in objective.params.items())
    shuffled = dict(reversed(objective.params.items()))
    assert torch.equal(objective.flatten(shuffled), flat)


@pytest.mark.parametrize("build", [*MODELS, lambda: TwoHeads(dict)])
def test_to_casts_everything_that_the_computation_touches(build: Callable[[], nn.Module]) -> None:
    model = build()
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    loss: Any = weighted if not isinstance(model, TwoHeads) else lambda outputs, targets: outputs["scores"].mean()
    single = Objective.from_module(model, loss=loss)
    double = single.to(torch.float64)
    assert double.dtype == torch.float64
    assert single.dtype == torch.float32
    value = double.loss(double.params, Batch(IMAGES, LABELS))
    assert value.dtype == torch.float64
    torch.testing.assert_close(value.float(), single.loss(single.params, Batch(IMAGES.float(), LABELS)))
    assert double.to(torch.float64) is double
    weighted(torch.zeros(1, 3), torch.tensor([0]))  # the user's own loss stays in float32


def test_to_casts_constants_in_lists_and_dicts_too() -> None:
    class Filters(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)
            self.bank, self.named = [torch.full((3, 3), 0.5)], {"shift": torch.ones(3)}

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x @ self.bank[0] + self.named["shift"])

    model = Filters()
    objective, batch = Objective.from_module(model), Batch(torch.ones(1, 3), torch.tensor([1]))
    double = objective.to(torch.float64).gradient(objective.to(torch.float64).params, batch.to(torch.float64))
    assert {tensor.dtype for tensor in double.values()} == {torch.float64}
    for name, tensor in objective.gradient(objective.params, batch).items():
        torch.testing.assert_close(double[name].float(), tensor)
    assert model.bank[0].dtype == torch.float32


class Tokens(nn.Module):
    """A small language model: tied embedding and head, positions of batch 1, integer inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(11, 6), nn.Parameter(torch.randn(1, 5, 6))
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.embed(ids) + self.position)).transpose(1, 2)


def test_a_tied_embedding_is_counted_once_and_its_gradient_is_the_sum() -> None:
    model = Tokens()
    objective = Objective.from_module(model)
    assert list(objective.params) == ["position", "embed.weight", "norm.weight", "norm.bias"]
    assert objective.tied == {"head.weight": "embed.weight"}
    ids = torch.tensor([[1, 2, 3, 4, 5], [5, 5, 1, 0, 2]])
    expected = autograd(model, F.cross_entropy, ids, ids)
    gradient = objective.gradient(objective.params, Batch(ids, ids))
    for name, tensor in gradient.items():
        torch.testing.assert_close(tensor, expected[name])
    assert bool(gradient["embed.weight"].any(dim=1).all()), "the head touches every row"


def test_frozen_and_unused_parameters_are_listed_apart_and_zero() -> None:
    objective = Objective.from_module(frozen())
    assert list(objective.params) == ["0.bias"]
    assert list(objective.frozen) == ["0.weight", "3.weight", "3.bias"]
    unused = Objective.from_module(Unused())
    gradient = unused.gradient(unused.params, Batch(IMAGES.float(), LABELS))
    assert not gradient["auxiliary.weight"].any()
    assert gradient["body.weight"].any()


def test_the_objective_survives_pickling_and_copying() -> None:
    objective = Objective.from_module(batch_norm(), mode="train", loss=nn.CrossEntropyLoss(label_smoothing=0.1))
    batch = Batch(IMAGES.float(), LABELS)
    value = objective.loss(objective.params, batch)
    for twin in (pickle.loads(pickle.dumps(objective)), copy.deepcopy(objective)):  # noqa: TID251
        assert torch.equal(twin.loss(twin.params, batch), value)
        assert list(twin.params) == list(objective.params)


@pytest.mark.parametrize("name", ["lenet_sigmoid_uniform", "lenet_tanh_default", "lenet_relu_default"])
def test_against_plain_autograd_on_the_reference_networks(shared: Any, name: str) -> None:
    from safetensors.torch import load_file

    tensors = load_file(shared / "oracles" / f"{name}.safetensors")
    activation = {"sigmoid": nn.Sigmoid, "tanh": nn.Tanh, "relu": nn.ReLU}[name.split("_")[1]]
    layers: list[nn.Module] = []
    for channels, stride in zip((1, 12, 12, 12), (2, 2, 1, 1), strict=True):
        layers += [nn.Conv2d(channels, 12, 5, stride=stride, padding=2), activation()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(588, 10)).double()
    model.load_state_dict(
        {key.removeprefix("model."): value.double() for key, value in tensors.items() if "model." in key}
    )
    objective = Objective.from_module(model)
    assert objective.size == 17_038
    inputs, targets = tensors["x"].double(), tensors["y"].long()
    expected = autograd(model, F.cross_entropy, inputs, targets)
    for key, tensor in objective.gradient(objective.params, Batch(inputs, targets)).items():
        torch.testing.assert_close(tensor, expected[key], rtol=1e-10, atol=1e-14)

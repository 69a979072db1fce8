from __future__ import annotations

import copy
import json
import pickle
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gradleak.core import (
    Batch,
    Domain,
    HonestButCurious,
    ImageGenerator,
    Knowledge,
    Objective,
    OutputRange,
    Release,
    describe,
)
from gradleak.protocols import FedSGD
from gradleak.results import InputError

DOMAIN = Domain.image(channels=1, height=4, width=5)
NORMALIZED = replace(DOMAIN, mean=(0.3,), std=(0.2,))


def module() -> nn.Module:
    return nn.Sequential(
        nn.Linear(3, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 20), nn.Sigmoid(), nn.Unflatten(1, (1, 4, 5))
    )


class Conditional(nn.Module):
    """One linear image per class."""

    def __init__(self) -> None:
        super().__init__()
        self.classes = nn.Embedding(4, 3)
        self.last = nn.Linear(6, 20)

    def forward(self, latents: Tensor, labels: Tensor) -> Tensor:
        joined = torch.cat([latents, self.classes(labels)], dim=1)
        return self.last(joined).tanh().reshape(-1, 1, 4, 5)


class Forgetful(nn.Module):
    """Writes its last features on itself and counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = module()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, latents: Tensor) -> Tensor:
        self.calls.add_(1.0)
        self.features = self.inner[0](latents)
        return self.inner(latents)


def generator(**changes: object) -> ImageGenerator:
    settings = {"latent_shape": (3,), "domain": DOMAIN, "source": "never trained"} | changes
    return ImageGenerator(**({} if "module" in settings else {"module": module()}), **settings)


def latents(count: int = 5) -> Tensor:
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(3))


def test_images_are_those_of_the_module_in_model_inputs() -> None:
    one = module().train()
    for _ in range(3):  # running statistics that matter
        one(torch.randn(16, 3))
    made = generator(module=one, domain=NORMALIZED)(latents())
    with torch.no_grad():
        pixels = copy.deepcopy(one).eval()(latents())
    np.testing.assert_allclose(made.numpy(), (pixels.numpy() - 0.3) / 0.2, rtol=1e-5, atol=1e-6)


def test_a_symmetric_output_is_scaled_to_pixels() -> None:
    symmetric = nn.Sequential(*list(module())[:-2], nn.Tanh(), nn.Unflatten(1, (1, 4, 5)))
    made = generator(module=symmetric, output="symmetric", domain=NORMALIZED)
    with torch.no_grad():
        raw = copy.deepcopy(symmetric).eval()(latents())
    torch.testing.assert_close(NORMALIZED.to_pixels(made(latents())), (raw + 1.0) / 2.0)
    assert made.output is OutputRange.SYMMETRIC


@pytest.mark.usefixtures("global_rng_unchanged")
def test_the_module_is_left_as_found() -> None:
    with torch.random.fork_rng(devices=[]):
        one = module().train()
    before, mode = copy.deepcopy(one.state_dict()), [part.training for part in one.modules()]
    made = generator(module=one)
    made(latents().requires_grad_()).sum().backward()
    assert [part.training for part in one.modules()] == mode
    assert all(torch.equal(before[name], tensor) for name, tensor in one.state_dict().items())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in one.parameters())
    with torch.no_grad():
        one[0].weight.zero_()
    assert float(made.weights["0.weight"].abs().sum()) > 0.0


def test_a_call_leaves_nothing_behind() -> None:
    made = generator(module=Forgetful())
    made(latents())
    assert float(made.module.calls) == 0.0
    assert not hasattr(made.module, "features")


def test_gradients_by_latents_and_weights_are_those_of_autograd() -> None:
    made = generator().to(torch.float64)
    z, target = latents(2).double(), torch.rand(2, 1, 4, 5, dtype=torch.float64)

    def loss(z: Tensor, weights: dict[str, Tensor]) -> Tensor:
        return (made(z, weights=weights) - target).square().sum()

    by_latents, by_weights = torch.func.grad(loss, argnums=(0, 1))(z, made.weights)
    twin = copy.deepcopy(made.module).requires_grad_(True)
    leaf = z.clone().requires_grad_()
    (twin(leaf) - target).square().sum().backward()
    torch.testing.assert_close(by_latents, leaf.grad)
    for name, parameter in twin.named_parameters():
        torch.testing.assert_close(by_weights[name], parameter.grad)


def test_vmap_over_latents_is_one_call_after_another() -> None:
    made = generator()
    many = torch.stack([latents(), -latents()])
    torch.testing.assert_close(torch.func.vmap(made)(many), torch.stack([made(row) for row in many]))


def test_vmap_over_weights_is_one_generator_after_another() -> None:
    made = generator(module=Forgetful())
    others = [{name: tensor + 0.1 * place for name, tensor in made.weights.items()} for place in range(3)]
    stacked = {name: torch.stack([other[name] for other in others]) for name in made.weights}
    found = torch.func.vmap(lambda weights, z: made(z[None], weights=weights)[0])(stacked, latents(3))
    for place, other in enumerate(others):
        torch.testing.assert_close(found[place], made.with_weights(other)(latents(3))[place])


def test_vmap_over_convolution_weights_works() -> None:
    net = nn.Sequential(
        nn.Unflatten(1, (3, 1, 1)), nn.ConvTranspose2d(3, 4, (4, 5)), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Upsample(scale_factor=2), nn.AvgPool2d(2), nn.Conv2d(4, 1, 3, padding=1), nn.Sigmoid(),
    )  # fmt: skip
    made = generator(module=net)
    stacked = {name: torch.stack([tensor, 2 * tensor]) for name, tensor in made.weights.items()}
    z = latents()
    found = torch.func.vmap(lambda weights: made(z, weights=weights))(stacked)
    doubled = made.with_weights({name: 2 * tensor for name, tensor in made.weights.items()})
    torch.testing.assert_close(found, torch.stack([made(z), doubled(z)]))


def test_weights_are_detached_named_and_in_order() -> None:
    made = generator()
    assert list(made.weights) == ["0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"]
    assert not any(tensor.requires_grad for tensor in made.weights.values())
    assert made.latent_size == 3


def test_weights_that_do_not_fit_are_refused() -> None:
    made = generator()
    short = {name: tensor for name, tensor in made.weights.items() if name != "3.bias"}
    with pytest.raises(InputError, match=r"expected all 6 parameters of the generator by name, got 5; 3\.bias stand"):
        made(latents(), weights=short)
    with pytest.raises(InputError, match=r"got 3\.bias: nothing in place of \(20,\)"):
        made.with_weights(short)
    with pytest.raises(InputError, match=r"got 0\.bias: \(3,\) in place of \(12,\)"):
        made.with_weights(made.weights | {"0.bias": torch.zeros(3)})


def test_a_conditional_generator_takes_labels() -> None:
    made = generator(module=Conditional(), conditional=True, output="symmetric")
    labels = torch.tensor([0, 3, 1, 1, 2])
    with torch.no_grad():
        raw = made.module(latents(), labels)
    torch.testing.assert_close(made(latents(), labels=labels), (raw + 1.0) / 2.0)
    assert not torch.equal(made(latents(), labels=labels), made(latents(), labels=labels.flip(0)))
    with pytest.raises(InputError, match="expected one class per image, since the generator is conditional, got none"):
        made(latents())
    with pytest.raises(InputError, match=r"expected 5 classes as int64 of shape \(5,\), got torch.float32 of shape"):
        made(latents(), labels=labels.float())
    with pytest.raises(InputError, match="expected none, since the generator is not conditional; leave them out"):
        generator()(latents(), labels=labels)


def test_latents_of_another_shape_are_refused() -> None:
    with pytest.raises(InputError, match=r"latents: expected \(b, 3\), got \(5, 4\)"):
        generator()(torch.zeros(5, 4))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"module": "net"}, "expected a torch.nn.Module, got str"),
        ({"latent_shape": ()}, r"expected positive sizes, for instance \(100,\); got \(\)"),
        ({"latent_shape": (4,)}, r"expected a module that takes latents of shape \(4, 4\), got RuntimeError: .*check"),
        ({"output": "tanh"}, r"expected one of unit, symmetric, got 'tanh'; 'unit' is \[0, 1\]"),
        ({"source": " "}, "expected what the generator was trained on, got nothing"),
        (
            {"domain": replace(DOMAIN, shape=(1, 5, 4))},
            r"shape \(4, 1, 5, 4\) from the domain, got torch.float32 \(4, 1,",
        ),
        (
            {"output": "symmetric"},
            r"expected images in \[-1, 1\] \('symmetric'\), got values from 0\.\d+ to 0\.\d+; state",
        ),
        ({"conditional": True}, r"takes latents of shape \(4, 3\) and labels, got TypeError"),
        ({"latent_shape": 3}, r"expected positive sizes, for instance \(100,\); got 3"),
        ({"latent_shape": (2.5,)}, r"expected positive sizes, for instance \(100,\); got \(2\.5,\)"),
        ({"source": None}, "expected what the generator was trained on"),
        ({"domain": (1, 4, 5)}, "ImageGenerator.domain: expected a Domain, got tuple"),
    ],
    ids=[
        "module",
        "latent",
        "other-latent",
        "output",
        "source",
        "shape",
        "range",
        "labels",
        "latent-int",
        "latent-float",
        "no-source",
        "no-domain",
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        generator(**changes)


@pytest.mark.parametrize("last", [nn.Tanh(), nn.Hardtanh(0.0, 255.0)], ids=["symmetric", "bytes"])
def test_an_output_of_another_range_is_refused(last: nn.Module) -> None:
    other = nn.Sequential(*list(module())[:-2], last, nn.Unflatten(1, (1, 4, 5)))
    with torch.no_grad():
        other[3].weight.mul_(30.0)
    with pytest.raises(InputError, match=r"expected images in \[0, 1\] \('unit'\), got values from"):
        generator(module=other)


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.BatchNorm2d])
def test_images_that_depend_on_their_batch_are_refused(norm: type[nn.Module]) -> None:
    def made(**changes: bool) -> nn.Sequential:
        layers = [nn.Linear(3, 20)]
        layers += [norm(20, **changes)] if norm is nn.BatchNorm1d else []
        layers += [nn.Unflatten(1, (1, 4, 5))]
        layers += [norm(1, **changes)] if norm is nn.BatchNorm2d else []
        return nn.Sequential(*layers, nn.Sigmoid())

    assert generator(module=made()).latent_size == 3
    with pytest.raises(InputError, match=r"depends on its own latent alone, got .*track_running_stats=True"):
        generator(module=made(track_running_stats=False))


def test_a_little_beyond_the_range_is_left_as_it_is() -> None:
    class Beyond(nn.Module):
        def forward(self, latents: Tensor) -> Tensor:
            return (latents.sum(dim=1).sigmoid() * 1.2 - 0.05)[:, None, None, None].expand(-1, 1, 4, 5)

    made = generator(module=Beyond())
    assert float(made(torch.full((1, 3), 9.0)).max()) == pytest.approx(1.15)
    assert made.weights == {}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_images_that_are_not_finite_are_refused(value: float) -> None:
    broken = module()
    with torch.no_grad():
        broken[3].bias.fill_(value)
    broken[4] = nn.Identity()
    with pytest.raises(InputError, match="expected finite images, got NaN or infinity; check the weights"):
        generator(module=broken)


@pytest.mark.usefixtures("global_rng_unchanged")
def test_a_module_that_draws_is_refused() -> None:
    class Noisy(nn.Module):
        def forward(self, latents: Tensor) -> Tensor:
            return (latents.sum() * 0 + torch.rand(latents.shape[0], 1, 4, 5)).clamp(0, 1)

    state = torch.random.get_rng_state()
    with pytest.raises(InputError, match="expected a module that draws nothing beside its latents"):
        generator(module=Noisy())
    torch.random.set_rng_state(state)


def test_draws_come_from_the_given_generator_alone() -> None:
    made = generator().to(torch.float64)
    state = torch.random.get_rng_state()
    one, two = (made.draw(2000, torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.equal(one, two)
    assert one.shape == (2000, 3)
    assert one.dtype == torch.float64
    assert float(one.mean()) == pytest.approx(0.0, abs=0.05)
    assert float(one.std()) == pytest.approx(1.0, abs=0.05)


def test_another_dtype_makes_a_copy() -> None:
    made = generator()
    double = made.to(torch.float64)
    assert double.dtype == torch.float64
    assert made.dtype == torch.float32
    torch.testing.assert_close(double(latents().double()).float(), made(latents()), rtol=1e-5, atol=1e-6)
    assert made.to(torch.device("cpu")).device == torch.device("cpu")


def test_it_travels_to_other_processes() -> None:
    made = generator(module=Forgetful())
    there = pickle.loads(pickle.dumps(made))  # noqa: TID251 - what worker processes do
    torch.testing.assert_close(there(latents()), made(latents()))


def test_the_description_has_facts_and_no_values() -> None:
    facts = generator(source="MNIST, 60,000 images").describe()
    assert facts["module"] == "Sequential"
    assert facts["latent_shape"] == [3]
    assert facts["source"] == "MNIST, 60,000 images"
    assert facts["weights"] == 3 * 12 + 12 + 24 + 12 * 20 + 20
    assert facts["domain"]["shape"] == [1, 4, 5]
    json.dumps(facts, allow_nan=False)
    with pytest.raises(FrozenInstanceError):
        generator().source = "other"


BATCH = Batch(torch.rand(2, 1, 4, 5, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1]), NORMALIZED)


def disclosed(**settings: object) -> Knowledge:
    objective = Objective.from_module(nn.Sequential(nn.Flatten(), nn.Linear(20, 3)))
    return HonestButCurious(**settings).disclose(objective, Release(FedSGD()), BATCH)


def test_the_adversary_brings_it_along_in_the_domain_that_it_is_told() -> None:
    own = generator()
    knowledge = disclosed(generator=own)
    found = knowledge.generator
    assert found is not None
    assert found.domain == NORMALIZED
    assert own.domain == DOMAIN
    assert own.in_domain(DOMAIN) is own
    torch.testing.assert_close(NORMALIZED.to_pixels(found(latents())), own(latents()))
    assert knowledge.card()["generator"] == found.describe()
    knowledge.require(["generator"], asker="IGIMS")
    assert disclosed(generator=own, domain=False).generator is own
    assert disclosed().generator is None
    assert describe(HonestButCurious(generator=own))["generator"]["source"] == "never trained"


def test_a_generator_of_another_size_is_refused() -> None:
    net = nn.Sequential(nn.Linear(3, 9), nn.Sigmoid(), nn.Unflatten(1, (1, 3, 3)))
    small = generator(module=net, domain=replace(DOMAIN, shape=(1, 3, 3)))
    with pytest.raises(
        InputError, match=r"expected a generator of examples of shape \(1, 4, 5\), got one of shape \(1, 3"
    ):
        disclosed(generator=small)


def test_a_bare_module_is_refused() -> None:
    with pytest.raises(
        InputError, match="expected an ImageGenerator or None, got Sequential; wrap a module in ImageGenerator"
    ):
        HonestButCurious(generator=module())


def test_knowledge_holds_generator_and_domain_together() -> None:
    with pytest.raises(InputError, match=r"use generator\.in_domain\(domain\)"):
        Knowledge(domain=NORMALIZED, generator=generator())

from __future__ import annotations

import gc
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.core import (
    Batch,
    Defense,
    DiagonalGaussian,
    Guarantee,
    HonestButCurious,
    NotGaussian,
    Objective,
    Protocol,
    Release,
    Stage,
    UpdateDefense,
    UpdateKind,
    derive_generator,
)
from gradleak.defenses import (
    DPSGD,
    Clip,
    ClipPerExample,
    ClipPerLayer,
    GaussianNoise,
    LaplaceNoise,
    Prune,
    Quantize,
    RandomSparsify,
    Sign,
    SpectralNoise,
    TopK,
)
from gradleak.protocols import FedAvg, FedSGD
from gradleak.results import InputError, UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch, on its first jvp

INPUTS = torch.rand(2, 6, generator=torch.Generator().manual_seed(4))
LABELS = torch.tensor([0, 2])
BATCH = Batch(INPUTS, LABELS)


def objective(mode: str = "eval") -> Objective:
    return Objective.from_module(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), mode=mode)


class Halve(UpdateDefense):
    """Linear, so that Gaussian noise stays Gaussian."""

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC

    def mean(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor / 2 for name, tensor in update.items()}

    def noise(self, shapes: Mapping[str, Tensor]) -> None:
        return None

    def carry(self, noise: DiagonalGaussian) -> DiagonalGaussian:
        return DiagonalGaussian(std={name: std / 2 for name, std in noise.std.items()})

    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        return self.mean(update)


class Coin(Halve):
    def noise(self, shapes: Mapping[str, Tensor]) -> NotGaussian:  # type: ignore[override]
        return NotGaussian(reason="a coin")


def std_of(*defenses: Defense) -> Any:
    noise = Release(FedSGD(), defenses).noise(objective())
    if isinstance(noise, DiagonalGaussian):
        assert list(noise.std) == list(objective().params)
        (std,) = set(noise.std.values())
        return std
    return noise


def test_the_law_of_the_noise_follows_the_order_of_the_defenses() -> None:
    noise = GaussianNoise(std=0.3)
    assert std_of() is None
    assert std_of(Clip(1.0)) is None
    assert std_of(noise) == 0.3
    assert std_of(Clip(1.0), noise) == 0.3
    assert std_of(noise, GaussianNoise(std=0.4)) == pytest.approx(0.5, rel=1e-15)
    assert std_of(noise, Halve()) == 0.15
    assert std_of(noise, Halve(), GaussianNoise(std=0.2)) == pytest.approx(0.25)
    assert std_of(GaussianNoise(std=0.0)) is None
    assert std_of(GaussianNoise(std=0.0), Clip(1.0)) is None
    assert std_of(GaussianNoise(std=0.0), noise) == 0.3
    for defense in (ClipPerExample(1.0), ClipPerLayer(1.0), Prune(0.5), Sign()):
        assert std_of(defense) is None
        assert std_of(defense, noise) == 0.3


@pytest.mark.parametrize(
    ("defenses", "reason"),
    [
        ([GaussianNoise(std=0.3), Clip(1.0)], "passes through Clip, which is not linear"),
        ([GaussianNoise(std=0.3), Clip(1.0), GaussianNoise(std=0.3)], "Clip"),
        ([Coin(), GaussianNoise(std=0.3)], "a coin"),
        ([GaussianNoise(std=0.3), Coin()], "a coin"),
        ([GaussianNoise(std=0.3), Prune(0.5)], "passes through Prune, which is not linear"),
        ([GaussianNoise(std=0.3), Sign()], "passes through Sign, which is not linear"),
        ([GaussianNoise(std=0.3), ClipPerLayer(1.0)], "passes through ClipPerLayer"),
        ([ClipPerExample(1.0), Prune(0.5), GaussianNoise(std=0.3), Sign(), GaussianNoise(std=0.3)], "Sign"),
    ],
)
def test_noise_that_is_not_gaussian_says_why(defenses: list[Defense], reason: str) -> None:
    noise = std_of(*defenses)
    assert isinstance(noise, NotGaussian)
    assert reason in noise.reason


@pytest.mark.parametrize(
    "defenses",
    [
        (),
        (Clip(0.1),),
        (Clip(1e3), GaussianNoise(std=0.5)),
        (GaussianNoise(std=0.1), Clip(0.2)),
        (ClipPerExample(0.2), ClipPerLayer(0.05), Prune(0.5), GaussianNoise(std=0.5)),
    ],
)
def test_the_mean_is_pure_and_safe_under_transforms(defenses: tuple[Defense, ...]) -> None:
    known, release = objective().to(torch.float64), Release(FedSGD(), defenses)
    inputs = INPUTS.double()

    def g(x: Tensor) -> Tensor:
        return known.flatten(release.mean(known, known.params, Batch(x, LABELS)))

    before = torch.get_rng_state()
    value = g(inputs)
    assert torch.equal(value, g(inputs))
    assert torch.equal(torch.get_rng_state(), before)
    tangents = torch.eye(12, dtype=torch.float64).reshape(12, 2, 6)
    forward = torch.func.vmap(lambda t: torch.func.jvp(g, (inputs,), (t,))[1])(tangents)
    reverse = torch.func.jacrev(g)(inputs).reshape(-1, 12).T
    torch.testing.assert_close(forward, reverse, rtol=1e-9, atol=1e-12)
    step = 1e-6
    for tangent, column in zip(tangents, forward, strict=True):
        difference = (g(inputs + step * tangent) - g(inputs - step * tangent)) / (2 * step)
        torch.testing.assert_close(column, difference, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(torch.func.vmap(g)(torch.stack([inputs, inputs])), torch.stack([value, value]))


def test_a_draw_depends_on_the_generator_alone() -> None:
    known, release = objective(), Release(FedSGD(), [GaussianNoise(std=0.1), Clip(0.2)])
    before = torch.get_rng_state()
    one, same, other = (release(known, BATCH, generator=derive_generator(seed, "x")) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    for name in known.params:
        assert torch.equal(one.tensors[name], same.tensors[name])
        assert not torch.equal(one.tensors[name], other.tensors[name])
    assert float(known.flatten(one.tensors).norm()) == pytest.approx(0.2, rel=1e-5)


@pytest.mark.parametrize("stds", [(0.3,), (0.3, 0.4)])
def test_the_drawn_noise_has_the_declared_variance(stds: tuple[float, ...]) -> None:
    known = objective().to(torch.float64)
    release = Release(FedSGD(), [Clip(0.5), *(GaussianNoise(std=std) for std in stds)])
    mean, noise = release.mean(known, known.params, BATCH.to(torch.float64)), release.noise(known)
    assert isinstance(noise, DiagonalGaussian)
    generator = derive_generator(0, "chi-square")
    draws = 400
    squares, sums = 0.0, torch.zeros(known.size, dtype=torch.float64)
    for _ in range(draws):
        update = release(known, BATCH, generator=generator).tensors
        z = known.flatten({name: (update[name] - mean[name]) / noise.std[name] for name in mean})
        squares += float(z @ z)
        sums += z
    count = draws * known.size
    assert abs(squares - count) < 5 * math.sqrt(2 * count), "chi-square outside five standard deviations"
    assert float(sums.abs().max()) / math.sqrt(draws) < 5, "the mean of the noise is not zero"


def test_the_update_says_how_it_was_made_and_nothing_of_the_data() -> None:
    known = objective("train")
    secret = torch.full((2, 6), 0.73519264)
    update = Release(FedSGD(), [Clip(1.0)])(known, Batch(secret, LABELS), generator=torch.Generator())
    assert update.kind is UpdateKind.GRADIENT
    assert update.provenance == {
        "release": {
            "use": "Release",
            "protocol": {"use": "FedSGD"},
            "defenses": [{"use": "Clip", "max_norm": 1.0}],
        },
        "mode": "train",
        "loss": "cross_entropy",
    }
    assert list(update.tensors) == list(known.params)
    assert not any(tensor.requires_grad for tensor in update.tensors.values())


def reachable(*roots: Any) -> list[Tensor]:
    """Every tensor that references lead to from the roots, classes and modules of code left out."""
    seen: set[int] = set()
    stack, found = list(roots), []
    while stack:
        value = stack.pop()
        if id(value) in seen or isinstance(value, type | type(gc)):
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            found.append(value)
            node = value.grad_fn
            if node is not None:
                stack.append(node)
        if type(value).__name__ == "function":
            stack += [*(cell.cell_contents for cell in value.__closure__ or ()), value.__defaults__]
            continue
        stack += gc.get_referents(value)
    return found


class Keeps(nn.Module):
    """Stores what it sees, as models with attention maps or feature hooks do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head, self.seen = nn.Linear(6, 5), nn.Linear(5, 3), None
        self.first.register_forward_hook(lambda module, inputs, output: self.__dict__.update(hooked=inputs))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x
        return self.head(torch.tanh(self.first(x)))


@pytest.mark.parametrize("targets", [False, True])
def test_no_reference_leads_from_the_adversary_to_the_batch(targets: bool) -> None:
    batch = Batch(INPUTS.clone().requires_grad_(), LABELS.clone())
    known = Objective.from_module(Keeps())
    release = Release(FedSGD(), [Clip(1.0), GaussianNoise(std=0.1)])
    update = release(known, batch, generator=torch.Generator())
    threat = HonestButCurious(targets=targets, public=Batch(INPUTS + 1, LABELS))
    knowledge = threat.disclose(known, release, batch)
    found = reachable(update, knowledge)
    assert len(found) > 10
    truth = {batch.inputs.untyped_storage().data_ptr(), batch.targets.untyped_storage().data_ptr()}
    assert not any(tensor.untyped_storage().data_ptr() in truth for tensor in found if not tensor.is_meta)
    assert not any(tensor.shape == INPUTS.shape and torch.equal(tensor, INPUTS) for tensor in found)
    labels = [tensor for tensor in found if tensor.shape == LABELS.shape and torch.equal(tensor.long(), LABELS)]
    assert len(labels) == (2 if targets else 1), "the labels of the public data, and the disclosed ones"
    assert knowledge.public is not None


def test_uint8_images_and_other_faults_stop_a_release() -> None:
    known, release = objective(), Release(FedSGD())
    with pytest.raises(InputError, match=r"floating point numbers, got torch.uint8; scale images"):
        release(known, Batch((INPUTS * 255).to(torch.uint8), LABELS), generator=torch.Generator())
    with pytest.raises(InputError, match=r"expected class indices from 0 to 2"):
        release(known, Batch(INPUTS, LABELS + 1), generator=torch.Generator())
    with pytest.raises(InputError, match=r"expected a torch.Generator, got NoneType; pass generator="):
        release(known, BATCH, generator=None)  # type: ignore[arg-type]
    double = release(known, BATCH.to(torch.float64), generator=torch.Generator())
    assert double.dtype == torch.float32, "the data follow the model, not the other way round"


@pytest.mark.parametrize(
    ("protocol", "defenses", "message"),
    [
        ("FedSGD", [], "expected a Protocol, got str"),
        (FedSGD, [], r"expected a Protocol, got the class FedSGD \(call it\)"),
        (FedSGD(), Clip(1.0), r"expected a list of defenses, got Clip; write \[...\]"),
        (FedSGD(), ["clip"], "expected Defense objects, got str"),
        (FedSGD(), [Clip], r"got the class Clip \(call it\)"),
    ],
)
def test_wrong_parts_are_refused(protocol: Any, defenses: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Release(protocol, defenses)


def test_a_defense_of_examples_comes_before_those_of_the_update() -> None:
    with pytest.raises(InputError, match=r"got ClipPerExample after Prune; .* so put ClipPerExample first"):
        Release(FedSGD(), [ClipPerExample(1.0), Prune(0.5), ClipPerExample(1.0)])
    Release(FedSGD(), [ClipPerExample(1.0), ClipPerExample(0.5), Prune(0.5), Sign()])


def test_the_order_of_defenses_matters() -> None:
    known = objective().to(torch.float64)
    batch = BATCH.to(torch.float64)

    def norm(*defenses: Defense) -> float:
        release = Release(FedSGD(), defenses)
        return float(known.flatten(release.mean(known, known.params, batch)).norm())

    assert norm(Prune(0.8), Clip(0.1)) == pytest.approx(0.1, rel=1e-12)
    assert norm(Clip(0.1), Prune(0.8)) < 0.0999
    assert norm(Sign(), Clip(0.1)) == pytest.approx(0.1, rel=1e-12)
    assert norm(Clip(0.1), Sign()) == pytest.approx(math.sqrt(known.size), rel=1e-12)


def test_defenses_of_examples_act_before_the_mean() -> None:
    known = objective().to(torch.float64)
    found = Release(FedSGD(), [ClipPerExample(0.1)])(known, BATCH, generator=torch.Generator()).tensors
    total = torch.zeros(known.size, dtype=torch.float64)
    for place in range(2):
        gradient = known.flatten(known.gradient(known.params, BATCH.to(torch.float64).example(place)))
        total += 0.1 * gradient / gradient.norm() / 2
    torch.testing.assert_close(known.flatten(found), total, rtol=1e-12, atol=1e-15)


def test_a_defense_of_another_stage_is_not_ignored() -> None:
    class Mixup(Defense):
        stage: ClassVar[Stage] = Stage.BATCH
        guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC

    with pytest.raises(UnsupportedError, match="Mixup acts at the batch stage"):
        Release(FedSGD(), [Mixup()])


def test_the_release_is_a_plain_gradient_without_defenses() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    known = Objective.from_module(model)
    update = Release(FedSGD())(known, BATCH, generator=torch.Generator())
    expected = torch.autograd.grad(F.cross_entropy(model(INPUTS), LABELS), list(model.parameters()))
    for tensor, reference in zip(update.tensors.values(), expected, strict=True):
        torch.testing.assert_close(tensor, reference)


class _Root(nn.Module):
    """A finite loss with a derivative that is none: the root of a square at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last((self.first(x) * 0).square().sqrt())
        return out


@pytest.mark.parametrize(
    "defense",
    [None, Sign(), Prune(0.5), TopK(0.3), RandomSparsify(0.1), Quantize(bits=4), Quantize(bits=4, limit=1.0), Clip(1.0),
     ClipPerLayer(1.0), ClipPerExample(1.0), GaussianNoise(std=1.0), LaplaceNoise(scale=1.0),
     DPSGD(clip_norm=1.0, noise_std=1.0, noise="sum"), SpectralNoise(norm=1.0)],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("protocol", [FedSGD(), FedAvg(learning_rate=0.1, epochs=2)], ids=repr)
def test_no_defense_makes_numbers_of_a_gradient_that_is_none(protocol: Protocol, defense: Defense | None) -> None:
    known = Objective.from_module(_Root())
    with pytest.raises(InputError, match=r"got NaN or infinity in first.weight"):
        Release(protocol, [] if defense is None else [defense])(known, BATCH, torch.Generator())

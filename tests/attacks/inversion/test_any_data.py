"""Images of any size, tables, signals; odd models, losses and number formats: searched, or refused in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.attacks import (
    Adam,
    CosineDecay,
    GradInversion,
    Guess,
    Inversion,
    InvertingGradients,
    SearchStage,
    SquaredError,
    TotalVariation,
)
from gradleak.core import Batch, Domain, DomainKind, HonestButCurious, Objective, Release
from gradleak.protocols import FedSGD
from gradleak.results import KnowledgeError, Outcome
from tests.attacks.setting import rows, setting, small_net


def _generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _seeded(net: type[nn.Module] | nn.Module, *args: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.random.set_rng_state(_generator(0).get_state())
        return net(*args) if isinstance(net, type) else net


def _search(iterations: int = 150, priors: Sequence[TotalVariation] = (), **changes) -> Inversion:
    adam = Adam(learning_rate=0.05, schedule=CosineDecay())
    stage = SearchStage(optimizer=adam, iterations=iterations)
    return replace(Inversion(matching=SquaredError(), stages=(stage,), priors=priors), **changes)


class AnySize(nn.Module):
    """Takes whatever has this many numbers."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(size, 24), nn.Tanh(), nn.Linear(24, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


NORMALIZED = {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.25)}
DOMAINS = {
    "gray": Domain.image(channels=1, height=5, width=9),
    "one row of pixels": Domain.image(channels=1, height=1, width=11),
    "color": Domain.image(channels=3, height=7, width=3, **NORMALIZED),
    "many channels": Domain.image(channels=5, height=4, width=4),
    "bytes": Domain(shape=(1, 4, 6), low=0.0, high=255.0, mean=(128.0,), std=(64.0,)),
    "table": Domain(shape=(13,), low=-1.0, kind=DomainKind.TABULAR),
    "signal": Domain(shape=(2, 17), kind=DomainKind.SIGNAL),
    "signal without channels": Domain(shape=(17,), kind=DomainKind.SIGNAL),
}


@pytest.mark.parametrize("name", DOMAINS)
def test_any_shape_is_found_in_its_range(name: str) -> None:
    domain = DOMAINS[name]
    pixels = torch.rand(1, *domain.shape, generator=_generator(3))
    truth = Batch(domain.from_pixels(pixels), torch.tensor([2]), domain)
    case = setting(_seeded(AnySize, domain.size), truth)
    # Steps in model-input units: a normalized image has a range of several.
    width = float((domain.bounds(pixels)[1] - domain.bounds(pixels)[0]).max())
    adam = Adam(learning_rate=0.05 * width, schedule=CosineDecay())
    attack = _search(stages=(SearchStage(optimizer=adam, iterations=200),), priors=(TotalVariation(weight=1e-7),))
    found = attack(case.update, case.knowledge, generator=_generator())
    assert found.inputs.shape == truth.inputs.shape
    assert case.error(found.inputs) < 1e-3
    inside = domain.to_pixels(found.inputs)
    assert float(inside.min()) >= -1e-9
    assert float(inside.max()) <= 1 + 1e-9


class TwoHeads(nn.Module):
    """A segmentation and a class of one image, in a dict, as medical code returns them."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.mask = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 1, 1)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = torch.tanh(self.trunk(x))
        return {"mask": self.mask(features), "class": self.head(features.mean((2, 3)))}


def dice_and_cross_entropy(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
    """Targets (b, 1 + h · w): the class, then the mask."""
    classes, mask = targets[:, 0].long(), targets[:, 1:]
    soft = outputs["mask"].flatten(1).sigmoid()
    dice = 1 - (2 * (soft * mask).sum(1) + 1) / (soft.sum(1) + mask.sum(1) + 1)
    return dice.mean() + F.cross_entropy(outputs["class"], classes)


def _two_heads(*, disclosed: bool):
    image = torch.rand(1, 1, 6, 6, generator=_generator(3))
    mask = (image.flatten(1) > 0.6).float()
    truth = Batch(image, torch.cat([torch.tensor([[1.0]]), mask], dim=1), Domain.image(channels=1, height=6, width=6))
    objective = Objective.from_module(_seeded(TwoHeads), loss=dice_and_cross_entropy)
    release = Release(FedSGD())
    update = release(objective, truth, _generator())
    return truth, update, HonestButCurious(targets=disclosed).disclose(objective, release, truth)


@pytest.mark.parametrize("restarts", [1, 3])
def test_two_heads_with_a_loss_of_ones_own_are_searched_with_disclosed_targets(restarts: int) -> None:
    """U34."""
    truth, update, knowledge = _two_heads(disclosed=True)
    found = _search(200, restarts=restarts)(update, knowledge, generator=_generator())
    assert found.details["labels"] == "disclosed"
    assert found.loss < 0.05 * found.history[0]
    error, blind = ((x - truth.inputs).square().mean() for x in (found.inputs, torch.full_like(truth.inputs, 0.5)))
    assert float(error) < 0.5 * float(blind)


def test_two_heads_without_targets_are_refused_with_the_reason() -> None:
    """U34: the label step is off, and why."""
    _, update, knowledge = _two_heads(disclosed=False)
    with pytest.raises(KnowledgeError, match=r"dice_and_cross_entropy': .* a dict, .*; disclose targets"):
        _search()(update, knowledge, generator=_generator())


def test_a_net_without_batch_norm_is_attacked_without_that_prior_and_it_is_said() -> None:
    """U18."""
    image = torch.rand(1, 1, 3, 4, generator=_generator())
    truth = Batch(image, torch.tensor([1]), Domain.image(channels=1, height=3, width=4))
    net = nn.Sequential(_seeded(nn.Conv2d, 1, 4, 1), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(),
                        _seeded(nn.Linear, 48, 3))  # fmt: skip
    case = setting(net, truth)
    found = GradInversion(iterations=150, restarts=2, noise=0.05)(case.update, case.knowledge, generator=_generator())
    assert "no BatchNorm statistics, so the BatchNorm prior was left out" in found.note
    used = found.details["information"]
    assert used[:2] == ["update rule: FedSGD()", "labels: recovered"]
    assert "no BatchNorm statistics: the model has none" in used
    assert "prior: TotalVariation(weight=0.0001)" in used
    assert found.loss < 0.05 * found.history[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("restarts", [1, 2])
def test_half_precision_is_searched_in_float32_to_its_round_off(dtype: torch.dtype, restarts: int) -> None:
    """U40."""
    truth = rows(1).to(dtype)
    objective = Objective.from_module(small_net().to(dtype))
    release = Release(FedSGD())
    update = release(objective, truth, _generator())
    assert update.dtype is dtype
    knowledge = HonestButCurious().disclose(objective, release, truth)
    attack = _search(200, restarts=restarts)
    found, twin = attack.many([update, update], knowledge, generators=[_generator(), _generator(2)])
    assert found.inputs.dtype is torch.float32
    assert found.details["group"] == 2
    assert f"computed in float32: {str(dtype).removeprefix('torch.')} is too short" in found.note
    assert float((found.inputs - truth.inputs.float()).square().mean()) < 1e-2
    assert torch.isfinite(twin.inputs).all()


def test_a_half_precision_update_of_a_float32_model_is_no_riddle() -> None:
    case = setting(small_net(), rows(1), dtype=torch.float32)
    rounded = replace(case.update, tensors={name: t.half() for name, t in case.update.tensors.items()})
    found = _search(200)(rounded, case.knowledge, generator=_generator())
    # It is explained as well as the format allows, and that is where the search ends.
    assert found.outcome is Outcome.CONVERGED
    assert found.loss <= torch.finfo(torch.float16).eps ** 2
    assert "float32" not in found.note


def test_a_layer_without_a_gradient_is_named_and_the_rest_is_matched() -> None:
    """U39. A dead ReLU: the first layer's gradient is zero, and dW/db there is 0/0."""
    net = nn.Sequential(_seeded(nn.Linear, 12, 8), nn.ReLU(), _seeded(nn.Linear, 8, 3))
    with torch.no_grad():
        net[0].bias.fill_(-100.0)
    case = setting(net, rows(1))
    for attack in (_search(20), InvertingGradients(iterations=20), InvertingGradients(iterations=20, restarts=2)):
        found = attack(case.update, case.knowledge, generator=_generator())
        assert torch.isfinite(found.inputs).all()
        assert "zero everywhere in the update: 0.weight, 0.bias" in found.note
        assert found.outcome is Outcome.NOT_IDENTIFIABLE  # a random guess explains it, which is no success


@pytest.mark.parametrize(
    ("shape", "kind"), [((12,), "tabular"), ((1, 12), "signal"), ((1, 3, 4), "image"), ((12, 1, 1), "image")]
)
def test_total_variation_says_where_it_does_nothing(shape: tuple[int, ...], kind: str) -> None:
    truth = Batch(torch.rand(1, *shape, generator=_generator()), torch.tensor([1]), Domain(shape=shape, kind=kind))
    case = setting(_seeded(AnySize(12)), truth)
    found = _search(3, priors=(TotalVariation(weight=0.5),))(case.update, case.knowledge, generator=_generator())
    information = next(fact for fact in found.details["information"] if "variation" in fact.lower())
    moved = float(TotalVariation(weight=0.5)(Guess(inputs=truth.inputs, domain=truth.domain))) > 0
    assert ("total variation did nothing" in found.note) is not moved
    assert information.startswith("prior: TotalVariation(weight=0.5)" if moved else "no total variation: ")
    assert information.endswith("along the signal alone") is (kind == "signal")
    quiet = _search(3, priors=(TotalVariation(weight=0.0),))(case.update, case.knowledge, generator=_generator())
    assert "total variation" not in quiet.note

"""What every exported defense must hold; a new one is found by itself and needs one example below."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math

import pytest
import torch
from torch import Tensor, nn

from gradleak import defenses
from gradleak.core import (
    Batch,
    BatchDefense,
    Defense,
    DiagonalGaussian,
    ExampleDefense,
    Guarantee,
    NotGaussian,
    Stage,
    UpdateDefense,
    describe,
)
from gradleak.defenses import SensitiveClassifier
from gradleak.results import Citation
from gradleak.testing import check_defense


def classifier() -> SensitiveClassifier:
    return SensitiveClassifier(
        torch.zeros(16), torch.ones(16), hidden=4, classes=2, generator=torch.Generator().manual_seed(3)
    ).requires_grad_(False)


EXAMPLES: dict[str, list[Defense]] = {
    "AdversarialPerturbation": [
        defenses.AdversarialPerturbation(classifier=classifier()),
        defenses.AdversarialPerturbation(classifier=classifier(), target=1, gamma=0.1, alpha=0.03),
    ],
    "Clip": [defenses.Clip(0.5), defenses.Clip(1e6)],
    "ClipPerExample": [defenses.ClipPerExample(0.5), defenses.ClipPerExample(1e6)],
    "ClipPerLayer": [defenses.ClipPerLayer(0.5), defenses.ClipPerLayer(1e6)],
    "ClipTensorsPerExample": [defenses.ClipTensorsPerExample(0.5), defenses.ClipTensorsPerExample(1e6)],
    "DPSGD": [
        defenses.DPSGD(clip_norm=0.5, noise_std=0.1, noise="per_example"),
        defenses.DPSGD(clip_norm=1e6, noise_std=0.1, noise="sum"),
        defenses.DPSGD(clip_norm=0.5, noise_std=0.1, noise="sum", expected_batch_size=7.5),
    ],
    "GaussianNoise": [defenses.GaussianNoise(std=0.1), defenses.GaussianNoise(std=0.0)],
    "LaplaceNoise": [defenses.LaplaceNoise(scale=0.1), defenses.LaplaceNoise(scale=0.0)],
    "LayerNoise": [
        defenses.LayerNoise(std={"": 0.1}),
        defenses.LayerNoise(std={}, default=0.2),
        defenses.LayerNoise(std={}),
    ],
    "Outpost": [defenses.Outpost(), defenses.Outpost(iteration=40, scale=0.1)],
    "Prune": [defenses.Prune(0.6), defenses.Prune(0.6, by="layer"), defenses.Prune(0.0)],
    "Quantize": [
        defenses.Quantize(bits=4),
        defenses.Quantize(bits=8, range="norm"),
        defenses.Quantize(bits=3, limit=0.5),
        defenses.Quantize(bits=4, stochastic=False),
        defenses.Quantize(bits=4, stochastic=False, limit=0.5),
    ],
    "RandomSparsify": [defenses.RandomSparsify(0.4), defenses.RandomSparsify(0.4, unbiased=False)],
    "Sign": [defenses.Sign()],
    "Soteria": [defenses.Soteria(layer="2"), defenses.Soteria(layer="2", share=0.0)],
    "SpectralNoise": [defenses.SpectralNoise(norm=0.3), defenses.SpectralNoise(norm=0.3, directions=3)],
    "TopK": [defenses.TopK(0.4), defenses.TopK(0.4, by="layer"), defenses.TopK(0.4, by="tensor")],
    "VariationalBottleneck": [defenses.VariationalBottleneck(), defenses.VariationalBottleneck(beta=0.1, width=3)],
}
CLASSES = [
    item
    for item in (getattr(defenses, name) for name in defenses.__all__)
    if inspect.isclass(item) and issubclass(item, Defense)
]
ALL = [example for examples in EXAMPLES.values() for example in examples]
CASES = [example for example in ALL if isinstance(example, UpdateDefense)]
EXAMPLE_CASES = [example for example in ALL if isinstance(example, ExampleDefense)]
BATCH_CASES = [example for example in ALL if isinstance(example, BatchDefense)]

pytestmark = [
    pytest.mark.usefixtures("global_rng_unchanged"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning"),  # torch, on its first jvp
]


def update(dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(8)
    shapes = {"w": (3, 4), "b": (3,), "scale": ()}
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for name, shape in shapes.items()
    }


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return list(left) == list(right) and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("defense", CLASSES, ids=lambda cls: cls.__name__)
def test_every_exported_defense_has_an_example_and_a_card(defense: type[Defense]) -> None:
    assert issubclass(defense, Defense)
    assert not inspect.isabstract(defense)
    assert defense.__name__ in EXAMPLES, "add an example of it to this file"
    assert all(type(example) is defense for example in EXAMPLES[defense.__name__])
    assert isinstance(defense.guarantee, Guarantee)
    assert isinstance(defense.stage, Stage)
    assert defense.citations
    assert all(isinstance(citation, Citation) for citation in defense.citations)
    assert (defense.__doc__ or "").strip().splitlines()[0].endswith(".")


@pytest.mark.parametrize("defense", ALL, ids=repr)
def test_it_is_frozen_and_described_by_its_constructor(defense: Defense) -> None:
    assert dataclasses.is_dataclass(defense)
    described = json.loads(json.dumps(describe(defense), allow_nan=False))
    use = described.pop("use")
    for field in dataclasses.fields(defense):
        if isinstance(value := getattr(defense, field.name), nn.Module):
            described[field.name] = value  # weights do not enter a record
    assert type(defense)(**described) == defense
    assert use == type(defense).__name__
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(defense, next((field.name for field in dataclasses.fields(defense)), "anything"), 1)
    assert hash(defense) == hash(dataclasses.replace(defense))


@pytest.mark.parametrize("defense", CASES, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_names_shapes_and_dtypes_stay_and_the_argument_is_untouched(defense: UpdateDefense, dtype: torch.dtype) -> None:
    given, kept = update(dtype), update(dtype)
    for result in (defense.mean(given), defense.draw(given, torch.Generator().manual_seed(0))):
        assert list(result) == list(given)
        for name, tensor in result.items():
            assert (tensor.shape, tensor.dtype, tensor.device) == (given[name].shape, dtype, given[name].device)
            assert bool(torch.isfinite(tensor).all())
    assert same(given, kept)


@pytest.mark.parametrize("defense", CASES, ids=repr)
def test_mean_is_pure_and_passes_through_transforms(defense: UpdateDefense) -> None:
    given = update()
    assert same(defense.mean(given), defense.mean(given))
    tangent = {name: torch.ones_like(tensor) for name, tensor in given.items()}

    def mean(values: dict[str, Tensor]) -> dict[str, Tensor]:
        return defense.mean(values)

    value, forward = torch.func.jvp(mean, (given,), (tangent,))
    assert same(value, mean(given))
    _, pull = torch.func.vjp(mean, given)
    (back,) = pull(tangent)
    left = sum(float((forward[name] * tangent[name]).sum()) for name in given)
    right = sum(float((back[name] * tangent[name]).sum()) for name in given)
    assert left == pytest.approx(right, rel=1e-10, abs=1e-12)
    stacked = {name: torch.stack([tensor, 2 * tensor]) for name, tensor in given.items()}
    rows = torch.func.vmap(mean)(stacked)
    for place, factor in enumerate((1, 2)):
        single = mean({name: factor * tensor for name, tensor in given.items()})
        for name in given:
            torch.testing.assert_close(rows[name][place], single[name])


@pytest.mark.parametrize("defense", CASES, ids=repr)
def test_draws_follow_the_generator_and_the_declared_law(defense: UpdateDefense) -> None:
    given = update()
    draws = [defense.draw(given, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    law = defense.noise(given)
    assert same(draws[0], draws[1])
    assert same(draws[0], draws[2]) == (law is None)
    if law is None:
        assert same(draws[0], defense.mean(given))
    elif isinstance(law, DiagonalGaussian):
        assert list(law.std) == list(given)
        generator, mean, squares, count = torch.Generator().manual_seed(2), defense.mean(given), 0.0, 0
        noisy = [name for name in given if law.std[name] > 0]
        assert noisy
        for _ in range(500):
            drawn = defense.draw(given, generator)
            assert all(torch.equal(drawn[name], mean[name]) for name in set(given) - set(noisy))
            for name in noisy:
                squares += float((((drawn[name] - mean[name]) / law.std[name]) ** 2).sum())
                count += given[name].numel()
        assert abs(squares - count) < 5 * math.sqrt(2 * count)
    else:
        assert isinstance(law, NotGaussian)
        assert law.reason


@pytest.mark.parametrize("defense", CASES, ids=repr)
def test_draws_have_the_mean_and_the_variance_that_are_stated(defense: UpdateDefense) -> None:
    given = update()
    mean, variance, generator = defense.mean(given), defense.variance(given), torch.Generator().manual_seed(5)
    draws, count = [defense.draw(given, generator) for _ in range(2000)], 2000
    assert variance is not None
    for name in given:
        drawn = torch.stack([draw[name] for draw in draws])
        error = (variance[name] / count).sqrt()
        assert bool(((drawn.mean(dim=0) - mean[name]).abs() <= 5 * error + 1e-12).all())
        found = drawn.var(dim=0)
        # The variance of a variance, from the fourth moment of the draws.
        fourth = ((drawn - drawn.mean(dim=0)) ** 4).mean(dim=0)
        spread = ((fourth - found**2).clamp_min(0) / count).sqrt()
        assert bool(((found - variance[name]).abs() <= 6 * spread + 2e-2 * variance[name] + 1e-12).all())


@pytest.mark.parametrize("defense", CASES, ids=repr)
def test_no_update_gets_longer_than_the_bound_that_is_stated(defense: UpdateDefense) -> None:
    for factor in (0.01, 1.0, 1e4):
        given = {name: factor * tensor for name, tensor in update().items()}
        bound = defense.bound(given)
        if bound is not None:
            norm = math.sqrt(sum(float(tensor.square().sum()) for tensor in defense.mean(given).values()))
            assert norm <= bound * (1 + 1e-12)


@pytest.mark.parametrize("defense", CASES, ids=repr)
def test_the_share_that_is_kept_is_the_one_that_is_stated(defense: UpdateDefense) -> None:
    if defense.kept_share is not None:
        drawn = defense.draw(update(), torch.Generator().manual_seed(0))
        kept = sum(int(tensor.count_nonzero()) for tensor in drawn.values())
        assert defense.kept_share * 16 - 1e-9 <= kept <= defense.kept_share * 16 + len(drawn)


@pytest.mark.parametrize("defense", CASES, ids=repr)
def test_earlier_gaussian_noise_is_carried_or_named(defense: UpdateDefense) -> None:
    law = DiagonalGaussian(std=dict.fromkeys(update(), 0.2))
    carried = defense.carry(law)
    if isinstance(carried, DiagonalGaussian):
        # Only a linear map keeps Gaussian noise Gaussian: check it on the mean.
        one, two = update(), {name: tensor.flip(0) if tensor.dim() else tensor for name, tensor in update().items()}
        both = defense.mean({name: one[name] + two[name] for name in one})
        for name in one:
            torch.testing.assert_close(both[name], defense.mean(one)[name] + defense.mean(two)[name])
    else:
        assert isinstance(carried, NotGaussian)
        assert type(defense).__name__ in carried.reason


@pytest.mark.parametrize("defense", EXAMPLE_CASES, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_defense_of_examples_treats_every_row_by_itself(defense: ExampleDefense, dtype: torch.dtype) -> None:
    rows = [update(dtype), {name: 3 * tensor for name, tensor in update(dtype).items()}]
    given = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    kept = {name: tensor.clone() for name, tensor in given.items()}
    found = defense.mean(given)
    assert same(given, kept)
    assert list(found) == list(given)
    turned = defense.mean({name: tensor.flip(0) for name, tensor in given.items()})
    for name, tensor in found.items():
        assert (tensor.shape, tensor.dtype) == (given[name].shape, dtype)
        assert bool(torch.isfinite(tensor).all())
        assert torch.equal(tensor, turned[name].flip(0))
    for place in range(2):
        alone = defense.mean({name: tensor[place : place + 1] for name, tensor in given.items()})
        for name in given:
            torch.testing.assert_close(found[name][place], alone[name][0])


@pytest.mark.parametrize("defense", EXAMPLE_CASES, ids=repr)
def test_a_defense_of_examples_passes_through_transforms(defense: ExampleDefense) -> None:
    given = {name: torch.stack([tensor, 2 * tensor]) for name, tensor in update().items()}
    tangent = {name: torch.ones_like(tensor) for name, tensor in given.items()}

    def mean(values: dict[str, Tensor]) -> dict[str, Tensor]:
        return defense.mean(values)

    value, forward = torch.func.jvp(mean, (given,), (tangent,))
    assert same(value, mean(given))
    (back,) = torch.func.vjp(mean, given)[1](tangent)
    left = sum(float((forward[name] * tangent[name]).sum()) for name in given)
    right = sum(float((back[name] * tangent[name]).sum()) for name in given)
    assert left == pytest.approx(right, rel=1e-10, abs=1e-12)
    stacked = {name: torch.stack([tensor, 2 * tensor]) for name, tensor in given.items()}
    nested = torch.func.vmap(mean)(stacked)
    for name in given:
        torch.testing.assert_close(nested[name][1], mean({k: 2 * t for k, t in given.items()})[name])


@pytest.mark.parametrize("defense", EXAMPLE_CASES, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_the_average_of_a_defense_of_examples_carries_the_law_that_is_stated(
    defense: ExampleDefense, dtype: torch.dtype
) -> None:
    rows = {name: torch.stack([tensor, -2 * tensor, tensor]) for name, tensor in update(dtype).items()}
    average, generator = defense.average(rows), torch.Generator().manual_seed(1)
    law = defense.law(update(dtype), 3)
    kept = {name: tensor.clone() for name, tensor in average.items()}
    first, again = (defense.draw(average, 3, torch.Generator().manual_seed(0)) for _ in range(2))
    assert same(first, again)
    assert same(average, kept)
    assert all((first[name].shape, first[name].dtype) == (rows[name].shape[1:], dtype) for name in rows)
    if law is None:
        assert same(first, average)
        return
    assert isinstance(law, DiagonalGaussian)
    assert type(defense).closes, "its noise has to be the last thing that happens to the examples"
    squares, count = 0.0, 0
    for _ in range(500):
        drawn = defense.draw(average, 3, generator)
        for name in rows:
            residual = drawn[name].double() - average[name].double()
            squares += float((residual / law.std[name]).square().sum())
            count += residual.numel()
    assert abs(squares - count) < 5 * math.sqrt(2 * count) + (0.01 * count if dtype is torch.float16 else 0)


@pytest.mark.parametrize("defense", EXAMPLE_CASES, ids=repr)
def test_no_defended_gradient_gets_longer_than_the_bound(defense: ExampleDefense) -> None:
    rows = {name: torch.stack([1e-3 * tensor, tensor, 1e6 * tensor]) for name, tensor in update().items()}
    assert defense.bound is not None
    squared = sum(tensor.reshape(3, -1).square().sum(dim=1) for tensor in defense.mean(rows).values())
    assert isinstance(squared, Tensor)
    assert bool((squared.sqrt() <= defense.bound * (1 + 1e-12)).all())


@pytest.mark.parametrize("defense", BATCH_CASES, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_defense_that_looks_at_the_batch_keeps_shapes_and_passes_through_transforms(
    defense: BatchDefense, dtype: torch.dtype
) -> None:
    batch = Batch(torch.zeros(2, 3, dtype=dtype), torch.tensor([0, 1]), sensitive=torch.tensor([1, 1]))
    given, kept = update(dtype), update(dtype)
    found = defense.mean(given, batch)
    assert same(given, kept)
    assert list(found) == list(given)
    assert all((found[name].shape, found[name].dtype) == (given[name].shape, dtype) for name in given)
    tangent = {name: torch.ones_like(tensor) for name, tensor in given.items()}
    value, forward = torch.func.jvp(lambda values: defense.mean(values, batch), (given,), (tangent,))
    assert same(value, found)
    (back,) = torch.func.vjp(lambda values: defense.mean(values, batch), given)[1](tangent)
    left = sum(float((forward[name] * tangent[name]).sum()) for name in given)
    assert left == pytest.approx(sum(float((back[name] * tangent[name]).sum()) for name in given))
    stacked = {name: torch.stack([tensor, 2 * tensor]) for name, tensor in given.items()}
    rows = torch.func.vmap(lambda values: defense.mean(values, batch))(stacked)
    for name in given:
        torch.testing.assert_close(rows[name][0], found[name])


@pytest.mark.parametrize("defense", [example for example in ALL if example.flat], ids=repr)
def test_a_flat_defense_has_no_derivative(defense: UpdateDefense) -> None:
    given = update()
    tangent = {name: torch.ones_like(tensor) for name, tensor in given.items()}
    _, forward = torch.func.jvp(lambda values: defense.mean(values), (given,), (tangent,))
    assert not any(bool(tensor.any()) for tensor in forward.values())


@pytest.mark.parametrize("defense", ALL, ids=repr)
def test_it_passes_the_checks_that_plug_in_authors_run(defense: Defense) -> None:
    check_defense(defense)

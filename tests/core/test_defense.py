"""Stages, order and what a release does with each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch
from tests.defenses.setting import batch, generator, gradients, objective
from torch import Tensor

from gradleak.core import (
    Batch,
    BatchDefense,
    Defense,
    DiagonalGaussian,
    ExampleDefense,
    Exposure,
    Guarantee,
    Laplace,
    ModelDefense,
    Noise,
    NotGaussian,
    Objective,
    Release,
    UpdateDefense,
)
from gradleak.defenses import DPSGD, Clip, ClipPerExample, GaussianNoise, LaplaceNoise, SpectralNoise
from gradleak.protocols import FedAvg, FedSGD
from gradleak.results import InputError


@dataclass(frozen=True)
class Spy(BatchDefense):
    """Notes what it is given, and adds the mean of the private inputs to every entry."""

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC
    seen: list[Any] = field(default_factory=list)

    def mean(self, update: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        return {name: tensor + batch.inputs.mean() for name, tensor in update.items()}

    def noise(self, shapes: Mapping[str, Tensor]) -> Noise:
        return None

    def draw(
        self,
        update: Mapping[str, Tensor],
        *,
        objective: Objective,
        batch: Batch,
        before: Release,
        generator: torch.Generator,
    ) -> dict[str, Tensor]:
        self.seen.append((update, objective, batch, before, generator))
        return self.mean(update, batch)


@dataclass(frozen=True)
class Wide(ModelDefense):
    """Holds for models with enough parameters."""

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC
    least: int

    def check(self, objective: Objective) -> None:
        if objective.size < self.least:
            raise InputError(f"Wide: expected at least {self.least} entries, got {objective.size}")


@dataclass(frozen=True)
class Halved(ExampleDefense):
    """Divides by twice the number of examples, and makes the mean itself."""

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC
    closes: ClassVar[bool] = True

    def mean(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(gradients)

    def average(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: rows.mean(dim=0) / 2 for name, rows in gradients.items()}


def test_a_defense_that_looks_at_the_batch_stands_where_the_list_says() -> None:
    known, data, random, spy = objective(), batch(2), generator(), Spy()
    release = Release(FedSGD(), [Clip(0.1), spy, Clip(0.05)])
    found = known.flatten(release(known, data, random).tensors)
    update, seen_objective, seen_batch, before, seen_random = spy.seen[0]
    plain = gradients(data).mean(dim=0)
    clipped = 0.1 * plain / plain.norm()
    torch.testing.assert_close(known.flatten(update), clipped)
    assert (seen_objective, before, seen_random) == (known, Release(FedSGD(), [Clip(0.1)]), random)
    assert torch.equal(seen_batch.inputs, data.inputs)
    moved = clipped + data.inputs.mean()
    torch.testing.assert_close(found, 0.05 * moved / moved.norm())


def test_what_it_does_is_part_of_the_mean_map_and_of_its_derivative() -> None:
    known, data = objective(), batch(1)
    exposure = Exposure(known, data, Release(FedSGD(), [Spy()]))
    x = exposure.inputs
    plain = Exposure(known, data, Release(FedSGD()))
    torch.testing.assert_close(exposure.mean(x), plain.mean(x) + x.mean())
    torch.testing.assert_close(
        torch.func.jacfwd(exposure.mean)(x), torch.func.jacfwd(plain.mean)(x) + 1 / x.numel(), rtol=1e-9, atol=1e-12
    )
    assert exposure.release.after_gradient is None


@pytest.mark.parametrize(
    ("defenses", "message"),
    [
        ([Clip(1.0), Wide(least=1)], r"defenses of the model before all others, got Wide after Clip; put Wide first"),
        ([ClipPerExample(1.0), Wide(least=1)], r"defenses of the model before all others"),
        (
            [SpectralNoise(norm=0.1), ClipPerExample(1.0)],
            r"got ClipPerExample after SpectralNoise; .* put ClipPerExample",
        ),
        ([Halved(), ClipPerExample(1.0)], r"expected Halved last among the defenses of single examples"),
    ],
)
def test_an_impossible_order_is_refused(defenses: list[Defense], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Release(FedSGD(), defenses)


def test_all_stages_go_together_in_their_order() -> None:
    known = objective()
    release = Release(
        FedSGD(), [Wide(least=3), ClipPerExample(1.0), Halved(), Spy(), Clip(1.0), SpectralNoise(norm=0.1)]
    )
    assert release(known, batch(2), generator()).tensors.keys() == known.params.keys()


def test_the_last_defense_of_examples_makes_the_mean() -> None:
    known, data = objective(), batch(3)
    found = Release(FedSGD(), [Halved()])(known, data, generator()).tensors
    torch.testing.assert_close(known.flatten(found), gradients(data).mean(dim=0) / 2)


def test_a_defense_of_the_model_is_checked_where_the_data_are() -> None:
    known = objective()
    Release(FedSGD(), [Wide(least=1)])(known, batch(1), generator())
    release = Release(FedSGD(), [Wide(least=10_000)])
    with pytest.raises(InputError, match="Wide: expected at least 10000 entries"):
        release(known, batch(1), generator())
    with pytest.raises(InputError, match="Wide: expected at least 10000 entries"):
        Exposure(known, batch(1), release)


def test_an_exposure_knows_how_many_examples_share_the_noise() -> None:
    defense = DPSGD(clip_norm=1.0, noise_std=0.3, noise="sum")
    for examples in (1, 3):
        law = Exposure(objective(), batch(examples), Release(FedSGD(), [defense])).noise
        assert isinstance(law, DiagonalGaussian)
        assert set(law.std.values()) == {0.3 / examples}
    assert Release(FedSGD(), [ClipPerExample(1.0)]).noise(objective()) is None


def test_a_draw_with_noise_of_examples_depends_on_the_generator_alone() -> None:
    known = objective()
    release = Release(
        FedAvg(learning_rate=0.1, epochs=2, batch_size=2),
        [DPSGD(clip_norm=1.0, noise_std=0.3, noise="per_example"), GaussianNoise(std=0.1)],
    )
    before = torch.get_rng_state()
    first, same, other = (known.flatten(release(known, batch(3), generator(s)).tensors) for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    mean = release.mean(known, known.params, batch(3))
    assert torch.equal(known.flatten(mean), known.flatten(release.mean(known, known.params, batch(3))))


@dataclass(frozen=True)
class Coin(UpdateDefense):
    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC

    def mean(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(update)

    def noise(self, shapes: Mapping[str, Tensor]) -> NotGaussian:
        return NotGaussian(reason="a coin")

    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        return dict(update)


def test_a_defense_states_as_little_as_it_can() -> None:
    shapes = dict(objective().params)
    assert Coin().variance(shapes) is None
    assert Coin().bound(shapes) is None
    assert not Coin().flat
    assert Coin().kept_share is None
    assert Halved().bound is None
    variance = GaussianNoise(std=0.5).variance(shapes)
    assert variance is not None
    assert all(bool((tensor == 0.25).all()) for tensor in variance.values())
    assert DiagonalGaussian(std={"a": 0.5}).scaled(-2.0) == DiagonalGaussian(std={"a": 1.0})


def test_the_size_of_noise_is_its_root_mean_square_over_all_entries() -> None:
    shapes = {"a": torch.zeros(3), "b": torch.zeros(1)}
    assert DiagonalGaussian(std={"a": 2.0, "b": 4.0}).rms(shapes) == pytest.approx(7**0.5)
    assert Laplace(reason="r", scale=0.5).rms(shapes) == pytest.approx(0.5**0.5)
    assert NotGaussian(reason="r").rms(shapes) is None
    both = Release(FedSGD(), [GaussianNoise(std=1.0), LaplaceNoise(scale=1.0)]).noise(objective(), shapes)
    assert isinstance(both, NotGaussian)
    assert both.rms(shapes) is None
    drawn = LaplaceNoise(scale=0.5).draw({"w": torch.zeros(200_000)}, torch.Generator().manual_seed(0))["w"]
    assert float(drawn.square().mean().sqrt()) == pytest.approx(0.5**0.5, rel=0.02)

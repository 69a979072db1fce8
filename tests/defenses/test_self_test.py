"""Defenses that are what they say, and defenses that are not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from tests.defenses.setting import batch, generator, objective
from torch import Tensor

from gradleak.core import (
    Defense,
    DiagonalGaussian,
    ExampleDefense,
    Guarantee,
    Noise,
    NotGaussian,
    Release,
    UpdateDefense,
)
from gradleak.defenses import (
    DPSGD,
    Claims,
    Clip,
    ClipPerExample,
    ClipPerLayer,
    GaussianNoise,
    LaplaceNoise,
    LayerNoise,
    Prune,
    Quantize,
    RandomSparsify,
    SelfTest,
    Sign,
    SpectralNoise,
    TopK,
    self_test,
)
from gradleak.defenses.clip import scaled_to
from gradleak.defenses.draws import normal
from gradleak.protocols import FedAvg, FedSGD
from gradleak.results import InputError

HONEST: list[list[Defense]] = [
    [],
    [Clip(0.3)],
    [ClipPerExample(0.3)],
    [ClipPerLayer(0.1), GaussianNoise(std=0.01)],
    [DPSGD(clip_norm=0.3, noise_std=0.1, noise="per_example")],
    [DPSGD(clip_norm=0.3, noise_std=0.1, noise="sum")],
    [DPSGD(clip_norm=0.3, noise_std=0.1, noise="sum", expected_batch_size=11), Prune(0.5)],
    [ClipPerExample(0.3), GaussianNoise(std=0.01)],
    [LaplaceNoise(scale=0.1)],
    [LayerNoise(std={"0": 0.1})],
    [TopK(0.1)],
    [TopK(0.1, by="tensor")],
    [Prune(0.9), GaussianNoise(std=0.1)],
    [Clip(0.3), RandomSparsify(0.1)],
    [RandomSparsify(0.1, unbiased=False)],
    [Quantize(bits=4)],
    [Quantize(bits=4, stochastic=False)],
    [Sign()],
    [SpectralNoise(norm=0.1, directions=2)],
]


def report(defenses: list[Defense], claims: Claims | None = None, draws: int = 64) -> SelfTest:
    return self_test(
        Release(FedSGD(), defenses), objective(), batch(4), generator=generator(), claims=claims, draws=draws
    )


@pytest.mark.parametrize("defenses", HONEST, ids=repr)
def test_an_honest_defense_passes(defenses: list[Defense]) -> None:
    found = report(defenses, draws=40)
    assert found.failures == ()
    assert found.passed
    json.dumps(found.to_dict(), allow_nan=False)


def test_it_says_what_gets_through() -> None:
    plain = report([], draws=2)
    assert (plain.kept_share, plain.untouched_share) == (1.0, 1.0)
    assert plain.cosine == pytest.approx(1.0)
    assert plain.relative_norm == pytest.approx(1.0)
    clipped = report([Clip(0.1)], draws=2)
    assert (clipped.kept_share, clipped.untouched_share) == (1.0, 0.0)
    assert clipped.cosine == pytest.approx(1.0)
    assert clipped.relative_norm is not None
    assert clipped.relative_norm < 0.5
    kept = report([TopK(0.25)], draws=2)
    assert kept.kept_share == kept.untouched_share == pytest.approx(0.25, abs=0.01)
    swamped = report([DPSGD(clip_norm=0.01, noise_std=10.0, noise="sum")])
    assert abs(swamped.cosine or 1.0) < 0.1
    assert swamped.passed, "useless is not dishonest"


@dataclass(frozen=True)
class BatchClip(UpdateDefense):
    """Sold as DP-SGD, but it clips the whole update: one example may move all of it."""

    guarantee: ClassVar[Guarantee] = Guarantee.FORMAL
    max_norm: float = 0.3
    std: float = 0.1

    def mean(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return scaled_to(self.max_norm, update)

    def noise(self, shapes: Mapping[str, Tensor]) -> Noise:
        return DiagonalGaussian(std=dict.fromkeys(shapes, self.std)) if self.std else None

    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        return {name: tensor + self.std * normal(tensor, generator) for name, tensor in self.mean(update).items()}

    def bound(self, shapes: Mapping[str, Tensor]) -> float:
        return self.max_norm


@dataclass(frozen=True)
class PercentileFilter(UpdateDefense):
    """Sold as DP: keeps what is above a percentile, and adds nothing."""

    guarantee: ClassVar[Guarantee] = Guarantee.FORMAL

    def mean(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return Prune(0.9).mean(update)

    def noise(self, shapes: Mapping[str, Tensor]) -> Noise:
        return None

    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        return self.mean(update)


@dataclass(frozen=True)
class Weak(BatchClip):
    """Draws less noise than it says."""

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC

    def mean(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(update)

    def bound(self, shapes: Mapping[str, Tensor]) -> None:  # type: ignore[override]
        return None

    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        return {name: tensor + 0.9 * self.std * normal(tensor, generator) for name, tensor in update.items()}


@dataclass(frozen=True)
class Silent(Weak):
    """Draws noise that it does not state."""

    def noise(self, shapes: Mapping[str, Tensor]) -> Noise:
        return None


@dataclass(frozen=True)
class Shifted(Weak):
    """Its noise has the right spread around another center."""

    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        return {name: 0.8 * tensor + self.std * normal(tensor, generator) for name, tensor in update.items()}


@dataclass(frozen=True)
class Unscaled(RandomSparsify):
    """Says that it is unbiased and forgets the scale."""

    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        return RandomSparsify(self.share, unbiased=False).draw(update, generator)


@dataclass(frozen=True)
class LooseClip(ExampleDefense):
    """Clips every tensor by itself and calls the norm that of the whole."""

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC
    max_norm: float = 0.3

    @property
    def bound(self) -> float:
        return self.max_norm

    def mean(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: ClipPerExample(self.max_norm).mean({name: tensor})[name] for name, tensor in gradients.items()}


@pytest.mark.parametrize(
    ("defense", "checks", "note"),
    [
        (BatchClip(), {"sensitivity", "per_example_clip"}, "the whole update is clipped"),
        (BatchClip(std=0.0), {"sensitivity", "per_example_clip", "formal"}, "leaves entries without noise"),
        (PercentileFilter(), {"formal"}, "bounds no norm; PercentileFilter leaves entries without noise"),
        (Weak(), {"noise_variance"}, "0.81"),
        (Silent(), {"noise_variance"}, "no noise is stated"),
        (Unscaled(0.1), {"noise_variance", "noise_mean"}, "along the noiseless update"),
        (LooseClip(), {"sensitivity", "per_example_clip"}, "neither the mean of clipped gradients nor"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Defense) else "",
)
def test_a_mislabeled_defense_is_caught(defense: Defense, checks: set[str], note: str) -> None:
    found = report([defense])
    assert not found.passed
    assert {check.name for check in found.failures} == checks
    assert any(note in check.note for check in found.failures)


def test_noise_around_another_center_is_caught() -> None:
    found = report([Shifted(std=0.001)])
    assert "noise_mean" in {check.name for check in found.failures}


def test_a_label_can_claim_more_than_the_class_knows() -> None:
    shared_less = report([TopK(0.05)], Claims(kept_share=0.9), draws=2)
    (check,) = shared_less.failures
    assert check.name == "kept_share"
    assert (check.claimed, check.found) == (0.9, pytest.approx(0.05, abs=0.02))
    sold_as_dp = report([Clip(0.3), GaussianNoise(std=0.1)], Claims(clip_norm=0.3))
    assert {check.name for check in sold_as_dp.failures} == {"sensitivity", "per_example_clip"}
    assert report([ClipPerExample(0.3), GaussianNoise(std=0.1)], Claims(clip_norm=0.3)).passed
    noise = report([GaussianNoise(std=0.1)], Claims(noise_std=0.2))
    assert {check.name for check in noise.failures} == {"noise_variance"}


def test_what_local_steps_hide_is_left_undecided() -> None:
    release = Release(FedAvg(learning_rate=0.1, epochs=2), [DPSGD(clip_norm=0.3, noise_std=0.1, noise="sum")])
    found = self_test(release, objective(), batch(4), generator=generator(), draws=4)
    undecided = {check.name: check.note for check in found.checks if check.passed is None}
    assert set(undecided) == {"noise_variance", "sensitivity", "per_example_clip"}
    assert "inside the local training" in undecided["noise_variance"]
    assert found.passed


def test_a_law_that_is_not_stated_in_numbers_is_left_undecided() -> None:
    found = report([SpectralNoise(norm=0.1)], draws=2)
    (check,) = [check for check in found.checks if check.name == "noise_variance"]
    assert check.passed is None
    assert isinstance(Release(FedSGD(), [SpectralNoise(norm=0.1)]).noise(objective()), NotGaussian)
    assert "depend on the batch" in check.note


def test_one_draw_is_refused() -> None:
    with pytest.raises(InputError, match=r"expected at least 2 draws, got 1"):
        report([], draws=1)

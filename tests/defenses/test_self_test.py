"""Defenses that are what they say, and defenses that are not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pytest
import scipy.stats
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
    release_tests,
    self_test,
)
from gradleak.defenses.clip import scaled_to
from gradleak.defenses.draws import normal
from gradleak.defenses.self_test import LEVEL
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
class ClipsLess(BatchClip):
    """Clips to fifty times the bound that it claims, which is more than any gradient of these examples."""

    def mean(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return scaled_to(50 * self.max_norm, update)


@dataclass(frozen=True)
class ShortOnly(ClipPerExample):
    """Lets gradients through that are longer than 1e4."""

    def mean(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        squares = [rows.reshape(rows.shape[0], -1).square().sum(dim=1) for rows in gradients.values()]
        long = torch.stack(squares).sum(dim=0) > 1e8
        clipped = super().mean(gradients)
        return {
            name: torch.where(long.reshape(-1, *[1] * (rows.dim() - 1)), rows, clipped[name])
            for name, rows in gradients.items()
        }


@dataclass(frozen=True)
class FiftyTimes(ClipPerExample):
    """Clips to fifty times its norm."""

    def mean(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return ClipPerExample(50 * self.max_norm).mean(gradients)


@dataclass(frozen=True)
class SmoothClip(ClipPerExample):
    """Shortens every gradient g to g·C/(C + ‖g‖)."""

    def mean(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        squares = [rows.reshape(rows.shape[0], -1).square().sum(dim=1) for rows in gradients.values()]
        factor = self.max_norm / (self.max_norm + torch.stack(squares).sum(dim=0).sqrt())
        return {name: rows * factor.reshape(-1, *[1] * (rows.dim() - 1)) for name, rows in gradients.items()}


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


def twice_on_half(z: Tensor) -> Tensor:
    """Every second entry silent, twice the variance on the others."""
    return torch.where(torch.arange(z.numel()).reshape(z.shape) % 2 == 0, 2**0.5 * z, 0.0)


@dataclass(frozen=True)
class EverySecond(Weak):
    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        return {name: tensor + self.std * twice_on_half(normal(tensor, generator)) for name, tensor in update.items()}


@dataclass(frozen=True)
class OneLayer(Weak):
    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        entries = sum(tensor.numel() for tensor in update.values())
        loud = sum(tensor.numel() for name, tensor in update.items() if name.startswith("2."))
        std = self.std * (entries / loud) ** 0.5
        return LayerNoise(std={"0": 0.0, "2": std}).draw(update, generator)


@dataclass(frozen=True)
class Recycled(Weak):
    """As many seeds as `seeds`, over and over."""

    seeds: int = 3

    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        seed = int(torch.randint(self.seeds, (1,), generator=generator))
        return GaussianNoise(std=self.std).draw(update, torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class RecycledInOneTensor(Weak):
    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        fresh = GaussianNoise(std=self.std).draw(update, generator)
        old = Recycled(std=self.std, seeds=8).draw(update, generator)
        return fresh | {"2.weight": old["2.weight"]}


@dataclass(frozen=True)
class OneNumber(Weak):
    """One draw for all entries of a tensor: every entry and every tensor has the variance that is stated."""

    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        return {name: tensor + self.std * normal(torch.ones(()), generator) for name, tensor in update.items()}


@dataclass(frozen=True)
class Laplace(Weak):
    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        return LaplaceNoise(scale=self.std / 2**0.5).draw(update, generator)


@dataclass(frozen=True)
class Coins(Weak):
    """Every entry moves by one standard deviation, up or down."""

    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        return {name: tensor + self.std * normal(tensor, generator).sign() for name, tensor in update.items()}


@dataclass(frozen=True, kw_only=True)
class HalfDPSGD(DPSGD):
    """Formal by its label, and silent on every second entry."""

    def draw(self, average: Mapping[str, Tensor], examples: int, generator: torch.Generator) -> dict[str, Tensor]:
        std = self.mean_std(examples)
        return {name: rows + std * twice_on_half(normal(rows, generator)) for name, rows in average.items()}


@pytest.mark.parametrize(
    ("defense", "check", "note"),
    [
        (EverySecond(), "noise_variance", "single entries have other noise than is stated"),
        (HalfDPSGD(clip_norm=0.3, noise_std=0.1, noise="sum"), "noise_variance", "single entries have other noise"),
        (OneLayer(), "noise_variance", "single entries have other noise than is stated"),
        (Recycled(), "noise_repeats", "draws repeat each other exactly"),
        (Recycled(seeds=500), "noise_repeats", "draws repeat each other exactly"),
        (RecycledInOneTensor(), "noise_repeats", "two draws of 2.weight have a correlation of 1"),
        (OneNumber(), "noise_repeats", "a correlation of 1"),
        (Laplace(), "noise_shape", "from a normal distribution"),
        (Coins(), "noise_shape", "from a normal distribution"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Defense) else "",
)
def test_noise_that_has_the_right_sum_of_squares_alone_is_caught(defense: Defense, check: str, note: str) -> None:
    found = report([defense])
    assert not found.passed
    assert {failure.name for failure in found.failures} <= {"noise_variance", "noise_repeats", "noise_shape"}
    assert any(failure.name == check and note in failure.note for failure in found.failures)


PARTS = {"a": slice(0, 40), "b": slice(40, 48), "c": slice(48, 72), "d": slice(72, 75), "e": slice(75, 76)}


def chances(count: int, trials: int) -> Tensor:
    """Of each test in each trial with n draws of honest noise."""
    random = generator(count)
    rows = []
    for _ in range(trials):
        draws = torch.randn(count, 76, generator=random, dtype=torch.float64)
        rows.append(
            [test(draws, PARTS).chance for test in (release_tests.variance, release_tests.repeats, release_tests.shape)]
        )
    return torch.tensor(rows)


@pytest.mark.parametrize("count", [2, 24])
def test_chances_of_false_alarms_are_not_understated(count: int) -> None:
    found = chances(count, 120)
    for level in (0.05, 0.3):
        most = scipy.stats.binom.ppf(1 - 1e-4, 120, level)
        assert ((found < level).sum(dim=0) <= most).all()
    assert (found > 1e-5).all()


@pytest.mark.slow
def test_fewer_than_one_of_a_thousand_honest_releases_fails() -> None:
    """None of 3,000, which is below 1e-3 with 95 %; and at larger levels not more than three tests may give."""
    found = torch.cat([chances(64, 1500), chances(16, 1500)])
    assert (found > LEVEL).all()
    assert int((found < 1e-4).any(dim=1).sum()) <= scipy.stats.binom.ppf(1 - 1e-4, 3000, 3e-4)
    for level in (0.01, 0.1):
        assert ((found < level).double().mean(dim=0) < level * 1.5).all()


@pytest.mark.parametrize(
    ("defense", "checks", "note"),
    [
        (BatchClip(std=0.0), {"formal"}, "leaves entries without noise"),
        (ClipsLess(), {"bound", "sensitivity"}, "ClipsLess gives vectors longer than the bound that it claims"),
        (ShortOnly(max_norm=0.3), {"bound"}, "ShortOnly gives vectors longer than the bound"),
        (FiftyTimes(max_norm=10.0), {"bound", "per_example_clip"}, "FiftyTimes gives vectors longer than the bound"),
        (PercentileFilter(), {"formal"}, "bounds no norm; PercentileFilter leaves entries without noise"),
        (Weak(), {"noise_variance"}, "0.81"),
        (Silent(), {"noise_variance"}, "no noise is stated"),
        (Unscaled(0.1), {"noise_variance", "noise_mean"}, "along the noiseless update"),
        (LooseClip(), {"bound", "sensitivity", "per_example_clip"}, "neither the mean of clipped gradients nor"),
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
    for sold in ([Clip(0.3), GaussianNoise(std=0.1)], [BatchClip()]):
        sold_as_dp = report(sold, Claims(clip_norm=0.3))
        assert {check.name for check in sold_as_dp.failures} == {"sensitivity", "per_example_clip"}
        assert any("the whole update is clipped" in check.note for check in sold_as_dp.failures)
    assert report([ClipPerExample(0.3), GaussianNoise(std=0.1)], Claims(clip_norm=0.3)).passed
    noise = report([GaussianNoise(std=0.1)], Claims(noise_std=0.2))
    assert {check.name for check in noise.failures} == {"noise_variance"}


def test_a_bound_on_the_whole_update_is_a_clients() -> None:
    """Clip and noise as one formal defense hide a client: another one moves the update by 2C at most."""
    found = report([BatchClip()])
    assert found.passed
    checks = {check.name: check for check in found.checks}
    assert checks["sensitivity"].claimed == pytest.approx(0.6)
    assert "a client, not one example" in checks["sensitivity"].note
    assert "per_example_clip" not in checks
    assert checks["bound"].found == pytest.approx(0.3)


def test_a_clip_norm_that_no_example_reaches_is_tested_on_gradients_that_are_made_up() -> None:
    found = report([ClipPerExample(1e9)], draws=2)
    checks = {check.name: check for check in found.checks}
    assert checks["per_example_clip"].passed
    assert "made up" in checks["per_example_clip"].note
    sold = report([Clip(1e9)], Claims(clip_norm=1e9), draws=2)
    assert "per_example_clip" in {check.name for check in sold.failures}


def test_another_way_to_shorten_gradients_is_as_good_as_clipping() -> None:
    for norm in (0.3, 1e9):
        found = report([SmoothClip(norm)], draws=2)
        assert found.passed
        (check,) = [check for check in found.checks if check.name == "per_example_clip"]
        assert "in another way than by clipping" in check.note
    assert not report([SmoothClip(0.3)], Claims(clip_norm=0.3), draws=2).passed


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

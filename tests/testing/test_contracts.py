"""The published contract checks pass on what is exported and fail on what breaks a promise."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch

from gradleak.attacks import DLG, Attack, Blind, GaussNewton, InvertingGradients
from gradleak.core import DiagonalGaussian, ExampleDefense, Guarantee, Reconstruction, UpdateDefense
from gradleak.defenses import Clip, GaussianNoise
from gradleak.results import Outcome
from gradleak.risk import (
    BayesianCramerRao,
    GaussianReconstructionError,
    GradientNorm,
    InversionInfluence,
    InversionInfluenceLowerBound,
    Measure,
    SettingMeasure,
)
from gradleak.testing import check_attack, check_defense, check_measure, check_setting_measure


@pytest.mark.parametrize(
    "attack", [Blind(), DLG(iterations=2), GaussNewton(max_steps=3), InvertingGradients(iterations=5)], ids=repr
)
def test_exported_attacks_keep_the_contract(attack: Attack) -> None:
    check_attack(attack)


@pytest.mark.parametrize(
    "measure",
    [
        GaussianReconstructionError(std=0.1),
        GradientNorm(),
        InversionInfluence(epsilon=0.1, unit="pixel_rmse"),
        InversionInfluenceLowerBound(),
    ],
    ids=repr,
)
def test_exported_measures_keep_the_contract(measure: Measure) -> None:
    check_measure(measure)


def test_exported_measures_of_a_setting_keep_the_contract() -> None:
    check_setting_measure(BayesianCramerRao(prior_std=0.3, samples=16))


@dataclass(frozen=True, kw_only=True, eq=False)
class Restless(SettingMeasure):
    """Gives another number each time."""

    name: ClassVar[str] = "restless"
    summary: ClassVar[str] = "counts its calls."
    calls: list = field(default_factory=list)

    def estimate(self, unknowns):
        return 1.0

    def _measure(self, setting, generator):
        self.calls.append(1)
        return self.unsupported(f"call {len(self.calls)}")


def test_a_measure_of_a_setting_that_is_not_reproducible_is_found() -> None:
    with pytest.raises(AssertionError, match="the same score for the same generator"):
        check_setting_measure(Restless())


@pytest.mark.parametrize("defense", [Clip(0.5), GaussianNoise(std=0.2)], ids=repr)
def test_exported_defenses_keep_the_contract(defense: UpdateDefense) -> None:
    check_defense(defense)


@dataclass(frozen=True, kw_only=True)
class Careless(Attack):
    """Draws from the global generator."""

    name: ClassVar[str] = "careless"
    needs: ClassVar[tuple[str, ...]] = ("objective", "domain", "batch_size")
    summary: ClassVar[str] = "guesses."

    def estimate(self, knowledge):
        return 0.0

    def _recover(self, update, knowledge, generator, progress):
        inputs = torch.randn(knowledge.batch_size, *knowledge.domain.shape)
        return Reconstruction(inputs=inputs, targets=None, loss=None, outcome=Outcome.CONVERGED)


def test_global_randomness_in_an_attack_is_found() -> None:
    with pytest.raises(AssertionError, match="never touches the global generator"):
        check_attack(Careless())


@dataclass(frozen=True)
class Liar(UpdateDefense):
    """Declares more noise than it adds."""

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC

    def mean(self, update):
        return dict(update)

    def noise(self, shapes):
        return GaussianNoise(std=1.0).noise(shapes)

    def draw(self, update, generator):
        return GaussianNoise(std=0.1).draw(update, generator)


def test_a_defense_that_adds_less_noise_than_it_says_is_found() -> None:
    with pytest.raises(AssertionError, match="noise of the declared variance"):
        check_defense(Liar())


@dataclass(frozen=True, kw_only=True)
class ClipsLater(UpdateDefense):
    """Claims a bound that it keeps for short updates alone."""

    guarantee: ClassVar[Guarantee] = Guarantee.FORMAL

    def mean(self, update):
        norm = sum(tensor.square().sum() for tensor in update.values()).sqrt()
        factor = 1.0 if norm > 1e4 else (1.0 / norm).clamp(max=1.0)
        return {name: tensor * factor for name, tensor in update.items()}

    def noise(self, shapes):
        return None

    def draw(self, update, generator):
        return self.mean(update)

    def bound(self, shapes):
        return 1.0


def test_a_bound_that_long_updates_break_is_found() -> None:
    with pytest.raises(AssertionError, match="keeps the bound 1 that it claims, also for gradients 1000 times as long"):
        check_defense(ClipsLater())


@dataclass(frozen=True, kw_only=True)
class ForMatrices(ExampleDefense):
    """Clips every example, written for parameters that have a dimension."""

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC

    def mean(self, gradients):
        norms = sum(tensor.flatten(1).square().sum(1) for tensor in gradients.values()).sqrt()
        return {name: tensor / norms.reshape(-1, *[1] * (tensor.dim() - 1)) for name, tensor in gradients.items()}


def test_the_case_that_a_defense_fails_on_is_named() -> None:
    with pytest.raises(AssertionError) as caught:
        check_defense(ForMatrices())
    text = str(caught.value)
    assert "ForMatrices breaks the contract: expected that `mean` works" in text
    assert "for a parameter of no dimension (one number): one gradient a row, (b, *shape); it raised IndexError" in text


@dataclass(frozen=True, kw_only=True)
class NoNoiseOnOne(ExampleDefense):
    """Declares noise on every parameter and leaves one of them out."""

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC
    closes: ClassVar[bool] = True

    def mean(self, gradients):
        return dict(gradients)

    def law(self, shapes, examples):
        return DiagonalGaussian(std=dict.fromkeys(shapes, 0.5))

    def draw(self, average, examples, generator):
        drawn = {n: t + 0.5 * torch.randn(t.shape, generator=generator, dtype=t.dtype) for n, t in average.items()}
        return drawn | {"bias": average["bias"]} if "bias" in drawn else drawn


def test_noise_that_one_parameter_lacks_is_found() -> None:
    with pytest.raises(AssertionError, match="adds noise of the declared variance to bias, for a matrix and a vector"):
        check_defense(NoNoiseOnOne())

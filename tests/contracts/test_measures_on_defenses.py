"""Every closed-form measure on every defense: a number, or a word that says why there is none."""

from __future__ import annotations

import inspect
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from tests.contracts.test_defenses import EXAMPLES
from tests.contracts.test_measures import ARGUMENTS
from tests.contracts.test_measures import MEASURES as ALL
from tests.defenses.setting import FEATURES, batch, generator, objective
from torch import nn

from gradleak.core import Defense, Exposure, ModelDefense, NotGaussian, Objective, Release
from gradleak.defenses import AdversarialPerturbation, LayerNoise, SensitiveClassifier, VariationalBottleneck
from gradleak.models import initialize_default
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedSGD, SecureAggregation

# Those of ids are held against defenses with their own tests.
MEASURES = [measure for measure in ALL if not measure.reads_ids]
DEFENSES = [example for examples in EXAMPLES.values() for example in examples]


def exposure(defense: Defense) -> Exposure:
    known, data = objective(), replace(batch(2), sensitive=torch.tensor([0, 1]))
    if isinstance(defense, AdversarialPerturbation):
        size = known.size
        reader = SensitiveClassifier(torch.zeros(size), torch.ones(size), hidden=4, classes=2, generator=generator())
        defense = replace(defense, classifier=reader.requires_grad_(False))
    if isinstance(defense, LayerNoise):
        defense = LayerNoise(std={name or "0": std for name, std in defense.std.items()}, default=defense.default)
    if isinstance(defense, VariationalBottleneck):
        decoder = nn.Sequential(nn.utils.skip_init(nn.Linear, defense.width, 3))
        initialize_default(decoder, generator=generator())
        model = defense.insert(nn.Identity(), decoder, features=FEATURES, generator=generator())
        known = Objective.from_module(model.double(), loss=defense.loss(), mode="train")
    return Exposure(known, data, Release(FedSGD(), [defense]))


@pytest.mark.parametrize("defense", DEFENSES, ids=repr)
def test_every_measure_gives_a_number_or_a_word(defense: Defense) -> None:
    setting = exposure(defense)
    operator = GradientJacobian(setting)
    delta = 1e-3 * torch.randn(setting.objective.size, generator=generator(), dtype=torch.float64)
    for measure in MEASURES:
        score = measure(**ARGUMENTS.get(measure, {}))(setting, delta=delta, operator=operator)
        assert (score.value is not None) or (score.note and score.outcome.has_value is not True)
        reads_noise = "std" in {field.name for field in fields(measure)} and "noise" in inspect.getsource(measure)
        if isinstance(setting.noise, NotGaussian) and reads_noise:
            assert score.value is None
            assert type(defense).__name__ in score.note
        if defense.flat and measure.name != "gradient_norm":
            assert score.value is None


def test_a_defense_whose_mean_is_the_identity_leaves_every_measure_of_a_as_it_is() -> None:
    plain: dict[str, Any] = {}
    for defense in (None, *DEFENSES):
        if defense is not None and (isinstance(defense, ModelDefense) or not _identity(defense)):
            continue
        setting = exposure(defense) if defense else replace(exposure(DEFENSES[0]), release=Release(FedSGD()))
        operator = GradientJacobian(setting)
        delta = 1e-3 * torch.randn(setting.objective.size, generator=generator(), dtype=torch.float64)
        for measure in MEASURES:
            score = measure(**ARGUMENTS.get(measure, {}))(setting, delta=delta, operator=operator)
            if score.value is not None:
                assert score.value == pytest.approx(plain.setdefault(measure.__name__, score.value), rel=1e-5)
    assert len(plain) > 5


def _identity(defense: Defense) -> bool:
    setting = exposure(defense)
    quiet = replace(setting, release=Release(FedSGD()))
    return torch.allclose(setting.released_mean(), quiet.released_mean(), rtol=1e-12, atol=0)


def test_every_measure_takes_the_sum_over_clients() -> None:
    known, (aggregation, union) = objective(), SecureAggregation.of(FedSGD(), {"a": batch(1), "b": batch(2, seed=5)})
    setting = Exposure(known, union, Release(aggregation))
    delta = 1e-3 * torch.randn(known.size, generator=generator(), dtype=torch.float64)
    for measure in MEASURES:
        score = measure(**ARGUMENTS.get(measure, {}))(setting, delta=delta)
        assert (score.value is not None) or score.note

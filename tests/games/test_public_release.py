"""Releases that are made anew every round, and models that draw."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import gradleak as gl
from gradleak.core import Objective
from gradleak.defenses import AdversarialPerturbation, VariationalBottleneck
from gradleak.games import Knows, PerturbedGame, PropertyGame
from gradleak.games.released import releases_of, updated
from gradleak.models import mlp
from tests.games.setting import FEATURES, perceptron, population, release, settings


def test_every_round_has_a_classifier_of_its_own_and_the_adaptive_adversary_meets_it() -> None:
    perturbed = PerturbedGame(updates=32, hidden=8, epochs=3, gamma=0.05, alpha=0.02)
    game = PropertyGame(population(), **settings(release=perturbed, trials=10, shadow_batches=10))
    challenge = game.challenge(0)
    training = game._training(challenge, 0).run()
    first, second = (training.releases[number].defenses[0] for number in (0, 1))
    assert isinstance(first, AdversarialPerturbation)
    assert isinstance(second, AdversarialPerturbation)
    assert not torch.equal(first.classifier.first.weight, second.classifier.first.weight)  # type: ignore[union-attr]
    task = game._round_task(challenge, training, 1)
    assert task.known_release(Knows.ADAPTIVE).defenses == (second,)
    assert task.known_release(Knows.STATIC).defenses == ()
    assert set(task.run().read) == {Knows.STATIC, Knows.ADAPTIVE}


def dropout() -> Objective:
    inner = mlp(features=FEATURES, hidden=(8,), classes=2, generator=torch.Generator().manual_seed(0))
    return Objective.from_module(nn.Sequential(nn.Dropout(0.5), inner), mode="train")


def bottleneck() -> Objective:
    generator = torch.Generator().manual_seed(0)
    defense = VariationalBottleneck(width=8)
    encoder, decoder = (
        mlp(features=inputs, hidden=(), classes=outputs, generator=generator)
        for inputs, outputs in ((FEATURES, 8), (8, 2))
    )
    model = defense.insert(encoder, decoder, features=8, generator=generator)
    return Objective.from_module(model, loss=defense.loss(), mode="train")


@pytest.mark.parametrize("make", [dropout, bottleneck])
def test_every_batch_of_a_model_that_draws_has_a_draw_of_its_own(make: Callable[[], Objective]) -> None:
    rows, objective = population(rows=20).rows(torch.arange(20)), make()
    batches = torch.arange(5).repeat(3, 1)
    released = releases_of(objective, release(gl.Clip(0.1)), rows)
    (one,) = list(released.chunks(batches, torch.Generator().manual_seed(0)))
    (two,) = list(released.chunks(batches, torch.Generator().manual_seed(0)))
    assert torch.equal(one, two)
    assert not torch.allclose(one[0], one[1])
    assert bool((one.norm(dim=1) <= 0.1 + 1e-6).all())
    assert "draw" in released.reason


@pytest.mark.parametrize("defenses", [(), (gl.Prune(0.5),), (gl.ClipPerExample(0.1),), (gl.GaussianNoise(std=0.1),)])
def test_updates_of_the_training_are_those_of_the_release(defenses: tuple[object, ...]) -> None:
    batch = population(rows=20).rows(torch.arange(8))
    objective = Objective.from_module(perceptron(torch.Generator().manual_seed(0)))
    through = release(*defenses)
    found = updated(through, objective, batch, torch.Generator().manual_seed(3))
    expected = through(objective, batch, torch.Generator().manual_seed(3)).tensors
    assert found is not None
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor)

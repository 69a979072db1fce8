"""Releases that are made anew every round, and models that draw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

import gradleak as gl
from gradleak.core import Objective
from gradleak.defenses import AdversarialPerturbation, VariationalBottleneck
from gradleak.games import Knows, PerturbedGame, PropertyGame
from gradleak.models import mlp
from gradleak.results import InputError, UnsupportedError
from gradleak.training.releases.released import releases_of, updated
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


def test_a_perturbation_out_of_range_is_refused_before_anything_is_trained() -> None:
    game = PropertyGame(population(), **settings(release=PerturbedGame(target=2)))
    with pytest.raises(InputError, match="one of the 2 values of the public rows, 0 to 1, got 2"):
        game._training(game.challenge(0), 0)
    with pytest.raises(InputError, match=r"PerturbedGame\.gamma"):
        PerturbedGame(gamma=-0.1)


def normalized(generator: torch.Generator) -> nn.Module:
    return nn.Sequential(perceptron(generator), nn.BatchNorm1d(2))


def normalized_places(generator: torch.Generator) -> nn.Module:
    wide = mlp(features=FEATURES, hidden=(), classes=8, generator=generator)
    return nn.Sequential(wide, nn.Unflatten(1, (2, 4)), nn.BatchNorm1d(2), nn.AvgPool1d(4), nn.Flatten())


def test_one_row_that_cannot_be_normalized_is_refused_with_what_to_do() -> None:
    small = settings(batch_size=1, mode="train", rounds=1, trials=10, shadow_batches=10)
    with pytest.raises(UnsupportedError, match=r"at least 2 rows, got batch_size=1: .*GroupNorm in its place"):
        PropertyGame(population(), **(small | {"model": normalized})).play()
    # Four places of a channel are enough, and so is eval mode.
    assert PropertyGame(population(), **(small | {"model": normalized_places})).play().outcome.label == "converged"
    PropertyGame(population(), **(small | {"model": normalized, "mode": "eval"})).rehearse()


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


DP_SGD = gl.DPSGD(clip_norm=0.1, noise_std=0.1, noise="sum")


@pytest.mark.parametrize(
    "defenses", [(), (gl.Prune(0.5),), (gl.ClipPerExample(0.1),), (gl.GaussianNoise(std=0.1),), (DP_SGD, gl.Prune(0.5))]
)
def test_updates_of_the_training_are_those_of_the_release(defenses: tuple[object, ...]) -> None:
    batch = population(rows=20).rows(torch.arange(8))
    objective = Objective.from_module(perceptron(torch.Generator().manual_seed(0)))
    through = release(*defenses)
    found = updated(through, objective, batch, torch.Generator().manual_seed(3))
    expected = through(objective, batch, torch.Generator().manual_seed(3)).tensors
    assert found is not None
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor)
        assert not found[name].requires_grad


def test_an_update_through_dp_sgd_that_is_no_number_is_none() -> None:
    batch = population(rows=20).rows(torch.arange(8))
    objective = Objective.from_module(perceptron(torch.Generator().manual_seed(0)))
    lost = replace(objective, params={name: tensor * torch.nan for name, tensor in objective.params.items()})
    assert updated(release(DP_SGD), lost, batch, torch.Generator().manual_seed(3)) is None


def test_every_number_of_a_perturbation_reaches_its_rounds() -> None:
    given = {"target": 1, "gamma": 0.1, "alpha": 0.2, "steps": 3, "updates": 7, "hidden": 4, "epochs": 2}
    rounds = PerturbedGame(**given, before=[gl.Sign()]).given(population().rows(torch.arange(20)), 8)
    assert {name: getattr(rounds, name) for name in given} == given
    assert [type(defense) for defense in rounds.before] == [gl.Sign]
    defaults = PerturbedGame()
    assert (defaults.updates, defaults.hidden, defaults.epochs) == (256, 64, 20)
    with pytest.raises(InputError, match=r"PerturbedGame.steps"):
        PerturbedGame(steps=0)

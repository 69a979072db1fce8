"""Users of trials are strangers to the adversary, and their reference batches share no row with the released one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gradleak.attacks.inference import PrototypeEncoder
from gradleak.data import Split
from gradleak.defenses import AdversarialPerturbation
from gradleak.games import PerturbedGame, UserGame
from gradleak.models import mlp
from gradleak.results import InputError
from tests.games.setting import perceptron, population, settings

ROWS = population(rows=2000, users=20)


def game(**changes: object) -> UserGame:
    given = settings(rounds=1, trials=200) | {
        "encoder": PrototypeEncoder(embedding=16, hidden=32, epochs=15),
        "private_users": 8,
        "public_users": 10,
        "candidates": 4,
    }
    for name in ("private_rows", "public_rows", "test_rows", "adversary"):
        del given[name]
    return UserGame(ROWS, **(given | changes))  # type: ignore[arg-type]


def test_reference_batches_share_no_row_with_the_released_one() -> None:
    challenge = game().challenge(0)
    trials, owners = challenge.trials, challenge.private.sensitive
    assert owners is not None
    assert trials.references is not None
    assert trials.references.shape == (200, 4, 8)
    for rows, references, label in zip(trials.rows, trials.references, trials.labels, strict=True):
        assert len(torch.cat([rows, references[label]]).unique()) == 16
        users = owners[references]
        assert bool((users == users[:, :1]).all())
        assert len(users[:, 0].unique()) == 4
        assert bool((owners[rows] == users[label, 0]).all())
    assert trials.labels.bincount().min() > 30


def test_the_users_of_trials_are_strangers() -> None:
    challenge = game().challenge(0)
    users = ROWS.users
    assert users is not None
    split = challenge.split
    sets = [set(users[places].tolist()) for places in (split.private, split.public, split.test)]
    assert [len(held) for held in sets] == [8, 10, 2]
    assert len(sets[0] | sets[1] | sets[2]) == 20
    shadow = game().shadow(challenge.public.sensitive, torch.Generator().manual_seed(0))  # type: ignore[arg-type]
    assert shadow.labels.bincount().tolist() == [30] * 10


def test_strangers_are_recognized() -> None:
    auroc = game().play(0).score("auroc")
    assert auroc.value is not None
    assert auroc.value > 0.65
    assert auroc.interval is not None
    assert auroc.interval[0] > 0.55


def test_a_planted_user_is_always_found_and_a_shuffled_one_never() -> None:
    assert game().planted_control(0).score("auroc").value == 1.0
    auroc = game().null_control(0).score("auroc")
    assert auroc.interval is not None
    assert auroc.interval[0] < 0.5 < auroc.interval[1]


def test_a_user_is_planted_in_few_entries() -> None:
    narrow = replace(ROWS, inputs=ROWS.inputs[:, :2].contiguous(), side=None)
    model = lambda generator: mlp(features=2, hidden=(8,), classes=2, generator=generator)  # noqa: E731
    auroc = replace(game(), population=narrow, model=model).planted_control(0).score("auroc").value
    assert auroc is not None
    assert auroc > 0.95


def test_too_few_users_with_enough_rows_are_said_with_counts() -> None:
    with pytest.raises(
        InputError, match=r"expected 18 users \(8 private, 10 public, 0 test\) with at least 240 rows .* got 0 of 20"
    ):
        game(batch_size=120).play(0)
    with pytest.raises(InputError, match=r"UserGame\.private_users"):
        game(private_users=3)
    with pytest.raises(InputError, match="a population with users"):
        replace(game(), population=population())


def test_a_given_split_is_checked() -> None:
    split = Split.of_users(ROWS, private=[0, 1, 2, 3], public=[4, 5, 6])
    assert game(split=split).challenge(0).private.size == len(split.private)
    result = game(split=split, trials=20, shadow_batches=20).play(0)
    assert result.runs[0].utility is None
    users = ROWS.users
    assert users is not None
    mixed = Split(
        population=ROWS,
        private=(users < 5).nonzero().flatten()[20:],
        test=torch.empty(0, dtype=torch.int64),
        public=(users < 5).nonzero().flatten()[:20],
    )
    with pytest.raises(InputError, match=r"got \d of 5 private users among the public ones"):
        game(split=mixed).challenge(0)


def test_a_perturbation_leads_to_a_public_user_and_needs_one() -> None:
    with pytest.raises(InputError, match=r"UserGame\.release: .* with a target, the number of a public user"):
        game(release=PerturbedGame())
    with pytest.raises(InputError, match=r"one of the 10 values of the public rows, 0 to 9, got 10"):
        game(release=PerturbedGame(target=10)).play(0)
    perturbed = game(release=PerturbedGame(target=9, updates=40, epochs=2), trials=20, shadow_batches=40)
    training = perturbed._training(perturbed.challenge(0), 0).run()
    (defense,) = training.releases[0].defenses
    assert isinstance(defense, AdversarialPerturbation)
    # Ten public users of twenty: the classifier knows no more than them.
    assert defense.classifier.last.out_features == 10  # type: ignore[union-attr]
    for seed in range(3):
        assert perturbed.play(seed).outcome.label == "converged"


def test_few_private_users_are_noted() -> None:
    rows = population(rows=2000, users=60)
    for private, told in ((5, True), (25, False)):
        game = UserGame(rows, model=perceptron, batch_size=4, private_users=private, public_users=10, trials=5)
        assert any("private users are few" in note for note in game.challenge(0).notes) is told

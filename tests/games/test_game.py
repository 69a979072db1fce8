"""The challenger keeps its word, controls come out as they must, and nothing depends on how it was computed."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

import gradleak as gl
from gradleak.attacks.inference import AllEntries
from gradleak.audits.inference import finding_of_game
from gradleak.data import Split
from gradleak.games import AttributeGame, DistributionGame, GameResult, Knows, PropertyGame
from gradleak.models import mlp
from gradleak.results import InputError, Outcome
from gradleak.training.releases.released import releases_of
from tests.games.setting import perceptron, population, release, settings


@pytest.fixture(scope="module")
def played() -> GameResult:
    return PropertyGame(population(), **settings()).play(0)


def test_the_scores_are_those_of_the_posteriors_by_hand(played: GameResult) -> None:
    run = played.runs[0]
    together = sum(run.log_posteriors[Knows.ADAPTIVE]) + np.log(run.prior)
    guess, success = together.argmax(axis=1), float((together.argmax(axis=1) == run.truth).mean())
    found = {score.name: score for score in played.scores()}
    assert found["attack_success_rate"].value == pytest.approx(success, abs=0.01)  # ties share their credit
    assert found["auroc"].value == pytest.approx(roc_auc_score(run.truth, together[:, 1] - together[:, 0]), abs=1e-6)
    assert run.blind > 0.5
    assert found["advantage"].value == pytest.approx((success - run.blind) / (1 - run.blind), abs=0.03)
    assert found["auroc"].value > 0.75
    assert found["advantage"].value > 0.2
    assert np.unique(guess).size == 2


def test_the_prior_is_that_of_the_rows_before_they_are_balanced(played: GameResult) -> None:
    game = PropertyGame(population(), **settings())
    challenge = game.challenge(0)
    rows = population()
    private = rows.sensitive[challenge.split.private]
    assert played.runs[0].blind == pytest.approx(float(private.bincount().max()) / 300)
    used = torch.cat([challenge.split.private, challenge.split.test])
    rest = torch.ones(rows.size, dtype=torch.bool)
    rest[used] = False
    assert played.runs[0].prior == pytest.approx(rows.sensitive[rest].bincount().numpy() / int(rest.sum()))
    assert replace(game, prior=[0.2, 0.8]).challenge(0).prior.tolist() == [0.2, 0.8]
    with pytest.raises(InputError, match="2 probabilities that sum to 1"):
        replace(game, prior=[0.2, 0.9]).challenge(0)


def test_trials_are_batches_of_one_value_without_a_row_twice() -> None:
    challenge = PropertyGame(population(), **settings()).challenge(0)
    values = challenge.private.sensitive
    assert values is not None
    assert torch.equal(values[challenge.trials.rows], challenge.trials.labels[:, None].expand(-1, 8))
    assert all(len(rows.unique()) == 8 for rows in challenge.trials.rows)
    shares = challenge.trials.labels.bincount() / 300
    assert torch.allclose(shares.double(), challenge.law, atol=0.1)


def test_shadow_batches_are_balanced_and_of_public_rows_only() -> None:
    game = PropertyGame(population(), **settings())
    challenge = game.challenge(0)
    draw = game.shadow(challenge.public, torch.Generator().manual_seed(0))
    assert draw.labels.bincount().tolist() == [150, 150]
    assert draw.rows.shape == (300, 8)
    assert int(draw.rows.max()) < 200
    assert challenge.public.sensitive is not None
    assert torch.equal(challenge.public.sensitive[draw.rows], draw.labels[:, None].expand(-1, 8))


def test_one_batch_is_released_at_every_observed_round() -> None:
    # Compared with torch's own gradient of the trial's rows at the parameters of each round.
    game = PropertyGame(population(), **settings(rounds=3, observed=(0, 2), trials=5, features=AllEntries()))
    challenge = game.challenge(0)
    training = game._training(challenge, 0).run()
    assert set(training.params) == {0, 2}
    updates = {}
    for number in (0, 2):
        task = game._round_task(challenge, training, number)
        reduction, _ = task.reduced_shadow(task.release)
        updates[number] = task.reduced_trials(releases_of(task.objective, task.release, task.private), reduction)
        model = perceptron(torch.Generator())
        model.load_state_dict(dict(training.params[number]))
        for trial in range(5):
            rows = challenge.trials.rows[trial]
            loss = torch.nn.functional.cross_entropy(
                model(challenge.private.inputs[rows]), challenge.private.targets[rows]
            )
            gradient = torch.autograd.grad(loss, list(model.parameters()))
            flat = torch.cat([entry.reshape(-1) for entry in gradient])
            torch.testing.assert_close(updates[number][trial], flat, atol=1e-6, rtol=1e-4)
    assert not torch.allclose(updates[0], updates[2])


def test_a_round_trains_one_epoch_of_plain_sgd() -> None:
    game = PropertyGame(population(), **settings(rounds=2, observed=(0, 1)))
    challenge = game.challenge(0)
    training = game._training(challenge, 0).run()
    model = perceptron(torch.Generator())
    model.load_state_dict(dict(training.params[0]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    order = torch.randperm(300, generator=gl.core.derive_generator(0, "training order"))
    for places in order.split(8):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(
            model(challenge.private.inputs[places]), challenge.private.targets[places]
        ).backward()
        optimizer.step()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(training.params[1][name], tensor, atol=1e-6, rtol=1e-5)


def test_static_and_adaptive_are_one_without_defenses(played: GameResult) -> None:
    run = played.runs[0]
    for static, adaptive in zip(run.log_posteriors[Knows.STATIC], run.log_posteriors[Knows.ADAPTIVE], strict=True):
        assert np.array_equal(static, adaptive)


def test_an_adaptive_adversary_sees_through_signs() -> None:
    game = PropertyGame(population(), **settings(rounds=1, release=release(gl.Sign())))
    result = game.play(0)
    static, adaptive = (result.score("advantage", kind).value for kind in ("static", "adaptive"))
    assert static is not None
    assert adaptive is not None
    assert adaptive > static + 0.1


def test_noise_takes_the_adversary_to_chance() -> None:
    game = PropertyGame(population(), **settings(rounds=1, release=release(gl.GaussianNoise(std=100.0))))
    score = game.play(0).score("auroc")
    assert score.interval is not None
    assert score.interval[0] < 0.5 < score.interval[1]


def test_labels_of_other_trials_are_not_found() -> None:
    result = PropertyGame(population(shift=2.0), **settings()).null_control(0)
    auroc, advantage = result.score("auroc"), result.score("advantage")
    assert auroc.interval is not None
    assert auroc.interval[0] < 0.5 < auroc.interval[1]
    assert advantage.value == 0.0
    assert "other trials" in result.notes[-1]


@pytest.mark.parametrize("values", [2, 3])
def test_a_planted_value_is_always_found(values: int) -> None:
    # Features that tell nothing, and a defense that would hide all: the control is about the adversary.
    game = AttributeGame(
        population(shift=0.0, values=values), **settings(public_rows=120, release=release(gl.GaussianNoise(std=100.0)))
    )
    result = game.planted_control(0)
    assert result.score("auroc").value == 1.0
    assert result.score("advantage").value == 1.0


def test_a_value_is_planted_in_fewer_entries_than_there_are_values() -> None:
    rows = population(shift=0.0, values=4)
    few = replace(rows, inputs=rows.inputs[:, :1].contiguous(), side=None)

    def narrow(generator: torch.Generator) -> torch.nn.Module:
        return mlp(features=1, hidden=(8,), classes=2, generator=generator)

    result = PropertyGame(few, **settings(public_rows=60, model=narrow)).planted_control(0)
    auroc = result.score("auroc").value
    assert auroc is not None
    assert auroc > 0.95


def test_a_bound_stands_also_where_a_value_is_never_drawn() -> None:
    rows = population(values=3)
    known = (rows.sensitive < 2).nonzero().flatten()[:200]
    others = torch.ones(rows.size, dtype=torch.bool)
    others[known] = False
    split = Split(
        population=rows, private=known, public=others.nonzero().flatten(), test=torch.empty(0, dtype=torch.int64)
    )
    noisy = release(gl.DPSGD(clip_norm=1.0, noise_std=1e3, noise="sum"))
    result = PropertyGame(rows, **settings(release=noisy, rounds=1, trials=40, shadow_batches=40), split=split).play(0)
    allowed = {(score.name, score.evidence.value): score.value for score in result.information()}
    assert set(allowed) == {("information_bound", "upper_bound"), ("fano_advantage", "upper_bound")}
    advantage = allowed["fano_advantage", "upper_bound"]
    assert advantage is not None
    assert advantage < 0.05


def test_the_numbers_do_not_depend_on_the_processes() -> None:
    game = PropertyGame(
        population(), **settings(release=release(gl.GaussianNoise(std=0.01)), trials=60, shadow_batches=60)
    )
    game = replace(game, observed=(1,))
    one, two = game.play_seeds([0, 1], jobs=1), game.play_seeds([0, 1], jobs=2)
    for left, right in zip(one.runs, two.runs, strict=True):
        assert np.array_equal(left.truth, right.truth)
        for kind in Knows:
            assert np.array_equal(np.stack(left.log_posteriors[kind]), np.stack(right.log_posteriors[kind]))
    assert [score.value for score in one.scores()] == [score.value for score in two.scores()]
    assert one.scores()[0].details["seeds"] == 2


def test_a_training_that_diverges_is_not_taken_for_safe() -> None:
    said: list[str] = []
    result = PropertyGame(population(), **settings(learning_rate=1e30)).play(0, say=said.append)
    assert result.outcome is Outcome.NOT_FINITE
    for score in result.scores():
        assert score.value is None
        assert score.outcome is Outcome.NOT_FINITE
        assert "diverged in round" in score.note
    assert result.runs[0].utility is not None
    assert result.runs[0].utility.value is None
    assert "not_finite" in said[0]
    json.dumps(finding_of_game(result).to_dict(), allow_nan=False)


def test_a_model_that_learns_nothing_is_said_to_be_constant() -> None:
    rows = population()
    same = replace(rows, targets=torch.zeros_like(rows.targets))
    game = PropertyGame(same, **settings(rounds=1, metric="accuracy", learning_rate=1.0))
    assert game.play(0).outcome is Outcome.CONSTANT


def test_the_finding_of_a_game_is_json_and_holds_no_row(played: GameResult) -> None:
    found = finding_of_game(played)
    text = json.dumps(found.to_dict(), allow_nan=False)
    assert found.adversaries == ("static", "adaptive")
    assert found.runs[0].blind == played.runs[0].blind
    # Utility once; for two adversaries success, AUROC, advantage and TPR together and in each of two rounds, and what the
    # updates say in nats with the advantage that it allows, bounded and estimated. Together also
    # the information, bounded and estimated, and the advantage by both.
    assert len(found.scores) == 1 + 2 * (3 * 4 + 4)
    assert len(text) < 100_000
    rows = population()
    assert not any(f"{value:.6g}" in text for value in rows.inputs[:50].flatten().tolist())


def test_rounds_can_be_left_out_afterwards(played: GameResult) -> None:
    first = played.scores(rounds=[0])
    assert first[1].value == played.by_round()[0][1].value
    assert played.scores()[1].value == played.scores(rounds=[0, 1])[1].value
    with pytest.raises(InputError, match=r"observed rounds \[0, 1\], got \[5\]"):
        played.scores(rounds=[5])
    with pytest.raises(InputError, match="who played"):
        played.scores("omniscient")


def test_side_information_helps_where_the_gradient_says_nothing() -> None:
    quiet = settings(rounds=1, release=release(gl.GaussianNoise(std=100.0)), batch_size=1)
    rows = population(shift=2.0)
    without = PropertyGame(rows, **quiet).play(0).score("auroc").value
    given = PropertyGame(rows, **quiet, side=True).play(0).score("auroc").value
    assert without is not None
    assert given is not None
    assert given > without + 0.15


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"observed": (0, 2)}, "different rounds from 0 to 1"),
        ({"observed": ()}, "at least one"),
        ({"adversaries": ("static", "static")}, "each once"),
        ({"control": "planned"}, "expected one of none, shuffled, planted"),
        ({"trials": 0}, "PropertyGame.trials"),
        ({"learning_rate": -1.0}, "PropertyGame.learning_rate"),
        ({"private_rows": 800}, "at least 1200 rows"),
    ],
)
def test_settings_that_make_no_sense_are_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        PropertyGame(population(), **settings(**change)).play(0)


def test_a_public_population_that_holds_private_rows_is_refused() -> None:
    # U54: shadow and target from one file.
    rows = population()
    with pytest.raises(InputError, match=r"\d+ public rows equal to private ones"):
        PropertyGame(rows, **settings(public=rows)).play(0)


@pytest.mark.parametrize(
    ("game", "held", "said"),
    [
        (AttributeGame, False, "that is a property; play PropertyGame"),
        (PropertyGame, True, "that is an attribute; play AttributeGame"),
    ],
)
def test_rows_of_the_other_kind_are_refused(game: type[PropertyGame], held: bool, said: str) -> None:
    rows = replace(population(), holds_sensitive=held)
    with pytest.raises(InputError, match=said):
        game(rows, **settings())
    with pytest.raises(InputError, match=said):
        game(population(), **settings(public=rows))
    game(replace(rows, holds_sensitive=not held), **settings())
    game(population(), **settings())


def test_shares_of_an_attribute_are_noted() -> None:
    known = settings(batch_size=128, private_rows=300, trials=5)
    told = [
        DistributionGame(replace(population(), holds_sensitive=h), **known).challenge(0).notes for h in (True, False)
    ]
    assert any("shares of an attribute" in note for note in told[0])
    assert not any("attribute" in note for note in told[1])


def test_private_rows_of_one_value_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"at least two values of the sensitive variable, got 1, all with value [01].*raise"
    ):
        PropertyGame(population(), **settings(private_rows=1)).play(0)


def test_side_information_that_is_missing_is_explained() -> None:
    with pytest.raises(InputError, match=r"Table.population\(..., side=\[...\]\), or pass Population\(..., side=...\)"):
        PropertyGame(replace(population(), side=None), **settings(side=True))

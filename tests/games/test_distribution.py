"""Batches of every bin hold the share of the property that the definition asks for."""

from __future__ import annotations

import math

import pytest
import torch

from gradleak.attacks.inference import Ordinal, RandomForest
from gradleak.audits.inference import finding_of_game
from gradleak.games import DistributionGame, Knows
from gradleak.results import InputError
from tests.games.setting import population, settings


def game(**changes: object) -> DistributionGame:
    given = {"adversary": Ordinal(base=RandomForest(trees=10)), "batch_size": 20, "trials": 300} | changes
    return DistributionGame(population(), **settings(**given))


def test_the_bins_have_the_bounds_of_the_definition() -> None:
    assert game().names == ["0", "(0, 0.2]", "(0.2, 0.4]", "(0.4, 0.6]", "(0.6, 0.8]", "(0.8, 1]"]


def test_counts_are_the_floor_of_a_uniform_share_of_the_bin() -> None:
    labels = torch.arange(6).repeat_interleave(4000)
    counts = game().counts(labels, torch.Generator().manual_seed(0)).reshape(6, 4000)
    assert counts[0].unique().tolist() == [0]
    for place in range(1, 6):
        # k = 20 and m = 6: α of bin i is uniform in (4(i − 1)/20, 4i/20], of which the floors take four values; the upper
        # end has probability 0.
        values, occurred = counts[place].unique(return_counts=True)
        assert values.tolist() == [4 * (place - 1) + offset for offset in range(4)]
        assert occurred.double().div(4000).sub(0.25).abs().max() < 0.04
    # Bin 1 without any row that has the property: one in four here.
    assert (counts[1] == 0).double().mean() == pytest.approx(0.25, abs=0.04)


def test_every_batch_holds_its_count_and_no_row_twice() -> None:
    played = game()
    challenge = played.challenge(0)
    values = challenge.private.sensitive
    assert values is not None
    shares = (values[challenge.trials.rows] == 1).double().mean(dim=1)
    low = (challenge.trials.labels.double() - 1) / 5
    assert bool((shares <= (low + 0.2).clamp_min(0) + 1e-9).all())
    assert bool((shares >= low - 1e-9).all())
    assert all(len(rows.unique()) == 20 for rows in challenge.trials.rows)
    assert challenge.trials.labels.bincount(minlength=6).min() > 25
    assert challenge.prior.tolist() == pytest.approx([1 / 6] * 6)
    assert float(challenge.law.max()) == pytest.approx(1 / 6)


def test_another_value_can_be_the_property() -> None:
    challenge = game(having=0).challenge(0)
    values = challenge.private.sensitive
    assert values is not None
    ends = challenge.trials.labels == 5
    assert float((values[challenge.trials.rows[ends]] == 0).double().mean()) > 0.7


def test_the_ordinal_adversary_beats_chance_and_says_what_it_clipped() -> None:
    result = game(rounds=1, shadow_batches=600).play(0)
    success, auroc = result.score("attack_success_rate").value, result.score("auroc").value
    assert success is not None
    assert success > 0.25
    assert auroc is not None
    assert auroc > 0.65
    details = result.runs[0].details[Knows.ADAPTIVE][0]
    assert 0 < details["share_clipped"] < 0.5
    assert math.isclose(float(result.scores()[2].details["blind"]), 1 / 6)
    assert finding_of_game(result).runs[0].fits[1].rounds[0]["share_clipped"] > 0


def test_a_planted_share_is_found_although_the_batches_of_the_game_are_small() -> None:
    auroc = game(batch_size=4).planted_control(0).score("auroc").value
    assert auroc is not None
    assert auroc > 0.97


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(InputError, match=r"DistributionGame.bins: expected a whole number of at least 3, got 2"):
        game(bins=2)
    with pytest.raises(InputError, match="expected 0 to 1, a value of the sensitive variable, got 2"):
        game(having=2)

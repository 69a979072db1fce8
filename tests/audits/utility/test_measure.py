from __future__ import annotations

import json

import pytest
import torch
from tests.audits.utility.setting import digits, perceptron, release, task
from torch import nn

import gradleak as gl
from gradleak.accounting import pld_epsilon
from gradleak.audits.utility import measure_utility
from gradleak.core import GaussianMechanism
from gradleak.results import InputError, Leakier, Outcome
from gradleak.results.findings.utility import UtilityFinding
from gradleak.training import GroupNormForBatchNorm, Training

SHORT = Training(rounds=40, learning_rate=0.5, batch_size=50)
DP = gl.DPSGD(clip_norm=1.0, noise_std=1.0, noise="sum", expected_batch_size=40)


def test_an_undefended_training_learns_and_has_no_epsilon() -> None:
    found = measure_utility(task(), release(), SHORT)
    score = found.score
    assert (score.name, score.unit, score.leakier, score.outcome) == (
        "test_accuracy", "share", Leakier.NEITHER, Outcome.CONVERGED,
    )  # fmt: skip
    assert score.value > 0.75
    assert score.interval[0] < score.value < score.interval[1]
    assert score.n == 200
    assert len(score.details["per_seed"]) == 3
    right = [float((run.outputs.argmax(axis=1) == digits()[1].targets.numpy()).mean()) for run in found.runs]
    assert score.value == pytest.approx(sum(right) / 3)
    assert found.credit
    assert found.epsilon.value is None
    assert found.epsilon.note.startswith("none: ")
    written = UtilityFinding.from_dict(json.loads(json.dumps(found.finding().to_dict())))
    assert written.to_dict() == found.finding().to_dict()
    assert written.worth is not None
    assert written.worth.interval == score.interval
    assert written.training["rounds"] == 40
    assert written.credit
    assert [run.seed for run in written.runs] == [0, 1, 2]


def test_epsilon_is_that_of_the_noise_the_sampling_and_the_rounds() -> None:
    sampled = Training(rounds=12, learning_rate=0.5, sampling_rate=0.1)
    found = measure_utility(task(), release(DP), sampled, seeds=[0])
    expected = pld_epsilon(GaussianMechanism(sensitivity=1.0, std=1.0), delta=1e-5, rounds=12, sampling_rate=0.1)
    assert found.epsilon.value == pytest.approx(expected.value)
    # Batches of 50 out of 400 rows: 12 rounds are one epoch and a half, so that a row takes part twice at most.
    shuffled = measure_utility(task(), release(DP), Training(rounds=12, learning_rate=0.5, batch_size=50), seeds=[0])
    twice = pld_epsilon(GaussianMechanism(sensitivity=1.0, std=1.0), delta=1e-5, rounds=2)
    assert shuffled.epsilon.value == pytest.approx(twice.value)
    # A client whose whole update is bounded is there in every round.
    by_client = measure_utility(task(), release(gl.Clip(1.0), gl.GaussianNoise(std=1.0)), SHORT, seeds=[0])
    always = pld_epsilon(GaussianMechanism(sensitivity=1.0, std=1.0), delta=1e-5, rounds=40)
    assert by_client.epsilon.value == pytest.approx(always.value)
    assert by_client.epsilon.details["unit"] == "client"


def test_a_choice_among_settings_is_not_covered_and_the_score_says_so() -> None:
    """U52."""
    found = measure_utility(
        task(), release(DP), Training(rounds=2, learning_rate=0.5, sampling_rate=0.1), seeds=[0], settings_tried=40
    )
    assert "40 settings were tried on the private data" in found.epsilon.note
    assert found.epsilon.details["settings_tried"] == 40


def test_no_epsilon_where_an_empty_round_shows_or_delta_is_too_large() -> None:
    sampled = Training(rounds=2, learning_rate=0.5, sampling_rate=0.1)
    found = measure_utility(task(), release(gl.Clip(1.0), gl.GaussianNoise(std=1.0)), sampled, seeds=[0])
    assert found.epsilon.outcome is Outcome.UNSUPPORTED
    assert "sends nothing" in found.epsilon.note
    loose = Training(rounds=2, learning_rate=0.5, sampling_rate=0.1, delta=0.01)
    assert "not below one over the 400 examples" in measure_utility(task(), release(DP), loose, seeds=[0]).epsilon.note


def test_noise_that_drowns_the_model_and_a_training_that_diverges_get_no_credit() -> None:
    drowned = measure_utility(task(), release(gl.GaussianNoise(std=10.0)), SHORT, seeds=[0, 1])
    assert not drowned.credit
    assert drowned.score.interval[0] < drowned.score.details["blind"]

    def unbounded(generator: torch.Generator) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    fast = Training(rounds=9, learning_rate=1e30, batch_size=50)
    diverged = measure_utility(task(make_model=unbounded), release(), fast, seeds=[0, 1])
    assert (diverged.score.outcome, diverged.score.value, diverged.score.interval) == (Outcome.NOT_FINITE, None, None)
    assert diverged.score.note.startswith("2 of 2 seeds: diverged in round")
    assert not diverged.credit


def _normalized(shape: tuple[int, ...] = (16, 1, 1)) -> object:
    def model(generator: torch.Generator) -> nn.Module:
        layers = [nn.Flatten(), nn.Linear(64, 16), nn.Unflatten(1, shape), nn.BatchNorm2d(16), nn.Tanh(), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(16, 10))

    return model


def test_a_replacement_that_keeps_the_signal_is_listed_and_learns() -> None:
    """U17: layers replaced for DP are listed, beside the utility."""
    replaced = task(make_model=_normalized(), mode="train", replacement=GroupNormForBatchNorm())
    found = measure_utility(replaced, release(DP), Training(rounds=60, learning_rate=1.0, sampling_rate=0.1), seeds=[0])
    assert [(layer.name, layer.values, layer.erases) for layer in found.replaced] == [("3", 16, False)]
    assert found.replaced[0].was.startswith("BatchNorm2d(16")
    assert found.finding().replaced[0].now.startswith("GroupNorm(1, 16")
    assert found.score.value > 0.4
    assert found.credit
    assert found.epsilon.value is not None


@pytest.mark.parametrize("defenses", [[], [DP]], ids=["undefended", "DP-SGD"])
def test_a_replacement_that_erases_the_signal_is_found_out(defenses: list[object]) -> None:
    """U17: groups of one channel on 1×1 maps leave nothing of the input; no credit for what that hides."""
    erased = task(make_model=_normalized(), mode="train", replacement=GroupNormForBatchNorm(channels_per_group=1))
    found = measure_utility(erased, release(*defenses), SHORT, seeds=[0, 1])
    assert found.score.outcome is Outcome.CONSTANT
    assert found.score.value == pytest.approx(sum(found.score.details["per_seed"]) / 2)
    assert "the same whatever its input, erased in 3" in found.score.note
    assert found.replaced[0].erases
    assert not found.credit


def test_instance_norm_over_single_numbers_is_found_out_or_refused() -> None:
    def model(generator: torch.Generator) -> nn.Module:
        layers = [nn.Flatten(), nn.Linear(64, 16), nn.Unflatten(1, (16, 1)), nn.InstanceNorm1d(16), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(16, 10))

    with pytest.raises(InputError, match="more than 1 spatial element"):
        measure_utility(task(make_model=model), release(), SHORT, seeds=[0])


def test_a_model_that_gives_one_class_for_all_is_constant() -> None:
    rows, test = digits()
    lonely = gl.Batch(rows.inputs, torch.full_like(rows.targets, 3), rows.domain)
    found = measure_utility(task(train=lonely), release(), SHORT, seeds=[0])
    assert found.score.outcome is Outcome.CONSTANT
    assert found.score.value == pytest.approx(float((test.targets == 3).double().mean()))
    assert "the same class for every test row" in found.score.note
    assert not found.credit


def test_batch_norm_in_train_mode_is_judged_with_moments_of_training_and_has_no_epsilon() -> None:
    found = measure_utility(
        task(make_model=_normalized(), mode="train"),
        release(gl.Clip(1.0), gl.GaussianNoise(std=0.01)),
        SHORT,
        seeds=[0],
    )
    assert found.score.value > 0.7
    assert found.replaced == ()
    assert "BatchNorm statistics of the training rows (3)" in found.epsilon.note


def test_two_classes_are_judged_by_auroc_and_numbers_by_r2() -> None:
    rows, test = digits()

    def parity(batch: gl.Batch, dtype: torch.dtype) -> gl.Batch:
        return gl.Batch(
            batch.inputs, (batch.targets % 2).to(dtype)[:, None] if dtype.is_floating_point else batch.targets % 2
        )

    def head(outputs: int) -> object:
        return lambda generator: nn.Sequential(
            perceptron(generator)[:1], perceptron(generator)[1][:2], nn.Linear(16, outputs)
        )

    two = task(train=parity(rows, torch.int64), test=parity(test, torch.int64), make_model=head(2))
    found = measure_utility(two, release(), SHORT, seeds=[0, 1])
    assert found.score.name == "test_auroc"
    assert found.score.value > 0.85
    assert found.score.details["blind"] == 0.5
    one = task(
        train=parity(rows, torch.float32), test=parity(test, torch.float32), make_model=head(1), loss="bce_with_logits"
    )
    assert measure_utility(one, release(), SHORT, seeds=[0]).score.value > 0.85
    numbers = task(train=parity(rows, torch.float32), test=parity(test, torch.float32), make_model=head(1), loss="mse")
    found = measure_utility(numbers, release(), Training(rounds=40, learning_rate=0.1, batch_size=50), seeds=[0])
    assert found.score.name == "test_r2"
    assert 0.2 < found.score.value < 1


def test_seeds_are_different() -> None:
    for seeds in ([], [1, 1]):
        with pytest.raises(InputError, match="different seeds"):
            measure_utility(task(), release(), SHORT, seeds=seeds)
    assert (
        "one seed"
        in measure_utility(
            task(), release(), Training(rounds=2, learning_rate=0.5, batch_size=50), seeds=[0]
        ).score.note
    )

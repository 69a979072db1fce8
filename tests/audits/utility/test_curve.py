from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.audits.utility.setting import digits, release, task

import gradleak as gl
from gradleak.audits.utility import Adversary, ReconstructionProbe, Setting, best_learning_rate, privacy_utility_curve
from gradleak.reporting.pages.utility.curve import curve_figure, curve_table
from gradleak.results import InputError, Outcome
from gradleak.training import Training

TRAINING = Training(rounds=30, learning_rate=0.5, batch_size=50)


def _probe(examples: int) -> ReconstructionProbe:
    rows = digits()[0]
    lm = gl.GaussNewton(max_steps=5, starts=1)
    return ReconstructionProbe(
        batch=gl.Batch(rows.inputs[:examples], rows.targets[:examples], rows.domain),
        adversaries=[
            Adversary(name="static", attack=lm, threat=gl.HonestButCurious(defenses=False)),
            Adversary(name="adaptive", attack=lm),
        ],
    )


def test_points_hold_utility_privacy_and_what_a_reader_needs() -> None:
    settings = [
        Setting(family="noise", label=f"std {std:g}", release=release(gl.GaussianNoise(std=std))) for std in (1e-3, 3.0)
    ]
    said: list[str] = []
    curve = privacy_utility_curve(task(), TRAINING, settings, probe=_probe(1), seeds=[0, 1, 2], say=said.append)
    assert [point.setting.label for point in curve.every] == ["undefended", "std 0.001", "std 3"]
    little, much = curve.points
    assert little.credit
    assert not much.credit
    assert little.utility.score.value > 0.7 > 0.4 > much.utility.score.value
    assert little.utility.closeness.cosine > 0.9 > 0.1 > much.utility.closeness.cosine
    assert curve.undefended.score("predicted_static").value == pytest.approx(0.0, abs=1e-9)
    assert curve.undefended.score("reached_adaptive").value < 1e-4
    # First order: a thousand times the noise, a thousand times the predicted error.
    predicted = [point.score("predicted_static").value for point in curve.points]
    assert predicted[1] / predicted[0] == pytest.approx(3000, rel=1e-3)
    assert little.score("reached_static").value == pytest.approx(predicted[0], rel=0.5)
    assert little.score("lower_bound_static").value < predicted[0]
    assert len(said) == 3
    rows = [line.split(" | ") for line in curve_table(curve.summary()).splitlines() if line.startswith("| ")]
    assert [len(row) for row in rows] == [len(rows[0])] * 5
    assert rows[3][0] == "| noise, std 0.001"
    assert rows[3][3] == "yes"
    assert f"{predicted[0]:.3g}" in rows[3]
    assert rows[3][-1] == "none |"
    assert curve_figure(curve.summary()).startswith("<svg ")
    assert [point["label"] for point in curve.summary().to_dict()["points"]] == ["undefended", "std 0.001", "std 3"]
    assert "2 settings were tried" in little.utility.epsilon.note


def test_static_and_adaptive_stand_side_by_side() -> None:
    found = {
        score.name: score for score in _probe(2)(release(gl.Prune(0.5)), task().start(torch.Generator()).objective)
    }
    assert found["predicted_static"].value > 0.005
    # Whoever knows which half is missing is misled by nothing.
    assert found["predicted_adaptive"].value == pytest.approx(0.0, abs=1e-9)
    assert found["reached_adaptive"].value < found["reached_static"].value
    alone = replace(_probe(2), adversaries=())
    sign = {score.name: score for score in alone(release(gl.Sign()), task().start(torch.Generator()).objective)}
    assert sign["predicted_adaptive"].outcome is Outcome.NOT_INFORMATIVE
    assert sign["predicted_adaptive"].value is None
    assert sign["blind"].n == 2


def test_an_attack_that_is_refused_is_a_word_and_not_a_number() -> None:
    rows = digits()[0]
    probe = ReconstructionProbe(
        batch=gl.Batch(rows.inputs[:2], rows.targets[:2], rows.domain),
        adversaries=[
            Adversary(name="told", attack=gl.attacks.DGL(iterations=1), threat=gl.HonestButCurious(targets=False))
        ],
    )
    score = next(s for s in probe(release(), task().start(torch.Generator()).objective) if s.name == "reached_told")
    assert (score.value, score.outcome) == (None, Outcome.UNSUPPORTED)
    assert "targets" in score.note


def test_learning_rates_are_chosen_without_the_test_rows_and_counted() -> None:
    dp = gl.DPSGD(clip_norm=1.0, noise_std=0.5, noise="sum", expected_batch_size=40)
    settings = [
        Setting(family="sign", label="sign", release=release(gl.Sign())),
        Setting(
            family="dp",
            label="dp",
            release=release(dp),
            training=Training(rounds=30, learning_rate=1.0, sampling_rate=0.1),
        ),
    ]
    curve = privacy_utility_curve(task(), TRAINING, settings, seeds=[0], learning_rates=[0.01, 1.0, 30.0])
    assert curve.settings_tried == 6
    assert curve.points[0].learning_rate == 0.01
    assert curve.points[1].learning_rate == 1.0
    assert "6 settings were tried" in curve.points[1].utility.epsilon.note
    shuffled = task(test=gl.Batch(digits()[1].inputs, digits()[1].targets.flip(0), digits()[1].domain))
    again = best_learning_rate(shuffled, settings[0].release, TRAINING, rates=[0.01, 1.0, 30.0], seed=0)
    assert again == curve.points[0].learning_rate


def test_no_setting_and_equal_names_are_refused() -> None:
    with pytest.raises(InputError, match="at least one setting"):
        privacy_utility_curve(task(), TRAINING, [])
    with pytest.raises(InputError, match="different names"):
        ReconstructionProbe(
            batch=digits()[0].example(0), adversaries=[Adversary(name="a", attack=gl.attacks.Blind())] * 2
        )


def test_a_reference_that_hardly_learned_is_told_in_the_table() -> None:
    curves = [
        curve_table(
            privacy_utility_curve(
                task(),
                replace(TRAINING, rounds=rounds, learning_rate=rate),
                [Setting(family="sign", label="sign", release=release(gl.Sign()))],
                seeds=[0],
            ).summary()
        )
        for rounds, rate in ((1, 1e-6), (30, 0.5))
    ]
    assert "The undefended training hardly learned" in curves[0]
    assert "hardly learned" not in curves[1]

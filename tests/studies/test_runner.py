"""The runner of the studies, as it is called in a checkout."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradleak.results import InputError
from studies import (
    AttackTable,
    AttributePrivacy,
    DefenseTable,
    EpsilonCoverage,
    FedAvgQuality,
    GeneratorBatches,
    GeneratorLimits,
    GeneratorQuestions,
    GeneratorTable,
    GIMLQuality,
    InferenceAdversaries,
    InferenceData,
    InferenceDefenses,
    InferenceKnowledge,
    InferenceModelSize,
    InferenceRisk,
    InferenceTradeoff,
    InfluenceCost,
    InfluenceDirections,
    InfluenceInTheWorld,
    InfluenceValidation,
    InitializationRisk,
    LabelRestoration,
    LAVPConditions,
    LAVPDescent,
    LAVPQuality,
    LayerConditions,
    LayerEpochs,
    LayerInfluences,
    LayerLatent,
    LayerOriginal,
    LayerProtection,
    NullControls,
    PeeledImages,
    PrivacyUtility,
    PruningBound,
    RateCoverage,
    SentenceAttacks,
    SentenceNoise,
    SentenceTable,
    ShuffledClients,
    SpectralNoiseGain,
    TableInversion,
    TokenDecoders,
    Unfairness,
)
from studies.runner import app, find_study, known_studies, settings

ROOT = Path(__file__).parents[2]


def test_studies_are_found_by_name() -> None:
    assert known_studies() == {
        "attack_table": AttackTable,
        "attribute_privacy": AttributePrivacy,
        "defense_table": DefenseTable,
        "epsilon_coverage": EpsilonCoverage,
        "fed_avg_quality": FedAvgQuality,
        "generator_batches": GeneratorBatches,
        "generator_limits": GeneratorLimits,
        "generator_questions": GeneratorQuestions,
        "generator_table": GeneratorTable,
        "giml_quality": GIMLQuality,
        "inference_adversaries": InferenceAdversaries,
        "inference_data": InferenceData,
        "inference_defenses": InferenceDefenses,
        "inference_knowledge": InferenceKnowledge,
        "inference_model_size": InferenceModelSize,
        "inference_risk": InferenceRisk,
        "influence_cost": InfluenceCost,
        "influence_directions": InfluenceDirections,
        "influence_in_the_world": InfluenceInTheWorld,
        "inference_tradeoff": InferenceTradeoff,
        "influence_validation": InfluenceValidation,
        "initialization": InitializationRisk,
        "label_restoration": LabelRestoration,
        "lavp_conditions": LAVPConditions,
        "lavp_descent": LAVPDescent,
        "lavp_quality": LAVPQuality,
        "layer_conditions": LayerConditions,
        "layer_epochs": LayerEpochs,
        "layer_influences": LayerInfluences,
        "layer_latent": LayerLatent,
        "layer_original": LayerOriginal,
        "layer_protection": LayerProtection,
        "null_controls": NullControls,
        "peeled_images": PeeledImages,
        "privacy_utility": PrivacyUtility,
        "pruning_bound": PruningBound,
        "rate_coverage": RateCoverage,
        "sentence_attacks": SentenceAttacks,
        "sentence_noise": SentenceNoise,
        "sentence_table": SentenceTable,
        "shuffled_clients": ShuffledClients,
        "spectral_noise": SpectralNoiseGain,
        "table_inversion": TableInversion,
        "token_decoders": TokenDecoders,
        "unfairness": Unfairness,
    }
    assert find_study("lavp_quality") is LAVPQuality
    with pytest.raises(InputError, match="did you mean 'lavp_quality'"):
        find_study("lavp")


def test_settings_are_toml_values() -> None:
    found = settings(["count=3", "images=data/x.npz", 'architectures=["mlp"]', "seed = 4"])
    assert found == {"count": 3, "images": "data/x.npz", "architectures": ["mlp"], "seed": 4}
    with pytest.raises(InputError, match="expected key=value"):
        settings(["count"])


def test_a_bad_setting_is_one_line_and_ends_with_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["studies", "pruning_bound", "--out", str(tmp_path / "out"), "--set", "shade=red"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("studies", run_name="__main__")
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("gradleak: study pruning_bound: ")
    assert told.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_seed_is_no_setting(tmp_path: Path) -> None:
    arguments = ["pruning_bound", "--out", str(tmp_path), "--set", "seed=4"]
    with pytest.raises(InputError, match="the seed is no setting of --set; give --seed N"):
        CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_without_a_checkout_one_line_says_where_to_run_it(tmp_path: Path) -> None:
    # A folder of this name that is somebody else's is not imported.
    foreign = tmp_path / "studies" / "__init__.py"
    foreign.parent.mkdir()
    foreign.write_text("raise RuntimeError\n", encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-m", "gradleak", "study", "pruning_bound", "--out", "out"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("gradleak: study: expected the root of a checkout of gradleak")
    assert ended.stderr.count("\n") == 1

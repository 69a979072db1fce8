"""Studies from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradleak.cli.main import app
from gradleak.cli.studies import find_study, settings, studies
from gradleak.results import InputError
from gradleak.studies import (
    AttackTable,
    AttributePrivacy,
    DefenseTable,
    EpsilonCoverage,
    FedAvgQuality,
    GeneratorQuestions,
    GeneratorTable,
    GIMLQuality,
    InferenceDefenses,
    InferenceRisk,
    InfluenceValidation,
    InitializationRisk,
    LabelRestoration,
    LAVPQuality,
    LayerInfluences,
    LayerLatent,
    LayerOriginal,
    LayerProtection,
    PrivacyUtility,
    PruningBound,
    SpectralNoiseGain,
    StudyResult,
    Unfairness,
)
from gradleak.studies.study import Say


def test_studies_are_found_by_name() -> None:
    assert studies() == {
        "attack_table": AttackTable,
        "attribute_privacy": AttributePrivacy,
        "defense_table": DefenseTable,
        "epsilon_coverage": EpsilonCoverage,
        "fed_avg_quality": FedAvgQuality,
        "generator_questions": GeneratorQuestions,
        "generator_table": GeneratorTable,
        "giml_quality": GIMLQuality,
        "inference_defenses": InferenceDefenses,
        "inference_risk": InferenceRisk,
        "influence_validation": InfluenceValidation,
        "initialization": InitializationRisk,
        "label_restoration": LabelRestoration,
        "lavp_quality": LAVPQuality,
        "layer_influences": LayerInfluences,
        "layer_latent": LayerLatent,
        "layer_original": LayerOriginal,
        "layer_protection": LayerProtection,
        "privacy_utility": PrivacyUtility,
        "pruning_bound": PruningBound,
        "spectral_noise": SpectralNoiseGain,
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


def test_a_study_can_be_run_from_another_seed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[int] = []

    def run(self: GIMLQuality, *, say: Say) -> StudyResult:
        seen.append(self.seed)
        return StudyResult(study=self.name, settings={}, findings=[], conclusion=[], details={}, tables=[])

    monkeypatch.setattr(GIMLQuality, "run", run)
    for seed in ("0", "1", "1"):
        assert CliRunner().invoke(app, ["study", "giml_quality", "--out", str(tmp_path), "--seed", seed]).exit_code == 0
    assert seen[0] != seen[1] == seen[2]

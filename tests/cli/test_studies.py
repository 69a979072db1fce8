"""Studies from the command line."""

from __future__ import annotations

import pytest

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
    PrivacyUtility,
    PruningBound,
    SpectralNoiseGain,
    Unfairness,
)


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

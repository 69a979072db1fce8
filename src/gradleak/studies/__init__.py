"""Studies: a paper's table or figure, computed again, with the paper's value beside ours."""

from gradleak.studies.attack_table import AttackTable, Entrant, TableNetwork
from gradleak.studies.attribute_privacy import AttributePrivacy
from gradleak.studies.defense_table import DefenseTable
from gradleak.studies.epsilon_coverage import EpsilonCoverage
from gradleak.studies.fed_avg_quality import FedAvgQuality
from gradleak.studies.generator_questions import GeneratorQuestions
from gradleak.studies.generator_table import GeneratorTable, Scale
from gradleak.studies.giml_quality import GIMLQuality
from gradleak.studies.inference_defenses import InferenceDefenses, InferenceShield
from gradleak.studies.inference_risk import InferenceRisk, RiskGame
from gradleak.studies.influence_cells import AttackFamily, NoisyLayers
from gradleak.studies.influence_validation import InfluenceValidation
from gradleak.studies.initialization import Initialization, InitializationRisk
from gradleak.studies.label_restoration import LabelRestoration, Network
from gradleak.studies.lavp_quality import Architecture, LAVPQuality
from gradleak.studies.layer_influences import Influence, LayerInfluences, Leakage
from gradleak.studies.layer_latent import LatentData, LatentNetwork, LayerLatent
from gradleak.studies.layer_original import LayerOriginal
from gradleak.studies.layer_original_attacks import LayerInversion
from gradleak.studies.layer_original_cells import LayerNetwork
from gradleak.studies.layer_protection import LayerProtection
from gradleak.studies.layer_protection_cells import ProtectedSetting
from gradleak.studies.prior_cells import PriorAttack, PriorNetwork
from gradleak.studies.privacy_utility import Family, PrivacyUtility, ProbeAttack, UtilityData
from gradleak.studies.private_images import SmallNetwork
from gradleak.studies.pruning_bound import PruningBound
from gradleak.studies.shields import Shield
from gradleak.studies.spectral_noise import SpectralNoiseGain
from gradleak.studies.study import Finding, Study, StudyResult, Table
from gradleak.studies.unfairness import Unfairness

__all__ = [
    "Architecture",
    "AttackFamily",
    "AttackTable",
    "AttributePrivacy",
    "DefenseTable",
    "Entrant",
    "EpsilonCoverage",
    "Family",
    "FedAvgQuality",
    "Finding",
    "GIMLQuality",
    "GeneratorQuestions",
    "GeneratorTable",
    "InferenceDefenses",
    "InferenceRisk",
    "InferenceShield",
    "Influence",
    "InfluenceValidation",
    "Initialization",
    "InitializationRisk",
    "LAVPQuality",
    "LabelRestoration",
    "LatentData",
    "LatentNetwork",
    "LayerInfluences",
    "LayerInversion",
    "LayerLatent",
    "LayerNetwork",
    "LayerOriginal",
    "LayerProtection",
    "Leakage",
    "Network",
    "NoisyLayers",
    "PriorAttack",
    "PriorNetwork",
    "PrivacyUtility",
    "ProbeAttack",
    "ProtectedSetting",
    "PruningBound",
    "RiskGame",
    "Scale",
    "Shield",
    "SmallNetwork",
    "SpectralNoiseGain",
    "Study",
    "StudyResult",
    "Table",
    "TableNetwork",
    "Unfairness",
    "UtilityData",
]

"""Studies: a paper's table or figure, computed again, with the paper's value beside ours."""

from gradleak.studies.attack_table import AttackTable, Entrant, TableNetwork
from gradleak.studies.defense_table import DefenseTable
from gradleak.studies.fed_avg_quality import FedAvgQuality
from gradleak.studies.inference_defenses import InferenceDefenses, InferenceShield
from gradleak.studies.inference_risk import InferenceRisk, RiskGame
from gradleak.studies.influence_validation import InfluenceValidation
from gradleak.studies.initialization import Initialization, InitializationRisk
from gradleak.studies.label_restoration import LabelRestoration, Network
from gradleak.studies.lavp_quality import Architecture, LAVPQuality
from gradleak.studies.privacy_utility import Family, PrivacyUtility, ProbeAttack, UtilityData
from gradleak.studies.private_images import SmallNetwork
from gradleak.studies.pruning_bound import PruningBound
from gradleak.studies.shields import Shield
from gradleak.studies.spectral_noise import SpectralNoiseGain
from gradleak.studies.study import Finding, Study, StudyResult, Table
from gradleak.studies.unfairness import Unfairness

__all__ = [
    "Architecture",
    "AttackTable",
    "DefenseTable",
    "Entrant",
    "Family",
    "FedAvgQuality",
    "Finding",
    "InferenceDefenses",
    "InferenceRisk",
    "InferenceShield",
    "InfluenceValidation",
    "Initialization",
    "InitializationRisk",
    "LAVPQuality",
    "LabelRestoration",
    "Network",
    "PrivacyUtility",
    "ProbeAttack",
    "PruningBound",
    "RiskGame",
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

"""Studies: a paper's table or figure, computed again, with the paper's value beside ours."""

from studies.attack_table import AttackTable, Entrant, TableNetwork
from studies.attribute_privacy import AttributePrivacy
from studies.defense_table import DefenseTable
from studies.epsilon_coverage import EpsilonCoverage
from studies.fed_avg_quality import FedAvgQuality
from studies.game_studies import RiskGame
from studies.generator_batches import GeneratorBatches
from studies.generator_limits import GeneratorLimits
from studies.generator_questions import GeneratorQuestions
from studies.generator_table import GeneratorTable, Scale
from studies.giml_quality import GIMLQuality
from studies.inference_data import InferenceData
from studies.inference_defenses import InferenceDefenses, InferenceShield
from studies.inference_factors import InferenceAdversaries, InferenceKnowledge, InferenceModelSize
from studies.inference_risk import InferenceRisk
from studies.inference_tradeoff import InferenceTradeoff
from studies.influence_cells import AttackFamily, NoisyLayers
from studies.influence_cost import InfluenceCost
from studies.influence_directions import InfluenceDirections
from studies.influence_validation import InfluenceValidation
from studies.influence_world import InfluenceInTheWorld, WorldAxis
from studies.initialization import Initialization, InitializationRisk
from studies.label_restoration import LabelRestoration, Network
from studies.lavp_cells import Architecture
from studies.lavp_conditions import LAVPConditions
from studies.lavp_descent import LAVPDescent
from studies.lavp_quality import LAVPQuality
from studies.layer_conditions import LayerConditions
from studies.layer_epochs import CurveNetwork, LayerEpochs
from studies.layer_influences import Influence, LayerInfluences, Leakage
from studies.layer_latent import LatentData, LatentNetwork, LayerLatent
from studies.layer_original import LayerOriginal
from studies.layer_original_attacks import LayerInversion
from studies.layer_original_cells import LayerNetwork
from studies.layer_protection import LayerProtection
from studies.layer_protection_cells import ProtectedSetting
from studies.null_controls import NullControls
from studies.peeled_images import PeeledImages, PeeledNetwork
from studies.prior_cells import PriorAttack, PriorNetwork
from studies.privacy_utility import Family, PrivacyUtility, ProbeAttack, UtilityData
from studies.private_images import SmallNetwork
from studies.pruning_bound import PruningBound
from studies.rate_coverage import RateCoverage, ScoreLaw
from studies.sentence_attacks import SentenceAttacks
from studies.sentence_noise import SentenceNoise
from studies.sentence_table import SentenceTable
from studies.shields import Shield
from studies.shuffled_clients import ShuffledClients
from studies.spectral_noise import SpectralNoiseGain
from studies.study import Finding, Study, StudyResult, Table
from studies.table_inversion import TableAttacker, TableInversion
from studies.token_decoders import TokenDecoders
from studies.unfairness import Unfairness

__all__ = [
    "Architecture",
    "AttackFamily",
    "AttackTable",
    "AttributePrivacy",
    "CurveNetwork",
    "DefenseTable",
    "Entrant",
    "EpsilonCoverage",
    "Family",
    "FedAvgQuality",
    "Finding",
    "GIMLQuality",
    "GeneratorBatches",
    "GeneratorLimits",
    "GeneratorQuestions",
    "GeneratorTable",
    "InferenceAdversaries",
    "InferenceData",
    "InferenceDefenses",
    "InferenceKnowledge",
    "InferenceModelSize",
    "InferenceRisk",
    "InferenceShield",
    "InferenceTradeoff",
    "Influence",
    "InfluenceCost",
    "InfluenceDirections",
    "InfluenceInTheWorld",
    "InfluenceValidation",
    "Initialization",
    "InitializationRisk",
    "LAVPConditions",
    "LAVPDescent",
    "LAVPQuality",
    "LabelRestoration",
    "LatentData",
    "LatentNetwork",
    "LayerConditions",
    "LayerEpochs",
    "LayerInfluences",
    "LayerInversion",
    "LayerLatent",
    "LayerNetwork",
    "LayerOriginal",
    "LayerProtection",
    "Leakage",
    "Network",
    "NoisyLayers",
    "NullControls",
    "PeeledImages",
    "PeeledNetwork",
    "PriorAttack",
    "PriorNetwork",
    "PrivacyUtility",
    "ProbeAttack",
    "ProtectedSetting",
    "PruningBound",
    "RateCoverage",
    "RiskGame",
    "Scale",
    "ScoreLaw",
    "SentenceAttacks",
    "SentenceNoise",
    "SentenceTable",
    "Shield",
    "ShuffledClients",
    "SmallNetwork",
    "SpectralNoiseGain",
    "Study",
    "StudyResult",
    "Table",
    "TableAttacker",
    "TableInversion",
    "TableNetwork",
    "TokenDecoders",
    "Unfairness",
    "UtilityData",
    "WorldAxis",
]

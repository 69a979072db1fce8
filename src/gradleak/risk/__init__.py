"""Closed-form measures of what a release gives away; the defender's side, which holds the truth."""

from gradleak.risk.bayesian_cramer_rao import BayesianCramerRao
from gradleak.risk.cramer_rao import FisherInformationLoss, GaussianReconstructionError, GradientNorm
from gradleak.risk.directions import PerturbationDirections, perturbation_directions
from gradleak.risk.influence import InversionInfluence, InversionInfluenceLowerBound, InversionInfluenceNumerator
from gradleak.risk.largest_eigenvalue import LargestEigenvalue
from gradleak.risk.layer_advice import AdvisedLayer, LayerAdvice, advise
from gradleak.risk.layer_exposure import Consecutive, Partition, VisibleLayers, layer_groups, what_ifs
from gradleak.risk.layer_measure import GradientMeasure, LayerMeasure
from gradleak.risk.layer_profile import DrawnRows, LayerProfile, LayerScale, LayerSite, PairedRows
from gradleak.risk.measure import Measure, Unit, each_example, measure_visible
from gradleak.risk.mutual_information import MINE, NeighborInformation
from gradleak.risk.peel_rank import PeelRank
from gradleak.risk.perfect_attacker import PerfectAttack, perfect_attacker
from gradleak.risk.poisoning import (
    OneLayerDerivative,
    PoisoningAmplification,
    one_layer_derivative,
    poisoning_amplification,
)
from gradleak.risk.posterior import GaussianPrior, LinearizedPosteriorError
from gradleak.risk.reconstruction_probability import ReconstructionProbability
from gradleak.risk.sensitivity import JacobianNorm, Sensitivity, mean_sensitivity, sensitivity_profile
from gradleak.risk.server_model import LayerOpenness, ServerModel, check_server_model
from gradleak.risk.setting_measure import Setting, SettingMeasure
from gradleak.risk.subspace_distance import GrassmannMetric, SubspaceDistance, principal_angles
from gradleak.risk.token_error import TokenDistances, TokenError
from gradleak.risk.v_information import (
    ClaimError,
    CosineError,
    LatentInformation,
    NormalizedError,
    OriginalInformation,
    StructuralDissimilarity,
    TargetInformation,
)
from gradleak.risk.vulnerability import Extremum, LipschitzBound, MatchingLoss, Vulnerability, VulnerabilityFusion

__all__ = [
    "MINE",
    "AdvisedLayer",
    "BayesianCramerRao",
    "ClaimError",
    "Consecutive",
    "CosineError",
    "DrawnRows",
    "Extremum",
    "FisherInformationLoss",
    "GaussianPrior",
    "GaussianReconstructionError",
    "GradientMeasure",
    "GradientNorm",
    "GrassmannMetric",
    "InversionInfluence",
    "InversionInfluenceLowerBound",
    "InversionInfluenceNumerator",
    "JacobianNorm",
    "LargestEigenvalue",
    "LatentInformation",
    "LayerAdvice",
    "LayerMeasure",
    "LayerOpenness",
    "LayerProfile",
    "LayerScale",
    "LayerSite",
    "LinearizedPosteriorError",
    "LipschitzBound",
    "MatchingLoss",
    "Measure",
    "NeighborInformation",
    "NormalizedError",
    "OneLayerDerivative",
    "OriginalInformation",
    "PairedRows",
    "Partition",
    "PeelRank",
    "PerfectAttack",
    "PerturbationDirections",
    "PoisoningAmplification",
    "ReconstructionProbability",
    "Sensitivity",
    "ServerModel",
    "Setting",
    "SettingMeasure",
    "StructuralDissimilarity",
    "SubspaceDistance",
    "TargetInformation",
    "TokenDistances",
    "TokenError",
    "Unit",
    "VisibleLayers",
    "Vulnerability",
    "VulnerabilityFusion",
    "advise",
    "check_server_model",
    "each_example",
    "layer_groups",
    "mean_sensitivity",
    "measure_visible",
    "one_layer_derivative",
    "perfect_attacker",
    "perturbation_directions",
    "poisoning_amplification",
    "principal_angles",
    "sensitivity_profile",
    "what_ifs",
]

"""Closed-form measures of what a release gives away; the defender's side, which holds the truth."""

from gradleak.risk.bayesian_cramer_rao import BayesianCramerRao
from gradleak.risk.cramer_rao import GaussianReconstructionError
from gradleak.risk.directions import PerturbationDirections, perturbation_directions
from gradleak.risk.examples import each_example
from gradleak.risk.fisher import FisherInformationLoss
from gradleak.risk.gradient_norm import GradientNorm
from gradleak.risk.influence import InversionInfluence, InversionInfluenceLowerBound
from gradleak.risk.lipschitz_bound import LipschitzBound
from gradleak.risk.measure import Measure, Unit
from gradleak.risk.perfect_attacker import PerfectAttack, perfect_attacker
from gradleak.risk.posterior import LinearizedPosteriorError
from gradleak.risk.prior import GaussianPrior
from gradleak.risk.reconstruction_probability import ReconstructionProbability
from gradleak.risk.sensitivity import JacobianNorm, Partition, Sensitivity
from gradleak.risk.setting_measure import Setting, SettingMeasure
from gradleak.risk.vulnerability import Extremum, MatchingLoss, Vulnerability, VulnerabilityFusion

__all__ = [
    "BayesianCramerRao",
    "Extremum",
    "FisherInformationLoss",
    "GaussianPrior",
    "GaussianReconstructionError",
    "GradientNorm",
    "InversionInfluence",
    "InversionInfluenceLowerBound",
    "JacobianNorm",
    "LinearizedPosteriorError",
    "LipschitzBound",
    "MatchingLoss",
    "Measure",
    "Partition",
    "PerfectAttack",
    "PerturbationDirections",
    "ReconstructionProbability",
    "Sensitivity",
    "Setting",
    "SettingMeasure",
    "Unit",
    "Vulnerability",
    "VulnerabilityFusion",
    "each_example",
    "perfect_attacker",
    "perturbation_directions",
]

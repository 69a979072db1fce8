"""Closed-form measures of what a release gives away; the defender's side, which holds the truth."""

from gradleak.risk.cramer_rao import GaussianReconstructionError
from gradleak.risk.gradient_norm import GradientNorm
from gradleak.risk.influence import InversionInfluence, InversionInfluenceLowerBound
from gradleak.risk.measure import Measure, Unit
from gradleak.risk.perfect_attacker import PerfectAttack, perfect_attacker

__all__ = [
    "GaussianReconstructionError",
    "GradientNorm",
    "InversionInfluence",
    "InversionInfluenceLowerBound",
    "Measure",
    "PerfectAttack",
    "Unit",
    "perfect_attacker",
]

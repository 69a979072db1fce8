"""Differential privacy: what a release is worth as a mechanism, and the epsilon of many rounds."""

from gradleak.dp.accounting import (
    Accounting,
    Adjacency,
    classical_gaussian_epsilon,
    exact_gaussian_epsilon,
    pld_epsilon,
    rdp_epsilon,
)
from gradleak.dp.mechanism import GaussianMechanism, NoGuarantee, Unit, guarantee_of, mechanism_of
from gradleak.dp.poisson import PoissonDraw, poisson_release, poisson_sample

__all__ = [
    "Accounting",
    "Adjacency",
    "GaussianMechanism",
    "NoGuarantee",
    "PoissonDraw",
    "Unit",
    "classical_gaussian_epsilon",
    "exact_gaussian_epsilon",
    "guarantee_of",
    "mechanism_of",
    "pld_epsilon",
    "poisson_release",
    "poisson_sample",
    "rdp_epsilon",
]

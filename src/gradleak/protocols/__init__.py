"""Protocols: the computation of a client."""

from gradleak.protocols.average_gradient import average_gradient
from gradleak.protocols.fed_avg import FedAvg, LocalAdam
from gradleak.protocols.fed_sgd import AccumulatedGradient, FedSGD
from gradleak.protocols.scaffold import Scaffold
from gradleak.protocols.secure_aggregation import SecureAggregation

__all__ = [
    "AccumulatedGradient",
    "FedAvg",
    "FedSGD",
    "LocalAdam",
    "Scaffold",
    "SecureAggregation",
    "average_gradient",
]

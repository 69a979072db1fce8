"""What a client computes."""

from gradleak.protocols.fed_avg import FedAvg
from gradleak.protocols.fed_sgd import FedSGD

__all__ = ["FedAvg", "FedSGD"]

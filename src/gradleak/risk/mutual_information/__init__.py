"""Estimates of the mutual information between the gradients of a layer and inputs or labels, with their biases."""

from gradleak.risk.mutual_information.estimator import InformationEstimator
from gradleak.risk.mutual_information.mine import MINE
from gradleak.risk.mutual_information.neighbors import NeighborInformation

__all__ = ["MINE", "InformationEstimator", "NeighborInformation"]

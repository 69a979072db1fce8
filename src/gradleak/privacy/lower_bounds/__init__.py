"""Epsilon from trials: lower bounds that hold with a stated confidence, and the naive estimate under its own name."""

from gradleak.privacy.lower_bounds.estimator import Direction, EpsilonEstimator, Reading, TrialScores, best_bound
from gradleak.privacy.lower_bounds.gaussian_fit import (
    GaussianFitEpsilon,
    attainable_epsilon,
    gaussian_dp_epsilon,
    gaussian_dp_mu,
    largest_certifiable_epsilon,
)
from gradleak.privacy.lower_bounds.one_run import OneRunEpsilon, TradeOff
from gradleak.privacy.lower_bounds.thresholds import CorrectedThresholdEpsilon, PlugInEpsilon, SplitThresholdEpsilon

__all__ = [
    "CorrectedThresholdEpsilon",
    "Direction",
    "EpsilonEstimator",
    "GaussianFitEpsilon",
    "OneRunEpsilon",
    "PlugInEpsilon",
    "Reading",
    "SplitThresholdEpsilon",
    "TradeOff",
    "TrialScores",
    "attainable_epsilon",
    "best_bound",
    "gaussian_dp_epsilon",
    "gaussian_dp_mu",
    "largest_certifiable_epsilon",
]

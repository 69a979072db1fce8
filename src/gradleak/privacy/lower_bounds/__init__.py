"""Epsilon from trials: lower bounds that hold with a stated confidence, and the naive estimate under its own name."""

from gradleak.privacy.lower_bounds.attainable import (
    attainable_epsilon,
    gaussian_dp_epsilon,
    largest_certifiable_epsilon,
)
from gradleak.privacy.lower_bounds.corrected_threshold import CorrectedThresholdEpsilon
from gradleak.privacy.lower_bounds.estimator import Direction, EpsilonEstimator, Reading, best_bound
from gradleak.privacy.lower_bounds.gaussian_fit import GaussianFitEpsilon
from gradleak.privacy.lower_bounds.one_run import OneRunEpsilon, TradeOff
from gradleak.privacy.lower_bounds.plug_in import PlugInEpsilon
from gradleak.privacy.lower_bounds.split_threshold import SplitThresholdEpsilon
from gradleak.privacy.lower_bounds.trials import TrialScores

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
    "largest_certifiable_epsilon",
]

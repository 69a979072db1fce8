"""Training through a release: models trained federatedly and judged on held-out rows, and the updates that leave."""

from gradleak.training.federated import AnyRelease, Closeness, PerturbedRounds, ReleaseOfRound, Run, Training, train
from gradleak.training.layers import GroupNormForBatchNorm, ReplacedLayer, values_normalized
from gradleak.training.metric import Metric, Worth, worth
from gradleak.training.releases import (
    BatchReleases,
    LayerGradients,
    Route,
    batches_of_one_value,
    layer_gradient_blocks,
    layer_gradients,
    releases_of,
)
from gradleak.training.task import MakeModel, Start, Task, split
from gradleak.training.trajectory import Trajectory, check_one_row, follow, score_of

__all__ = [
    "AnyRelease",
    "BatchReleases",
    "Closeness",
    "GroupNormForBatchNorm",
    "LayerGradients",
    "MakeModel",
    "Metric",
    "PerturbedRounds",
    "ReleaseOfRound",
    "ReplacedLayer",
    "Route",
    "Run",
    "Start",
    "Task",
    "Training",
    "Trajectory",
    "Worth",
    "batches_of_one_value",
    "check_one_row",
    "follow",
    "layer_gradient_blocks",
    "layer_gradients",
    "releases_of",
    "score_of",
    "split",
    "train",
    "values_normalized",
    "worth",
]

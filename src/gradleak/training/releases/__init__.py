"""The released updates of many batches of the same rows: one after another, at once, or by layer."""

from gradleak.training.releases.batch_releases import BatchReleases, Route
from gradleak.training.releases.layer_gradients import (
    LayerGradients,
    batches_of_one_value,
    layer_gradient_blocks,
    layer_gradients,
)
from gradleak.training.releases.released import releases_of, updated

__all__ = [
    "BatchReleases",
    "LayerGradients",
    "Route",
    "batches_of_one_value",
    "layer_gradient_blocks",
    "layer_gradients",
    "releases_of",
    "updated",
]

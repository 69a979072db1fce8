"""The inference game: what a sensitive variable has to fear from shared gradients. The challenger holds the truth."""

from gradleak.games.attribute import AttributeGame
from gradleak.games.column import Column, ColumnKind, Encoding
from gradleak.games.distribution import DistributionGame
from gradleak.games.game import Control, InferenceGame
from gradleak.games.gradients import BatchReleases, Route
from gradleak.games.information import fano_advantage, fano_error, gaussian_channel_information, information_estimate
from gradleak.games.layer_gradients import (
    LayerGradients,
    batches_of_one_value,
    layer_gradient_blocks,
    layer_gradients,
)
from gradleak.games.population import Population
from gradleak.games.property import PropertyGame
from gradleak.games.public_release import PerturbedGame, ReleaseWithPublicRows
from gradleak.games.reading import Knows
from gradleak.games.result import GameResult, SeedResult
from gradleak.games.split import Split, without_rows_of
from gradleak.games.table import Table
from gradleak.games.trajectory import Trajectory, follow
from gradleak.games.user import UserGame

__all__ = [
    "AttributeGame",
    "BatchReleases",
    "Column",
    "ColumnKind",
    "Control",
    "DistributionGame",
    "Encoding",
    "GameResult",
    "InferenceGame",
    "Knows",
    "LayerGradients",
    "PerturbedGame",
    "Population",
    "PropertyGame",
    "ReleaseWithPublicRows",
    "Route",
    "SeedResult",
    "Split",
    "Table",
    "Trajectory",
    "UserGame",
    "batches_of_one_value",
    "fano_advantage",
    "fano_error",
    "follow",
    "gaussian_channel_information",
    "information_estimate",
    "layer_gradient_blocks",
    "layer_gradients",
    "without_rows_of",
]

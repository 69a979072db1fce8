"""The inference game: what a sensitive variable has to fear from shared gradients. The challenger holds the truth."""

from gradleak.games.distribution import DistributionGame
from gradleak.games.game import Control, InferenceGame
from gradleak.games.information import fano_advantage, fano_error, gaussian_channel_information, information_estimate
from gradleak.games.reading import Knows, PerturbedGame, ReleaseWithPublicRows
from gradleak.games.result import GameResult, SeedResult
from gradleak.games.user import UserGame
from gradleak.games.value_game import AttributeGame, PropertyGame

__all__ = [
    "AttributeGame",
    "Control",
    "DistributionGame",
    "GameResult",
    "InferenceGame",
    "Knows",
    "PerturbedGame",
    "PropertyGame",
    "ReleaseWithPublicRows",
    "SeedResult",
    "UserGame",
    "fano_advantage",
    "fano_error",
    "gaussian_channel_information",
    "information_estimate",
]

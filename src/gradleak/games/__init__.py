"""The inference game: what a sensitive variable has to fear from shared gradients. The challenger holds the truth."""

from gradleak.games.attribute import AttributeGame
from gradleak.games.distribution import DistributionGame
from gradleak.games.game import Control, InferenceGame
from gradleak.games.information import fano_advantage, fano_error, gaussian_channel_information, information_estimate
from gradleak.games.property import PropertyGame
from gradleak.games.public_release import PerturbedGame, ReleaseWithPublicRows
from gradleak.games.reading import Knows
from gradleak.games.result import GameResult, SeedResult
from gradleak.games.user import UserGame

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

"""Defenses: one a file."""

from gradleak.defenses.clip import Clip
from gradleak.defenses.clip_per_example import ClipPerExample
from gradleak.defenses.clip_per_layer import ClipPerLayer
from gradleak.defenses.gaussian_noise import GaussianNoise
from gradleak.defenses.prune import Prune, PruneBy
from gradleak.defenses.sign import Sign

__all__ = ["Clip", "ClipPerExample", "ClipPerLayer", "GaussianNoise", "Prune", "PruneBy", "Sign"]

"""Defenses: one a file."""

from gradleak.defenses.clip import Clip
from gradleak.defenses.gaussian_noise import GaussianNoise

__all__ = ["Clip", "GaussianNoise"]

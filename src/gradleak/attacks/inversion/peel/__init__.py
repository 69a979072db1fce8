"""Peeling: the example of one gradient by linear least squares, layer by layer from the head down."""

from gradleak.attacks.inversion.peel.attack import Peel

__all__ = ["Peel"]

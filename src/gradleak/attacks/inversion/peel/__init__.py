"""Peeling: the example of one gradient by linear least squares, layer by layer from the head down."""

from gradleak.attacks.inversion.peel.attack import Peel, read_rectified, refuse_other_than_gradient
from gradleak.attacks.inversion.peel.ranks import layer_ranks

__all__ = ["Peel", "layer_ranks", "read_rectified", "refuse_other_than_gradient"]

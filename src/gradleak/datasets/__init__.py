"""Real data: from inside Python packages, or from a file of one's own; nothing is downloaded."""

from gradleak.datasets.adult import adult_census
from gradleak.datasets.digits import mnist_digits, scikit_digits
from gradleak.datasets.image_file import image_file

__all__ = ["adult_census", "image_file", "mnist_digits", "scikit_digits"]

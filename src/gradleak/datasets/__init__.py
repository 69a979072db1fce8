"""Real data that comes inside Python packages: nothing is downloaded."""

from gradleak.datasets.digits import mnist_digits, scikit_digits

__all__ = ["mnist_digits", "scikit_digits"]

"""Defenses: one a file."""

from gradleak.defenses.adversarial_perturbation import (
    AdversarialPerturbation,
    SensitiveClassifier,
    train_sensitive_classifier,
)
from gradleak.defenses.clip import Clip
from gradleak.defenses.clip_per_example import ClipPerExample
from gradleak.defenses.clip_per_layer import ClipPerLayer
from gradleak.defenses.dp_sgd import DPSGD, NoiseOn
from gradleak.defenses.gaussian_noise import GaussianNoise
from gradleak.defenses.laplace_noise import LaplaceNoise
from gradleak.defenses.layer_noise import LayerNoise
from gradleak.defenses.prune import Prune, PruneBy
from gradleak.defenses.quantize import Quantize, QuantizeRange
from gradleak.defenses.random_sparsify import RandomSparsify
from gradleak.defenses.self_test import Check, Claims, SelfTest, self_test
from gradleak.defenses.sign import Sign
from gradleak.defenses.spectral_noise import SpectralNoise
from gradleak.defenses.top_k import TopK, TopKBy
from gradleak.defenses.variational_bottleneck import (
    BottleneckLayer,
    BottleneckLoss,
    BottleneckModel,
    BottleneckOutput,
    VariationalBottleneck,
)

__all__ = [
    "DPSGD",
    "AdversarialPerturbation",
    "BottleneckLayer",
    "BottleneckLoss",
    "BottleneckModel",
    "BottleneckOutput",
    "Check",
    "Claims",
    "Clip",
    "ClipPerExample",
    "ClipPerLayer",
    "GaussianNoise",
    "LaplaceNoise",
    "LayerNoise",
    "NoiseOn",
    "Prune",
    "PruneBy",
    "Quantize",
    "QuantizeRange",
    "RandomSparsify",
    "SelfTest",
    "SensitiveClassifier",
    "Sign",
    "SpectralNoise",
    "TopK",
    "TopKBy",
    "VariationalBottleneck",
    "self_test",
    "train_sensitive_classifier",
]

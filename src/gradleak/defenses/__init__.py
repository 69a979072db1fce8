"""Defenses: one a file."""

from gradleak.defenses.adversarial_perturbation import (
    AdversarialPerturbation,
    SensitiveClassifier,
    train_sensitive_classifier,
)
from gradleak.defenses.clip import DPSGD, Clip, ClipPerExample, ClipPerLayer, ClipTensorsPerExample, NoiseOn
from gradleak.defenses.noise import GaussianNoise, LaplaceNoise, LayerNoise, SpectralNoise
from gradleak.defenses.outpost import Outpost
from gradleak.defenses.quantize import Quantize, QuantizeRange
from gradleak.defenses.self_test import Check, Claims, SelfTest, self_test
from gradleak.defenses.soteria import Soteria
from gradleak.defenses.sparse import Prune, PruneBy, RandomSparsify, Sign, TopK, TopKBy
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
    "ClipTensorsPerExample",
    "GaussianNoise",
    "LaplaceNoise",
    "LayerNoise",
    "NoiseOn",
    "Outpost",
    "Prune",
    "PruneBy",
    "Quantize",
    "QuantizeRange",
    "RandomSparsify",
    "SelfTest",
    "SensitiveClassifier",
    "Sign",
    "Soteria",
    "SpectralNoise",
    "TopK",
    "TopKBy",
    "VariationalBottleneck",
    "self_test",
    "train_sensitive_classifier",
]

"""Generators of images that an adversary can bring along: published, trained here, untrained, or one's own.

The functions that return an `ImageGenerator` can be named in a plan file (`generator = { use = … }` of `[threat]`).
"""

from gradleak.models.generators.decoders import (
    ConvDecoder,
    DCGANDiscriminator,
    DCGANGenerator,
    GeneratorNetwork,
    MLPDecoder,
)
from gradleak.models.generators.trained import TrainedGenerator, mnist_vae_decoder, taef2_decoder, trained_generator
from gradleak.models.generators.training import Decoder, train_dcgan, train_vae
from gradleak.models.generators.untrained import DeepImagePrior, deep_image_prior, own_generator, untrained_dcgan

__all__ = [
    "ConvDecoder",
    "DCGANDiscriminator",
    "DCGANGenerator",
    "Decoder",
    "DeepImagePrior",
    "GeneratorNetwork",
    "MLPDecoder",
    "TrainedGenerator",
    "deep_image_prior",
    "mnist_vae_decoder",
    "own_generator",
    "taef2_decoder",
    "train_dcgan",
    "train_vae",
    "trained_generator",
    "untrained_dcgan",
]

"""Generators that know nothing of images but what their structure does."""

from __future__ import annotations

import torch
from torch import nn

from gradleak.core import ImageGenerator, ImagePrints
from gradleak.models.generators.dcgan import DCGANGenerator
from gradleak.models.generators.deep_image_prior import DeepImagePrior
from gradleak.models.generators.network import fresh
from gradleak.models.resnet import Norm

_NEVER = "never trained"
_NONE = ImagePrints(frozenset())
# So many images of its own settle the running statistics of an untrained network.
_IMAGES = 512


def untrained_dcgan(
    *,
    size: int = 32,
    channels: int = 3,
    latent_size: int = 100,
    width: int = 64,
    norm: Norm | str = Norm.BATCH,
    generator: torch.Generator | None = None,
) -> ImageGenerator:
    """A DCGAN with random weights, whose BatchNorm layers hold the statistics of its own random images.

    Without them eval mode would normalize by 0 and 1, and weights of 0.02 would make every image gray.

    Args:
        size: Height and width of the images.
        channels: 1 or 3.
        latent_size: Entries of a latent.
        width: Channels before the last layer.
        norm: "batch", "group" or "none".
        generator: Source of weights and latents. None stands for a new generator with seed 0.

    Raises:
        InputError: A size does not fit.

    Source:
        Fang et al. 2024 (IGIMS), the untrained generator of figure 5; Radford et al. 2015 (DCGAN).

    Examples:
        >>> untrained_dcgan(size=28, channels=1, width=8).source
        'never trained'
    """
    source = fresh(generator)
    network = DCGANGenerator(
        size=size, channels=channels, latent_size=latent_size, width=width, norm=norm, generator=source
    )
    settle(network, generator=source)
    return network.image_generator(source=_NEVER, training_images=_NONE)


def deep_image_prior(
    *,
    size: int = 32,
    channels: int = 3,
    noise_channels: int = 8,
    width: int = 32,
    depth: int = 2,
    generator: torch.Generator | None = None,
) -> ImageGenerator:
    """A `DeepImagePrior` with random weights; the latent is its noise map.

    Args:
        size: Height and width of the images.
        channels: 1 or 3.
        noise_channels: Channels of the noise map.
        width: Channels of every map inside.
        depth: How often the size is halved.
        generator: Source of the weights. None stands for a new generator with seed 0.

    Raises:
        InputError: A size does not fit.

    Source:
        Ulyanov et al. 2018; Fang et al. 2024 (IGIMS) cite it for generators that were never trained.

    Examples:
        >>> deep_image_prior(size=28, channels=1, width=8).latent_shape
        (8, 28, 28)
    """
    network = DeepImagePrior(
        size=size, channels=channels, noise_channels=noise_channels, width=width, depth=depth, generator=generator
    )
    return network.image_generator(source=_NEVER, training_images=_NONE)


def settle(network: DCGANGenerator, *, generator: torch.Generator) -> None:
    """Give the BatchNorm layers of a network the statistics of its own random images.

    Args:
        network: Changed in place; its mode is put back.
        generator: Source of the latents.
    """
    layers = [part for part in network.modules() if isinstance(part, nn.BatchNorm2d)]
    if not layers:
        return
    momenta, mode = [layer.momentum for layer in layers], network.training
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = 1.0
    latents = torch.randn(_IMAGES, *network.latent_shape, generator=generator)
    with torch.no_grad():
        network.train()(latents.to(next(network.parameters()).device))
    network.train(mode)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum

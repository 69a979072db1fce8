"""Decoders of autoencoders, and the encoders they are trained with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from gradleak.models.generators.network import GeneratorNetwork, fresh, halvings
from gradleak.models.initialize import check_sizes, construct

_SMALLEST = 7


class MLPDecoder(GeneratorNetwork):
    """Images in [0, 1] from latents (b, latent_size): linear layers with ReLU, a sigmoid at the end.

    Args:
        size: Height and width of the images.
        channels: 1 or 3.
        latent_size: Entries of a latent.
        width: Units of the hidden layer.
        generator: Source of the weights, drawn by `initialize_default`. None stands for a new generator with seed 0;
            the global RNG is never touched.

    Raises:
        InputError: A size is not a whole number of at least 1.

    Source:
        Kingma and Welling 2014 (VAE), appendix C.1: one hidden layer, there with tanh.

    Examples:
        >>> tuple(MLPDecoder(size=28, channels=1)(torch.zeros(2, 20)).shape)
        (2, 1, 28, 28)
    """

    def __init__(
        self,
        *,
        size: int = 28,
        channels: int = 1,
        latent_size: int = 20,
        width: int = 400,
        generator: torch.Generator | None = None,
    ) -> None:
        check_sizes({"size": size, "channels": channels, "latent_size": latent_size, "width": width})
        super().__init__(
            settings={"size": size, "channels": channels, "latent_size": latent_size, "width": width},
            latent_shape=(latent_size,),
            image_shape=(channels, size, size),
        )

        def layers() -> nn.Sequential:
            pixels = channels * size * size
            return nn.Sequential(
                nn.Linear(latent_size, width),
                nn.ReLU(),
                nn.Linear(width, pixels),
                nn.Sigmoid(),
                nn.Unflatten(1, (channels, size, size)),
            )

        self.layers = construct(layers, fresh(generator))

    def forward(self, latents: Tensor) -> Tensor:
        """Images (b, channels, size, size) in [0, 1]."""
        images: Tensor = self.layers(latents)
        return images


class ConvDecoder(GeneratorNetwork):
    """Images in [0, 1] from latents (b, latent_size): a linear layer, transposed convolutions, a sigmoid at the end.

    The latent becomes a map of 7x7 (size 28) or 8x8 (size 32, 64); kernels of 4 with stride 2 double it, the channels
    halve down to `width`; a 3x3 convolution makes the image. ReLU throughout, no normalization: its images depend on
    nothing but latent and weights, in train mode too.

    Args:
        size: Height and width of the images: 28, 32, 64 or another that halves down to 7 to 13.
        channels: 1 or 3.
        latent_size: Entries of a latent.
        width: Channels before the last layer.
        generator: Source of the weights, drawn by `initialize_default`. None stands for a new generator with seed 0;
            the global RNG is never touched.

    Raises:
        InputError: A size does not fit.

    Source:
        None: a plain decoder of our own.

    Examples:
        >>> tuple(ConvDecoder(size=32, channels=3)(torch.zeros(2, 64)).shape)
        (2, 3, 32, 32)
    """

    def __init__(
        self,
        *,
        size: int = 28,
        channels: int = 1,
        latent_size: int = 64,
        width: int = 16,
        generator: torch.Generator | None = None,
    ) -> None:
        check_sizes({"size": size, "channels": channels, "latent_size": latent_size, "width": width})
        super().__init__(
            settings={"size": size, "channels": channels, "latent_size": latent_size, "width": width},
            latent_shape=(latent_size,),
            image_shape=(channels, size, size),
        )
        times = halvings(size, least=_SMALLEST)
        least, widths = size // 2**times, [width * 2 ** (times - step) for step in range(times + 1)]

        def layers() -> nn.Sequential:
            stack: list[nn.Module] = [nn.Linear(latent_size, widths[0] * least * least), nn.ReLU()]
            stack += [nn.Unflatten(1, (widths[0], least, least))]
            for inputs, outputs in pairwise(widths):
                stack += [nn.ConvTranspose2d(inputs, outputs, 4, stride=2, padding=1), nn.ReLU()]
            return nn.Sequential(*stack, nn.Conv2d(width, channels, 3, padding=1), nn.Sigmoid())

        self.layers = construct(layers, fresh(generator))

    def forward(self, latents: Tensor) -> Tensor:
        """Images (b, channels, size, size) in [0, 1]."""
        images: Tensor = self.layers(latents)
        return images


class Encoder(nn.Module):
    """Mean and logarithm of the variance of a latent, (b, latent_size) each, from images in [0, 1].

    Args:
        hidden: Makes what comes before the last layer; it runs on the meta device.
        features: Entries of what comes before the last layer.
        latent_size: Entries of a latent.
        generator: Source of the weights.
    """

    def __init__(
        self, hidden: Sequence[nn.Module], *, features: int, latent_size: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.layers = construct(lambda: nn.Sequential(*hidden, nn.Linear(features, 2 * latent_size)), generator)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log variance."""
        mean, log_variance = self.layers(images).chunk(2, dim=1)
        return mean, log_variance


def encoder_for(decoder: MLPDecoder | ConvDecoder, *, generator: torch.Generator) -> Encoder:
    """The decoder turned round: linear layers for one of linear layers, convolutions for one of convolutions.

    Args:
        decoder: Whose sizes it takes.
        generator: Source of the weights.
    """
    channels, size, _ = decoder.image_shape
    width = int(decoder.settings["width"])
    (latent_size,) = decoder.latent_shape
    with torch.device("meta"):
        if isinstance(decoder, MLPDecoder):
            hidden: list[nn.Module] = [nn.Flatten(), nn.Linear(channels * size * size, width), nn.ReLU()]
            features = width
        else:
            times, inputs = halvings(size, least=_SMALLEST), channels
            hidden = []
            for step in range(times):
                outputs = width * 2**step
                hidden += [nn.Conv2d(inputs, outputs, 4, stride=2, padding=1), nn.ReLU()]
                inputs = outputs
            hidden.append(nn.Flatten())
            features = inputs * (size // 2**times) ** 2
    return Encoder(hidden, features=features, latent_size=latent_size, generator=generator)

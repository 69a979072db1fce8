"""Networks of generators: the base, decoders, and DCGAN."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from gradleak.core import Domain, ImageGenerator, ImagePrints, OutputRange
from gradleak.models.initialize import check_sizes, construct
from gradleak.models.resnet import Norm
from gradleak.results import InputError


class GeneratorNetwork(nn.Module, ABC):
    """A network that makes square images (b, channels, size, size) from latents (b, *latent_shape).

    Attributes:
        settings: the arguments that it was made with, ready for JSON; the same arguments make the same shapes.
        latent_shape: shape of one latent.
        image_shape: (channels, size, size).
        output: what it gives for black and white.
    """

    output: OutputRange = OutputRange.UNIT

    def __init__(
        self, *, settings: Mapping[str, int | str], latent_shape: tuple[int, ...], image_shape: tuple[int, int, int]
    ) -> None:
        super().__init__()
        self.settings = dict(settings)
        self.latent_shape = latent_shape
        self.image_shape = image_shape

    @abstractmethod
    def forward(self, latents: Tensor) -> Tensor:
        """Images (b, *image_shape) in the range `output`."""

    def image_generator(
        self, *, source: str, domain: Domain | None = None, training_images: ImagePrints | None = None
    ) -> ImageGenerator:
        """This network with its weights as they are, as something that an adversary can bring along.

        Args:
            source: what it was trained on; "never trained" if it was not.
            domain: of the images; None for pixels in [0, 1] that are not normalized.
            training_images: fingerprints of what it was trained on; None where they are not known.

        Raises:
            InputError: if the domain has another shape.
        """
        channels, height, width = self.image_shape
        return ImageGenerator(
            module=self,
            latent_shape=self.latent_shape,
            domain=domain or Domain.image(channels=channels, height=height, width=width),
            output=self.output,
            source=source,
            training_images=training_images,
        )


def halvings(size: int, *, least: int, times: int | None = None) -> int:
    """Number of times that a size can be halved until it is below twice `least`.

    Args:
        size: height and width of an image.
        least: the smallest size that is wanted.
        times: how often it has to be possible; None for once.

    Raises:
        InputError: if it cannot be halved so often.

    Examples:
        >>> halvings(28, least=7), halvings(32, least=4)
        (2, 3)
    """
    count = 0
    while size % 2 ** (count + 1) == 0 and size // 2 ** (count + 1) >= least:
        count += 1
    if count < (times or 1):
        raise InputError(
            f"size: expected one that can be halved {times or 1} times down to at least {least}, for instance 28 or 32, "
            f"got {size}"
        )
    return count if times is None else times


def fresh(generator: torch.Generator | None) -> torch.Generator:
    """The generator, or a new one with seed 0."""
    return torch.Generator().manual_seed(0) if generator is None else generator


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


_SPREAD = 0.02


class DCGANGenerator(GeneratorNetwork):
    """Images in [-1, 1] from latents (b, latent_size): transposed convolutions that double the size, tanh at the end.

    The latent becomes a map of 7x7 (size 28) or 4x4 (size 32, 64); kernels of 4 with stride 2 double it, the channels
    halve down to `width`. A normalization and a ReLU follow every layer but the last.

    Args:
        size: Height and width of the images: 28, 32, 64 or another that halves down to 4 to 7.
        channels: 1 or 3.
        latent_size: Entries of a latent.
        width: Channels before the last layer.
        norm: "batch", "group" (8 groups; no running statistics) or "none". With BatchNorm an untrained network has to
            see images of its own before it is of use in eval mode: `untrained_dcgan`.
        generator: Source of the weights. None stands for a new generator with seed 0; the global RNG is never touched.

    Raises:
        InputError: A size does not fit.

    Source:
        Radford et al. 2015 (DCGAN): the layers and the initialization, N(0, 0.02²) for convolutions and N(1, 0.02²)
        for the scales of normalizations. The paper makes 64x64 images from 100 numbers, U(-1, 1) there and N(0, I) here;
        28x28 and 32x32 leave its first layers out.

    Examples:
        >>> tuple(DCGANGenerator(size=28, channels=1, width=16)(torch.zeros(2, 100)).shape)
        (2, 1, 28, 28)
    """

    output = OutputRange.SYMMETRIC

    def __init__(
        self,
        *,
        size: int = 32,
        channels: int = 3,
        latent_size: int = 100,
        width: int = 64,
        norm: Norm | str = Norm.BATCH,
        generator: torch.Generator | None = None,
    ) -> None:
        check_sizes({"size": size, "channels": channels, "latent_size": latent_size, "width": width})
        chosen = Norm.named(norm)
        super().__init__(
            settings={
                "size": size,
                "channels": channels,
                "latent_size": latent_size,
                "width": width,
                "norm": chosen.value,
            },
            latent_shape=(latent_size,),
            image_shape=(channels, size, size),
        )
        times = halvings(size, least=4)
        widths = [width * 2 ** (times - 1 - step) for step in range(times)]

        def layers() -> nn.Sequential:
            bias = chosen is Norm.NONE
            stack: list[nn.Module] = [nn.Unflatten(1, (latent_size, 1, 1))]
            stack += [nn.ConvTranspose2d(latent_size, widths[0], size // 2**times, bias=bias)]
            for inputs, outputs in zip(widths, (*widths[1:], None), strict=True):
                stack += [chosen.module(inputs), nn.ReLU()]
                last = outputs is None
                stack += [nn.ConvTranspose2d(inputs, outputs or channels, 4, stride=2, padding=1, bias=bias or last)]
            return nn.Sequential(*stack, nn.Tanh())

        self.layers = initialize_dcgan(construct(layers, fresh(generator)), generator=fresh(generator))

    def forward(self, latents: Tensor) -> Tensor:
        """Images (b, channels, size, size) in [-1, 1]."""
        images: Tensor = self.layers(latents)
        return images


class DCGANDiscriminator(nn.Module):
    """Logits (b,), positive for images that look real: the generator's layers turned round.

    Kernels of 4 with stride 2 halve the size down to 4 to 7, the channels double from `width`; BatchNorm after every
    convolution but the first and the last, LeakyReLU(0.2) throughout.

    Args:
        size: Height and width of the images.
        channels: 1 or 3.
        width: Channels after the first layer.
        generator: Source of the weights. None stands for a new generator with seed 0.

    Raises:
        InputError: A size does not fit.

    Source:
        Radford et al. 2015 (DCGAN), with a linear layer at the end.

    Examples:
        >>> tuple(DCGANDiscriminator(size=28, channels=1, width=8)(torch.zeros(3, 1, 28, 28)).shape)
        (3,)
    """

    def __init__(
        self, *, size: int = 32, channels: int = 3, width: int = 64, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        check_sizes({"size": size, "channels": channels, "width": width})
        times = halvings(size, least=4)

        def layers() -> nn.Sequential:
            stack: list[nn.Module] = []
            inputs = channels
            for step in range(times):
                outputs = width * 2**step
                stack += [nn.Conv2d(inputs, outputs, 4, stride=2, padding=1, bias=step == 0)]
                stack += [nn.BatchNorm2d(outputs)] if step else []
                stack += [nn.LeakyReLU(0.2)]
                inputs = outputs
            return nn.Sequential(*stack, nn.Flatten(), nn.Linear(inputs * (size // 2**times) ** 2, 1))

        self.layers = initialize_dcgan(construct(layers, fresh(generator)), generator=fresh(generator))

    def forward(self, images: Tensor) -> Tensor:
        """Logits (b,) of images (b, channels, size, size) in [-1, 1]."""
        logits: Tensor = self.layers(images)
        return logits[:, 0]


def initialize_dcgan(layers: nn.Sequential, *, generator: torch.Generator) -> nn.Sequential:
    """The layers drawn anew as the DCGAN paper does: N(0, 0.02²), scales of normalizations N(1, 0.02²), biases zero.

    Args:
        layers: Changed in place.
        generator: Source of the numbers.
    """
    with torch.no_grad():
        for part in layers:
            if isinstance(part, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
                part.weight.normal_(0.0, _SPREAD, generator=generator)
                if part.bias is not None:
                    part.bias.zero_()
            elif isinstance(part, nn.BatchNorm2d | nn.GroupNorm):
                part.weight.normal_(1.0, _SPREAD, generator=generator)
                part.bias.zero_()
    return layers

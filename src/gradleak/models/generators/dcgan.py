"""The deep convolutional GAN: a generator for small images, and the discriminator it is trained against."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gradleak.core import OutputRange
from gradleak.models.generators.network import GeneratorNetwork, fresh, halvings
from gradleak.models.initialize import check_sizes, construct
from gradleak.models.resnet import Norm

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

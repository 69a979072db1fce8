"""A generator that was never trained: its structure alone is the prior, and its weights are what is searched."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from gradleak.models.generators.network import GeneratorNetwork, fresh, halvings
from gradleak.models.initialize import check_sizes, construct


class DeepImagePrior(GeneratorNetwork):
    """Images in [0, 1] from a fixed noise map (b, noise_channels, size, size): an hourglass of convolutions.

    `depth` times: two 3x3 convolutions, the first with stride 2, on the way down; on the way up the map is doubled
    (bilinear), joined with a 1x1 convolution of the map of the same size, and goes through a 3x3 and a 1x1 convolution.
    Every example is normalized by itself, channel by channel, so that images in a batch do not mix and eval mode is no
    other function than train mode. LeakyReLU(0.2) throughout, a sigmoid at the end.

    Draw the noise once, keep it, and search the weights of every image.

    Args:
        size: Height and width of the images; divisible by 2^depth.
        channels: 1 or 3.
        noise_channels: Channels of the noise map.
        width: Channels of every map inside.
        depth: How often the size is halved.
        skip: Channels of the maps that are joined on the way up.
        generator: Source of the weights, drawn by `initialize_default`. None stands for a new generator with seed 0;
            the global RNG is never touched.

    Raises:
        InputError: A size does not fit.

    Source:
        Ulyanov et al. 2018 (deep image prior), the hourglass of its supplement, smaller: width 32 for 128, depth 2 for 5,
        noise N(0, I) for U(0, 0.1), instance normalization for BatchNorm (the same for the single image that they fit).

    Examples:
        >>> net = DeepImagePrior(size=28, channels=1)
        >>> tuple(net(torch.zeros(2, 8, 28, 28)).shape)
        (2, 1, 28, 28)
    """

    def __init__(
        self,
        *,
        size: int = 32,
        channels: int = 3,
        noise_channels: int = 8,
        width: int = 32,
        depth: int = 2,
        skip: int = 4,
        generator: torch.Generator | None = None,
    ) -> None:
        settings = {"size": size, "channels": channels, "noise_channels": noise_channels}
        settings |= {"width": width, "depth": depth, "skip": skip}
        check_sizes(settings)
        halvings(size, least=4, times=depth)
        super().__init__(
            settings=settings,
            latent_shape=(noise_channels, size, size),
            image_shape=(channels, size, size),
        )
        source = fresh(generator)
        inputs = [noise_channels, *[width] * (depth - 1)]

        def down(maps: int) -> nn.Sequential:
            return nn.Sequential(*_layer(maps, width, 3, stride=2), *_layer(width, width, 3))

        def aside(maps: int) -> nn.Sequential:
            return nn.Sequential(*_layer(maps, skip, 1))

        def up() -> nn.Sequential:
            return nn.Sequential(*_layer(width + skip, width, 3), *_layer(width, width, 1))

        self.down = nn.ModuleList([construct(partial(down, maps), source) for maps in inputs])
        self.aside = nn.ModuleList([construct(partial(aside, maps), source) for maps in inputs])
        self.up = nn.ModuleList([construct(up, source) for _ in inputs])
        self.last = construct(lambda: nn.Sequential(nn.Conv2d(width, channels, 1), nn.Sigmoid()), source)
        self.enlarge = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)

    def forward(self, latents: Tensor) -> Tensor:
        """Images (b, channels, size, size) in [0, 1]."""
        maps, joined = latents, []
        for down, aside in zip(self.down, self.aside, strict=True):
            joined.append(aside(maps))
            maps = down(maps)
        for up in self.up:
            maps = up(torch.cat([self.enlarge(maps), joined.pop()], dim=1))
        images: Tensor = self.last(maps)
        return images


def _layer(inputs: int, outputs: int, kernel: int, *, stride: int = 1) -> list[nn.Module]:
    """A convolution, the normalization of every channel of every example, LeakyReLU."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, padding_mode="reflect")
    return [convolution, nn.GroupNorm(outputs, outputs), nn.LeakyReLU(0.2)]

"""Generators that were never trained: random decoders, the deep image prior, and networks of one's own."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from gradleak.core import Domain, ImageGenerator, ImagePrints, OutputRange
from gradleak.core.module_copy import first_line
from gradleak.models.generators.decoders import DCGANGenerator, GeneratorNetwork, fresh, halvings
from gradleak.models.generators.trained import read_tensors
from gradleak.models.initialize import check_sizes, construct
from gradleak.models.resnet import Norm
from gradleak.results import InputError


def own_generator(
    *,
    module: nn.Module,
    latent_shape: tuple[int, ...],
    channels: int,
    height: int,
    width: int,
    source: str,
    output: OutputRange = OutputRange.UNIT,
    conditional: bool = False,
    weights: str | os.PathLike[str] | None = None,
) -> ImageGenerator:
    """The generator of a module of one's own, a BigGAN or StyleGAN2 for instance.

    In a plan file the module is imported: `module = { use = "my_package.my_module:Generator", width = 64 }`.

    Args:
        module: `module(latents)`, or `module(latents, labels)` if conditional, to images (b, channels, height, width).
            It must draw nothing else. The weights are loaded into it.
        latent_shape: shape of one latent, N(0, I).
        channels: of the images.
        height: of the images in pixels.
        width: of the images in pixels.
        source: what it was trained on; printed in every report.
        output: what the module gives: "unit" for [0, 1], "symmetric" for [-1, 1].
        conditional: whether it takes class labels, int64 of shape (b,), as its second argument.
        weights: safetensors file with its state dict, or None for the weights that it has. No pickle is read, since
            pickles can run code: turn a checkpoint that you trust into safetensors once.

    Raises:
        InputError: The module is not a `torch.nn.Module`, the file does not fit it, or its images do not fit what was stated.
    """
    check_sizes({"channels": channels, "height": height, "width": width})
    if not isinstance(module, nn.Module):
        raise InputError(
            f"module: expected a torch.nn.Module, got {type(module).__name__}; in a plan file write "
            "module = { use = 'package.module:Class' } with its arguments"
        )
    if weights is not None:
        file = Path(weights)
        try:
            module.load_state_dict(read_tensors(file))
        except RuntimeError as error:
            raise InputError(
                f"{file} does not fit {type(module).__name__}: {' '.join(str(error).split()) or first_line(error)}"
            ) from error
    return ImageGenerator(
        module=module,
        latent_shape=latent_shape,
        domain=Domain.image(channels=channels, height=height, width=width),
        output=output,
        conditional=conditional,
        source=source,
    )


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

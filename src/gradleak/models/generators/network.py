"""Base of the generator networks: their sizes, their settings, and the way to bring one along."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from gradleak.core import Domain, ImageGenerator, ImagePrints, OutputRange
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

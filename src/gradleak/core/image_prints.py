"""Fingerprints of images: which of them a generator was trained on, without the images."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradleak.core.batch import Batch
from gradleak.core.domain import Domain
from gradleak.results import InputError

# Bytes of a fingerprint: among a million images and a thousand others, two agree by chance once in 1.8e10 times.
_BYTES = 8


@dataclass(frozen=True)
class ImagePrints:
    """Fingerprints of a set of images, to tell whether another image is among them.

    A fingerprint is a BLAKE2b hash of 8 bytes over the shape of an image and its pixels, rounded to 8 bits, so that for
    images of 8 bits neither dtype nor normalization matter; bfloat16 aside, which does not hold normalized pixels to 8 bits.
    Images that were mirrored left to right are found, too, since generators are trained on both. What was resized, cropped,
    compressed or otherwise changed by one gray level is another image.

    Who has the fingerprints can test whether an image that they hold was in the set.

    Attributes:
        prints: one of 8 bytes for every different image.

    Examples:
        >>> images = Batch(torch.eye(2).reshape(2, 1, 1, 2), torch.tensor([0, 1]), Domain.image(channels=1, height=1, width=2))
        >>> prints = ImagePrints.of(images)
        >>> prints.among(images), len(prints), ImagePrints.read(prints.text) == prints
        ([0, 1], 2, True)
    """

    prints: frozenset[bytes] = field(repr=False)

    @classmethod
    def of(cls, images: Batch) -> ImagePrints:
        """The fingerprints of a batch of images.

        Args:
            images: (n, c, h, w); pixels by their domain, or by a guess from the values where none is stated.
        """
        return cls(frozenset(_prints(_bytes(images))))

    @classmethod
    def read(cls, text: str) -> ImagePrints:
        """The fingerprints that `text` holds.

        Raises:
            InputError: if it was not made here.
        """
        try:
            raw = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise InputError(f"fingerprints of images: expected base64, got something else: {error}") from error
        if len(raw) % _BYTES:
            raise InputError(f"fingerprints of images: expected {_BYTES} bytes each, got {len(raw)} in all")
        return cls(frozenset(raw[start : start + _BYTES] for start in range(0, len(raw), _BYTES)))

    @property
    def text(self) -> str:
        """All of them as base64, sorted: 11 letters an image."""
        return base64.b64encode(b"".join(sorted(self.prints))).decode("ascii")

    def among(self, images: Batch) -> list[int]:
        """Places of the images of a batch that are in the set, as they are or mirrored left to right.

        Args:
            images: (n, ...); examples that are no images are in no set.
        """
        if images.inputs.dim() != 4:
            return []
        pixels = _bytes(images)
        both = zip(_prints(pixels), _prints(pixels.flip(-1)), strict=True)
        return [row for row, pair in enumerate(both) if not self.prints.isdisjoint(pair)]

    def __len__(self) -> int:
        """Number of different images."""
        return len(self.prints)


def _bytes(images: Batch) -> Tensor:
    """Pixels as 8 bits: (n, c, h, w), on the CPU."""
    domain = images.domain or Domain.guess(images.inputs)
    pixels = domain.to_pixels(images.inputs.detach()).to("cpu", torch.float64)
    return (255.0 * pixels.nan_to_num()).round().clamp(0.0, 255.0).to(torch.uint8)


def _prints(pixels: Tensor) -> Iterator[bytes]:
    shape = str(tuple(pixels.shape[1:])).encode("ascii")
    for image in pixels.contiguous().numpy():
        yield hashlib.blake2b(shape + image.tobytes(), digest_size=_BYTES).digest()

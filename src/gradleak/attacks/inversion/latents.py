"""Latents and weights of a generator as the variables of a search, and priors on them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.inversion.priors import Guess, Prior
from gradleak.attacks.inversion.variables import Code, Part, Space, Variables
from gradleak.core import ImageGenerator
from gradleak.results import FANG_2024, JEON_2021, LI_2022, NonNegative, UnsupportedError


@dataclass(frozen=True, kw_only=True)
class Latents(Variables):
    """One latent for each example: inputs are G(z; w₀), with the generator of the threat model as it came.

    z (n,) holds the latents of a batch one after the other, n = b · k; they start at N(0, I) and have no bounds. What a
    generator gives outside of the domain's valid range stays there.

    **Source**: Fang et al. 2024, equations 6 and 7; tanh: Li et al. 2022, published code.

    Attributes:
        tanh: whether the generator is given tanh(z), which keeps latents inside (-1, 1) in place of a penalty.
    """

    tanh: bool = False

    @property
    def parts(self) -> tuple[Part, ...]:
        """The latents, which are all there is."""
        return (Part.ALL, Part.LATENTS)

    @property
    def needs_generator(self) -> bool:
        """It does."""
        return True

    def initialize(self, space: Space, starts: int, generator: torch.Generator) -> Tensor:
        """Latents from N(0, I), (s, n)."""
        shape = (starts, space.batch_size * _of(space).latent_size)
        return torch.randn(shape, generator=generator, dtype=space.dtype, device=generator.device).to(space.device)

    def decode(self, space: Space, flat: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor]:
        """The images of the latents, and the labels that were given."""
        return self.make(space, self.split(space, flat), labels)

    def encode(self, space: Space, inputs: Tensor, targets: Tensor) -> Tensor:
        """Nothing: a generator has no inverse.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError("Latents.encode: expected inputs to search from, but a generator has no inverse")

    def bounds(self, space: Space) -> tuple[Tensor, Tensor]:
        """None."""
        free = torch.full((self.size(space),), torch.inf, dtype=space.dtype, device=space.device)
        return -free, free

    def size(self, space: Space) -> int:
        """The latent entries, b · k."""
        return space.batch_size * _of(space).latent_size

    def split(self, space: Space, flat: Tensor) -> Code:
        """The latents (b, k)."""
        return Code(latents=flat.reshape(space.batch_size, -1))

    def make(self, space: Space, code: Code, labels: Tensor | None) -> tuple[Tensor, Tensor]:
        """The images of latents (b, k), and the labels."""
        assert labels is not None
        return self._images(space, code, labels), labels

    def inputs(self, space: Space, flat: Tensor, labels: Tensor | None) -> Tensor:
        """The images (b, *shape)."""
        return self._images(space, self.split(space, flat), labels)

    def given(self, space: Space, code: Code) -> Tensor:
        """Input of the generator, (b, *latent_shape)."""
        assert code.latents is not None
        latents = code.latents.tanh() if self.tanh else code.latents
        return latents.reshape(-1, *_of(space).latent_shape)

    def _images(self, space: Space, code: Code, labels: Tensor | None) -> Tensor:
        generator = _of(space)
        return generator(self.given(space, code), labels=_classes(generator, labels))


@dataclass(frozen=True, kw_only=True)
class LatentsAndWeights(Variables):
    """One latent and one set of generator weights for each example: inputs are G(zᵢ; w₀ + Δᵢ).

    z (n,) holds the latents of a batch, then the changes Δᵢ = wᵢ - w₀ of the weights, n = b · (k + W). Latents start at
    N(0, I), changes at 0. A stage moves one of them and holds the other, or moves both (`Part`).

    **Cost**: memory of some ten vectors of n entries a start, W being the number of the generator's weights.

    **Source**: Fang et al. 2024, equations 6 to 8 and algorithm 1; Jeon et al. 2021.

    Attributes:
        latents: how latents are read.
    """

    latents: Latents = Latents()

    @property
    def parts(self) -> tuple[Part, ...]:
        """Latents and weights."""
        return (Part.ALL, Part.LATENTS, Part.WEIGHTS)

    @property
    def needs_generator(self) -> bool:
        """It does."""
        return True

    def initialize(self, space: Space, starts: int, generator: torch.Generator) -> Tensor:
        """Latents from N(0, I) and unchanged weights, (s, n)."""
        latents = self.latents.initialize(space, starts, generator)
        return torch.cat([latents, latents.new_zeros(starts, self.size(space) - latents.shape[1])], dim=1)

    def decode(self, space: Space, flat: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor]:
        """The images, and the labels that were given."""
        return self.make(space, self.split(space, flat), labels)

    def encode(self, space: Space, inputs: Tensor, targets: Tensor) -> Tensor:
        """Nothing: a generator has no inverse.

        Raises:
            UnsupportedError: always.
        """
        return self.latents.encode(space, inputs, targets)

    def bounds(self, space: Space) -> tuple[Tensor, Tensor]:
        """None."""
        free = torch.full((self.size(space),), torch.inf, dtype=space.dtype, device=space.device)
        return -free, free

    def size(self, space: Space) -> int:
        """Latent entries and weights, b · (k + W)."""
        return self.latents.size(space) + space.batch_size * weight_count(_of(space))

    def split(self, space: Space, flat: Tensor) -> Code:
        """Latents (b, k) and changes of weights (b, W)."""
        size = self.latents.size(space)
        return Code(
            latents=flat[:size].reshape(space.batch_size, -1), weights=flat[size:].reshape(space.batch_size, -1)
        )

    def make(self, space: Space, code: Code, labels: Tensor | None) -> tuple[Tensor, Tensor]:
        """The image of each latent by its own weights, and the labels."""
        assert labels is not None
        return self._images(space, code, labels), labels

    def inputs(self, space: Space, flat: Tensor, labels: Tensor | None) -> Tensor:
        """The images (b, *shape)."""
        return self._images(space, self.split(space, flat), labels)

    def _images(self, space: Space, code: Code, labels: Tensor | None) -> Tensor:
        assert code.weights is not None
        generator = _of(space)
        latents, classes = self.latents.given(space, code), _classes(generator, labels)

        def one(latent: Tensor, change: Tensor, label: Tensor | None) -> Tensor:
            given = None if label is None else label[None]
            return generator(latent[None], labels=given, weights=_changed(generator, change))[0]

        if space.batch_size == 1:
            # Without the detour over vmap: weights that all candidates share stay one set.
            return one(latents[0], code.weights[0], None if classes is None else classes[0])[None]
        over = None if classes is None else 0
        return torch.func.vmap(one, in_dims=(0, 0, over))(latents, code.weights, classes)

    def places(self, space: Space, part: Part) -> Tensor | None:
        """Those of the latents, those of the weights, or all."""
        if part is Part.ALL:
            return None
        first, size = self.latents.size(space), self.size(space)
        span = (0, first) if part is Part.LATENTS else (first, size)
        return torch.arange(*span, device=space.device)


def weight_count(generator: ImageGenerator) -> int:
    """W, the number of a generator's weights."""
    return sum(tensor.numel() for tensor in generator.weights.values())


def _of(space: Space) -> ImageGenerator:
    assert space.generator is not None
    return space.generator


def _classes(generator: ImageGenerator, labels: Tensor | None) -> Tensor | None:
    """The classes (b,) that a conditional generator is given; None for another."""
    if not generator.conditional:
        return None
    assert labels is not None
    return labels.to(torch.int64)


def _changed(generator: ImageGenerator, change: Tensor) -> dict[str, Tensor]:
    """The generator's weights by name, each moved by its part of a flat change (W,)."""
    weights = generator.weights
    sizes = [math.prod(tensor.shape) for tensor in weights.values()]
    parts = change.split(sizes)
    return {
        name: tensor + part.reshape(tensor.shape) for (name, tensor), part in zip(weights.items(), parts, strict=True)
    }


_SMALLEST = 1e-10


@dataclass(frozen=True, kw_only=True)
class LatentKL(Prior):
    """weight · mean over examples of KL(N(m, v) ‖ N(0, 1)), m and v the mean and variance of a latent's entries.

    KL = ½ (m² + v − 1 − ln(v + 1e-10)), with the biased variance: 0 where the entries of a latent look like draws from
    N(0, 1), whatever their order. It does not see where in latent space a latent lies: `LatentNorm` does.

    **Source**: Fang et al. 2024, equation 7 ("KL-based", no formula and no weight); the formula is that of Li et al.
    2022, published code, with weight 0.1. Deviation: a mean over examples, where that code has one example.

    Attributes:
        weight: at least 0.

    Raises:
        InputError: for a negative weight.

    Examples:
        >>> from gradleak.core import Domain
        >>> latents = torch.tensor([[-1.0, 1.0], [1.0, 3.0]])
        >>> guess = Guess(inputs=latents, domain=Domain(shape=(2,)), latents=latents)
        >>> round(float(LatentKL(weight=1.0)(guess)), 6)
        1.0
    """

    citations = (FANG_2024, LI_2022)
    reads = Part.LATENTS

    weight: NonNegative

    def __call__(self, guess: Guess) -> Tensor:
        """The weighted divergence."""
        assert guess.latents is not None
        mean = guess.latents.mean(dim=1)
        variance = (guess.latents - mean[:, None]).square().mean(dim=1)
        return self.weight * ((mean.square() + variance - 1 - (variance + _SMALLEST).log()) / 2).mean()


@dataclass(frozen=True, kw_only=True)
class LatentNorm(Prior):
    """weight · mean z² over all latent entries: but for a factor and a constant −log N(z; 0, I).

    **Source**: Jeon et al. 2021 (published code, `z_norm`). Deviation: a mean of squares in place of a norm.

    Attributes:
        weight: at least 0.

    Raises:
        InputError: for a negative weight.

    Examples:
        >>> from gradleak.core import Domain
        >>> latents = torch.tensor([[3.0, 4.0]])
        >>> guess = Guess(inputs=latents, domain=Domain(shape=(2,)), latents=latents)
        >>> float(LatentNorm(weight=2.0)(guess))
        25.0
    """

    citations = (JEON_2021,)
    reads = Part.LATENTS

    weight: NonNegative

    def __call__(self, guess: Guess) -> Tensor:
        """The weighted mean square."""
        assert guess.latents is not None
        return self.weight * guess.latents.square().mean()


@dataclass(frozen=True, kw_only=True)
class WeightProximity(Prior):
    """weight · mean over examples of ‖w − w₀‖₂: how far each example's generator weights moved, not squared.

    The norm has a kink at w₀: its gradient has length 1 everywhere else, however short the way, so that weights which
    the update does not ask to move are drawn back all the way. At w₀ the gradient is taken as 0.

    **Source**: Fang et al. 2024, equation 8: weight 1 for BigGAN; none is stated for the DCGAN. Deviation: a mean over
    examples, where equation 8 has one example.

    Attributes:
        weight: at least 0.

    Raises:
        InputError: for a negative weight.

    Examples:
        >>> from gradleak.core import Domain
        >>> changes = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
        >>> guess = Guess(inputs=changes, domain=Domain(shape=(2,)), changes=changes)
        >>> float(WeightProximity(weight=1.0)(guess))
        2.5
    """

    citations = (FANG_2024,)
    reads = Part.WEIGHTS

    weight: NonNegative

    def __call__(self, guess: Guess) -> Tensor:
        """The weighted distance."""
        assert guess.changes is not None
        lengths: Tensor = torch.linalg.vector_norm(guess.changes, dim=1)
        return self.weight * lengths.mean()

"""Priors on the latents and weights of a generator, whatever the update says."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.inversion.priors import Guess, Prior
from gradleak.attacks.inversion.variables import Part
from gradleak.results import FANG_2024, JEON_2021, LI_2022, NonNegative

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

"""DP-SGD: the gradient of every example clipped, then Gaussian noise, in two conventions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from gradleak.core import DiagonalGaussian, ExampleDefense, Guarantee, ScaledRows
from gradleak.defenses.clip_per_example import ClipPerExample
from gradleak.defenses.draws import normal
from gradleak.results import (
    ABADI_2016,
    LI_2024,
    Citation,
    Hint,
    InputError,
    Positive,
    check_positive,
)


class NoiseOn(StrEnum):
    """Sum or gradient that the noise of standard deviation σ is added to."""

    PER_EXAMPLE = "per_example"
    SUM = "sum"


@dataclass(frozen=True, kw_only=True)
class DPSGD(ExampleDefense):
    """The mean of per-example gradients, each clipped to an L2 norm of C, with Gaussian noise, at every local step.

    Two conventions, which differ by √k for k examples:

    - "per_example": N(0, σ²) on every entry of every clipped gradient, then the mean. The mean carries std σ/√k and the
      sum σ√k. This is what Li et al. do.
    - "sum": N(0, σ²) on every entry of the sum, then the division by k. The mean carries σ/k. This is DP-SGD as Abadi
      et al. and the libraries have it, with `noise_multiplier` = σ/C.

    Only the mean leaves the client, so that the noise is drawn once, on the mean, with the law that it has there. With
    local steps (FedAvg) every step draws its own: for one step the delta carries learning rate times that; for more the
    noise is inside the training and the update is not Gaussian.

    `expected_batch_size` divides the sum by that constant instead of k. Poisson sampling needs it: k depends on the data
    then, and a divisor that does gives it away. It has to be public (a rounded sampling rate times the size of a private
    data set is not).

    The guarantee is formal, for an unbounded number of examples of any kind; how much it is says `gradleak.accounting` from the
    std really added. It protects single examples, not what a whole batch has in common. Models that mix examples
    (BatchNorm in train mode) are refused.

    **Source**: Abadi et al. 2016, algorithm 1 ("sum"); Li et al. 2024, section 6.1 ("per_example").

    Attributes:
        clip_norm: C, positive.
        noise_std: σ, positive, in units of the gradient.
        noise: "per_example" or "sum": what σ is added to.
        expected_batch_size: the public divisor of the sum, or None for k; with "sum" only.

    Raises:
        InputError: for a number that is not positive, an unknown convention, or a divisor with noise per example.

    Examples:
        >>> DPSGD(clip_norm=2.0, noise_std=0.1, noise="per_example").mean_std(16)
        0.025
        >>> DPSGD(clip_norm=2.0, noise_std=0.1, noise="sum").mean_std(16)
        0.00625
        >>> DPSGD.from_noise_multiplier(1.1, clip_norm=2.0).noise_std
        2.2
    """

    guarantee: ClassVar[Guarantee] = Guarantee.FORMAL
    citations: ClassVar[tuple[Citation, ...]] = (ABADI_2016, LI_2024)
    closes: ClassVar[bool] = True
    adds_in_order: ClassVar[bool] = True

    clip_norm: Positive
    noise_std: Annotated[Positive, Hint("without noise it is ClipPerExample")]
    noise: NoiseOn | str
    expected_batch_size: Positive | None = None

    def __post_init__(self) -> None:
        """Check what depends on more than one field."""
        super().__post_init__()
        if self.expected_batch_size is not None and self.noise is NoiseOn.PER_EXAMPLE:
            raise InputError(
                "DPSGD.expected_batch_size: expected None with noise='per_example', whose noise grows with the examples "
                "anyway; use noise='sum'"
            )

    @classmethod
    def from_noise_multiplier(
        cls, noise_multiplier: float, *, clip_norm: float, expected_batch_size: float | None = None
    ) -> DPSGD:
        """DP-SGD with noise on the sum of standard deviation `noise_multiplier` times `clip_norm`.

        Raises:
            InputError: for a number that is not positive.
        """
        check_positive("DPSGD.noise_multiplier", noise_multiplier)
        check_positive("DPSGD.clip_norm", clip_norm)
        return cls(
            clip_norm=clip_norm,
            noise_std=noise_multiplier * clip_norm,
            noise=NoiseOn.SUM,
            expected_batch_size=expected_batch_size,
        )

    def sum_std(self, examples: int) -> float:
        """The standard deviation that the sum over so many examples carries: σ√k or σ."""
        return self.noise_std * (math.sqrt(examples) if self.noise is NoiseOn.PER_EXAMPLE else 1.0)

    def mean_std(self, examples: int) -> float:
        """The standard deviation that the average carries: σ/√k, σ/k or σ/expected_batch_size."""
        return self.sum_std(examples) / self.divisor(examples)

    def noise_multiplier(self, examples: int) -> float:
        """The standard deviation on the sum over C, for so many examples; for noise on the sum it is σ/C whatever k."""
        return self.sum_std(examples) / self.clip_norm

    @property
    def bound(self) -> float:
        """C."""
        return float(self.clip_norm)

    def effect(self, names: Iterable[str]) -> ScaledRows:
        """Every example's gradient times a factor of its own."""
        return ScaledRows(max_norm=self.bound)

    def divisor(self, examples: int) -> float:
        """k, or `expected_batch_size`."""
        return self.expected_batch_size or examples

    def mean(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The gradients (b, ...) with each row clipped by its own norm over all tensors."""
        return ClipPerExample(self.clip_norm).mean(gradients)

    def average(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sum over k, or over `expected_batch_size`."""
        return {name: rows.sum(dim=0) / self.divisor(rows.shape[0]) for name, rows in gradients.items()}

    def law(self, shapes: Mapping[str, Tensor], examples: int) -> DiagonalGaussian:
        """Gaussian of `mean_std` on every entry."""
        return DiagonalGaussian(std=dict.fromkeys(shapes, self.mean_std(examples)))

    def pooled(self, draws: int) -> DPSGD:
        """σ/√R for R draws."""
        return replace(self, noise_std=self.noise_std / math.sqrt(draws))

    def draw(self, average: Mapping[str, Tensor], examples: int, generator: torch.Generator) -> dict[str, Tensor]:
        """The average with fresh noise; a CPU generator gives the same noise on every device."""
        std = self.mean_std(examples)
        return {name: tensor + std * normal(tensor, generator) for name, tensor in average.items()}

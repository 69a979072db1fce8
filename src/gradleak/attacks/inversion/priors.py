"""What a guess ought to look like whatever the update says."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from gradleak.core import Domain, DomainKind
from gradleak.results import GEIPING_2020, Citation, InputError


class Prior(ABC):
    """A penalty on a guess, added to the matching loss; pure and safe under torch.func transforms."""

    citations: tuple[Citation, ...] = ()

    @abstractmethod
    def __call__(self, inputs: Tensor, domain: Domain) -> Tensor:
        """The weighted penalty, a scalar of at least 0.

        Args:
            inputs: the guess, (b, *shape), in model-input units.
            domain: shape and kind of an example.
        """


@dataclass(frozen=True, kw_only=True)
class TotalVariation(Prior):
    """weight · Σ_axes mean |difference of neighbors|, in model-input units.

    For images that is mean|x[..., 1:] − x[..., :-1]| + mean|x[..., 1:, :] − x[..., :-1, :]|, each mean over all
    neighbor pairs of that direction, channels and examples; for signals the last axis alone; for tables 0.

    This is the definition of Geiping et al.'s published code. A definition that *sums* over pairs is b·C·H·(W−1) times
    larger along the rows: divide its weight's counterpart by that, for instance weight 1e-4 here is 1e-4/756 per pair
    of a 28×28 image. With a normalized domain, pixel differences count 1/std times as much. It decides as much as the
    attack does, so the weight stands in every record.

    **Source**: Geiping et al. 2020, equation 4 (the paper leaves the definition open).

    Attributes:
        weight: at least 0.

    Raises:
        InputError: for a negative weight.

    Example:
        >>> import torch
        >>> image = torch.tensor([[[[0.0, 1.0], [1.0, 3.0]]]])
        >>> float(TotalVariation(weight=1.0)(image, Domain.image(channels=1, height=2, width=2)))
        3.0
    """

    citations = (GEIPING_2020,)

    weight: float

    def __post_init__(self) -> None:
        """Check the weight."""
        if not self.weight >= 0:
            raise InputError(f"TotalVariation.weight: expected a number of at least 0, got {self.weight}")

    def __call__(self, inputs: Tensor, domain: Domain) -> Tensor:
        """The weighted total variation."""
        total = inputs.new_zeros(())
        axes = {DomainKind.IMAGE: (-1, -2), DomainKind.SIGNAL: (-1,), DomainKind.TABULAR: ()}[domain.kind]
        for axis in axes:
            if inputs.dim() > -axis and inputs.shape[axis] > 1:
                total = total + inputs.diff(dim=axis).abs().mean()
        return self.weight * total

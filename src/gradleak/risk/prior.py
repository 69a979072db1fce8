"""Belief of an adversary about an example before seeing a release: a Gaussian."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from sklearn.covariance import LedoitWolf
from torch import Tensor

from gradleak.core import Batch, Domain
from gradleak.core.turns import ONE_CALL
from gradleak.results import InputError, check_finite, check_positive


@dataclass(frozen=True, kw_only=True, eq=False)
class GaussianPrior:
    """A Gaussian law of one example, N(mean, covariance), in model-input units; examples are independent.

    Attributes:
        mean: (e,), flat.
        covariance: (e, e), symmetric positive definite.
        domain: shape, range and normalization of an example, or None for unknown: then an input unit is a pixel.
        shape: of an example; by default that of the domain, else (e,).
        origin: where it comes from, for the record.

    Raises:
        InputError: for what is no real tensor, sizes that disagree, or a covariance that is not symmetric, finite and
            positive definite.

    Source: shrinkage as in Ledoit and Wolf 2004.
    """

    mean: Tensor
    covariance: Tensor
    domain: Domain | None = None
    shape: tuple[int, ...] | None = None
    origin: str = "given"

    def __post_init__(self) -> None:
        """Check sizes and definiteness."""
        for name, given in (("mean", self.mean), ("covariance", self.covariance)):
            if not isinstance(given, Tensor) or not given.is_floating_point():
                kind = given.dtype if isinstance(given, Tensor) else type(given).__name__
                raise InputError(f"{name}: expected a tensor of floating point numbers, got {kind}")
        if not isinstance(self.domain, Domain | None):
            raise InputError(f"domain: expected a Domain or None, got {type(self.domain).__name__}")
        size = self.mean.numel()
        if self.mean.dim() != 1 or tuple(self.covariance.shape) != (size, size) or size == 0:
            raise InputError(
                f"GaussianPrior: expected a mean (e,) and a covariance (e, e), got {tuple(self.mean.shape)} and "
                f"{tuple(self.covariance.shape)}"
            )
        if self.domain is not None and self.domain.size != size:
            raise InputError(f"GaussianPrior: expected the {self.domain.size} entries of the domain, got {size}")
        shape = self.shape or (self.domain.shape if self.domain is not None else (size,))
        if torch.Size(shape).numel() != size:
            raise InputError(f"GaussianPrior: expected a shape of {size} entries, got {shape}")
        object.__setattr__(self, "shape", tuple(shape))
        object.__setattr__(self, "mean", self.mean.detach().double())
        object.__setattr__(self, "covariance", self.covariance.detach().double())
        if not torch.allclose(self.covariance, self.covariance.T) or not bool(torch.isfinite(self.mean).all()):
            raise InputError("GaussianPrior: expected a finite mean and a symmetric covariance")
        self.root()

    @classmethod
    def from_public(cls, public: Tensor | Batch, *, domain: Domain | None = None) -> GaussianPrior:
        """The Gaussian with mean and shrunk covariance of public examples.

        The covariance is (1 − s)·S + s·(tr S/e)·I, S the sample covariance and s the intensity of Ledoit and Wolf.

        Args:
            public: at least two examples (n, *shape) in model-input units, as a tensor or a batch.
            domain: of an example; by default that of the batch.

        Raises:
            InputError: for fewer than two examples, or examples that do not differ.

        Cost: n·e² multiplications.
        """
        inputs = public.inputs if isinstance(public, Batch) else public
        if not isinstance(inputs, Tensor) or inputs.dim() < 2 or inputs.shape[0] < 2:
            raise InputError("public: expected at least two examples (n, ...), as a tensor or a Batch")
        if domain is None and isinstance(public, Batch):
            domain = public.domain
        flat = inputs.detach().cpu().double().flatten(1)
        if not bool(torch.isfinite(flat).all()) or bool((flat == flat[0]).all()):
            raise InputError("public: expected finite examples that differ from each other")
        with ONE_CALL, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Only one sample available")
            fitted = LedoitWolf().fit(flat.numpy())
        covariance = torch.from_numpy(fitted.covariance_)
        return cls(
            mean=torch.from_numpy(fitted.location_).to(inputs.device),
            covariance=((covariance + covariance.T) / 2).to(inputs.device),
            domain=domain,
            shape=tuple(inputs.shape[1:]),
            origin=f"Gaussian fitted to {flat.shape[0]} public examples, Ledoit-Wolf shrinkage {fitted.shrinkage_:.3g}",
        )

    @classmethod
    def isotropic(cls, domain: Domain, *, std: float, mean: float = 0.5) -> GaussianPrior:
        """Independent entries of the same mean and standard deviation, in units of the valid range (pixels in [0, 1]).

        No law on that range has a standard deviation above 0.5.

        Args:
            domain: of an example.
            std: standard deviation, positive.
            mean: by default the middle of the range.

        Raises:
            InputError: for a standard deviation that is not positive, or a mean that is not finite.

        Examples:
            >>> prior = GaussianPrior.isotropic(Domain(shape=(2,), high=10.0, kind="tabular"), std=0.3)
            >>> prior.mean.tolist(), round(float(prior.covariance[0, 0]), 6)
            ([5.0, 5.0], 9.0)
        """
        check_positive("std", std)
        check_finite("mean", mean)
        if not isinstance(domain, Domain):
            raise InputError(f"domain: expected a Domain, got {type(domain).__name__}")
        middle = domain.from_pixels(torch.full(domain.shape, mean, dtype=torch.float64)).reshape(-1)
        deviations = std / domain.pixel_scale(middle).reshape(-1)
        return cls(
            mean=middle,
            covariance=torch.diag(deviations**2),
            domain=domain,
            origin=f"isotropic Gaussian, mean {mean:g} and std {std:g} of the valid range, all entries independent",
        )

    def root(self) -> Tensor:
        """The lower Cholesky factor L (e, e) of the covariance, LLᵀ.

        Raises:
            InputError: if the covariance is not positive definite.
        """
        factor: Tensor
        factor, failed = torch.linalg.cholesky_ex(self.covariance)
        if int(failed) or not bool(torch.isfinite(factor).all()):
            raise InputError(
                "GaussianPrior: expected a positive definite covariance; add a small multiple of the identity"
            )
        return factor

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """`count` independent examples (count, *shape)."""
        assert self.shape is not None
        drawn = torch.randn(
            (count, self.mean.numel()), generator=generator, dtype=torch.float64, device=generator.device
        )
        return (self.mean + drawn.to(self.mean.device) @ self.root().T).reshape(count, *self.shape)

    def pixel_scale(self) -> Tensor:
        """Factor by which each entry changes its pixel in [0, 1], (e,); ones where the domain is unknown."""
        if self.domain is None:
            return torch.ones_like(self.mean)
        return self.domain.pixel_scale(self.mean).reshape(-1)

    def card(self) -> dict[str, Any]:
        """Description for a record; no values of examples."""
        return {"origin": self.origin, "entries": self.mean.numel(), "trace": float(self.covariance.trace())}


def posterior_factor(information: Tensor, root: Tensor) -> Tensor:
    """F (d, d) with FFᵀ = (H + Σ⁻¹)⁻¹ for the information H (d, d) of a release and a root L of the prior, Σ = LLᵀ.

    (H + Σ⁻¹)⁻¹ = L(I + LᵀHL)⁻¹Lᵀ needs no inverse of Σ, and the matrix that is inverted is never ill-conditioned from
    below.

    Cost: about 3 d³ multiplications.
    """
    inner = root.T @ information @ root
    inner = (inner + inner.T) / 2 + torch.eye(root.shape[1], dtype=root.dtype, device=root.device)
    lower = torch.linalg.cholesky(inner)
    transposed: Tensor = torch.linalg.solve_triangular(lower, root.T, upper=False)
    return transposed.T

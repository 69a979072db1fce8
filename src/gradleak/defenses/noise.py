"""Noise on the update: Gaussian, Laplace, by layer, and along singular directions."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from gradleak.core import (
    Batch,
    BatchDefense,
    DiagonalGaussian,
    Exposure,
    Guarantee,
    Laplace,
    MovedAlong,
    Noise,
    NotGaussian,
    Objective,
    Release,
    Unchanged,
    UpdateDefense,
)
from gradleak.core.objective import Tensors
from gradleak.defenses.draws import check_names, laplace, layers, mean_of, normal
from gradleak.operators import DENSE_LIMIT, GradientJacobian
from gradleak.results import (
    ABADI_2016,
    DWORK_2006,
    MO_2021,
    ZHANG_2023,
    ZHU_2019,
    Citation,
    Count,
    Hint,
    Natural,
    NonNegative,
    UnsupportedError,
)


@dataclass(frozen=True, kw_only=True)
class GaussianNoise(UpdateDefense):
    """The update plus noise drawn from N(0, std²) for every entry.

    Without a bound on the sensitivity (clipping) it has no epsilon, so it is labeled heuristic; a release that clips
    per example before it is accounted for by DP-SGD.

    Attributes:
        std: standard deviation, at least 0.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC
    citations: ClassVar[tuple[Citation, ...]] = (ABADI_2016,)
    adds_in_order: ClassVar[bool] = True

    std: NonNegative

    def effect(self, names: Iterable[str]) -> Unchanged:
        """The update, plus noise."""
        return Unchanged()

    def mean(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The update itself."""
        return dict(update)

    def noise(self, shapes: Mapping[str, Tensor]) -> Noise:
        """Gaussian of this standard deviation on every entry; None for a standard deviation of 0."""
        if self.std == 0:
            return None
        return DiagonalGaussian(std=dict.fromkeys(shapes, self.std))

    def carry(self, noise: DiagonalGaussian) -> Noise:
        """Earlier noise passes unchanged."""
        return noise

    def pooled(self, updates: Sequence[Mapping[str, Tensor]]) -> tuple[dict[str, Tensor], GaussianNoise]:
        """Their mean, which carries std/√R for R draws."""
        return mean_of(updates), GaussianNoise(std=self.std / math.sqrt(len(updates)))

    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """The update with fresh noise; a CPU generator gives the same noise on every device."""
        if self.std == 0:
            return dict(update)
        return {name: tensor + self.std * normal(tensor, generator) for name, tensor in update.items()}


@dataclass(frozen=True, kw_only=True)
class LaplaceNoise(UpdateDefense):
    """The update plus noise drawn from the Laplace law of scale b, of variance 2b², for every entry.

    The density is exp(−|z|/b)/(2b). Its mean map is the identity, so that A stays; the law is not Gaussian, so that
    measures of Gaussian noise are unsupported. The expected squared error of the L2-matching attacker depends on the
    variance alone, to first order: it is that of Gaussian noise with std b√2.

    The Laplace mechanism protects what has a bounded L1 norm. No defense here bounds it, so that this one has no
    epsilon and is heuristic.

    **Source**: Zhu et al. 2019, section 5.1, which tries it beside Gaussian noise; the mechanism is Dwork et al. 2006.

    Attributes:
        scale: b, at least 0.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC
    citations: ClassVar[tuple[Citation, ...]] = (DWORK_2006, ZHU_2019)

    scale: NonNegative

    def effect(self, names: Iterable[str]) -> Unchanged:
        """The update, plus noise."""
        return Unchanged()

    def mean(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The update itself."""
        return dict(update)

    def noise(self, shapes: Mapping[str, Tensor]) -> Noise:
        """Laplace noise; None for a scale of 0."""
        if self.scale == 0:
            return None
        reason = f"LaplaceNoise adds Laplace noise of scale {self.scale:g} to every entry"
        return Laplace(scale=float(self.scale), reason=reason)

    def carry(self, noise: DiagonalGaussian) -> Noise:
        """Earlier noise passes unchanged."""
        return noise

    def variance(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """2b² for every entry."""
        return {name: torch.full_like(tensor, 2 * self.scale**2) for name, tensor in update.items()}

    def pooled(self, updates: Sequence[Mapping[str, Tensor]]) -> tuple[dict[str, Tensor], LaplaceNoise | GaussianNoise]:
        """Their mean, read as Gaussian of its variance 2b²/R for R draws, which it nears as R grows; one draw as it is."""
        if len(updates) == 1:
            return dict(updates[0]), self
        return mean_of(updates), GaussianNoise(std=self.scale * math.sqrt(2 / len(updates)))

    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """The update with fresh noise; a CPU generator gives the same noise on every device."""
        if self.scale == 0:
            return dict(update)
        return {name: tensor + self.scale * laplace(tensor, generator) for name, tensor in update.items()}


@dataclass(frozen=True, kw_only=True)
class LayerNoise(UpdateDefense):
    """The update plus noise drawn from N(0, σ_l²) for every entry of layer l.

    A layer is the module that owns the tensors: weight and bias together. The mean map is the identity, so that A
    stays. Where some layers carry no noise, those alone may rebuild the input: noise on the first layers then hides
    nothing from who reads the last ones.

    Without a bound on the sensitivity it has no epsilon, so it is labeled heuristic. After per-example clipping to C
    the accounting holds the clipped norm against the smallest σ_l (an upper bound), and gives none where one is 0.

    **Source**: Mo et al. 2021, section 6 on differential privacy (clipping to norm 1, then noise on some layers); the
    paper names no rule for σ_l, so that it is an argument here.

    Attributes:
        std: σ_l by the name of the layer, "" for parameters of the model itself; at least 0.
        default: σ of the layers that are not named.

    Raises:
        InputError: for a number below 0; at the first use, for a layer that the update does not have.

    Examples:
        >>> import torch
        >>> LayerNoise(std={"0": 0.5}).noise({"0.weight": torch.zeros(2), "0.bias": torch.zeros(1)}).std
        {'0.weight': 0.5, '0.bias': 0.5}
    """

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC
    citations: ClassVar[tuple[Citation, ...]] = (MO_2021,)
    adds_in_order: ClassVar[bool] = True

    std: Annotated[Mapping[str, NonNegative], Hint("write {'0': 0.1}")]
    default: NonNegative = 0.0

    def __hash__(self) -> int:
        """Hash of the numbers, since a mapping has none."""
        return hash((tuple(sorted(self.std.items())), self.default))

    def effect(self, names: Iterable[str]) -> Unchanged:
        """The update, plus noise."""
        return Unchanged()

    def seen_without(self, layers: Collection[str]) -> LayerNoise:
        """The noise on the other layers."""
        return replace(self, std={name: std for name, std in self.std.items() if name not in layers})

    def mean(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The update itself."""
        return dict(update)

    def noise(self, shapes: Mapping[str, Tensor]) -> Noise:
        """Gaussian with the standard deviation of each tensor's layer; None where all of them are 0."""
        std = self._std(shapes)
        return DiagonalGaussian(std=std) if any(std.values()) else None

    def carry(self, noise: DiagonalGaussian) -> Noise:
        """Earlier noise passes unchanged."""
        return noise

    def pooled(self, updates: Sequence[Mapping[str, Tensor]]) -> tuple[dict[str, Tensor], LayerNoise]:
        """Their mean, which carries σ_l/√R for R draws."""
        root = math.sqrt(len(updates))
        less = {name: std / root for name, std in self.std.items()}
        return mean_of(updates), LayerNoise(std=less, default=self.default / root)

    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """The update with fresh noise; a CPU generator gives the same noise on every device."""
        std = self._std(update)
        return {
            name: tensor + std[name] * normal(tensor, generator) if std[name] else tensor
            for name, tensor in update.items()
        }

    def _std(self, shapes: Mapping[str, Tensor]) -> dict[str, float]:
        groups = layers(shapes)
        check_names("LayerNoise.std", self.std, groups, what="layers")
        by_tensor = {
            name: float(self.std.get(layer, self.default)) for layer, names in groups.items() for name in names
        }
        return {name: by_tensor[name] for name in shapes}


@dataclass(frozen=True, kw_only=True)
class SpectralNoise(BatchDefense):
    """The update plus a vector of norm c in the span of the left singular vectors of A that protect most.

    δ = c Σᵢ wᵢ uᵢ, uᵢ = A vᵢ/√λᵢ for the m smallest non-zero eigenvalues of AᵀA, w uniform on the unit sphere (for m = 1 a
    random sign). An L2-matching attacker then errs by Σᵢ (c wᵢ/√λᵢ) vᵢ, to first order: the squared error is c²/λ for one
    direction and (c²/m) Σᵢ 1/λᵢ on average, where isotropic noise of the same norm on P entries gives (c²/P) Σ 1/λ over
    all of them.

    The directions depend on the example, so that the release is heuristic and has no epsilon; the perturbation itself
    tells something. An adversary who knows the rule but not the example does not know the directions; one who knew them
    would project them out. One direction gives the largest error and the weakest hiding place. Its mean is the update,
    so that A stays; the law is not Gaussian, so that measures of Gaussian noise are unsupported: take
    `InversionInfluence` at the perturbation that was drawn.

    **Assumptions**: first order in c; an attacker without prior or box. The smallest eigenvalues of an ill-conditioned A
    are known to eps·λmax only.

    **Cost**: the whole spectrum of AᵀA, at every release, and m JVPs; d at most `dense_limit`.

    **Source**: our own use of Zhang et al. 2023, section 5.1, which compares such directions (there eigenvectors of JJᵀ,
    which live in the input space; those that perturb are the left singular vectors).

    Attributes:
        norm: c, the L2 norm of the perturbation over all tensors, at least 0.
        directions: m, at least 1; fewer are used where A has a smaller rank.
        dense_limit: the largest d for which the spectrum is computed.

    Raises:
        InputError: for a number out of range.
        UnsupportedError: at the release, for a larger d, or where A is zero.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC
    citations: ClassVar[tuple[Citation, ...]] = (ZHANG_2023,)

    norm: NonNegative
    directions: Count = 1
    dense_limit: Natural = DENSE_LIMIT

    def effect(self, names: Iterable[str]) -> MovedAlong:
        """The update, moved along the directions that protect most."""
        return MovedAlong(norm=self.norm, directions=self.directions, dense_limit=self.dense_limit)

    def mean(self, update: Mapping[str, Tensor], batch: Batch) -> Tensors:
        """The update itself."""
        return dict(update)

    def noise(self, shapes: Mapping[str, Tensor]) -> Noise:
        """Not Gaussian; None for a norm of 0."""
        if self.norm == 0:
            return None
        return NotGaussian(
            reason=f"SpectralNoise adds a vector of norm {self.norm:g} in {self.directions} direction"
            f"{'' if self.directions == 1 else 's'} that depend on the batch"
        )

    def carry(self, noise: DiagonalGaussian) -> Noise:
        """Earlier noise passes unchanged."""
        return noise

    def draw(
        self,
        update: Mapping[str, Tensor],
        *,
        objective: Objective,
        batch: Batch,
        before: Release,
        generator: torch.Generator,
    ) -> Tensors:
        """The update with a fresh perturbation."""
        if self.norm == 0:
            return dict(update)
        vectors = self._vectors(Exposure(objective, batch, before).at_embeddings())
        weights = torch.randn(vectors.shape[1], generator=generator, dtype=vectors.dtype, device=generator.device)
        weights = weights.to(vectors.device)
        flat = self.norm * (vectors @ (weights / weights.norm()))
        return {name: update[name] + piece.to(update[name]) for name, piece in objective.unflatten(flat).items()}

    def _vectors(self, exposure: Exposure) -> Tensor:
        """The most protective left singular vectors of A, orthonormal columns (P, m)."""
        size = exposure.inputs.numel()
        if size > self.dense_limit:
            raise UnsupportedError(
                f"SpectralNoise: d = {size} is above the limit of {self.dense_limit} for a whole spectrum; raise "
                "dense_limit, or release fewer examples at once"
            )
        operator = GradientJacobian(exposure)
        spectrum = operator.spectrum
        kept = spectrum.values > spectrum.threshold
        if not bool(kept.any()):
            raise UnsupportedError(
                "SpectralNoise: the derivative of the release is zero, so that no direction moves an attacker more than "
                "another; put it before defenses such as Sign"
            )
        images = operator.matmat(spectrum.vectors[:, kept][:, : self.directions].contiguous())
        # Orthogonal up to the round-off of AᵀA; QR makes the norm of the perturbation exact.
        orthonormal: Tensor = torch.linalg.qr(images / images.norm(dim=0)).Q
        return orthonormal

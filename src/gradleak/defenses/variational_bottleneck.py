"""A variational information bottleneck: a random layer between encoder and decoder, and its term in the loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from gradleak.core import Guarantee, Mode, ModelDefense, Objective
from gradleak.core.losses import LOSSES
from gradleak.results import (
    ALEMI_2017,
    LI_2024,
    Citation,
    Count,
    InputError,
    NonNegative,
)


class BottleneckOutput(NamedTuple):
    """Output of a model with a bottleneck.

    Attributes:
        outputs: of the decoder, (b, ...).
        divergence: KL(p(h|x) ‖ N(0, I)) of each example, (b,), in nats.
    """

    outputs: Tensor
    divergence: Tensor


@dataclass(frozen=True, kw_only=True)
class VariationalBottleneck(ModelDefense):
    """A model that passes h ~ N(μ(x), diag σ²(x)) from encoder to decoder and pays β·KL(N(μ, σ²) ‖ N(0, I)) for it.

    L + β (1/b) Σᵢ ½ Σⱼ (μ² + σ² − 1 − log σ²), h = μ + σ·ε with ε standard normal. It is part of the model: `insert` puts
    the layer between two parts of a model of yours, `loss` adds the term, and an `Objective` in train mode has both. Named
    first in a release it is checked against the objective and stands in the record.

    The gradient is another one, and so is A; ε is drawn anew in every forward pass of a training. An `Objective`
    draws it from its `mask_seed`, as dropout masks: closed-form measures hold for that draw. A threat model discloses
    the objective with another seed, since the client's draw is not known: with it an attack reads the input as if
    nothing were hidden. Attacks match the mean gradient of several draws, as of any model that draws. In eval mode the
    layer passes μ and hides nothing, which is refused. Under per-example defenses every example has the same ε.

    It gives no formal guarantee: it lowers a bound on I(x; h), not on what the gradient says of x.

    **Source**: Alemi et al. 2017, equation 17; Li et al. 2024, section 6.1 (4) (β = 0.01). Deviations: the two heads are
    linear and the second gives log σ², where Alemi et al. have softplus(s − 5).

    Attributes:
        beta: β, at least 0.
        width: the number of entries of h.

    Raises:
        InputError: for a number out of range.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC
    citations: ClassVar[tuple[Citation, ...]] = (ALEMI_2017, LI_2024)

    beta: NonNegative = 0.01
    width: Count = 64

    def layer(self, features: int, *, generator: torch.Generator) -> BottleneckLayer:
        """The layer for an encoder of so many outputs an example."""
        return BottleneckLayer(features, self.width, generator=generator)

    def insert(
        self, encoder: nn.Module, decoder: nn.Module, *, features: int, generator: torch.Generator
    ) -> BottleneckModel:
        """Encoder, layer and decoder as one model, which returns a `BottleneckOutput`.

        Args:
            encoder: (b, ...) to `features` numbers an example.
            decoder: (b, width) to outputs.
            features: what the encoder puts out, flattened.
            generator: of the layer's weights.
        """
        return BottleneckModel(encoder, self.layer(features, generator=generator), decoder)

    def inserted(
        self,
        encoder: nn.Module,
        decoder: Callable[[int], nn.Module],
        *,
        features: int,
        generator: torch.Generator,
    ) -> tuple[BottleneckModel, BottleneckLoss]:
        """The model with a decoder of `width` inputs, and cross entropy with the divergence."""
        return self.insert(encoder, decoder(self.width), features=features, generator=generator), self.loss()

    def loss(self, loss: str | Callable[[Any, Tensor], Tensor] = "cross_entropy") -> BottleneckLoss:
        """The loss of such a model: that of its outputs, and β times the mean divergence.

        Raises:
            InputError: for an unknown name.
        """
        if isinstance(loss, str) and loss not in LOSSES:
            raise InputError(f"loss: expected one of {', '.join(LOSSES)} or a callable, got {loss!r}")
        return BottleneckLoss(LOSSES[loss] if isinstance(loss, str) else loss, float(self.beta))

    def check(self, objective: Objective) -> None:
        """Refuse an objective without the layer, its term with this β, or its noise.

        Raises:
            InputError: saying what is missing.
        """
        found = [part.width for part in objective.parts(BottleneckLayer) if isinstance(part, BottleneckLayer)]
        if found != [self.width]:
            raise InputError(
                f"VariationalBottleneck: expected a model with one BottleneckLayer of width {self.width}, got "
                f"{f'widths {found}' if found else 'none'}; build the model with VariationalBottleneck.insert"
            )
        betas = [part.beta for part in objective.parts(BottleneckLoss) if isinstance(part, BottleneckLoss)]
        if betas != [float(self.beta)]:
            raise InputError(
                f"VariationalBottleneck: expected a loss with beta = {self.beta:g}, got "
                f"{f'{betas[0]:g}' if betas else objective.loss_name}; pass loss=VariationalBottleneck(...).loss()"
            )
        if objective.mode is not Mode.TRAIN:
            raise InputError(
                "VariationalBottleneck: expected mode='train', got 'eval', in which the layer passes its mean and adds "
                "no noise"
            )


class BottleneckLayer(nn.Module):
    """h = μ(z) + σ(z)·ε in train mode, μ(z) in eval mode, with the divergence of N(μ, σ²) from N(0, I).

    ε is drawn in float32 from torch's generator of the device, like a dropout mask: inside an `Objective` it is
    determined by `mask_seed`, in any dtype.

    Args:
        features: of z, flattened.
        width: of h.
        generator: of the weights, uniform within ±1/√features; biases start at 0.
    """

    draws_in_training: ClassVar[bool] = True

    def __init__(self, features: int, width: int, *, generator: torch.Generator) -> None:
        """Two linear heads with weights from the generator."""
        super().__init__()
        self.width = width
        self.mean = nn.utils.skip_init(nn.Linear, features, width)
        self.log_variance = nn.utils.skip_init(nn.Linear, features, width)
        for head in (self.mean, self.log_variance):
            drawn = torch.rand(head.weight.shape, generator=generator, device=generator.device)
            head.weight.data.copy_((2 * drawn - 1) * features**-0.5)
            head.bias.data.zero_()

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """(h, divergence): (b, width) and (b,) in nats."""
        flat = z.flatten(start_dim=1)
        mean, log_variance = self.mean(flat), self.log_variance(flat)
        divergence = (mean.square() + log_variance.exp() - 1 - log_variance).sum(dim=1) / 2
        if not self.training:
            return mean, divergence
        epsilon = torch.randn(mean.shape, dtype=torch.float32, device=mean.device).to(mean.dtype)
        return mean + (log_variance / 2).exp() * epsilon, divergence


class BottleneckModel(nn.Module):
    """Encoder, bottleneck and decoder in a row.

    Args:
        encoder: (b, ...) to what the layer takes.
        layer: the bottleneck.
        decoder: (b, width) to outputs.
    """

    def __init__(self, encoder: nn.Module, layer: BottleneckLayer, decoder: nn.Module) -> None:
        """Keep the three parts."""
        super().__init__()
        self.encoder, self.layer, self.decoder = encoder, layer, decoder

    def forward(self, x: Tensor) -> BottleneckOutput:
        """The outputs and the divergence of each example."""
        h, divergence = self.layer(self.encoder(x))
        return BottleneckOutput(self.decoder(h), divergence)


class BottleneckLoss(nn.Module):
    """The loss of the outputs of a `BottleneckOutput` plus β times its mean divergence.

    Args:
        loss: (outputs, targets) -> scalar mean.
        beta: β.
    """

    def __init__(self, loss: Callable[[Any, Tensor], Tensor], beta: float) -> None:
        """Keep both."""
        super().__init__()
        self.loss, self.beta = loss, beta

    def forward(self, given: BottleneckOutput, targets: Tensor) -> Tensor:
        """The scalar."""
        return self.loss(given.outputs, targets) + self.beta * given.divergence.mean()

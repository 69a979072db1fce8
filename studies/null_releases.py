"""Releases that carry nothing of their batch, a model whose updates do not, and an attack that reads inputs off by division."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from gradleak.attacks import Attack, Monitor
from gradleak.core import Guarantee, Knowledge, Reconstruction, Update, UpdateDefense
from gradleak.results import Citation, Outcome, UnsupportedError


@dataclass(frozen=True, kw_only=True, eq=False)
class FixedUpdate(UpdateDefense):
    """The same update for every batch: that of another batch, or numbers drawn beforehand.

    An auditor who recomputes it gets it again, so that the gate is satisfied; nothing in it is of the audited batch.

    Attributes:
        tensors: the update by name.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC

    tensors: Mapping[str, Tensor] = field(repr=False)

    @property
    def flat(self) -> bool:
        """True: nothing changes with the input."""
        return True

    def mean(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The fixed update."""
        return {name: self.tensors[name].to(tensor) + 0.0 * tensor for name, tensor in update.items()}

    def noise(self, shapes: Mapping[str, Tensor]) -> None:
        """None."""
        del shapes

    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """The fixed update."""
        del generator
        return self.mean(update)


class IgnoresInputs(nn.Module):
    """Logits that are a bias alone, whatever comes in; its updates hold the labels and nothing of the inputs."""

    def __init__(self, classes: int) -> None:
        """A bias of zeros."""
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(classes))

    def forward(self, inputs: Tensor) -> Tensor:
        """The bias for every row."""
        return self.bias.expand(inputs.shape[0], -1) + 0.0 * inputs.flatten(start_dim=1).sum(dim=1, keepdim=True)


@dataclass(frozen=True, kw_only=True)
class Division(Attack):
    """Inputs of a first linear layer with bias, read off by division: exact where a unit was moved by one example alone.

    The gradient of a unit is δ xᵀ for its weights and δ for its bias. Of a batch the units with the largest bias gradients
    are read, one an example.

    **Cost**: none.

    **Source**: the leak of a linear layer with bias is folklore; as for a planted leak of every audit.
    """

    name: ClassVar[str] = "division"
    needs: ClassVar[tuple[str, ...]] = ("objective", "batch_size", "domain")
    citations: ClassVar[tuple[Citation, ...]] = ()
    summary: ClassVar[str] = "Divides the weight gradient of a first linear layer by its bias gradient."

    def estimate(self, knowledge: Knowledge) -> float:
        """Zero."""
        return 0.0

    def _check(self, knowledge: Knowledge) -> None:
        _first_linear(knowledge)

    def _recover(
        self, update: Update, knowledge: Knowledge, generator: torch.Generator, monitor: Monitor
    ) -> Reconstruction:
        domain, size = knowledge.domain, knowledge.batch_size
        assert domain is not None
        assert size is not None
        weight, bias = (update.tensors[name] for name in _first_linear(knowledge))
        # Of fewer units than examples some are read twice.
        units = bias.abs().argsort(descending=True)[torch.arange(size) % len(bias)]
        low, high = domain.bounds(weight)
        claims = (weight[units] / bias[units, None]).nan_to_num().reshape(size, *domain.shape)
        return Reconstruction(
            inputs=torch.minimum(torch.maximum(claims, low), high), targets=None, loss=None, outcome=Outcome.CONVERGED
        )


def _first_linear(knowledge: Knowledge) -> tuple[str, str]:
    """Names of the weight and bias that see the input."""
    objective, domain = knowledge.objective, knowledge.domain
    assert objective is not None
    assert domain is not None
    weight = next(iter(objective.params))
    bias = f"{weight.removesuffix('weight')}bias"
    shape = objective.params[weight].shape
    if bias == weight or bias not in objective.params or len(shape) != 2 or shape[1] != domain.size:
        raise UnsupportedError("division: expected a first layer that is linear and has a bias, got another one")
    return weight, bias


__all__ = ["Division", "FixedUpdate", "IgnoresInputs"]

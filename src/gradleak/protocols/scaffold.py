"""SCAFFOLD: local SGD whose gradients are corrected by control variates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import ClassVar, Self

import torch
from torch import Tensor

from gradleak.protocols.fed_avg import FedAvg
from gradleak.results import KARIMIREDDY_2020, Citation, Finite, InputError


@dataclass(frozen=True, kw_only=True)
class Scaffold(FedAvg):
    """The way θ₀ − θ_T of local SGD on gradients g + c − cᵢ, kind "delta".

    c is the server's control variate, which it sent, and cᵢ that of the client, which the server knows where it sees every
    client's changes: the adversary knows c − cᵢ. In the first round both are 0, and this is `FedAvg`.

    The client sends the change of its control variate besides. By option II that is cᵢ⁺ − cᵢ = (θ₀ − θ_T)/(ηT) − c without
    momentum, a function of the delta and of what the server knows, so that this release is all there is to audit. By option I
    cᵢ⁺ is the gradient of the whole batch at θ₀: audit that as `FedSGD`, too.

    With control variates that are not 0 the delta is no weighted sum of gradients: the average gradient (AGA) and attacks on
    labels refuse it by name, and unrolled attacks follow it.

    **Cost**: as `FedAvg`.

    **Source**: Karimireddy et al. 2020, algorithm 1.

    Attributes:
        learning_rate: η, positive.
        epochs: passes over the batch.
        batch_size: examples a step; None for the whole batch.
        weight_decay: λ.
        proximal: μ of FedProx.
        schedule: factors of η, one an epoch; None for a constant learning rate.
        order: the places of the examples in every epoch, as `FedAvg` takes them.
        shuffled: whether the client draws them anew, as `FedAvg` takes it.
        momentum: m, in [0, 1).
        dampening: τ, in [0, 1).
        nesterov: whether the momentum is Nesterov's.
        correction: c − cᵢ flat (P,), in the order of the shared parameters; None for 0. `with_controls` makes it from tensors.

    Raises:
        InputError: for a value out of range.

    Examples:
        >>> Scaffold(learning_rate=0.1, epochs=2).mini_batch_weights(3)
        [(slice(0, 3, None), 0.2)]
    """

    citations: ClassVar[tuple[Citation, ...]] = (KARIMIREDDY_2020,)

    correction: Sequence[Finite] | None = field(default=None, repr=False, metadata={"checksum": True})

    @classmethod
    def with_controls(cls, protocol: FedAvg, server: Mapping[str, Tensor], client: Mapping[str, Tensor]) -> Self:
        """SCAFFOLD with these control variates and the settings of a protocol.

        Args:
            protocol: learning rate, epochs and all else.
            server: c by parameter name, in the order of the model's.
            client: cᵢ by parameter name.

        Raises:
            InputError: if the two do not go together.
        """
        if {name: tensor.shape for name, tensor in server.items()} != {n: t.shape for n, t in client.items()}:
            raise InputError(
                "Scaffold.with_controls: expected control variates of the same names and shapes, got others"
            )
        apart = [(tensor.double() - client[name].double()).reshape(-1) for name, tensor in server.items()]
        correction = torch.cat(apart).tolist()
        settings = {one.name: getattr(protocol, one.name) for one in fields(FedAvg)}
        return cls(correction=correction, **settings)

    def mini_batch_weights(self, examples: int) -> Sequence[tuple[slice, float]] | None:
        """As `FedAvg` without control variates, else None."""
        return super().mini_batch_weights(examples) if self.correction is None else None

    def note(self, examples: int) -> str:
        """Note on what the client sends besides."""
        besides = (
            "the control variate that the client sends besides follows from its delta (option II); where it is the gradient "
            "of the batch (option I), audit that as FedSGD, too"
        )
        return "; ".join(part for part in (super().note(examples), besides) if part)

    def _regularized(
        self, gradient: dict[str, Tensor], params: Mapping[str, Tensor], start: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """The gradient with all that `FedAvg` adds, and c − cᵢ.

        Raises:
            InputError: for a correction that is not that of these parameters.
        """
        gradient = super()._regularized(gradient, params, start)
        if self.correction is None:
            return gradient
        sizes = [tensor.numel() for tensor in gradient.values()]
        if len(self.correction) != sum(sizes):
            raise InputError(
                f"Scaffold.correction: expected one number for each of {sum(sizes)} shared entries, got {len(self.correction)}"
            )
        like = next(iter(gradient.values()))
        parts = torch.tensor(self.correction, dtype=torch.float64).to(like).split(sizes)
        return {
            name: tensor + part.reshape(tensor.shape)
            for (name, tensor), part in zip(gradient.items(), parts, strict=True)
        }

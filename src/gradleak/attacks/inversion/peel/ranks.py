"""The equations of every layer at an example that is known: what peeling has to go by there."""

from __future__ import annotations

import torch
from torch import Tensor

from gradleak.attacks.inversion.peel.network import read_chain
from gradleak.attacks.inversion.peel.peeling import Peeled, Shared, looked_at
from gradleak.core import Batch, Domain, Objective


def layer_ranks(objective: Objective, batch: Batch, domain: Domain, *, max_unknowns: int) -> Peeled:
    """Rank, open directions and condition of each layer's equations in the plain gradient of one example.

    Args:
        objective: of the client.
        batch: the example, with its target.
        domain: of the example.
        max_unknowns: largest layer whose equations are written as a matrix.

    Raises:
        UnsupportedError: for a network that is no chain of layers, naming the part.

    **Cost**: one plain gradient, and an eigendecomposition of a matrix (n, n) for a layer of n inputs.
    """
    objective, batch = objective.to(torch.float64), batch.to(torch.float64)
    chain = read_chain(objective, domain)
    output = chain.trunk(batch.inputs)[0].detach()

    def loss(made: Tensor) -> Tensor:
        return objective.loss_of_outputs(chain.tail(made[None]), batch.targets)

    delta: Tensor = torch.func.grad(loss)(output)
    if not bool(delta.any()):
        return Peeled(stopped="the gradient at the output of the last layer is zero")
    made = chain.gradient(batch.inputs, delta)
    shared = Shared(
        gradients={name: made[name] for name in objective.params if name in made},
        stds={},
        eps=torch.finfo(torch.float64).eps,
    )
    pixels = domain.to_pixels(batch.inputs)[0]
    return looked_at(chain.from_pixels(domain), shared, delta, pixels, max_unknowns=max_unknowns)

"""A model, rows and releases for clients of any framework: one digit leaks, sixty-four or noise do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gradleak.auditing import Gate
from gradleak.core import Batch, Objective, Release
from gradleak.datasets import scikit_digits
from gradleak.defenses import DPSGD
from gradleak.protocols import FedAvg

LEARNING_RATE = 0.1
PLAIN = Release(FedAvg(learning_rate=LEARNING_RATE))
PRIVATE = Release(PLAIN.protocol, [DPSGD(clip_norm=1.0, noise_std=1.0, noise="sum", expected_batch_size=4)])
# Digits and release of each client: one that leaks, an honest one, and one with DP-SGD.
CLIENTS = [(1, PLAIN), (64, PLAIN), (4, PRIVATE)]


def network() -> nn.Sequential:
    """A small sigmoid network for 8×8 digits."""
    generator = torch.Generator().manual_seed(4)
    made = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, 10))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return made


def rows(count: int) -> Batch:
    """The digits of a client."""
    digits = scikit_digits(count=count, seed=3)
    return Batch(digits.inputs, digits.targets, digits.domain)


def gate(on_leak: str, release: Release = PLAIN, log: str | None = None) -> Gate:
    """The gate of such a client, which takes one step of local training."""
    return Gate(
        model=network(),
        release=release,
        on_leak=on_leak,
        budget="60s",
        log=log,
    )


def nothing_found(decision: Mapping[str, Any]) -> bool:
    """True if a gate held nothing against an update; a loaded machine leaves its attacks no time."""
    return decision["leaks"] is False or decision["reason"] == "left_out_by_budget"


def trained(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """The numbers of the model after one step on all rows."""
    parameters = [one for one in model.parameters() if one.requires_grad]
    loss = nn.functional.cross_entropy(model(batch.inputs), batch.targets)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter -= LEARNING_RATE * gradient
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def trained_by(release: Release, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """The weights after the step of a release, whose noise is the same at every call."""
    if not release.defenses:
        return trained(model, batch)
    update = release(Objective.from_module(model), batch, generator=torch.Generator().manual_seed(6)).tensors
    return {name: tensor.detach() - update[name] for name, tensor in model.state_dict().items()}


def trained_by_opacus(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """The weights after one step of Opacus, by the mechanism of `PRIVATE`, with the same noise at every call."""
    import opacus

    private, optimizer, _ = opacus.PrivacyEngine().make_private(
        module=model.train(),
        optimizer=torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
        data_loader=torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(batch.inputs, batch.targets), batch_size=batch.size
        ),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
        noise_generator=torch.Generator().manual_seed(6),
    )
    optimizer.zero_grad()
    nn.functional.cross_entropy(private(batch.inputs), batch.targets).backward()
    optimizer.step()
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def with_adapters() -> nn.Module:
    """The network with LoRA on both layers; adapters alone are trained."""
    import peft

    made = peft.get_peft_model(network(), peft.LoraConfig(r=2, target_modules=["1", "3"]))
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return made


def adapters_of(model: nn.Module) -> dict[str, Tensor]:
    """The numbers of the adapters by the names under which peft saves them."""
    import peft

    return {name: tensor.detach().clone() for name, tensor in peft.get_peft_model_state_dict(model).items()}


def rows_of_1() -> Batch:
    """The digit of the site that should not share its update."""
    return rows(1)


def rows_of_2() -> Batch:
    """The digits of the honest site, and of the one with adapters."""
    return rows(64)


def rows_of_3() -> Batch:
    """The digits of the site with DP-SGD."""
    return rows(4)

"""Small populations for games: numbers whose mean tells a little of the sensitive variable."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import gradleak as gl
from gradleak.attacks.inference import MaxPooling, RandomForest
from gradleak.data import Population
from gradleak.models import mlp

FEATURES = 6


def population(
    *, rows: int = 900, values: int = 2, shift: float = 0.5, users: int | None = None, seed: int = 0
) -> Population:
    """Rows whose features are moved by the sensitive variable (of which larger values are likelier), or by their user."""
    generator = torch.Generator().manual_seed(seed)
    law = torch.arange(1, values + 1).double()
    sensitive = torch.multinomial(law, rows, replacement=True, generator=generator)
    inputs = torch.randn(rows, FEATURES, generator=generator) + shift * sensitive[:, None]
    owners = None
    if users is not None:
        owners = torch.randint(users, (rows,), generator=generator)
        inputs = (
            torch.randn(rows, FEATURES, generator=generator) + torch.randn(users, FEATURES, generator=generator)[owners]
        )
    targets = (inputs.sum(dim=1) + torch.randn(rows, generator=generator) > 0).long()
    return Population(
        name="small",
        inputs=inputs,
        targets=targets,
        sensitive=sensitive,
        values=[f"value {value}" for value in range(values)],
        users=owners,
        side=inputs[:, :2],
    )


def perceptron(generator: torch.Generator) -> nn.Module:
    return mlp(features=FEATURES, hidden=(8,), classes=2, generator=generator)


def settings(**changes: Any) -> dict[str, Any]:
    """Of a game that takes about a second."""
    given: dict[str, Any] = {
        "model": perceptron,
        "batch_size": 8,
        "rounds": 2,
        "private_rows": 300,
        "public_rows": 200,
        "test_rows": 200,
        "trials": 300,
        "shadow_batches": 300,
        "features": MaxPooling(kernel=1),
        "adversary": RandomForest(trees=20),
    }
    return given | changes


def release(*defenses: Any) -> gl.Release:
    return gl.Release(gl.FedSGD(), list(defenses))

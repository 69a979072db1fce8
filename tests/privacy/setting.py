"""A small table and models for audits, and what a plain drawing of Gaussian pairs gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradleak.core import Batch, Objective, Release
from gradleak.data import Column, ColumnKind, Table
from gradleak.defenses import DPSGD
from gradleak.models import mlp
from gradleak.privacy import Canary, RecordAttribute
from gradleak.privacy.lower_bounds import TrialScores
from gradleak.protocols import FedSGD

COLUMNS = (
    Column(name="age", high=90.0),
    Column(name="color", kind=ColumnKind.CATEGORY, values=("blue", "green", "red")),
    Column(name="sex", kind=ColumnKind.CATEGORY, values=("f", "m")),
    Column(name="hours", high=99.0),
    Column(name="paid", kind=ColumnKind.LABEL, values=("no", "yes")),
)
# age, color (3), sex (2), hours
FEATURES = 7
SEX = RecordAttribute(name="sex", values=("f", "m"), places=(4, 5), codes=torch.eye(2))
COLOR = RecordAttribute(name="color", values=("blue", "green", "red"), places=(1, 2, 3), codes=torch.eye(3))


def table(rows: int = 400, seed: int = 0) -> Table:
    draws = np.random.default_rng(seed)
    return Table.from_rows(
        [
            (
                int(draws.integers(18, 90)),
                ("blue", "green", "red")[int(draws.integers(3))],
                "fm"[int(draws.integers(2))],
                int(draws.integers(1, 99)),
                ("no", "yes")[int(draws.integers(2))],
            )
            for _ in range(rows)
        ],
        columns=COLUMNS,
        name="people",
    )


def perceptron(generator: torch.Generator) -> nn.Module:
    return mlp(features=FEATURES, hidden=(6,), classes=2, generator=generator)


def objective(seed: int = 0) -> Objective:
    return Objective.from_module(perceptron(torch.Generator().manual_seed(seed)).double())


def record(sex: int = 0, target: int = 1) -> Batch:
    """One person of 45 years who is green."""
    inputs = torch.tensor([[0.5, 0.0, 1.0, 0.0, 1.0 - sex, float(sex), 0.4]], dtype=torch.float64)
    return Batch(inputs, torch.tensor([target]))


def dp_sgd(clip: float = 0.5, std: float = 0.1, noise: str = "per_example") -> Release:
    return Release(FedSGD(), [DPSGD(clip_norm=clip, noise_std=std, noise=noise)])


def small(**changes: Any) -> dict[str, Any]:
    """Settings of an attribute audit of a second."""
    given: dict[str, Any] = {
        "target": "paid",
        "attribute": "sex",
        "model": perceptron,
        "release": dp_sgd(),
        "canary": Canary(iterations=15, starts=4),
        "epochs": (0, 1),
        "private_rows": 64,
        "public_rows": 64,
        "trials": 1500,
    }
    return given | changes


def plain(null: Tensor, alternatives: Tensor, stds: Sequence[Tensor], count: int, seed: int) -> dict[str, TrialScores]:
    """Whole vectors drawn by torch, and densities of torch.distributions: no reduction of any kind."""
    draws = torch.Generator().manual_seed(seed)
    laws = [
        torch.distributions.Normal(null, stds[0]),
        *(torch.distributions.Normal(mean, stds[1]) for mean in alternatives),
    ]

    def scores(drawn: Tensor) -> tuple[Tensor, Tensor]:
        logs = torch.stack([law.log_prob(drawn).sum(dim=1) for law in laws])
        mixed = logs[1:].logsumexp(dim=0) - float(np.log(len(alternatives)))
        return (drawn - null).norm(dim=1), mixed - logs[0]

    chosen = torch.randint(len(alternatives), (count,), generator=draws)
    first, second = torch.randn(2, count, len(null), generator=draws, dtype=torch.float64)
    below, above = scores(null + stds[0] * first), scores(alternatives[chosen] + stds[1] * second)
    return {
        name: TrialScores(null=below[place].numpy(), alternative=above[place].numpy(), name=name)
        for place, name in enumerate(("distance", "likelihood_ratio"))
    }

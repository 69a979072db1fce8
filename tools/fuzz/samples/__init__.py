"""A plan with one small section of every kind of audit, whose record the fuzzer damages; some seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gradleak.auditing import build_plan, run_plan
from gradleak.core import Batch, Domain
from gradleak.data import Population
from gradleak.models import mlp
from gradleak.results import Record

_HERE = "tools.fuzz.samples:"
_PLAN: dict[str, Any] = {
    "name": "sample",
    "seed": 3,
    "pictures": True,
    "model": {"use": _HERE + "model"},
    "data": {"use": _HERE + "examples"},
    "attacks": {
        "newton": {"use": "GaussNewton", "max_steps": 5},
        "ig": {"use": "InvertingGradients", "iterations": 3, "restarts": 1},
    },
    "measures": {
        "influence": {"use": "InversionInfluence", "unit": "pixel_rmse"},
        "spectrum": {"use": "Vulnerability"},
        "norm": {"use": "GradientNorm"},
    },
    "utility": {
        "data": {"use": _HERE + "rows"},
        "test_rows": 20,
        "rounds": 2,
        "batch_size": 10,
        "learning_rate": 0.1,
        "seeds": 1,
    },
    "inference": {
        "group": {
            "use": "PropertyGame",
            "population": {"use": _HERE + "people"},
            "batch_size": 4,
            "rounds": 2,
            "learning_rate": 0.1,
            "private_rows": 100,
            "public_rows": 100,
            "trials": 40,
            "shadow_batches": 40,
            "adversary": {"use": "RandomForest", "trees": 5},
        }
    },
    "privacy": {
        "member": {
            "use": "MembershipAudit",
            "population": {"use": _HERE + "people"},
            "members": 4,
            "epochs": [0],
            "private_rows": 50,
            "public_rows": 50,
            "trials": 200,
            "delta": 1e-3,
        }
    },
    "layers": {
        "where": {
            "data": {"use": _HERE + "people"},
            "count": 40,
            "releases": 2,
            "measures": [{"use": "Sensitivity"}, {"use": "SubspaceDistance", "dimension": 2}],
        }
    },
    "scenarios": [
        {"name": "undefended", "attacks": {"newton": "all", "ig": [0]}},
        {
            "name": "noisy",
            "examples": [0],
            "defenses": [{"use": "DPSGD", "clip_norm": 1.0, "noise_std": 0.1, "noise": "sum"}],
            "attacks": {"newton": [0]},
        },
    ],
}


def model(*, generator: torch.Generator) -> torch.nn.Module:
    """A network of a few weights, for images and rows of sixteen numbers."""
    return torch.nn.Sequential(torch.nn.Flatten(), mlp(features=16, hidden=(6,), classes=2, generator=generator))


def examples(*, generator: torch.Generator) -> Batch:
    """Two tiny images."""
    inputs = torch.rand(2, 1, 4, 4, generator=generator)
    return Batch(inputs, torch.tensor([0, 1]), Domain.image(channels=1, height=4, width=4))


def rows(*, generator: torch.Generator) -> Batch:
    """Rows that a model can learn something from."""
    inputs = torch.randn(60, 16, generator=generator)
    return Batch(inputs, (inputs[:, 0] > 0).long())


def people(*, generator: torch.Generator) -> Population:
    """Rows of two groups."""
    group = torch.arange(400) % 2
    inputs = torch.randn(400, 16, generator=generator)
    inputs[:, 0] += 2.0 * group
    return Population(
        name="people",
        inputs=inputs,
        targets=(inputs[:, 1] > 0).long(),
        sensitive=group,
        values=("a", "b"),
        holds_sensitive=False,
    )


def sample(folder: Path, without: Sequence[str] = ()) -> Record:
    """The record of the plan.

    Args:
        folder: where it is run.
        without: sections that are left out.
    """
    plan = {key: section for key, section in _PLAN.items() if key not in without}
    return run_plan(build_plan(plan, folder=Path()), folder, jobs=1)

"""Peeling behind every defense and local steps: refused, or nothing called *converged* that noise alone does not explain."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gradleak.attacks import Peel
from gradleak.core import Defense
from gradleak.defenses import AdversarialPerturbation, LayerNoise, VariationalBottleneck
from gradleak.protocols import FedAvg
from gradleak.results import Outcome, UnsupportedError
from tests.attacks.setting import rows, setting, small_net
from tests.contracts.test_defenses import ALL

# The others are made for rows of another width, for models with a part of their own, and for layers of other names.
DEFENSES = [
    defense for defense in ALL if not isinstance(defense, AdversarialPerturbation | VariationalBottleneck | LayerNoise)
]
DEFENSES += [LayerNoise(std={"0": 0.1}), LayerNoise(std={"4": 1e-3}, default=1e-3)]


@pytest.mark.parametrize("sizes", [(1,), (1, 2)], ids=["one", "two"])
@pytest.mark.parametrize("defense", DEFENSES, ids=repr)
def test_no_defense_makes_a_wrong_claim_of_convergence(defense: Defense, sizes: tuple[int, ...]) -> None:
    try:
        case = setting(small_net(activation="relu"), rows(*sizes), defenses=[defense])
        found = Peel()(case.update, case.knowledge, generator=torch.Generator().manual_seed(1))
    except UnsupportedError:
        return
    if found.outcome is Outcome.CONVERGED:
        assert found.inputs is not None
        truth = case.truth.inputs
        assert min(float((claim - truth).abs().max()) for claim in (found.inputs, found.inputs.flip(0))) < 0.1


@pytest.mark.parametrize(
    "settings", [{}, {"epochs": 3}, {"epochs": 2, "momentum": 0.9}], ids=["one", "three", "momentum"]
)
def test_local_steps_are_refused(settings: dict[str, Any]) -> None:
    case = setting(small_net(activation="relu"), rows(1), protocol=FedAvg(learning_rate=0.1, **settings))
    with pytest.raises(UnsupportedError, match="needs the gradient itself"):
        Peel()(case.update, case.knowledge, generator=torch.Generator().manual_seed(1))

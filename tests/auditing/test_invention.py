"""What the update says of a generator's picture stands in the line of the attack."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

from gradleak.attacks import DGL, GIAS, Blind, Inversion, Latents
from gradleak.auditing.invention import claim_support
from gradleak.core import (
    Batch,
    Domain,
    HonestButCurious,
    ImageGenerator,
    Knowledge,
    Objective,
    Reconstruction,
    Release,
    Update,
)
from gradleak.models import mlp
from gradleak.protocols import FedSGD
from gradleak.results import Outcome

DOMAIN = Domain.image(channels=1, height=4, width=4)


class _Flat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = mlp(
            features=16, hidden=(24, 12), classes=3, activation="tanh", generator=torch.Generator().manual_seed(1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.model(x.flatten(1))
        return out


class _Gray(nn.Module):
    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        return 0.5 + 0.01 * latents.reshape(-1, 1, 4, 4).tanh()


@pytest.fixture(scope="module")
def case() -> tuple[Batch, Update, Knowledge]:
    objective, release = Objective.from_module(_Flat()), Release(FedSGD())
    truth = Batch(torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([2]), DOMAIN)
    update = release(objective, truth, torch.Generator())
    images = ImageGenerator(module=_Gray(), latent_shape=(16,), domain=DOMAIN, source="gray")
    return truth, update, HonestButCurious(targets=True, generator=images).disclose(objective, release, truth)


def _claim(inputs: torch.Tensor | None) -> Reconstruction:
    return Reconstruction(inputs=inputs, targets=torch.tensor([2]), loss=0.1, outcome=Outcome.BUDGET_SPENT)


def test_a_generator_s_claim_comes_with_what_the_update_says_of_it(case: tuple[Batch, Update, Knowledge]) -> None:
    truth, update, known = case
    away = torch.where(truth.inputs > 0.5, -0.25, 0.25)
    sentence, facts = claim_support(GIAS(), _claim(truth.inputs + away), update, known)
    assert sentence.startswith("contradicted: ")
    assert facts["moved_pixel_rmse"] == pytest.approx([0.25], rel=0.1)
    assert json.loads(json.dumps(facts)) == facts
    sentence, facts = claim_support(Inversion(variables=Latents()), _claim(truth.inputs), update, known)
    assert sentence == "supported: the claim explains the update to within round-off"


def test_attacks_without_a_generator_are_left_alone(case: tuple[Batch, Update, Knowledge]) -> None:
    truth, update, known = case
    for attack in (DGL(), Blind(), Inversion()):
        assert claim_support(attack, _claim(truth.inputs), update, known) == ("", {})
    assert claim_support(GIAS(), _claim(None), update, known) == ("", {})
    del truth


def test_a_refusal_is_said(case: tuple[Batch, Update, Knowledge], monkeypatch: pytest.MonkeyPatch) -> None:
    from gradleak.attacks import InventionCheck
    from gradleak.results import UnsupportedError

    def refuse(*_: Any, **__: Any) -> None:
        raise UnsupportedError("signs before noise")

    monkeypatch.setattr(InventionCheck, "__call__", refuse)
    truth, update, known = case
    sentence, facts = claim_support(GIAS(), _claim(truth.inputs), update, known)
    assert sentence == "whether the update bears the claim out could not be asked: signs before noise"
    assert facts == {}

from __future__ import annotations

import json
from dataclasses import fields

import pytest
import torch
from torch import nn

from gradleak.core import Batch, Domain, ImageGenerator, Knowledge, LayerStatistics, Objective, Release
from gradleak.defenses import Clip, GaussianNoise
from gradleak.protocols import FedSGD
from gradleak.results import InputError, KnowledgeError

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch, on its first compile

SECRET = 0.73519264


def full() -> Knowledge:
    model = torch.compile(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
    model._orig_mod[0].bias.requires_grad_(False)
    return Knowledge(
        objective=Objective.from_module(model),
        protocol=FedSGD(),
        defenses=(Clip(1.0), GaussianNoise(std=0.5)),
        batch_size=2,
        targets=torch.tensor([SECRET, SECRET]),
        domain=Domain(shape=(4,)),
        public=Batch(torch.full((3, 4), SECRET), torch.tensor([SECRET] * 3)),
        statistics={"1": LayerStatistics(mean=torch.full((3,), SECRET), variance=torch.full((3,), SECRET))},
        assumed=("protocol",),
        lengths=torch.tensor([4, 3]),
        masks=0,
        generator=ImageGenerator(
            module=nn.Sequential(nn.Linear(2, 4), nn.Sigmoid()),
            latent_shape=(2,),
            domain=Domain(shape=(4,)),
            source="toy",
        ),
    )


def test_every_gap_is_named_before_anything_is_computed() -> None:
    with pytest.raises(
        KnowledgeError, match=r"DLG needs objective, batch_size, which the threat model does not disclose"
    ):
        Knowledge(domain=Domain(shape=(4,))).require(("objective", "domain", "batch_size"), asker="DLG")
    full().require([entry.name for entry in fields(Knowledge)], asker="DLG")


def test_the_release_is_what_the_adversary_believes() -> None:
    assert full().release == Release(FedSGD(), (Clip(1.0), GaussianNoise(std=0.5)))
    assert Knowledge(protocol=FedSGD()).release == Release(FedSGD())
    with pytest.raises(KnowledgeError, match="the release map needs protocol"):
        _ = Knowledge().release


def test_impossible_facts_are_refused() -> None:
    with pytest.raises(InputError, match="expected a whole number of at least 1, got 0"):
        Knowledge(batch_size=0)
    with pytest.raises(InputError, match=r"expected 3 rows \(the batch size\), got 2"):
        Knowledge(batch_size=3, targets=torch.tensor([0, 1]))
    with pytest.raises(InputError, match="assumed: expected names of facts that are given, got protocol, batch"):
        Knowledge(assumed=("protocol", "batch"))


def test_the_card_is_json_without_values_of_data() -> None:
    card = full().card()
    text = json.dumps(card, allow_nan=False)
    assert "7351" not in text
    assert card["targets"] == "float32[2]"
    assert card["public"]["inputs"] == "float32[3, 4]"
    assert card["batch_size"] == 2
    assert card["defenses"] == [{"use": "Clip", "max_norm": 1.0}, {"use": "GaussianNoise", "std": 0.5}]
    assert card["objective"]["shared"] == {"0.weight": [3, 4], "1.weight": [3], "1.bias": [3]}
    assert card["objective"]["frozen"] == ["0.bias"]
    assert card["objective"]["renamed"]["0.weight"] == "_orig_mod.0.weight"
    assert card["objective"]["shared_entries"] == 18
    assert card["assumed"] == ["protocol"]
    assert (card["generator"]["source"], card["generator"]["weights"]) == ("toy", 12)
    assert set(card) == {entry.name for entry in fields(Knowledge)}
    assert set(Knowledge().card().values()) == {None}


def test_the_printed_form_holds_no_data() -> None:
    assert "7351" not in repr(full())

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from gradleak.core import Batch, Domain, HonestButCurious, Objective, Release
from gradleak.defenses import Clip
from gradleak.protocols import FedAvg, FedSGD
from gradleak.results import InputError

DOMAIN = Domain(shape=(4,))
BATCH = Batch(torch.rand(3, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2]), DOMAIN)
RELEASE = Release(FedSGD(), [Clip(1.0)])


def objective() -> Objective:
    return Objective.from_module(nn.Linear(4, 3))


def test_by_default_labels_stay_private() -> None:
    known = objective()
    knowledge = HonestButCurious().disclose(known, RELEASE, BATCH)
    assert knowledge.objective is known
    assert knowledge.protocol is RELEASE.protocol
    assert knowledge.defenses == RELEASE.defenses
    assert knowledge.batch_size == 3
    assert knowledge.domain == DOMAIN
    assert knowledge.targets is None
    assert knowledge.public is None


@pytest.mark.parametrize("fact", ["batch_size", "domain", "defenses"])
def test_each_fact_can_be_withheld(fact: str) -> None:
    knowledge = HonestButCurious(**{fact: False}).disclose(objective(), RELEASE, BATCH)
    assert getattr(knowledge, fact) is None


def test_disclosed_targets_are_a_copy() -> None:
    batch = Batch(BATCH.inputs, BATCH.targets.clone())
    knowledge = HonestButCurious(targets=True).disclose(objective(), RELEASE, batch)
    assert knowledge.targets is not None
    batch.targets.zero_()
    assert knowledge.targets.tolist() == [0, 1, 2]


def test_a_guessed_domain_holds_no_value_of_the_batch() -> None:
    inputs = torch.tensor([[-1.2345, 0.3, 2.3456, 0.1]])
    with pytest.warns(
        UserWarning, match=r"no domain was stated; guessed tabular data in \[-2, 3\] from the private batch"
    ):
        knowledge = HonestButCurious().disclose(objective(), RELEASE, Batch(inputs, torch.tensor([0])))
    domain = knowledge.domain
    assert domain is not None
    assert (domain.low, domain.high) == (-2.0, 3.0)
    assert domain.guessed
    assert knowledge.card()["domain"]["guessed"] is True


def test_a_domain_that_is_stated_or_withheld_is_no_guess() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stated = HonestButCurious().disclose(objective(), RELEASE, BATCH)
        bare = Batch(BATCH.inputs, BATCH.targets)
        assert HonestButCurious(domain=False).disclose(objective(), RELEASE, bare).domain is None
    assert not stated.domain.guessed
    assert "guessed" not in stated.card()["domain"]


def test_public_data_must_not_hold_private_examples() -> None:
    public = Batch(torch.cat([torch.rand(5, 4) + 1, BATCH.inputs[1:]]).double(), torch.zeros(7), DOMAIN)
    with pytest.raises(InputError, match="got 2 of the 3 private examples among them; take them out"):
        HonestButCurious(public=public).disclose(objective(), RELEASE, BATCH)
    clean = Batch(torch.rand(5, 4) + 1, torch.zeros(5), DOMAIN)
    assert HonestButCurious(public=clean).disclose(objective(), RELEASE, BATCH).public is clean
    other = Batch(torch.rand(5, 7), torch.zeros(5))
    assert HonestButCurious(public=other).disclose(objective(), RELEASE, BATCH).public is other


def test_an_assumed_protocol_takes_the_place_of_the_true_one_and_is_marked() -> None:
    assumed = FedAvg(learning_rate=0.1)
    knowledge = HonestButCurious(protocol=assumed).disclose(objective(), RELEASE, BATCH)
    assert knowledge.protocol == assumed
    assert knowledge.assumed == ("protocol",)
    assert knowledge.card()["assumed"] == ["protocol"]
    assert knowledge.release == Release(assumed, RELEASE.defenses)
    assert HonestButCurious().disclose(objective(), RELEASE, BATCH).assumed is None
    # An assumption that happens to be right is one all the same.
    assert HonestButCurious(protocol=FedSGD()).disclose(objective(), RELEASE, BATCH).assumed == ("protocol",)

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

from gradleak.core import Batch, Domain, HonestButCurious, Objective, Release
from gradleak.core.private_data import PrivateData
from gradleak.datasets import scikit_digits
from gradleak.defenses import Clip, GaussianNoise
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
    with pytest.warns(UserWarning, match=r"no domain was stated; guessed tabular data, .* from the private batch"):
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


class Rare(nn.Module):
    """Draws, and hardly ever lets it show."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        return out + 1 if bool(torch.rand(()) < 1e-6) else out


def _noisy_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(outputs + torch.randn_like(outputs), targets)


DRAWING = {
    "dropout": lambda: Objective.from_module(
        nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3)), mode="train", mask_seed=5
    ),
    "code of its own": lambda: Objective.from_module(Rare(), mask_seed=5),
    "loss": lambda: Objective.from_module(nn.Linear(4, 3), loss=_noisy_loss, mask_seed=5),
}


@pytest.mark.parametrize("name", DRAWING)
def test_the_clients_draw_is_disclosed_only_as_a_truth_that_is_printed(name: str) -> None:
    known, release = DRAWING[name](), Release(FedSGD())
    before = torch.get_rng_state()
    by_default = HonestButCurious().disclose(known, release, BATCH)
    assert torch.equal(before, torch.get_rng_state())
    assert by_default.objective is not None
    assert by_default.objective.mask_seed != 5
    assert by_default.masks is None
    assert by_default.card()["masks"] is None
    # All targets of one model share one objective, so that they can run in lockstep.
    assert HonestButCurious(targets=True).disclose(known, release, BATCH).objective is by_default.objective
    opened = HonestButCurious(masks=True).disclose(known, release, BATCH)
    assert opened.objective is known
    assert opened.masks == opened.card()["masks"] == 5
    with pytest.raises(InputError, match=f"mask_seed=5, got {by_default.objective.mask_seed}"):
        replace(opened, objective=by_default.objective)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_a_model_that_draws_nothing_is_disclosed_as_it_is(mode: str) -> None:
    model = nn.Sequential(nn.Dropout(0.0), nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    model += nn.Sequential(nn.Dropout(0.5)) if mode == "eval" else nn.Sequential()
    known = Objective.from_module(model, mode=mode)
    knowledge = HonestButCurious(masks=True).disclose(known, RELEASE, BATCH)
    assert knowledge.objective is known
    assert knowledge.masks is None


def test_the_objective_holds_nothing_that_the_batch_left_in_the_model() -> None:
    """Running statistics and counters, moved by a release in train mode, would tell moments of the batch."""
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3))
    known = Objective.from_module(model, mode="train")
    before = {name: buffer.clone() for name, buffer in known.buffers.items()}
    release = Release(FedAvg(learning_rate=0.1, epochs=2))
    update = release(known, BATCH, torch.Generator().manual_seed(0))
    seen = HonestButCurious().disclose(known, release, BATCH).objective
    assert seen is not None
    assert int(before["1.num_batches_tracked"]) == 0
    for name, buffer in before.items():
        assert torch.equal(seen.buffers[name], buffer)
        assert torch.equal(model.get_buffer(name), buffer)
    assert set(update.tensors) == set(known.params)


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


@pytest.mark.parametrize("rescaled", [False, True])
def test_public_digits_may_share_corners_with_a_private_one_and_be_no_copy_of_it(rescaled: bool) -> None:
    digits = scikit_digits(count=302)
    private = Batch(digits.inputs[:2].clone(), digits.targets[:2], digits.domain)
    model = Objective.from_module(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    release = Release(FedSGD())
    public = Batch(digits.inputs[2:].clone(), digits.targets[2:], digits.domain)
    # Runs of eight pixels stand in both by chance.
    assert PrivateData([private]).among(public.inputs) == "inputs"
    assert HonestButCurious(public=public).disclose(model, release, private).public is public
    copied = private.inputs[:1] * 0.5 + 0.25 if rescaled else digits.inputs[:1].flip(3)
    with_it = Batch(torch.cat([public.inputs, copied]), torch.zeros(301, dtype=torch.long), digits.domain)
    with pytest.raises(InputError, match=r"public.inputs: expected nothing of the private data"):
        HonestButCurious(public=with_it).disclose(model, release, private)


def test_who_holds_the_update_alone_states_what_it_knows() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 2))
    objective = Objective.from_module(model, mode="train", mask_seed=9)
    release = Release(FedSGD(), [GaussianNoise(std=0.1)])
    domain = Domain(shape=(4,), low=0.0, high=1.0, kind="tabular")
    known = HonestButCurious().stated(objective, release, batch_size=2, domain=domain)
    assert (known.batch_size, known.domain, known.targets, known.masks) == (2, domain, None, None)
    assert known.defenses == tuple(release.defenses)
    assert known.objective is not None
    assert known.objective.mask_seed != 9
    blind = HonestButCurious(defenses=False, batch_size=False).stated(objective, release, batch_size=2)
    assert (blind.defenses, blind.batch_size, blind.domain) == (None, None, None)
    with pytest.raises(InputError, match="which only whoever holds the batch has"):
        HonestButCurious(statistics=True).stated(objective, release)

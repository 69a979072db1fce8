"""The attack walk: what can be reached from what an attack receives, in clean set-ups and in ones with planted data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from gradleak.attacks import Attack, InvertingGradients, LabelAttack, LabelRecovery
from gradleak.core import Exposure, Knowledge, Reconstruction, Update
from gradleak.results import InputError, Outcome
from tests.attacks.reachable import Canaries, holding, memory, reachable, spelled
from tests.attacks.walk_settings import CLEAN, PLANTED

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(torch.ao.quantization|spectral_norm|weight_norm|lazily|quantize).*",
    "ignore:enable_nested_tensor",
    "ignore:TypedStorage",
)


@dataclass(frozen=True)
class Spy(Attack):
    """Keeps all that it receives, and sets every tensor of it to zero."""

    name = "spy"
    needs = ()
    summary = "Keeps all that it receives."
    received: ClassVar[list[Any]] = []

    def estimate(self, knowledge: Knowledge) -> float:
        return 1.0

    def _recover(self, update: Update, knowledge: Knowledge, generator: Any, monitor: Any) -> Reconstruction:
        self.received.append((update, knowledge, generator, monitor))
        return Reconstruction(inputs=None, targets=None, loss=None, outcome=Outcome.BUDGET_SPENT)


@dataclass(frozen=True)
class Vandal(Spy):
    """Sets every tensor that it can reach to zero."""

    name = "vandal"

    def _recover(self, update: Update, knowledge: Knowledge, generator: Any, monitor: Any) -> Reconstruction:
        for value in reachable(update, knowledge):
            if isinstance(value, Tensor) and value.layout == torch.strided and not value.is_quantized:
                value.data.zero_()
        return super()._recover(update, knowledge, generator, monitor)


@pytest.fixture(autouse=True)
def nothing_received() -> Iterator[None]:
    Spy.received.clear()
    yield
    Spy.received.clear()


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_set_up_is_silent_and_nothing_private_can_be_reached(name: str) -> None:
    case = CLEAN[name]()
    objective = case.objective()
    update = case.release(objective, case.batch, generator())
    knowledge = case.threat.disclose(objective, case.release, case.batch)
    Spy()(update, knowledge, generator=generator())
    canaries = Canaries(case.batch)
    ((seen, facts, *rest),) = Spy.received
    # Statistics are disclosed, and an update is what the attack is about.
    facts = replace(facts, statistics=None)
    found = holding(canaries, facts, seen.provenance, *rest)
    assert not found, spelled(found)
    own = memory(objective, case.release, case.threat, case.batch, update, case.model, graphs=True)
    assert own.isdisjoint(memory(*Spy.received))
    if case.left:
        # The second walk sees the data in what the auditor holds.
        assert holding(canaries, objective, case.release, graphs=True)
        assert case.left == "defense" or any(case.left in note for note in facts.objective.notes)
    assert facts.objective.gradient(facts.objective.params, case.batch).keys() == objective.params.keys()


@pytest.mark.parametrize("name", CLEAN)
def test_the_gradient_of_the_copy_is_the_client_s_bit_for_bit(name: str) -> None:
    case = CLEAN[name]()
    objective = case.objective()
    Spy()(
        case.release(objective, case.batch, generator()),
        case.threat.disclose(objective, case.release, case.batch),
        generator=generator(),
    )
    ((_, facts, *_),) = Spy.received
    copied = (
        facts.objective
        if facts.objective.mask_seed == objective.mask_seed
        else replace(facts.objective, mask_seed=objective.mask_seed)
    )
    here, there = (one.gradient(one.params, case.batch) for one in (objective, copied))
    assert all(torch.equal(here[key], there[key]) for key in objective.params)


@pytest.mark.parametrize("name", PLANTED)
def test_planted_data_are_found_by_name(name: str) -> None:
    case = PLANTED[name]()
    objective = case.objective()
    case.release(objective, case.batch, generator())
    assert case.place
    with pytest.raises(InputError, match="expected nothing of the private data in what attacks receive") as refusal:
        case.threat.disclose(objective, case.release, case.batch)
    assert case.place in str(refusal.value).split(": expected")[0]
    assert holding(
        Canaries(case.batch), objective, case.model, case.release, case.threat, case.batch.domain, graphs=True
    )


def test_there_are_enough_set_ups() -> None:
    assert len(CLEAN) + len(PLANTED) >= 80


def test_an_attack_that_sets_everything_to_zero_changes_no_other() -> None:
    """Model, batch, update, knowledge, public data and generator stay, and a later attack has the same bits."""
    setups = [CLEAN[name]() for name in ("generator", "public data", "loss with a closure", "tied weights and buffers")]
    for case in setups:
        objective = case.objective()
        update = case.release(objective, case.batch, generator())
        knowledge = case.threat.disclose(objective, case.release, case.batch)
        attack = InvertingGradients(iterations=2, restarts=1)
        before = attack(update, knowledge, generator=generator())
        held = [
            value.clone() for value in reachable(objective, case.model, update, knowledge) if isinstance(value, Tensor)
        ]
        Vandal()(update, knowledge, generator=generator())
        ((_, facts, *_),) = Spy.received
        assert not any(bool(tensor.any()) for tensor in facts.objective.params.values())
        now = [value for value in reachable(objective, case.model, update, knowledge) if isinstance(value, Tensor)]
        assert all(torch.equal(one, two) for one, two in zip(held, now, strict=True))
        after = attack(update, knowledge, generator=generator())
        assert torch.equal(before.inputs, after.inputs)
        assert list(before.history) == list(after.history)
        Spy.received.clear()


def test_label_attacks_get_copies_too() -> None:
    class Zeroing(LabelAttack):
        name = "zeroing"
        summary = "Sets the model to zero."

        def _recover(self, update: Update, knowledge: Knowledge, generator: Any) -> LabelRecovery:
            for tensor in (*knowledge.objective.params.values(), *update.tensors.values()):
                tensor.zero_()
            return LabelRecovery(targets=None, confidence=0.0, outcome=Outcome.NOT_IDENTIFIABLE, note="")

    case = CLEAN["tanh"]()
    objective = case.objective()
    update = case.release(objective, case.batch, generator())
    Zeroing()(update, case.threat.disclose(objective, case.release, case.batch))
    assert all(bool(tensor.any()) for tensor in (*objective.params.values(), *update.tensors.values()))


def test_updates_and_knowledge_of_one_model_are_copies_that_share_it() -> None:
    case = CLEAN["tanh"]()
    objective = case.objective()
    update = case.release(objective, case.batch, generator())
    exposures = [Exposure(objective, case.batch, case.release) for _ in range(3)]
    known = case.threat.disclose_each(exposures)
    Spy().many([update] * 3, known, generators=[generator() for _ in known])
    first, second, third = (facts.objective for _, facts, *_ in Spy.received)
    assert first is second is third is not objective


def test_one_search_covers_the_batches_of_all_settings() -> None:
    clean, planted = CLEAN["tanh"](), PLANTED["closure of the loss"]()
    objective = planted.objective()
    other = replace(clean.batch, inputs=torch.rand(1, 3, 4, 4), targets=torch.tensor([1]))
    assert clean.threat.disclose(objective, clean.release, other).objective is objective
    with pytest.raises(InputError, match=r"closure: held.*got labels"):
        clean.threat.disclose_each([Exposure(objective, one, clean.release) for one in (other, planted.batch)])

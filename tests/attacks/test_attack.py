"""What the base class promises for every attack, shown on one that writes down what it is given."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from gradleak.attacks import DLG, Attack, GaussNewton, InvertingGradients
from gradleak.attacks.inversion.problem import LabelPolicy
from gradleak.core import (
    Batch,
    HonestButCurious,
    Knowledge,
    Objective,
    Reconstruction,
    Release,
    Update,
    UpdateKind,
)
from gradleak.protocols import FedSGD
from gradleak.results import InconsistentUpdateError, InputError, KnowledgeError, Outcome
from tests.attacks.setting import rows, setting, small_net


@dataclass(frozen=True, kw_only=True)
class Probe(Attack):
    """Answers with what it was told to answer."""

    name = "probe"
    needs = ("objective", "batch_size")
    summary = "A probe."

    answer: Any = 0.5

    def estimate(self, knowledge: Knowledge) -> float:
        return 0.0

    def _recover(self, update, knowledge, generator, progress):
        assert list(update.tensors) == list(knowledge.objective.params)
        return Reconstruction(
            inputs=torch.full((1, 12), self.answer),
            targets=None,
            loss=0.0,
            outcome=Outcome.CONVERGED,
            note=f"seed {generator.initial_seed()}",
        )


def _generators(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def _zero(update: Update, *names: str) -> Update:
    return replace(
        update,
        tensors={
            name: torch.zeros_like(tensor) if not names or name in names else tensor
            for name, tensor in update.tensors.items()
        },
    )


def test_a_zero_update_is_no_signal_and_the_others_go_on() -> None:
    case = setting(small_net(), rows(1))
    first, second, third = Probe().many(
        [case.update, _zero(case.update), case.update], case.knowledge, generators=_generators(1, 2, 3)
    )
    assert second.outcome is Outcome.NO_SIGNAL
    assert second.inputs is None
    assert second.loss is None
    assert (first.note, third.note) == ("seed 1", "seed 3")


def test_a_tensor_without_signal_is_named() -> None:
    case = setting(small_net(), rows(1))
    found = Probe()(_zero(case.update, "0.weight"), case.knowledge, generator=_generators(1)[0])
    assert found.note.endswith("zero everywhere in the update: 0.weight")


def test_a_kind_that_the_protocol_does_not_make_is_said() -> None:
    case = setting(small_net(), rows(1))
    delta = replace(case.update, kind=UpdateKind.DELTA)
    found = Probe()(delta, case.knowledge, generator=_generators(1)[0])
    assert "is a delta, but FedSGD makes a gradient" in found.note


def test_a_nan_is_refused_by_name() -> None:
    case = setting(small_net(), rows(1))
    tensors = {name: tensor.clone() for name, tensor in case.update.tensors.items()}
    tensors["2.bias"][0] = torch.nan
    with pytest.raises(InputError, match=r"2\.bias is NaN"):
        Probe()(Update(tensors=tensors), case.knowledge, generator=_generators(1)[0])


def test_an_update_of_another_model_is_refused() -> None:
    case = setting(small_net(), rows(1))
    tensors = {name: tensor for name, tensor in case.update.tensors.items() if name != "2.bias"}
    with pytest.raises(InconsistentUpdateError, match=r"2\.bias: expected"):
        Probe()(Update(tensors=tensors), case.knowledge, generator=_generators(1)[0])


def test_a_gap_in_knowledge_is_refused_before_the_update_is_read() -> None:
    case = setting(small_net(), rows(1), threat=HonestButCurious(batch_size=False))
    broken = Update(tensors={"nothing": torch.full((1,), torch.nan)})
    with pytest.raises(KnowledgeError, match="probe needs batch_size"):
        Probe()(broken, case.knowledge, generator=_generators(1)[0])


def _absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).abs().mean()


@pytest.mark.parametrize(
    "attack", [GaussNewton(), InvertingGradients(), GaussNewton(labels=LabelPolicy.OPTIMIZE), DLG()]
)
def test_labels_that_nobody_can_have_are_refused_before_anything_is_computed(attack: Attack) -> None:
    model = small_net()
    batch = Batch(rows(1).inputs, torch.rand((1, 3)), rows(1).domain)
    objective, release = Objective.from_module(model, loss=_absolute_error), Release(FedSGD())
    hidden = HonestButCurious().disclose(objective, release, batch)
    refusal = attack.refusal(hidden)
    assert refusal is not None
    assert "and the loss is '_absolute_error'" in refusal
    assert refusal.endswith("HonestButCurious(targets=True)")
    broken = Update(tensors={"nothing": torch.full((1,), torch.nan)})
    with pytest.raises(KnowledgeError, match="squared error and binary cross entropy"):
        attack(broken, hidden, generator=_generators(1)[0])
    assert attack.refusal(HonestButCurious(targets=True).disclose(objective, release, batch)) is None


def test_labels_under_a_loss_that_is_cross_entropy_by_another_name_are_not_refused() -> None:
    batch, release = rows(1), Release(FedSGD())
    weighted = torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    named = lambda outputs, targets: weighted(outputs, targets)  # noqa: E731
    for loss in (weighted, named):
        knowledge = HonestButCurious().disclose(Objective.from_module(small_net(), loss=loss), release, batch)
        assert GaussNewton().refusal(knowledge) is None
    optimizing = GaussNewton(labels=LabelPolicy.OPTIMIZE)
    assert "disclose targets" in str(optimizing.refusal(knowledge))


def test_a_claim_that_is_not_finite_is_withdrawn() -> None:
    case = setting(small_net(), rows(1))
    found = Probe(answer=float("nan"))(case.update, case.knowledge, generator=_generators(1)[0])
    assert found.outcome is Outcome.NOT_FINITE
    assert found.inputs is None
    assert found.loss is None


def test_lists_of_other_lengths_are_refused() -> None:
    case = setting(small_net(), rows(1))
    with pytest.raises(InputError, match="as many generators"):
        Probe().many([case.update], case.knowledge, generators=_generators(1, 2))


def test_the_call_cannot_be_overridden_by_mistake() -> None:
    assert getattr(Attack.__call__, "__final__", False)
    assert getattr(GaussNewton.many, "__final__", False)


def test_arguments_of_another_kind_are_refused_with_the_order() -> None:
    case = setting(small_net(), rows(1))
    with pytest.raises(InputError, match=r"expected an Update first, got Knowledge"):
        Probe()(case.knowledge, case.update, generator=torch.Generator())  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"expected Knowledge, got Batch; a threat model makes it"):
        Probe()(case.update, rows(1), generator=torch.Generator())  # type: ignore[arg-type]


def test_a_printed_claim_or_update_holds_no_numbers_of_it() -> None:
    case = setting(small_net(), rows(1))
    claim = Probe(answer=0.123456)(case.update, case.knowledge, generator=torch.Generator())
    assert "0.123456" not in repr(claim)
    assert "(1, 12)" in repr(claim)
    assert "tensor(" not in repr(case.update)
    assert f"{sum(t.numel() for t in case.update.tensors.values())} numbers" in repr(case.update)

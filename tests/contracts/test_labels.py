"""What every exported label attack promises, checked on each of them."""

from __future__ import annotations

import dataclasses
import inspect
import json
from pathlib import Path

import pytest
import torch
from tests.attacks.labels.cases import ROW, net, released

import gradleak.attacks
from gradleak.attacks import AdaptiveLabelRecovery, ConsistentLabels, LabelAttack, SignRule, ZeroShotLabels
from gradleak.core import Knowledge, Objective, Update, describe
from gradleak.protocols import FedSGD
from gradleak.results import Citation, KnowledgeError, Outcome

# The labels that each is to find.
EXAMPLES: dict[type[LabelAttack], list[int]] = {
    AdaptiveLabelRecovery: [3, 3, 3, 7],
    ConsistentLabels: [3, 3, 3, 7],
    SignRule: [4],
    ZeroShotLabels: [0, 3, 7],
}
EXPORTED = [
    kind
    for name in gradleak.attacks.__all__
    if inspect.isclass(kind := getattr(gradleak.attacks, name))
    and issubclass(kind, LabelAttack)
    and kind is not LabelAttack
]
each_attack = pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.name)


def _case(kind: type[LabelAttack]) -> tuple[Update, Knowledge]:
    return released(net(), EXAMPLES[kind])


def test_every_exported_label_attack_is_under_contract() -> None:
    assert set(EXPORTED) == set(EXAMPLES)
    assert len({kind.name for kind in EXAMPLES}) == len(EXAMPLES)


@each_attack
def test_it_says_what_it_is(kind: type[LabelAttack]) -> None:
    doc = inspect.getdoc(kind) or ""
    assert doc.splitlines()[0].endswith(".")
    for part in ("**Assumptions**", "**Cost**", "**Source**"):
        assert part in doc
    assert kind.summary.endswith(".")
    assert kind.name == kind.name.lower()
    assert kind.citations
    assert all(isinstance(citation, Citation) for citation in kind.citations)
    assert set(kind.needs) <= {field.name for field in dataclasses.fields(Knowledge)}
    assert "targets" not in kind.needs
    assert kind.__call__ is LabelAttack.__call__


@each_attack
def test_it_is_frozen_keyword_only_and_describes_itself(kind: type[LabelAttack]) -> None:
    attack = kind()
    for field in dataclasses.fields(attack):
        assert field.kw_only
        assert f"{field.name}:" in inspect.getdoc(kind)
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(attack, field.name, None)
    described = json.loads(json.dumps(describe(attack), allow_nan=False))
    assert described.pop("use") == kind.__name__
    assert kind(**described) == attack


@each_attack
def test_it_finds_the_labels_and_the_claim_is_whole(kind: type[LabelAttack]) -> None:
    labels = EXAMPLES[kind]
    found = kind()(*_case(kind), generator=torch.Generator().manual_seed(5))
    assert found.outcome is Outcome.CONVERGED
    assert found.targets.tolist() == labels
    assert found.targets.dtype == torch.long
    assert found.counts.tolist() == torch.bincount(torch.tensor(labels), minlength=10).tolist()
    assert 0.9 < found.confidence <= 1.0
    assert found.note


@each_attack
def test_the_same_generator_gives_the_same_bits_and_nothing_changes(kind: type[LabelAttack]) -> None:
    update, knowledge = _case(kind)
    before = {name: tensor.clone() for name, tensor in update.tensors.items()}
    params = {name: tensor.clone() for name, tensor in knowledge.objective.params.items()}
    rng = torch.random.get_rng_state()
    first, second = (kind()(update, knowledge, generator=torch.Generator().manual_seed(2)) for _ in range(2))
    assert (first.confidence, first.note) == (second.confidence, second.note)
    assert first.estimate is second.estimate is None or torch.equal(first.estimate, second.estimate)
    assert all(torch.equal(before[name], tensor) for name, tensor in update.tensors.items())
    assert all(torch.equal(params[name], tensor) for name, tensor in knowledge.objective.params.items())
    assert not any(tensor.requires_grad for tensor in knowledge.objective.params.values())
    assert torch.equal(rng, torch.random.get_rng_state())


@each_attack
def test_every_need_is_checked_before_anything_else(kind: type[LabelAttack]) -> None:
    update, knowledge = _case(kind)
    for need in kind.needs:
        with pytest.raises(KnowledgeError, match=f"{kind.name} needs {need}"):
            kind()(update, dataclasses.replace(knowledge, **{need: None}))


@each_attack
def test_a_zero_update_gives_no_label(kind: type[LabelAttack]) -> None:
    update, knowledge = _case(kind)
    zero = Update(tensors={name: torch.zeros_like(tensor) for name, tensor in update.tensors.items()})
    found = kind()(zero, knowledge)
    assert found.targets is None
    assert found.counts is None
    assert found.outcome in (Outcome.NO_SIGNAL, Outcome.NOT_IDENTIFIABLE)


@each_attack
def test_labels_that_the_caller_discloses_change_nothing(kind: type[LabelAttack]) -> None:
    update, knowledge = _case(kind)
    wrong = dataclasses.replace(knowledge, targets=torch.full((len(EXAMPLES[kind]),), 9))
    assert kind()(update, wrong).targets.tolist() == kind()(update, knowledge).targets.tolist()


@each_attack
def test_a_saved_update_and_what_is_public_are_enough(kind: type[LabelAttack], tmp_path: Path) -> None:
    update, knowledge = _case(kind)
    here = kind()(update, knowledge)
    file = update.save(tmp_path / "update.safetensors")
    public = Knowledge(
        objective=Objective.from_module(net()),
        protocol=FedSGD(),
        defenses=(),
        batch_size=len(EXAMPLES[kind]),
        domain=ROW,
    )
    there = kind()(Update.load(file), public)
    assert torch.equal(here.targets, there.targets)
    assert here.confidence == there.confidence

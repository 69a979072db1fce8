"""What every exported attack promises, checked on each of them."""

from __future__ import annotations

import dataclasses
import inspect

import pytest
import torch
from tests.attacks.setting import Setting, rows, setting, small_generator, small_net

import gradleak.attacks
from gradleak.attacks import (
    APRIL,
    DGL,
    DLFA,
    DLG,
    GGL,
    GIAS,
    GS,
    IDLG,
    IGIMS,
    Adam,
    Attack,
    BatchNormInversion,
    Blind,
    CocktailParty,
    GaussNewton,
    GradInversion,
    IGIMSAdam,
    Inversion,
    InvertingGradients,
    LinearRows,
    Peel,
    Preset,
    SearchStage,
    TabLeak,
    UntrainedGenerator,
)
from gradleak.core import HonestButCurious, Knowledge, Reconstruction, Update, describe
from gradleak.results import Citation, InputError, KnowledgeError, Outcome

# Small budgets: a contract holds after few steps as after many.
EXAMPLES: dict[type[Attack], Attack] = {
    APRIL: APRIL(),
    BatchNormInversion: BatchNormInversion(iterations=8),
    Blind: Blind(),
    CocktailParty: CocktailParty(steps=3),
    DGL: DGL(iterations=8, learning_rate=0.02),
    DLFA: DLFA(iterations=8, restarts=2),
    DLG: DLG(iterations=1, restarts=2),
    GGL: GGL(iterations=4, population=6),
    GIAS: GIAS(latent_iterations=4, weight_iterations=4),
    GS: GS(iterations=8),
    GaussNewton: GaussNewton(max_steps=3, warm_iterations=5),
    GradInversion: GradInversion(iterations=8, restarts=2),
    IDLG: IDLG(iterations=1),
    IGIMS: IGIMS(rounds=2, latent_iterations=2, weight_iterations=2, population=6),
    IGIMSAdam: IGIMSAdam(rounds=2, latent_iterations=2, weight_iterations=2, restarts=2),
    Inversion: Inversion(stages=(SearchStage(optimizer=Adam(signed=True), iterations=8),), restarts=2),
    InvertingGradients: InvertingGradients(iterations=8, restarts=2),
    LinearRows: LinearRows(),
    Peel: Peel(),
    TabLeak: TabLeak(iterations=8, restarts=3),
    UntrainedGenerator: UntrainedGenerator(iterations=8, learning_rate=0.01),
}

# Solved, not searched: no history; and those for one example alone.
SOLVED = (APRIL, CocktailParty, LinearRows, Peel)
ONE_EXAMPLE = (APRIL, Peel)

# Claims the middle of its starts: the history is that of the best one, whose loss is smaller.
POOLED = (TabLeak,)

# The papers' attacks that are given the labels; everything else that is true of the private batch is no need.
LABEL_GIVEN = (DGL, GS)

EXPORTED = [
    kind
    for name in gradleak.attacks.__all__
    if inspect.isclass(kind := getattr(gradleak.attacks, name))
    and issubclass(kind, Attack)
    and kind not in (Attack, Preset)
    and not kind.claims_tokens  # these claim no inputs: `test_token_attacks.py`
]

each_attack = pytest.mark.parametrize("attack", EXAMPLES.values(), ids=lambda attack: attack.name)
each_reader = pytest.mark.parametrize(
    "attack", [a for a in EXAMPLES.values() if a.reads_update], ids=lambda attack: attack.name
)


def _threat(attack: Attack, *, targets: bool = False) -> HonestButCurious:
    """All that the attack needs, and no more."""
    prior = small_generator() if "generator" in attack.needs else None
    return HonestButCurious(targets=targets or "targets" in attack.needs, generator=prior)


def _case(attack: Attack) -> Setting:
    return setting(small_net(), rows(1), threat=_threat(attack), dtype=torch.float32)


def _run(attack: Attack, case: Setting, seed: int = 3) -> Reconstruction:
    return attack(case.update, case.knowledge, generator=torch.Generator().manual_seed(seed))


def test_every_exported_attack_is_under_contract() -> None:
    assert set(EXPORTED) == set(EXAMPLES)
    assert len({attack.name for attack in EXAMPLES.values()}) == len(EXAMPLES)


@each_attack
def test_it_says_what_it_is(attack: Attack) -> None:
    kind = type(attack)
    assert "**Cost**" in inspect.getdoc(kind)
    assert "**Source**" in inspect.getdoc(kind) or kind is Inversion
    assert kind.summary.endswith(".")
    assert kind.name == kind.name.lower()
    assert all(isinstance(citation, Citation) for citation in kind.citations)
    assert kind.citations or kind is Blind
    fields = {field.name for field in dataclasses.fields(Knowledge)}
    assert kind.needs
    assert set(kind.needs) <= fields
    assert ("targets" in kind.needs) == (kind in LABEL_GIVEN)
    assert "statistics" not in kind.needs


@each_attack
def test_it_is_frozen_keyword_only_and_describes_itself(attack: Attack) -> None:
    for field in dataclasses.fields(attack):
        assert field.kw_only
        assert f"{field.name}:" in inspect.getdoc(type(attack))
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(attack, field.name, None)
    assert describe(attack)["use"] == type(attack).__name__
    assert type(attack)() == type(attack)()


@each_attack
def test_the_same_generator_gives_the_same_bits(attack: Attack) -> None:
    case = _case(attack)
    first, second = _run(attack, case), _run(attack, case)
    assert torch.equal(first.inputs, second.inputs)
    assert list(first.history) == list(second.history)
    assert dict(first.details) == dict(second.details)


@each_attack
def test_nothing_that_it_was_given_changes(attack: Attack) -> None:
    case = _case(attack)
    objective = case.knowledge.objective
    before = {name: tensor.clone() for name, tensor in case.update.tensors.items()}
    params = {name: tensor.clone() for name, tensor in objective.params.items()}
    rng = torch.random.get_rng_state()
    _run(attack, case)
    assert all(torch.equal(before[name], tensor) for name, tensor in case.update.tensors.items())
    assert all(torch.equal(params[name], tensor) for name, tensor in objective.params.items())
    assert not any(tensor.requires_grad for tensor in objective.params.values())
    assert torch.equal(rng, torch.random.get_rng_state())


@each_attack
def test_the_claim_has_the_shape_and_range_it_ought_to(attack: Attack) -> None:
    truth = rows(1) if isinstance(attack, ONE_EXAMPLE) else rows(1, 2)
    case = setting(small_net(), truth, threat=_threat(attack), dtype=torch.float32)
    found = _run(attack, case)
    assert found.inputs.shape == case.truth.inputs.shape
    assert torch.isfinite(found.inputs).all()
    assert not found.inputs.requires_grad
    assert isinstance(found.outcome, Outcome)


@each_reader
def test_the_history_holds_the_loss_that_is_claimed(attack: Attack) -> None:
    found = _run(attack, _case(attack))
    assert found.loss == min(found.history, default=found.loss) or isinstance(attack, POOLED)
    assert min([found.loss, *found.history]) < (found.history[0] if found.history else 1.0)
    assert found.history or isinstance(attack, SOLVED)
    assert found.loss >= 0
    assert found.iterations > 0
    assert found.plain_gradients > 0
    assert found.details["labels"] in ("disclosed", "recovered", "optimized")
    assert f"labels: {found.details['labels']}" in found.details["information"]
    assert "update rule: FedSGD()" in found.details["information"]
    assert found.details["relative_residual"] >= 0


@each_attack
def test_a_batch_of_targets_is_answered_in_order(attack: Attack) -> None:
    case = _case(attack)
    updates = [case.update] * 2
    found = attack.many(
        updates, [case.knowledge] * 2, generators=[torch.Generator().manual_seed(seed) for seed in (1, 2)]
    )
    again = attack.many(updates, case.knowledge, generators=[torch.Generator().manual_seed(seed) for seed in (1, 2)])
    assert len(found) == 2
    for first, second in zip(found, again, strict=True):
        assert torch.equal(first.inputs, second.inputs)
    assert attack.many([], case.knowledge, generators=[]) == []


@each_attack
def test_every_need_is_checked_before_anything_else(attack: Attack) -> None:
    case = _case(attack)
    for need in attack.needs:
        blind = dataclasses.replace(case.knowledge, **{need: None})
        with pytest.raises(KnowledgeError, match=f"{attack.name} needs {need}"):
            attack(case.update, blind, generator=torch.Generator())


@each_attack
def test_the_cost_is_estimated_from_knowledge_alone(attack: Attack) -> None:
    assert attack.estimate(_case(attack).knowledge) >= 0


@each_reader
def test_zero_and_broken_updates(attack: Attack) -> None:
    case = _case(attack)
    zero = Update(tensors={name: torch.zeros_like(t) for name, t in case.update.tensors.items()})
    found = attack(zero, case.knowledge, generator=torch.Generator())
    assert found.outcome is Outcome.NO_SIGNAL
    assert found.inputs is None
    broken = Update(tensors={**case.update.tensors, "2.weight": torch.full((16, 32), torch.inf)})
    with pytest.raises(InputError, match=r"2\.weight is NaN or infinite"):
        attack(broken, case.knowledge, generator=torch.Generator())


@each_reader
def test_disclosed_labels_are_used_and_named(attack: Attack) -> None:
    case = setting(small_net(), rows(2), threat=_threat(attack, targets=True), dtype=torch.float32)
    found = _run(attack, case)
    assert found.details["labels"] == "disclosed"
    assert found.targets.tolist() == [2]

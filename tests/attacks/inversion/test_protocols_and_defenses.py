"""Inversion of deltas and of pruned, clipped and signed updates: found, or refused in words."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import Sequential

from gradleak.attacks import DLG, GaussNewton, InvertingGradients
from gradleak.core import Defense, HonestButCurious, Protocol, Update, UpdateKind
from gradleak.defenses import Clip, ClipPerExample, ClipPerLayer, GaussianNoise, Prune, Sign
from gradleak.protocols import FedAvg, FedSGD
from gradleak.results import Outcome, UnsupportedError
from tests.attacks.setting import rows, setting, small_net


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


THREE = FedAvg(learning_rate=0.1, epochs=3)


@pytest.mark.parametrize(
    ("protocol", "defenses"),
    [
        (THREE, []),
        (FedAvg(learning_rate=0.5, epochs=5, momentum=0.9), []),
        (FedSGD(), [Prune(0.5)]),
        (FedSGD(), [Prune(0.5, by="layer")]),
        (FedSGD(), [ClipPerLayer(0.1)]),
        (THREE, [ClipPerExample(0.1), Prune(0.5), Clip(0.01)]),
    ],
    ids=repr,
)
def test_one_example_is_found_with_its_label(protocol: Protocol, defenses: list[Defense]) -> None:
    case = setting(small_net(), rows(1), protocol=protocol, defenses=defenses)
    assert case.update.kind is protocol.kind
    found = GaussNewton()(case.update, case.knowledge, generator=_generator())
    assert found.outcome is Outcome.CONVERGED
    assert found.details["labels"] == "recovered"
    assert found.targets.tolist() == [1]
    assert case.error(found.inputs) < 1e-20


def test_a_float32_delta_is_inverted_to_its_round_off() -> None:
    case = setting(small_net(), rows(1), protocol=THREE, dtype=torch.float32)
    found = GaussNewton()(case.update, case.knowledge, generator=_generator())
    assert found.outcome is Outcome.CONVERGED
    assert case.error(found.inputs) < 1e-10


@pytest.mark.parametrize("batch_size", [None, 1])
def test_a_batch_is_found_behind_a_delta(batch_size: int | None) -> None:
    """With mini-batches of one the order of the examples is part of the release."""
    case = setting(
        small_net(),
        rows(0, 2),
        protocol=FedAvg(learning_rate=0.1, epochs=2, batch_size=batch_size),
        threat=HonestButCurious(targets=True),
    )
    found = GaussNewton(starts=6, warm_iterations=0)(case.update, case.knowledge, generator=_generator())
    assert found.outcome is Outcome.CONVERGED
    assert case.error(found.inputs) < 1e-16


def test_noise_on_a_delta_is_weighed_against_the_delta() -> None:
    case = setting(small_net(), rows(1), protocol=THREE, defenses=[ClipPerExample(0.5), GaussianNoise(std=1e-5)])
    found = GaussNewton()(case.update, case.knowledge, generator=_generator())
    assert found.outcome is Outcome.CONVERGED
    assert case.error(found.inputs) < 1e-3


def test_cosine_matching_inverts_a_delta() -> None:
    case = setting(small_net(), rows(1), protocol=THREE)
    found = InvertingGradients(iterations=250, restarts=1)(case.update, case.knowledge, generator=_generator())
    assert case.error(found.inputs) < 1e-3


@pytest.mark.parametrize("attack", [GaussNewton(), InvertingGradients(iterations=5, restarts=1), DLG(iterations=5)])
def test_signs_behind_a_clip_are_refused_by_attacks_that_follow_the_derivative(attack: GaussNewton) -> None:
    case = setting(small_net(), rows(1), defenses=[Sign(), Clip(1.0)])
    with pytest.raises(UnsupportedError, match=r"got Sign before Clip; .* no evidence of safety"):
        attack(case.update, case.knowledge, generator=_generator())


def test_an_adversary_who_ignores_the_sign_can_be_run_as_the_refusal_says() -> None:
    case = setting(small_net(), rows(1), defenses=[Sign()], threat=HonestButCurious(defenses=False, targets=True))
    found = InvertingGradients(iterations=50, restarts=1)(case.update, case.knowledge, generator=_generator())
    assert found.loss is not None
    assert found.history[-1] < found.history[0]


def test_a_delta_that_is_called_a_gradient_is_noted() -> None:
    case = setting(small_net(), rows(1), protocol=THREE)
    gradient = replace(case.update, kind=UpdateKind.GRADIENT)
    found = GaussNewton()(gradient, case.knowledge, generator=_generator())
    assert "the update is a gradient, but FedAvg makes a delta" in found.note


def test_a_model_that_mixes_examples_cannot_be_attacked_through_a_defense_of_examples() -> None:
    model = Sequential(torch.nn.Linear(12, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)).double()
    case = setting(model, rows(0, 2), threat=HonestButCurious(targets=True))
    knowledge = replace(
        case.knowledge, objective=case.knowledge.objective.in_mode("train"), defenses=[ClipPerExample(1.0)]
    )
    with pytest.raises(UnsupportedError, match="normalizes by the batch in 1"):
        GaussNewton(starts=1)(Update(tensors=case.update.tensors), knowledge, generator=_generator())

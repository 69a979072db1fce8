"""Errors at embeddings: modulo directions that a release hides, where no words differ by these alone."""

from __future__ import annotations

import pytest
import torch
from tests.tokens import sentences, tiny

from gradleak.core import Batch, Exposure, Objective, Release
from gradleak.defenses import GaussianNoise
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedSGD
from gradleak.results import Outcome
from gradleak.risk import GaussianReconstructionError, InversionInfluence, InversionInfluenceLowerBound
from gradleak.risk.unseen_words import unseen_directions

RELEASE = Release(FedSGD(), [GaussianNoise(std=1e-4)])


def exposure(model: torch.nn.Module | None = None) -> Exposure:
    model = tiny().double() if model is None else model
    model.words.weight.requires_grad_(False)
    return Exposure(Objective.from_module(model), sentences(6, length=6), RELEASE)


def test_layer_normalization_hides_a_direction_of_every_token_and_no_word() -> None:
    case = exposure()
    operator = GradientJacobian(case.at_embeddings())
    found = unseen_directions(case, operator)
    assert (found.count, found.by_place, found.tell_apart) == (6, True, True)
    # By hand: the hidden direction is the mean of an embedding, which the share of a difference leaves out.
    table = case.objective.frozen["words.weight"]
    differences = table[3:] - table[int(case.batch.inputs[0, 2])]
    differences = differences[differences.norm(dim=1) > 0]
    shares = (differences - differences.mean(dim=1, keepdim=True)).norm(dim=1) / differences.norm(dim=1)
    assert found.least <= float(shares.min()) + 1e-9
    assert 0.3 < found.least < 1.0


def test_errors_of_sentences_are_converged_and_those_of_their_embeddings_are_not() -> None:
    case = exposure()
    update = case.release(case.objective, case.batch, torch.Generator().manual_seed(0))
    delta = case.objective.flatten(update.tensors) - case.released_mean()
    embedded = case.at_embeddings()
    for measure in (InversionInfluence(), GaussianReconstructionError(std=1e-4)):
        words, numbers = measure(case, delta=delta), measure(embedded, delta=delta)
        assert (words.outcome, numbers.outcome) == (Outcome.CONVERGED, Outcome.NOT_IDENTIFIABLE)
        assert words.value == pytest.approx(numbers.value, rel=1e-12)
        assert "modulo 6 directions" in words.note
    bound = InversionInfluenceLowerBound()(case, delta=delta)
    assert bound.value is not None
    assert bound.value <= (InversionInfluence()(case, delta=delta).value or 0.0)


def test_words_that_differ_by_their_mean_alone_are_not_told_apart() -> None:
    """One word is a true one moved along the direction that layer normalization hides."""
    model = tiny().double()
    case = exposure(model)
    true = int(case.batch.inputs[0, 2])
    other = next(one for one in range(3, 40) if one not in case.batch.inputs[0].tolist())
    with torch.no_grad():
        model.words.weight[other] = model.words.weight[true] + 0.7
    twins = exposure(model)
    found = unseen_directions(twins, GradientJacobian(twins.at_embeddings()))
    assert found.least < 1e-6
    assert not found.tell_apart
    score = GaussianReconstructionError(std=1e-4)(twins)
    assert score.outcome is Outcome.NOT_IDENTIFIABLE
    assert "some words differ from a true one by these directions alone" in score.note
    # And the releases say the same of them.
    ids = twins.batch.inputs.clone()
    ids[0, 2] = other
    moved = Exposure(twins.objective, Batch(ids, twins.batch.targets, twins.batch.domain), RELEASE)
    torch.testing.assert_close(moved.released_mean(), twins.released_mean(), rtol=1e-9, atol=1e-12)

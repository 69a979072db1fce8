"""What hangs on an assumed protocol, without the truth: the right one leaves the smallest residual."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gradleak.attacks import (
    InvertingGradients,
    LocalTraining,
    fit_learning_rate,
    neighboring_protocols,
    rerun_under,
    residuals_under,
)
from gradleak.core import HonestButCurious, Protocol, Reconstruction
from gradleak.defenses import Clip
from gradleak.protocols import FedAvg, FedSGD, LocalAdam
from gradleak.results import InputError, KnowledgeError, Outcome
from tests.attacks.setting import Setting, rows, setting, small_net

TRUE = FedAvg(learning_rate=0.2, epochs=4)


def case(assumed: Protocol | None = None, true: Protocol = TRUE) -> Setting:
    return setting(small_net(), rows(1), protocol=true, threat=HonestButCurious(protocol=assumed))


def truth(of: Setting) -> Reconstruction:
    """A perfect claim, as an attack could make it."""
    return Reconstruction(inputs=of.truth.inputs, targets=of.truth.targets, loss=0.0, outcome=Outcome.CONVERGED)


def test_neighbors_differ_in_one_setting() -> None:
    found = neighboring_protocols(TRUE)
    assert [protocol.learning_rate for protocol in found[:5]] == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8])
    assert {protocol.epochs for protocol in found[:5]} == {4}
    assert found[5:] == [replace(TRUE, epochs=2), replace(TRUE, epochs=8)]
    assert neighboring_protocols(FedSGD()) == [FedSGD()]
    assert neighboring_protocols(LocalAdam(), rate_factors=(2.0,), epochs=(1, 3)) == [
        LocalAdam(learning_rate=2e-3), LocalAdam(), LocalAdam(epochs=3)
    ]  # fmt: skip


def test_the_truth_explains_its_update_under_the_right_protocol_alone() -> None:
    here = case()
    trials = residuals_under(truth(here), here.update, here.knowledge)
    by_protocol = {trial.protocol: trial for trial in trials}
    assert by_protocol[TRUE].relative_residual < 1e-12
    assert by_protocol[TRUE].cosine_distance < 1e-12
    others = [trial.relative_residual for trial in trials if trial.protocol != TRUE]
    assert min(others) > 0.1
    one = case(true=FedAvg(learning_rate=0.2))
    linear = residuals_under(truth(one), one.update, one.knowledge)
    # One step: η/4 leaves 3/4 of the update, 4η three times it, and the direction is the same.
    assert [trial.relative_residual for trial in linear[:5]] == pytest.approx([0.75, 0.5, 0, 1, 3], abs=1e-9)
    assert max(trial.cosine_distance for trial in linear[:5]) < 1e-12


def test_defenses_of_the_update_are_applied_under_each_assumption() -> None:
    """A clip that bites hides the learning rate of one step altogether."""
    here = setting(small_net(), rows(1), protocol=FedAvg(learning_rate=0.2), defenses=[Clip(1e-3)])
    trials = residuals_under(truth(here), here.update, here.knowledge)
    assert max(trial.relative_residual for trial in trials[:5]) < 1e-9


def test_divergence_and_missing_claims_are_words_not_numbers() -> None:
    here = case()
    wild = replace(TRUE, learning_rate=1e308, epochs=12)
    (trial,) = residuals_under(truth(here), here.update, here.knowledge, [wild])
    assert trial.relative_residual is None
    assert "diverges under this protocol" in trial.note
    nothing = Reconstruction(inputs=None, targets=None, loss=None, outcome=Outcome.NOT_FINITE)
    with pytest.raises(InputError, match="residuals_under: expected a reconstruction with inputs"):
        residuals_under(nothing, here.update, here.knowledge)
    with pytest.raises(InputError, match="fit_learning_rate: expected a reconstruction with inputs"):
        fit_learning_rate(nothing, here.update, here.knowledge)
    with pytest.raises(KnowledgeError, match="the sensitivity to the protocol needs protocol"):
        residuals_under(truth(here), here.update, replace(here.knowledge, protocol=None))


def test_the_attack_run_again_tells_the_right_protocol_by_its_residual() -> None:
    """U29: the sensitivity to an assumed learning rate and number of epochs."""
    assumed = replace(TRUE, learning_rate=0.1)
    here = case(assumed)
    attack = InvertingGradients(iterations=60, total_variation=0.0)
    protocols = [assumed, TRUE, replace(TRUE, learning_rate=0.8)]
    first, right, far = rerun_under(attack, here.update, here.knowledge, protocols, seed=5)
    assert right.relative_residual < 0.2 * min(first.relative_residual, far.relative_residual)
    assert here.error(right.claim.inputs) < min(here.error(first.claim.inputs), here.error(far.claim.inputs))
    assert first.moved == 0.0
    assert right.moved > 0
    again = rerun_under(attack, here.update, here.knowledge, [TRUE], seed=5)[0]
    assert torch.equal(again.claim.inputs, right.claim.inputs)
    assert again.moved == right.moved
    assert "assumed was FedAvg(learning_rate=0.1" in first.claim.note


def test_an_assumption_that_an_attack_cannot_take_is_refused_in_words() -> None:
    here = case()
    attack = InvertingGradients(iterations=3, local_training=LocalTraining.AVERAGE_GRADIENT)
    (trial,) = rerun_under(attack, here.update, here.knowledge, [LocalAdam()], seed=0)
    assert trial.claim is None
    assert trial.relative_residual is None
    assert "got LocalAdam" in trial.note


@pytest.mark.parametrize("rate", [0.004, 0.2])
def test_the_learning_rate_is_read_off_the_norm(rate: float) -> None:
    """From the truth exactly; from a claim that the average gradient found without it, as good as the claim."""
    true = FedAvg(learning_rate=rate, epochs=3)
    here = case(FedAvg(learning_rate=0.02, epochs=3), true)
    fit = fit_learning_rate(truth(here), here.update, here.knowledge)
    assert fit.learning_rate == pytest.approx(rate, rel=2e-3)
    assert fit.relative_residual < 2e-3
    assert not fit.at_limit
    assert fit.believable
    assert fit.note == ""
    attack = InvertingGradients(iterations=120, total_variation=0.0, local_training="average_gradient")
    claim = attack(here.update, here.knowledge, generator=torch.Generator().manual_seed(3))
    assert fit_learning_rate(claim, here.update, here.knowledge).learning_rate == pytest.approx(rate, rel=0.1)


def test_a_rate_read_off_a_poor_claim_or_optimized_labels_is_not_believable() -> None:
    here = case()
    perfect = truth(here)
    fit = fit_learning_rate(replace(perfect, targets=(perfect.targets + 1) % 3), here.update, here.knowledge)
    assert fit.relative_residual > 0.1
    assert not fit.believable
    assert f"the claim leaves a relative residual of {fit.relative_residual:.2g} at its best rate" in fit.note
    fit = fit_learning_rate(replace(perfect, details={"labels": "optimized"}), here.update, here.knowledge)
    assert fit.relative_residual < 0.1
    assert not fit.believable
    assert "the labels were optimized with the inputs" in fit.note


def test_a_learning_rate_out_of_reach_is_said_to_be() -> None:
    here = case(replace(TRUE, learning_rate=1e-6))
    fit = fit_learning_rate(truth(here), here.update, here.knowledge)
    assert fit.at_limit
    assert not fit.believable
    assert "an end of the range" in fit.note
    with pytest.raises(InputError, match=r"with a learning rate \(FedAvg, LocalAdam\), got FedSGD"):
        fit_learning_rate(truth(here), here.update, replace(here.knowledge, protocol=FedSGD()))
    adam = setting(small_net(), rows(1), protocol=LocalAdam(learning_rate=0.03, epochs=2))
    assert fit_learning_rate(truth(adam), adam.update, adam.knowledge).learning_rate == pytest.approx(0.03, rel=1e-3)


def test_a_short_way_fixes_the_product_of_rate_and_steps_alone() -> None:
    """Twice the steps at half the rate explain a short way as well."""
    here = case(true=FedAvg(learning_rate=1e-4, epochs=2))
    other = residuals_under(truth(here), here.update, here.knowledge, [FedAvg(learning_rate=5e-5, epochs=4)])[0]
    assert other.relative_residual < 1e-3

"""Counts of labels against labels that are known, for every rule, loss, protocol and defense that keeps them readable."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from gradleak.attacks import (
    AdaptiveLabelRecovery,
    ConsistentLabels,
    LabelAttack,
    SignRule,
    ZeroShotLabels,
    recover_labels,
)
from gradleak.attacks.labels.target import UNCHECKED
from gradleak.core import Batch, HonestButCurious, Update
from gradleak.defenses import (
    DPSGD,
    Clip,
    ClipPerExample,
    ClipPerLayer,
    GaussianNoise,
    LaplaceNoise,
    LayerNoise,
    Prune,
    Quantize,
    RandomSparsify,
    TopK,
)
from gradleak.protocols import FedAvg
from gradleak.results import Outcome
from tests.attacks.labels.cases import constant_net, net, released

COUNTERS = [AdaptiveLabelRecovery(), ConsistentLabels()]
WEIGHTS = torch.linspace(0.5, 2.0, 10)
each_counter = pytest.mark.parametrize("attack", COUNTERS, ids=lambda attack: attack.name)
each_batch = pytest.mark.parametrize(
    "labels",
    [[3, 3, 3, 7], [5] * 6, [0, 1, 2, 3], [9] * 8 + [4] * 4 + [0, 1, 2, 3], list(range(10)) + [2] * 6, [6]],
    ids=["repeats", "one class", "distinct", "unbalanced", "more than classes", "one example"],
)


@each_counter
@each_batch
def test_counts_of_an_untrained_network(attack: LabelAttack, labels: list[int]) -> None:
    update, knowledge = released(net(), labels)
    found = attack(update, knowledge)
    assert found.outcome is Outcome.CONVERGED, found.note
    assert found.targets.tolist() == sorted(labels)
    assert found.counts.tolist() == torch.bincount(torch.tensor(labels), minlength=10).tolist()
    assert found.confidence > 0.9
    assert found.expected_accuracy > 0.9
    low, high = found.interval.unbind(1)
    assert bool(((low <= found.counts) & (found.counts <= high)).all())


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.CrossEntropyLoss(weight=WEIGHTS),
        nn.CrossEntropyLoss(reduction="sum"),
        nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.2, reduction="sum"),
        nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.2),
    ],
    ids=str,
)
@each_counter
def test_known_settings_of_the_loss_are_corrected_for_exactly(attack: LabelAttack, loss: nn.Module) -> None:
    # The logits are the same for every input, so that nothing but the loss's own settings is in the way.
    labels = [9] * 8 + [4] * 4 + [0, 1, 2, 3]
    update, knowledge = released(constant_net(), labels, loss=loss, dtype=torch.float64)
    found = attack(update, knowledge)
    expected = torch.bincount(torch.tensor(labels), minlength=10).double()
    torch.testing.assert_close(found.estimate, expected, atol=1e-6, rtol=0)
    assert found.targets.tolist() == sorted(labels)
    assert found.confidence > 0.999


@each_counter
def test_smoothing_that_the_server_does_not_know_of_is_not_identifiable(attack: LabelAttack) -> None:
    smooth = nn.CrossEntropyLoss(label_smoothing=0.35)
    update, knowledge = released(net(), [3, 3, 3, 7, 1], loss=smooth, believed="cross_entropy")
    found = attack(update, knowledge)
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    assert found.targets is None
    assert found.counts is None
    assert "smoothed by the client" in found.note
    assert float((found.estimate - found.estimate.round()).abs().max()) > 0.1


def test_negative_rows_prove_labels_only_beside_the_bias_gradient() -> None:
    """A trained model and smoothing that nobody told of: three wrong sets of labels in 24 at confidence 1.00."""
    model, smooth = _trained(120), nn.CrossEntropyLoss(label_smoothing=0.2)
    proven = {"cross_entropy": 0, smooth: 0}
    for loss in proven:
        for seed in range(24):
            inputs = torch.rand(2, 12, generator=torch.Generator().manual_seed(seed))
            labels = inputs.reshape(2, 4, 3).mean(2).argmax(1)
            update, knowledge = released(model, labels, loss=loss, believed="cross_entropy", seed=seed)
            found = ZeroShotLabels()(update, knowledge)
            if found.targets is not None and found.confidence > UNCHECKED:
                proven[loss] += 1
                assert found.targets.tolist() == labels.sort().values.tolist()
            elif found.targets is not None:
                assert "which the update does not show" in found.note
    assert proven["cross_entropy"] > 5
    assert proven[smooth] == 0


@pytest.mark.parametrize("weights", [None, torch.tensor([0.5, 2.0])])
def test_of_two_classes_at_a_hidden_scale_the_wrong_one_is_never_certain(weights: torch.Tensor | None) -> None:
    """One of two classes explains any gradient at some scale, and smoothing makes it the wrong one."""
    model, wrong = net(2), 0
    with torch.no_grad():
        model[-1].weight.normal_(std=10, generator=torch.Generator().manual_seed(0))
    for seed in range(12):
        inputs = torch.rand(1, 12, generator=torch.Generator().manual_seed(seed))
        labels = model(inputs).argmax(1)
        loss, believed = (nn.CrossEntropyLoss(weight=weights, label_smoothing=smooth) for smooth in (0.1, 0.0))
        defenses = [Clip(0.01)] if weights is None else []
        update, knowledge = released(model, labels, loss=loss, believed=believed, defenses=defenses, seed=seed)
        for attack in (ConsistentLabels(), SignRule()):
            found = attack(update, knowledge)
            if found.targets is not None and found.targets.tolist() != labels.tolist():
                wrong += 1
                assert found.confidence <= UNCHECKED
    assert wrong > 0 or weights is not None


@each_counter
@pytest.mark.parametrize("scale", [1.0, 3.0])
@pytest.mark.parametrize("settings", [{"ignore_index": -100}, {"weight": torch.linspace(0.5, 2, 10)}])
def test_a_batch_of_unknown_smoothing_and_scale_has_no_certain_wrong_labels(
    attack: LabelAttack, scale: float, settings: dict[str, object]
) -> None:
    smooth, plain = (nn.CrossEntropyLoss(label_smoothing=share, **settings) for share in (0.2, 0.0))
    for labels in ([3], [1, 7], [3, 3, 3, 7]):
        update, knowledge = released(net(), labels, loss=smooth, believed=plain)
        update = replace(update, tensors={name: scale * tensor for name, tensor in update.tensors.items()})
        found = attack(update, knowledge)
        assert found.confidence <= UNCHECKED or found.targets.tolist() == labels


@each_counter
def test_mixed_labels_are_not_identifiable(attack: LabelAttack) -> None:
    generator = torch.Generator().manual_seed(0)
    soft = torch.softmax(2 * torch.randn(4, 10, generator=generator), dim=1)
    found = attack(*released(net(), soft))
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    assert "mixed" in found.note


@each_counter
def test_the_order_of_the_batch_is_not_in_the_update(attack: LabelAttack) -> None:
    labels = [1, 8, 8, 2]
    first = attack(*released(constant_net(), labels))
    turned = attack(*released(constant_net(), labels[::-1]))
    assert first.targets.tolist() == turned.targets.tolist() == sorted(labels)


@pytest.mark.parametrize(
    ("defenses", "protocol"),
    [
        ([Clip(0.01)], None),
        ([ClipPerLayer(0.01)], None),
        ([ClipPerExample(0.05)], None),
        ([GaussianNoise(std=1e-3)], None),
        ([Clip(0.5), GaussianNoise(std=1e-4)], None),
        ([Prune(0.3)], None),
        ([TopK(0.7)], None),
        ([Quantize(bits=8)], None),
        ([Quantize(bits=8, stochastic=False)], None),
        ([LayerNoise(std={"4": 1e-3})], None),
        ([DPSGD(clip_norm=0.05, noise_std=1e-3, noise="sum")], None),
        ([], FedAvg(learning_rate=0.1, epochs=5)),
        ([], FedAvg(learning_rate=0.05, epochs=2, batch_size=2)),
        ([], FedAvg(learning_rate=0.05, epochs=3, momentum=0.9)),
        ([Clip(0.01)], FedAvg(learning_rate=0.1, epochs=3)),
    ],
    ids=str,
)
@each_counter
def test_counts_through_defenses_and_local_steps(attack: LabelAttack, defenses, protocol) -> None:
    labels = [5, 5, 5, 5, 0, 0]
    update, knowledge = released(net(), labels, defenses=defenses, protocol=protocol)
    found = attack(update, knowledge)
    assert found.targets is not None, found.note
    assert found.targets.tolist() == sorted(labels)


@each_counter
def test_an_unknown_scale_is_read_off_absent_classes_or_not_at_all(attack: LabelAttack) -> None:
    few, knowledge = released(net(), [2, 2, 9])
    scaled = Update(tensors={name: 65536 * tensor for name, tensor in few.tensors.items()})
    assumed = replace(knowledge, assumed=("protocol",))
    assert attack(scaled, assumed).targets.tolist() == [2, 2, 9]
    many, knowledge = released(net(), list(range(10)) + [2] * 6, defenses=[Clip(0.01)])
    found = attack(many, knowledge)
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    assert "no class is surely absent" in found.note


@each_counter
def test_a_known_scale_that_is_wrong_is_noticed(attack: LabelAttack) -> None:
    update, knowledge = released(net(), [2, 2, 9, 4])
    half = Update(tensors={name: 0.37 * tensor for name, tensor in update.tensors.items()})
    found = attack(half, knowledge)
    assert found.targets is None or found.targets.tolist() != [2, 2, 9, 4] or found.confidence < 0.9


@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
def test_without_a_bias_singles_and_small_counts_are_found(activation: str) -> None:
    for seed in range(3):
        labels = [1, 1, 4, 8]
        update, knowledge = released(net(bias=False, activation=activation), labels, seed=seed)
        found = ConsistentLabels(minimum_confidence=0)(update, knowledge)
        assert found.targets.tolist() == labels
        assert "classifier" not in found.note


def test_swamping_noise_is_named() -> None:
    update, knowledge = released(net(), [5, 5, 1, 2], defenses=[GaussianNoise(std=0.5)])
    for attack in COUNTERS:
        found = attack(update, knowledge)
        assert found.outcome is Outcome.NOT_IDENTIFIABLE
        assert "noise leaves a std of 2" in found.note


def test_claims_under_noise_are_right_as_often_as_they_say() -> None:
    labels = [5, 5, 5, 2, 7, 7]
    claims, right = 0, 0
    for seed in range(60):
        std = 10 ** (-2.2 + seed / 60)
        update, knowledge = released(net(), labels, defenses=[GaussianNoise(std=std)], seed=seed)
        found = AdaptiveLabelRecovery(minimum_confidence=0.9)(update, knowledge)
        if found.targets is not None:
            claims += 1
            right += found.targets.tolist() == sorted(labels)
    assert 15 < claims < 60
    assert right >= 0.9 * claims


def test_noise_that_is_not_known_shows_in_the_sum() -> None:
    threat = HonestButCurious(defenses=False)
    claims = 0
    for seed in range(10):
        update, knowledge = released(net(), [5, 5, 1, 2], defenses=[GaussianNoise(std=0.5)], threat=threat, seed=seed)
        found = AdaptiveLabelRecovery(minimum_confidence=0.9)(update, knowledge)
        claims += found.targets is not None
    assert claims <= 1


def test_counts_are_exact_where_dummies_have_the_mean_probabilities_of_the_private_examples() -> None:
    """Their mean, not their median: of a network that is sure of its classes the two are far apart."""
    model, labels = net(), [3, 3, 7, 1, 0, 0]
    with torch.no_grad():
        model[-1].weight.normal_(std=8, generator=torch.Generator().manual_seed(2))
    inputs = torch.rand(len(labels), 12, generator=torch.Generator().manual_seed(0)).double()
    update, knowledge = released(model, labels, dtype=torch.float64)
    # No server has the private examples; here they stand for dummies that are like them.
    knowledge = replace(knowledge, public=Batch(inputs, torch.zeros(len(labels), dtype=torch.long)))
    probabilities = torch.softmax(model.double()(inputs), dim=1).detach()
    assert float((probabilities.mean(0) - probabilities.median(0).values).abs().max()) > 0.1
    found = AdaptiveLabelRecovery(minimum_confidence=0.0)(update, knowledge)
    expected = torch.bincount(torch.tensor(labels), minlength=10).double()
    torch.testing.assert_close(found.estimate, expected, atol=1e-6, rtol=0)


def test_public_inputs_stand_for_the_private_ones_where_there_are_some() -> None:
    public = Batch(torch.rand(40, 12, generator=torch.Generator().manual_seed(9)), torch.zeros(40, dtype=torch.long))
    update, knowledge = released(net(), [1, 1, 2], threat=HonestButCurious(public=public))
    found = AdaptiveLabelRecovery()(update, knowledge)
    assert "40 public inputs" in found.note
    assert found.targets.tolist() == [1, 1, 2]


def test_the_zero_shot_rule_proves_distinct_labels_and_sees_repeats() -> None:
    update, knowledge = released(net(), [7, 0, 3])
    found = ZeroShotLabels()(update, knowledge)
    assert (found.targets.tolist(), found.confidence) == ([0, 3, 7], 1.0)
    update, knowledge = released(net(), [3, 3, 3, 7])
    found = ZeroShotLabels()(update, knowledge)
    assert (found.targets, found.confidence) == (None, 0.0)
    assert "2 rows have a negative entry and there are 4 examples: labels repeat" in found.note
    paper = ZeroShotLabels(minimum_confidence=0.0)(update, knowledge)
    assert len(set(paper.targets.tolist())) == 4
    assert {3, 7} < set(paper.targets.tolist())


@pytest.mark.parametrize(
    ("labels", "activation", "loss", "reason"),
    [
        ([*range(10), 1, 2], "relu", "cross_entropy", "12 examples have only 10"),
        ([1, 2, 3], "tanh", "cross_entropy", "can be negative"),
        ([1, 2, 3], "relu", nn.CrossEntropyLoss(label_smoothing=0.1), "smooths labels"),
    ],
)
def test_the_zero_shot_rule_says_where_it_proves_nothing(labels, activation: str, loss, reason: str) -> None:
    found = ZeroShotLabels()(*released(net(activation=activation), labels, loss=loss))
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    assert reason in found.note


def test_the_default_takes_the_first_rule_that_is_sure() -> None:
    distinct = recover_labels(*released(net(), [7, 0, 3]))
    assert (distinct.targets.tolist(), "zero-shot" in distinct.note) == ([0, 3, 7], True)
    single = recover_labels(*released(net(), [4]))
    assert (single.targets.tolist(), "sign rule" in single.note) == ([4], True)
    repeated = recover_labels(*released(net(), [3, 3, 3, 7]))
    assert (repeated.targets.tolist(), "consistent" in repeated.note) == ([3, 3, 3, 7], True)
    noisy = recover_labels(*released(net(), [3, 3, 3, 7], defenses=[GaussianNoise(std=1.0)]))
    assert noisy.targets is None
    assert noisy.outcome is Outcome.NOT_IDENTIFIABLE


def test_more_exact_than_dummy_inputs() -> None:
    worse = []
    for seed in range(4):
        labels = [9] * 8 + [4] * 4 + [0, 1, 2, 3]
        update, knowledge = released(net(activation="tanh"), labels, seed=seed)
        truth = torch.bincount(torch.tensor(labels), minlength=10)
        errors = [float((attack(update, knowledge).estimate - truth).abs().max()) for attack in COUNTERS]
        worse.append(errors[0] / errors[1])
    assert min(worse) > 3


def _trained(steps: int) -> nn.Sequential:
    """A network that tells which of 4 blocks of its input is brightest."""
    model = net(4)
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(steps):
        inputs = torch.rand(64, 12, generator=generator)
        loss = nn.functional.cross_entropy(model(inputs), inputs.reshape(64, 4, 3).mean(2).argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def test_a_trained_network_gets_no_confident_wrong_claim() -> None:
    model = _trained(600)
    sure = 0
    for seed in range(12):
        inputs = torch.rand(6, 12, generator=torch.Generator().manual_seed(seed))
        labels = inputs.reshape(6, 4, 3).mean(2).argmax(1)
        update, knowledge = released(model, labels, seed=seed)
        found = recover_labels(update, knowledge)
        if found.targets is not None:
            sure += 1
            assert found.targets.tolist() == labels.sort().values.tolist()
    assert sure <= 6


@each_counter
def test_a_defense_that_is_not_modeled_lets_nothing_be_claimed(attack: LabelAttack) -> None:
    update, knowledge = released(net(), [5, 5, 5, 0], defenses=[RandomSparsify(0.9)])
    found = attack(update, knowledge)
    assert found.targets is None
    assert "what RandomSparsify does to counts is not modeled" in found.note
    assert replace(attack, minimum_confidence=0.0)(update, knowledge).counts.sum() == 4


def test_coarse_levels_and_noise_of_another_law_lower_the_confidence() -> None:
    for defense in (Quantize(bits=2), LaplaceNoise(scale=0.5)):
        wrong = 0
        for seed in range(6):
            update, knowledge = released(net(), [5, 5, 1, 2, 3, 4], defenses=[defense], seed=seed)
            found = recover_labels(update, knowledge)
            wrong += found.targets is not None and found.targets.tolist() != [1, 2, 3, 4, 5, 5]
        assert wrong == 0


def test_unknown_noise_does_not_prove_different_labels() -> None:
    # As many examples as classes: noise alone makes every row reach below zero.
    threat = HonestButCurious(defenses=False)
    update, knowledge = released(net(4), [1, 1, 1, 2], defenses=[GaussianNoise(std=0.5)], threat=threat)
    found = ZeroShotLabels()(update, knowledge)
    assert found.targets is None
    assert "unknown noise" in found.note

"""Models, losses and protocols whose labels cannot be read: the reason is named, nothing is claimed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.attacks import AdaptiveLabelRecovery, ConsistentLabels, ZeroShotLabels, recover_labels
from gradleak.core import Batch, Domain, HonestButCurious, Objective, Release, Update
from gradleak.defenses import DPSGD, Sign
from gradleak.protocols import FedSGD, LocalAdam
from gradleak.results import InconsistentUpdateError, InputError, KnowledgeError, Outcome
from tests.attacks.labels.cases import net, released

RULES = [AdaptiveLabelRecovery(), ConsistentLabels(), ZeroShotLabels(), recover_labels]
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: getattr(rule, "name", "default"))


class TwoHeads(nn.Module):
    """A segmentation and a classification of one channel, as a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.maps = nn.utils.skip_init(nn.Conv2d, 1, 4, 3, padding=1)
        self.mask = nn.utils.skip_init(nn.Conv2d, 4, 1, 1)
        self.linear = nn.utils.skip_init(nn.Linear, 4, 3)
        for parameter in self.parameters():
            nn.init.constant_(parameter, 0.1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        maps = torch.relu(self.maps(x))
        return {"mask": self.mask(maps), "logits": self.linear(maps.mean((2, 3)))}


def _dice_and_cross_entropy(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
    mask = torch.sigmoid(outputs["mask"])
    dice = 1 - 2 * (mask * 0.5).sum() / (mask.sum() + 0.5 * mask.numel())
    return dice + F.cross_entropy(outputs["logits"], targets)


class Tied(nn.Module):
    """A network whose last weight is its first, transposed use aside."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.first = nn.utils.skip_init(nn.Linear, 12, 12)
        self.last = nn.utils.skip_init(nn.Linear, 12, 12, bias=bias)
        generator = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.3, 0.3, generator=generator)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x)))


@each_rule
def test_two_heads_with_a_loss_of_ones_own(rule) -> None:
    objective = Objective.from_module(TwoHeads(), loss=_dice_and_cross_entropy)
    domain = Domain.image(channels=1, height=8, width=8)
    batch = Batch(torch.rand(2, 1, 8, 8, generator=torch.Generator()), torch.tensor([0, 2]), domain)
    update = Release(FedSGD())(objective, batch, torch.Generator())
    found = rule(update, HonestButCurious().disclose(objective, Release(FedSGD()), batch))
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    assert "returns a dict" in found.note


@pytest.mark.parametrize(
    ("model", "targets", "loss", "reason"),
    [
        (net(1), torch.ones(3, 1), "bce_with_logits", "one logit"),
        (net(10), torch.rand(3, 10, generator=torch.Generator()), "mse", "the loss is mse"),
        (nn.Sequential(net(10), nn.Softplus()), torch.tensor([1, 2, 2]), "cross_entropy", "not made by a linear layer"),
        (nn.Sequential(net(10), nn.Unflatten(1, (5, 2))), torch.zeros(3, 2).long(), "cross_entropy", "not made by"),
        (
            nn.Sequential(nn.Unflatten(1, (3, 4)), nn.Linear(4, 5)),
            torch.zeros(3, 5).long(),
            "cross_entropy",
            "sequence",
        ),
        (nn.Sequential(net(10), nn.LogSoftmax(0)), torch.tensor([1, 2, 2]), "nll", "not made by"),
    ],
    ids=["one logit", "mse", "softplus", "unflatten", "positions", "wrong axis"],
)
@each_rule
def test_what_has_no_vector_of_logits_under_cross_entropy(rule, model, targets, loss, reason: str) -> None:
    found = rule(*released(model, targets, loss=loss))
    assert found.targets is None
    assert found.counts is None
    assert found.confidence == 0.0
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    assert reason in found.note


def test_log_softmax_with_negative_log_likelihood_is_cross_entropy() -> None:
    model = nn.Sequential(net(10), nn.LogSoftmax(1))
    assert recover_labels(*released(model, [3, 3, 3, 7], loss="nll")).targets.tolist() == [3, 3, 3, 7]


@each_rule
def test_a_frozen_classifier(rule) -> None:
    model = net()
    model[-1].requires_grad_(False)
    assert "frozen" in rule(*released(model, [1, 1, 4])).note


def test_a_frozen_weight_leaves_the_bias() -> None:
    model = net()
    model[-1].weight.requires_grad_(False)
    update, knowledge = released(model, [1, 1, 4])
    assert AdaptiveLabelRecovery()(update, knowledge).targets.tolist() == [1, 1, 4]
    assert recover_labels(update, knowledge).targets.tolist() == [1, 1, 4]
    assert "weight is not shared by itself" in ConsistentLabels()(update, knowledge).note


def test_a_tied_weight_is_not_read() -> None:
    update, knowledge = released(Tied(bias=False), [1, 1, 4])
    assert "tied" in recover_labels(update, knowledge).note
    update, knowledge = released(Tied(bias=True), [1, 1, 4])
    found = AdaptiveLabelRecovery()(update, knowledge)
    assert found.targets.tolist() == [1, 1, 4]
    assert "weight is not shared by itself" in ConsistentLabels()(update, knowledge).note


@pytest.mark.parametrize("bias", [True, False])
def test_dead_units_before_the_classifier(bias: bool) -> None:
    model = net(bias=bias)
    nn.init.constant_(model[-3].bias, -100.0)
    update, knowledge = released(model, [3, 3, 3, 7])
    found = recover_labels(update, knowledge)
    if bias:
        assert found.targets.tolist() == [3, 3, 3, 7]
    else:
        assert found.outcome is Outcome.NO_SIGNAL
        assert "is zero" in found.note


@each_rule
def test_signs_and_adam_show_no_counts(rule) -> None:
    found = rule(*released(net(), [3, 3, 7], defenses=[Sign()]))
    assert "signs alone" in found.note
    found = rule(*released(net(), [3, 3, 7], protocol=LocalAdam(learning_rate=0.01, epochs=2)))
    assert "not a sum of gradients" in found.note
    assert found.targets is None


@each_rule
def test_zero_and_broken_updates(rule) -> None:
    update, knowledge = released(net(), [3, 3, 7])
    zero = Update(tensors={name: torch.zeros_like(tensor) for name, tensor in update.tensors.items()})
    assert rule(zero, knowledge).outcome is Outcome.NO_SIGNAL
    last = next(reversed(update.tensors))
    for value in (torch.nan, torch.inf):
        broken = Update(tensors={**update.tensors, last: torch.full_like(update.tensors[last], value)})
        with pytest.raises(InputError, match=f"{last} is NaN or infinite"):
            rule(broken, knowledge)
    with pytest.raises(InconsistentUpdateError):
        rule(Update(tensors={"x": torch.ones(3)}), knowledge)


def test_needs_are_named() -> None:
    from dataclasses import replace

    update, knowledge = released(net(), [3, 3, 7])
    with pytest.raises(KnowledgeError, match="batch_size"):
        recover_labels(update, replace(knowledge, batch_size=None))


@pytest.mark.parametrize("targets", [[0, 1, 1, 0], [1, 1, 1, 0], [1, 1], [0]])
def test_two_classes_without_a_bias_have_no_consistent_counts(targets: list[int]) -> None:
    """The rows of the weight only differ in sign: "all of one class" fits any batch, at whole numbers."""
    for seed in range(4):
        update, knowledge = released(net(2, bias=False, seed=seed), targets, seed=seed)
        found = ConsistentLabels()(update, knowledge)
        assert found.targets is None
        assert "only differ in sign" in found.note
        chosen = recover_labels(update, knowledge)
        assert chosen.targets is None or chosen.targets.tolist() == sorted(targets)


def _trained(steps: int = 120) -> torch.nn.Sequential:
    """A network that is sure of the class of most inputs near ten centers."""
    model, generator = net(10), torch.Generator().manual_seed(0)
    centers = torch.rand(10, 12, generator=generator)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(steps):
        labels = torch.randint(10, (64,), generator=generator)
        inputs = (centers[labels] + 0.15 * torch.randn(64, 12, generator=generator)).clamp(0, 1)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return model


def test_examples_that_a_trained_model_is_sure_of_are_not_counted_where_the_scale_is_hidden() -> None:
    """They leave nothing in the gradient, and those that are left explain the update as if they were all."""
    model = _trained()
    release = [DPSGD(clip_norm=1.0, noise_std=0.05, noise="per_example")]
    for seed in range(12):
        labels = torch.randint(10, (4,), generator=torch.Generator().manual_seed(seed)).tolist()
        update, knowledge = released(model, labels, defenses=release, seed=seed)
        for attack in (ConsistentLabels(), AdaptiveLabelRecovery()):
            found = attack(update, knowledge)
            assert found.targets is None or found.targets.tolist() == sorted(labels)
        chosen = recover_labels(update, knowledge)
        assert chosen.targets is None or chosen.targets.tolist() == sorted(labels)

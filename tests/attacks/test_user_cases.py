"""Faults that users of tools like this one met, each with the input that showed it, named by its case.

Cases that are tested elsewhere carry their name in the docstring of that test.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.attacks import (
    LBFGS,
    AdaptiveLabelRecovery,
    Attack,
    BatchNormInversion,
    ConsistentLabels,
    GaussNewton,
    GradInversion,
    Inversion,
    InvertingGradients,
    LabelPolicy,
    SearchStage,
    SignRule,
    SquaredError,
    ZeroShotLabels,
    recover_labels,
    residuals_under,
)
from gradleak.audits.released import GateStatus, check_update
from gradleak.core import Batch, Domain, HonestButCurious, Objective, Protocol, Release, Update, UpdateKind
from gradleak.protocols import FedAvg, FedSGD, LocalAdam
from gradleak.results import InconsistentUpdateError, InputError, KnowledgeError, Outcome
from gradleak.scoring import score_images
from tests.attacks.inversion.test_engine import Rotten
from tests.attacks.setting import ROW, rows, setting, small_net

QUICK: dict[str, Attack] = {
    "inverting_gradients": InvertingGradients(iterations=12, restarts=2),
    "grad_inversion": GradInversion(iterations=12, restarts=2),
    "gauss_newton": GaussNewton(max_steps=4, warm_iterations=4),
}
each_attack = pytest.mark.parametrize("attack", QUICK.values(), ids=QUICK)


def _generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _seeded(kind: type[nn.Module], *arguments: int, **options: object) -> nn.Module:
    with torch.random.fork_rng():
        torch.random.default_generator.manual_seed(1)
        return kind(*arguments, **options)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("attack", [GradInversion(iterations=10, restarts=2), BatchNormInversion(iterations=10)])
def test_u18_a_group_norm_net_is_attacked_without_the_prior_and_the_information_is_listed(
    attack: Attack, groups: int
) -> None:
    net = nn.Sequential(
        _seeded(nn.Conv2d, 1, 4, 3),
        nn.GroupNorm(groups, 4),
        nn.Tanh(),
        nn.Flatten(),
        _seeded(nn.Linear, 64, 3),
    )
    image = torch.rand(1, 1, 6, 6, generator=_generator())
    case = setting(net, Batch(image, torch.tensor([2]), Domain.image(channels=1, height=6, width=6)))
    found = attack(case.update, case.knowledge, generator=_generator())
    assert "no BatchNorm statistics, so the BatchNorm prior was left out" in found.note
    listed = "; ".join(found.details["information"])
    for used in ("update rule: FedSGD()", "labels: recovered", "no BatchNorm statistics", "prior: TotalVariation"):
        assert used in listed


class Normalized(nn.Sequential):
    """Six parameters, two of them square, and three buffers: what a positional list of a state dict mixes up."""

    def __init__(self) -> None:
        super().__init__(_seeded(nn.Linear, 12, 12), nn.BatchNorm1d(12), nn.Tanh(), _seeded(nn.Linear, 12, 3))


def test_u25_nine_arrays_for_six_parameters_and_other_mixed_up_lists() -> None:
    model = Normalized()
    case = setting(model, rows(1), dtype=torch.float32)
    objective, tensors = case.knowledge.objective, dict(case.update.tensors)
    state = model.state_dict()
    nine = [tensors.get(name, tensor.float()) for name, tensor in state.items()]
    assert (len(nine), len(tensors)) == (9, 6)
    # By name, and in the order of state_dict(), the three buffers are left out and it is said; nothing is guessed or cut off.
    named = Update(tensors=dict(zip(state, nine, strict=True))).align(objective)
    assert list(named.tensors) == list(objective.params)
    assert sum("not a trainable parameter" in note for note in named.alignment) == 3
    ordered = Update(tensors={str(place): tensor for place, tensor in enumerate(nine)}).align(objective)
    assert all(torch.equal(ordered.tensors[name], tensors[name]) for name in objective.params)
    assert any("order of state_dict()" in note for note in ordered.alignment)
    for listed in (nine[::-1], list(tensors.values())[:-1], list(tensors.values())[::-1]):
        update = Update(tensors={str(place): tensor for place, tensor in enumerate(listed)})
        with pytest.raises(InconsistentUpdateError, match=rf"a list of {len(listed)} tensors .* 6 parameters in order"):
            InvertingGradients(iterations=1)(update, case.knowledge, generator=_generator())
    without = Update(tensors={name: tensor for name, tensor in tensors.items() if name != "3.bias"})
    with pytest.raises(InconsistentUpdateError, match=r"1 missing.*3\.bias: expected \(3,\), got nothing"):
        GaussNewton()(without, case.knowledge, generator=_generator())
    turned = Update(tensors={**tensors, "3.weight": tensors["3.weight"].T.contiguous()})
    with pytest.raises(InconsistentUpdateError, match="transposed"):
        GaussNewton()(turned, case.knowledge, generator=_generator())
    # A square weight that was turned fits by shape: the consistency gate sees it.
    square = Update(tensors={**tensors, "0.weight": tensors["0.weight"].T.contiguous()}).align(objective)
    gate = check_update(objective, Release(FedSGD()), case.truth, square)
    assert gate.status is GateStatus.INCONSISTENT
    assert any("0.weight is transposed" in cause for cause in gate.causes)


@pytest.mark.parametrize(
    "real",
    [
        FedAvg(learning_rate=0.1, epochs=3),
        FedAvg(learning_rate=0.05, epochs=2, momentum=0.9),
        LocalAdam(learning_rate=1e-3, epochs=2),
        FedAvg(learning_rate=0.4, epochs=3),  # the rate is not the assumed one
    ],
    ids=["sgd", "momentum", "adam", "another rate"],
)
def test_u29_a_delta_is_never_called_the_gradient_and_the_assumed_rule_is_said(real: Protocol) -> None:
    assumed = FedAvg(learning_rate=0.1, epochs=3)
    case = setting(small_net(), rows(1), protocol=real, threat=HonestButCurious(targets=True, protocol=assumed))
    assert case.update.kind is UpdateKind.DELTA
    found = InvertingGradients(iterations=120)(case.update, case.knowledge, generator=_generator())
    rule = found.details["information"][0]
    assert rule.startswith("update rule: FedAvg(learning_rate=0.1, epochs=3")
    assert rule.endswith("assumed, not known")
    assert "the client's protocol is not known; assumed was FedAvg" in found.note
    assert "gradient of the batch" not in found.note
    trials = residuals_under(found, case.update, case.knowledge)
    residuals = [trial.relative_residual for trial in trials]
    assert len({round(value, 6) for value in residuals}) > 3
    if real is not assumed and real == FedAvg(learning_rate=0.4, epochs=3):
        best = min(trials, key=lambda trial: trial.relative_residual)
        assert best.protocol.learning_rate == pytest.approx(0.4)


LABELS = {
    "16 of 10 classes": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 3, 3, 7, 7, 7],
    "duplicates": [3, 3, 3, 7],
    "single class": [5] * 6,
    "one example": [4],
}


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("name", LABELS)
def test_u32_counts_with_a_confidence_or_not_identifiable(name: str, bias: bool) -> None:
    net = nn.Sequential(_seeded(nn.Linear, 12, 64), nn.ReLU(), _seeded(nn.Linear, 64, 10, bias=bias))
    labels = LABELS[name]
    case = setting(net, rows(*labels), dtype=torch.float32)
    claims = 0
    for attack in (SignRule(), ZeroShotLabels(), AdaptiveLabelRecovery(), ConsistentLabels()):
        found = attack(case.update, case.knowledge)
        if found.targets is None:
            assert found.outcome is Outcome.NOT_IDENTIFIABLE
            assert found.note
        else:
            claims += 1
            assert found.targets.tolist() == sorted(labels)
            assert found.counts.tolist() == torch.bincount(torch.tensor(labels), minlength=10).tolist()
            assert 0.5 <= found.confidence <= 1
    assert claims > 0 or not bias
    if len(labels) > 10:
        assert "16 examples have only 10" in ZeroShotLabels()(case.update, case.knowledge).note


@pytest.mark.parametrize("labels", [[[1.0]], [[1.0], [0.0], [1.0]]], ids=["one", "three"])
def test_u32_a_head_of_one_logit_is_not_identifiable_and_says_why(labels: list[list[float]]) -> None:
    net = nn.Sequential(_seeded(nn.Linear, 12, 8), nn.ReLU(), _seeded(nn.Linear, 8, 1))
    truth = Batch(torch.rand(len(labels), 12, generator=_generator()), torch.tensor(labels, dtype=torch.float64), ROW)
    case = setting(net, truth, loss="bce_with_logits")
    found = recover_labels(case.update, case.knowledge)
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    assert "one logit" in found.note
    joint = InvertingGradients(iterations=2)(case.update, case.knowledge, generator=_generator())
    assert joint.details["labels"] == "optimized"
    assert "one logit" in joint.note


@pytest.mark.parametrize("labels", [[2], [0, 2, 2]], ids=["one", "three"])
@each_attack
def test_u32_a_log_softmax_behind_the_head_hides_no_label(attack: Attack, labels: list[int]) -> None:
    """The most common form in federated tutorials: the model ends in a log-softmax, the loss is NLL."""
    net = nn.Sequential(*small_net("relu"), nn.LogSoftmax(dim=1))
    case = setting(net, rows(*labels), loss="nll")
    found = attack(case.update, case.knowledge, generator=_generator())
    assert found.details["labels"] == "recovered"
    assert found.targets.tolist() == labels
    joint = Inversion(labels=LabelPolicy.OPTIMIZE)
    with pytest.raises(
        KnowledgeError, match=r"optimized together .* binary cross entropy .*, and the loss is 'nll'; disclose"
    ):
        joint(case.update, case.knowledge, generator=_generator())


class Scan(nn.Module):
    """A mask and a class of one large gray image."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = _seeded(nn.Conv2d, 1, 4, 8, stride=8)
        self.mask = _seeded(nn.Conv2d, 4, 1, 1)
        self.head = _seeded(nn.Linear, 4, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = torch.tanh(self.trunk(x))
        return {"mask": self.mask(features), "class": self.head(features.mean((2, 3)))}


def dice_and_cross_entropy(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
    """Targets (b, 1 + 64 · 64): the class, then the mask."""
    soft, mask = outputs["mask"].flatten(1).sigmoid(), targets[:, 1:]
    dice = 1 - (2 * (soft * mask).sum(1) + 1) / (soft.sum(1) + mask.sum(1) + 1)
    return dice.mean() + F.cross_entropy(outputs["class"], targets[:, 0].long())


def test_u34_a_scan_with_two_heads_and_a_loss_of_its_own() -> None:
    image = torch.rand(1, 1, 512, 512, generator=_generator())
    mask = (F.avg_pool2d(image, 8).flatten(1) > 0.5).float()
    domain = Domain.image(channels=1, height=512, width=512)
    truth = Batch(image, torch.cat([torch.tensor([[2.0]]), mask], dim=1), domain)
    objective, release = Objective.from_module(Scan(), loss=dice_and_cross_entropy), Release(FedSGD())
    update = release(objective, truth, _generator())
    hidden = HonestButCurious().disclose(objective, release, truth)
    attack = InvertingGradients(iterations=10)
    with pytest.raises(KnowledgeError, match=r"returns a dict, not one vector of logits.*; disclose targets"):
        attack(update, hidden, generator=_generator())
    known = HonestButCurious(targets=True).disclose(objective, release, truth)
    found = attack(update, known, generator=_generator())
    assert found.inputs.shape == image.shape
    assert found.loss < found.history[0]
    assert found.details["labels"] == "disclosed"


@pytest.mark.parametrize("calls", [(4,), (4, 9), (1,)])
@pytest.mark.parametrize("learning_rate", [1.0, 50.0])
def test_u38_l_bfgs_goes_back_to_its_best_after_nan(calls: tuple[int, ...], learning_rate: float) -> None:
    case = setting(small_net("sigmoid"), rows(1))
    stage = SearchStage(optimizer=LBFGS(learning_rate=learning_rate, inner_steps=5), iterations=5)
    attack = Inversion(matching=Rotten(*calls), stages=(stage,))
    found = attack(case.update, case.knowledge, generator=_generator())
    assert found.details["non_finite"] >= len(calls)
    assert torch.isfinite(found.inputs).all()
    assert found.loss == min(found.history)
    assert all(score.value is None or score.value == score.value for score in score_images(found, case.truth))


def test_u38_an_optimizer_that_only_meets_nan_is_neither_scored_nor_safe() -> None:
    case = setting(small_net(), rows(1))
    stage = SearchStage(optimizer=LBFGS(inner_steps=5), iterations=5)
    found = Inversion(matching=Rotten(), stages=(stage,))(case.update, case.knowledge, generator=_generator())
    assert found.outcome is Outcome.NOT_FINITE
    assert found.outcome.has_value is False
    assert all(score.value is None for score in score_images(found, case.truth))


@each_attack
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_u39_broken_entries_are_refused_with_the_layer(attack: Attack, value: float) -> None:
    case = setting(small_net(), rows(1))
    weight = case.update.tensors["2.weight"].clone()
    weight[3, 4] = value
    broken = replace(case.update, tensors={**case.update.tensors, "2.weight": weight})
    with pytest.raises(InputError, match=r"of 2\.weight is NaN or infinite"):
        attack(broken, case.knowledge, generator=_generator())
    for rule in (SignRule(), ZeroShotLabels(), AdaptiveLabelRecovery(), ConsistentLabels()):
        with pytest.raises(InputError, match=r"of 2\.weight is NaN or infinite"):
            rule(broken, case.knowledge)


@each_attack
def test_u39_a_zero_layer_is_named_and_a_zero_update_is_no_signal(attack: Attack) -> None:
    case = setting(small_net(), rows(1))
    zero = {name: torch.zeros_like(tensor) for name, tensor in case.update.tensors.items()}
    found = attack(replace(case.update, tensors=zero), case.knowledge, generator=_generator())
    assert (found.outcome, found.inputs) == (Outcome.NO_SIGNAL, None)
    part = {**case.update.tensors, "0.weight": zero["0.weight"]}
    found = attack(replace(case.update, tensors=part), case.knowledge, generator=_generator())
    assert found.note.endswith("zero everywhere in the update: 0.weight")
    assert torch.isfinite(found.inputs).all()


@each_attack
@pytest.mark.parametrize("labels", [(1,), (0, 0, 2)])
def test_u39_dead_units_tell_no_inputs_apart(attack: Attack, labels: tuple[int, ...]) -> None:
    """dW/db is 0/0 there: every input explains the update, the first random one too, which is not "converged"."""
    net = nn.Sequential(_seeded(nn.Linear, 12, 8), nn.ReLU(), _seeded(nn.Linear, 8, 3))
    with torch.no_grad():
        net[0].bias.fill_(-50.0)
    case = setting(net, rows(*labels))
    found = attack(case.update, case.knowledge, generator=_generator())
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    assert "zero everywhere in the update: 0.weight, 0.bias" in found.note
    assert torch.isfinite(found.inputs).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_u40_half_precision_is_read_wide_and_what_the_format_flushed_is_reported(dtype: torch.dtype) -> None:
    case = setting(small_net(), rows(1), dtype=torch.float32)
    tiny = {name: 1e-6 * tensor for name, tensor in case.update.tensors.items()}
    update = Update(tensors={name: tensor.to(dtype) for name, tensor in tiny.items()})
    share = max(part.zero + part.subnormal for part in update.precision().values())
    assert (share > 0.5) == (dtype is torch.float16)  # bfloat16 has the exponents of float32
    found = InvertingGradients(iterations=40)(update, case.knowledge, generator=_generator())
    assert found.inputs.dtype is torch.float32
    assert torch.isfinite(found.inputs).all()
    large = replace(case.update, tensors={name: (1e7 * t).to(dtype) for name, t in case.update.tensors.items()})
    if dtype is torch.float16:
        with pytest.raises(InputError, match=r"% of .* is NaN or infinite.*loss scale and mixed precision"):
            InvertingGradients(iterations=1)(large, case.knowledge, generator=_generator())


@each_attack
def test_u45_what_a_converged_model_leaves_is_no_small_residual(attack: Attack) -> None:
    """Its update is tiny and the attack fails: the residual is relative, so that nothing reads as explained."""
    net = small_net()
    inputs, label = rows(1).inputs, torch.tensor([1])
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    for _ in range(150):
        optimizer.zero_grad()
        F.cross_entropy(net(inputs), label).backward()
        optimizer.step()
    case = setting(net, rows(1), dtype=torch.float32)
    assert max(float(tensor.abs().max()) for tensor in case.update.tensors.values()) < 1e-2
    noise = {name: 1e-7 * torch.randn(t.shape, generator=_generator()) for name, t in case.update.tensors.items()}
    found = attack(Update(tensors=noise), replace(case.knowledge, targets=label), generator=_generator())
    assert found.outcome in (Outcome.BUDGET_SPENT, Outcome.PLATEAU)
    assert found.loss > 0.1
    assert found.details["relative_residual"] > 0.3


def test_u31_squared_error_and_pairing_do_not_depend_on_the_order_of_a_batch_with_repeats() -> None:
    truth = rows(1, 1, 0, 1)
    case = setting(small_net(), truth, threat=HonestButCurious(targets=True))
    stage = SearchStage(optimizer=LBFGS(inner_steps=5), iterations=6)
    attack = Inversion(matching=SquaredError(), stages=(stage,), restarts=2)
    found = attack(case.update, case.knowledge, generator=_generator())
    order = [3, 2, 0, 1]
    moved = replace(found, inputs=found.inputs[order], targets=found.targets[order])
    for one, other in zip(score_images(found, case.truth), score_images(moved, case.truth), strict=True):
        assert (one.name, one.value) == (other.name, pytest.approx(other.value, nan_ok=False))
    assert "wrong_pairing_rmse" in {score.name for score in score_images(found, case.truth)}

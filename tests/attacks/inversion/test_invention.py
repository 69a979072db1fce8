"""An auditor must not take a pretty picture for a leak: claims of a prior, asked of the update alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from gradleak.attacks import ClaimSupport, InventionCheck, Support
from gradleak.core import (
    Batch,
    Domain,
    HonestButCurious,
    ImageGenerator,
    Knowledge,
    Objective,
    Protocol,
    Reconstruction,
    Release,
    Update,
)
from gradleak.defenses import Clip, GaussianNoise
from gradleak.models import mlp
from gradleak.protocols import FedAvg, FedSGD
from gradleak.results import InputError, KnowledgeError, Outcome

SIDE = 5
DOMAIN = Domain.image(channels=1, height=SIDE, width=SIDE)
CHECK = InventionCheck(steps=6, alternatives=8)


class _Flat(nn.Module):
    def __init__(self, *layers: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.model = mlp(
            features=SIDE * SIDE, hidden=layers or (32, 16), classes=3, activation="tanh", generator=generator
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.model(x.flatten(1))
        return out


class _Gray(nn.Module):
    """Pictures near mid-gray, whatever the latents."""

    def forward(self, latents: Tensor) -> Tensor:
        return 0.5 + 0.02 * latents.reshape(-1, 1, SIDE, SIDE).tanh()


def _case(*defenses: object, size: int = 1, model: nn.Module | None = None) -> tuple[Batch, Update, Knowledge]:
    objective, release = Objective.from_module(model or _Flat()), Release(FedSGD(), defenses)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(3)
    truth = Batch(torch.rand(size, 1, SIDE, SIDE, generator=generator), torch.arange(size) % 3, DOMAIN)
    update = release(objective, truth, torch.Generator().manual_seed(1))
    images = ImageGenerator(module=_Gray(), latent_shape=(SIDE * SIDE,), domain=DOMAIN, source="nothing but gray")
    return truth, update, HonestButCurious(targets=True, generator=images).disclose(objective, release, truth)


def _claim(inputs: Tensor, targets: Tensor) -> Reconstruction:
    return Reconstruction(inputs=inputs, targets=targets, loss=0.1, outcome=Outcome.BUDGET_SPENT)


def _off(truth: Batch, by: float, seed: int = 8) -> Tensor:
    """Pictures inside the box, each at this pixel RMSE from the truth."""
    noise = torch.randn(truth.inputs.shape, generator=torch.Generator().manual_seed(seed))
    # Inwards, so that nothing is clamped.
    away = noise.abs() * torch.where(truth.inputs > 0.5, -1.0, 1.0)
    away = away.clamp(-0.4, 0.4)
    scale = by / away.flatten(1).square().mean(dim=1).sqrt()
    return truth.inputs + away * scale.reshape(-1, 1, 1, 1)


def _ask(inputs: Tensor, case: tuple[Batch, Update, Knowledge], check: InventionCheck = CHECK) -> ClaimSupport:
    truth, update, known = case
    return check(_claim(inputs, truth.targets), update, known, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("by", "support"), [(0.04, Support.SUPPORTED), (0.2, Support.CONTRADICTED)])
def test_the_way_to_what_explains_the_update_is_the_error_of_the_claim(by: float, support: Support) -> None:
    case = _case()
    found = _ask(_off(case[0], by), case)
    # The error is known to the test alone.
    assert found.moved == pytest.approx((by,), rel=0.03)
    assert found.support is support
    assert found.held_out[1] < 0.05 * found.held_out[0]
    assert found.used[1] < found.used[0] <= found.relative_residual / 0.3
    assert f"pixel RMSE of {found.moved[0]:.2g}" in found.sentence
    assert ("invented" in found.sentence) is (support is Support.CONTRADICTED)
    assert found.plain_gradients > CHECK.alternatives


def test_the_matching_loss_alone_would_not_tell() -> None:
    case = _case()
    truth, update, known = case
    objective = known.objective
    found = _ask(_off(truth, 0.15), case)
    # The same residual by plain autograd, and the claim beats every other picture of its prior.
    params = {name: tensor.clone().requires_grad_() for name, tensor in objective.params.items()}
    loss = objective.loss(params, Batch(_off(truth, 0.15), truth.targets))
    made = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(params.values()))])
    seen = objective.flatten(update.tensors)
    assert found.relative_residual == pytest.approx(float((made - seen).norm() / seen.norm()), rel=1e-4)
    assert found.alternatives == 8
    assert found.relative_residual < found.best_alternative
    assert found.support is Support.CONTRADICTED


def test_a_picture_that_any_other_explains_as_well_is_invented() -> None:
    case = _case()
    found = _ask(torch.full_like(case[0].inputs, 0.05), case)
    assert found.relative_residual >= found.best_alternative
    assert found.support is Support.CONTRADICTED
    assert "the prior made the picture" in found.sentence


def test_public_images_stand_for_the_prior_too() -> None:
    truth, update, known = _case()
    public = Batch(_off(truth, 0.01), truth.targets, DOMAIN)
    known = replace(known, generator=None, public=public)
    found = _ask(_off(truth, 0.3), (truth, update, known))
    assert found.alternatives == 8
    assert found.support is Support.CONTRADICTED
    assert "another picture" in found.sentence


def test_labels_that_were_not_given_move_with_the_picture() -> None:
    truth, update, known = _case()
    classes = known.objective.params[list(known.objective.params)[-1]].numel()
    soft = torch.full((truth.size, classes), 1 / classes)
    claim = Reconstruction(inputs=_off(truth, 0.1), targets=soft, loss=None, outcome=Outcome.BUDGET_SPENT)
    known = replace(known, targets=None)
    found = InventionCheck(steps=20, products=20, alternatives=8)(
        claim, update, known, generator=torch.Generator().manual_seed(1)
    )
    refined = found.refined
    assert refined is not None
    # Here the refinement reads them off the update, where the claim had a third of each class.
    assert torch.equal(refined.targets, truth.targets)
    assert refined.details["labels"] == "recovered"
    # The refined picture is held against the update with its own labels.
    assert found.used[1] == pytest.approx(refined.details["relative_residual_seen"], rel=1e-3)
    assert found.used[1] < 0.01 * found.used[0]
    assert "optimized together" not in refined.note


def test_of_a_batch_the_worst_example_counts() -> None:
    case = _case(size=2)
    inputs = torch.cat([_off(case[0], 0.02)[:1], _off(case[0], 0.2)[1:]])
    found = _ask(inputs, case)
    assert len(found.moved) == 2
    assert found.moved[0] < 0.06
    assert found.moved[1] == pytest.approx(0.2, rel=0.1)
    assert found.support is Support.CONTRADICTED


def test_noise_supports_nothing() -> None:
    truth, update, known = _case()
    generator = torch.Generator().manual_seed(2)
    noise = {
        name: t.square().mean().sqrt() * torch.randn(t.shape, generator=generator) for name, t in update.tensors.items()
    }
    known = replace(known, generator=None)
    found = _ask(_off(truth, 0.04), (truth, replace(update, tensors=noise), known))
    assert found.support is Support.UNDECIDED
    assert found.held_out[1] > 0.5 * found.held_out[0]
    assert "a plausible look is no evidence" in found.sentence


def test_the_right_claim_needs_no_refinement() -> None:
    case = _case()
    found = _ask(case[0].inputs, case)
    assert found.support is Support.SUPPORTED
    assert found.sentence == "the claim explains the update to within round-off"
    assert found.moved == ()


def test_a_right_residual_that_every_picture_has_supports_nothing() -> None:
    dead = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        dead[1].bias.fill_(-100.0)
    case = _case(model=dead)
    found = _ask(torch.zeros_like(case[0].inputs), case)
    assert max(found.relative_residual, found.best_alternative) < 1e-6
    assert found.support is Support.CONTRADICTED
    assert "does not tell them apart" in found.sentence


def test_an_update_that_cannot_be_parted_is_used_whole() -> None:
    for case in (_case(Clip(0.1)), _case(model=nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 3)))):
        found = _ask(_off(case[0], 0.2), case)
        assert found.held_out is None
        assert found.support in (Support.CONTRADICTED, Support.UNDECIDED)
    case = _case(Clip(0.1))
    found = _ask(_off(case[0], 0.2), case)
    assert found.moved == pytest.approx((0.2,), rel=0.05)
    assert found.support is Support.CONTRADICTED
    noisy = _case(GaussianNoise(std=1e-5))
    assert _ask(_off(noisy[0], 0.2), noisy).held_out is None


def test_nothing_claimed_is_nothing_to_check() -> None:
    truth, update, known = _case()
    empty = Reconstruction(inputs=None, targets=None, loss=None, outcome=Outcome.NO_SIGNAL)
    found = CHECK(empty, update, known, generator=torch.Generator())
    assert (found.support, found.relative_residual) == (Support.UNDECIDED, None)
    with pytest.raises(KnowledgeError, match="the check of a claim needs domain"):
        _ask(truth.inputs, (truth, update, replace(known, domain=None, generator=None)))
    with pytest.raises(InputError, match=r"InventionCheck\.drop: expected"):
        InventionCheck(drop=1.0)
    with pytest.raises(InputError, match=r"InventionCheck\.steps: expected"):
        InventionCheck(steps=0)


@pytest.mark.parametrize("defenses", [(), (Clip(0.1),)], ids=["parted", "whole"])
def test_the_refined_picture_is_a_claim_about_the_whole_update(defenses: tuple[object, ...]) -> None:
    truth, update, known = case = _case(*defenses)
    claim = replace(
        _claim(_off(truth, 0.2), truth.targets), details={"labels": "recovered", "information": ["a generator"]}
    )
    found = CHECK(claim, update, known, generator=torch.Generator().manual_seed(0))
    refined = found.refined
    assert refined is not None
    assert float((refined.inputs - truth.inputs).square().mean().sqrt()) < 0.02
    assert torch.equal(refined.targets, truth.targets)
    # The residual of the whole update, by the release itself.
    made = known.release.mean(known.objective, known.objective.params, Batch(refined.inputs.float(), truth.targets))
    seen = known.objective.flatten(update.tensors)
    gap = float((known.objective.flatten(made) - seen).norm() / seen.norm())
    assert refined.loss == pytest.approx(gap**2, rel=0.02, abs=1e-10)
    assert refined.details["relative_residual"] == pytest.approx(gap, rel=0.01, abs=1e-5)
    assert refined.plain_gradients == found.plain_gradients
    # The check was given the labels; the attack had to find them.
    assert refined.details["labels"] == "recovered"
    assert "disclosed" not in refined.note
    assert refined.details["information"][0] == "a generator"
    assert len(refined.details["information"]) == 2
    assert "refined" not in found.facts()
    assert "Reconstruction" not in repr(found)
    assert _ask(truth.inputs, case).refined is None


def test_a_claim_that_is_contradicted_does_not_read_as_safety() -> None:
    case = _case()
    found = _ask(_off(case[0], 0.2), case)
    assert found.support is Support.CONTRADICTED
    assert found.sentence.endswith("what the update gives away is in the refined picture")
    assert f"(relative residual {found.refined.details['relative_residual']:.2g})" in found.sentence
    # Too few steps to explain it: nothing is said of what the update gives away.
    short = _ask(_off(case[0], 0.3), case, replace(CHECK, steps=1, products=3, drop=0.9))
    assert short.refined.details["relative_residual"] > 0.01
    assert short.support is Support.CONTRADICTED
    assert short.sentence.endswith("no sign that the update gives nothing away")


def _of_a_digit(protocol: Protocol) -> Knowledge:
    """Knowledge of a picture as large as those of the measurements, with a generator of such."""
    domain = Domain.image(channels=1, height=28, width=28)
    objective = Objective.from_module(nn.Sequential(nn.Flatten(), nn.Linear(784, 4), nn.Tanh(), nn.Linear(4, 3)))
    make = nn.Sequential(nn.Linear(2, 784), nn.Sigmoid(), nn.Unflatten(1, (1, 28, 28)))
    images = ImageGenerator(module=make, latent_shape=(2,), domain=domain, source="not needed")
    truth = Batch(torch.rand(1, 1, 28, 28), torch.tensor([1]), domain)
    return HonestButCurious(targets=True, generator=images).disclose(objective, Release(protocol), truth)


def test_the_cost_is_known_beforehand() -> None:
    for defenses in ((), (Clip(0.1),)):
        case = _case(*defenses)
        estimate = CHECK.estimate(case[2])
        assert 0.2 * estimate < _ask(_off(case[0], 0.2), case).plain_gradients <= estimate
    # As measured on 28×28 pictures: 2,500 to 3,700, and 20,384 to 21,664 for four local steps (5,300 where not explained).
    wide = _of_a_digit(FedSGD())
    assert InventionCheck().estimate(wide) == pytest.approx(3262, abs=1)
    trained = _of_a_digit(FedAvg(learning_rate=0.1, epochs=4))
    assert 21_664 < InventionCheck().estimate(trained) < 1.25 * 21_664
    once = _of_a_digit(FedAvg(learning_rate=0.1, epochs=1))
    longer = _of_a_digit(FedAvg(learning_rate=0.1, epochs=9))
    assert CHECK.estimate(longer) == pytest.approx(9 / 4 * CHECK.estimate(trained))
    assert CHECK.estimate(once) <= CHECK.estimate(trained) / 4
    public = replace(wide, public=Batch(torch.rand(3, 1, 28, 28), torch.arange(3), wide.domain))
    assert CHECK.estimate(public) - CHECK.estimate(wide) == CHECK.alternatives
    with pytest.raises(KnowledgeError, match="the cost of the check of a claim needs"):
        CHECK.estimate(replace(wide, domain=None, generator=None))


def test_the_facts_hold_numbers_alone() -> None:
    case = _case()
    facts = _ask(_off(case[0], 0.2), case).facts()
    assert facts["support"] == "contradicted"
    assert facts["moved_pixel_rmse"] == pytest.approx([0.2], rel=0.03)
    assert set(facts) == {
        "support", "relative_residual", "alternatives", "best_alternative", "moved_pixel_rmse", "used_before_after",
        "held_out_before_after", "plain_gradients",
    }  # fmt: skip

"""V-information of one example among the others of its update."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import scipy.stats
import torch
from skimage.metrics import structural_similarity
from torch import nn

from gradleak.attacks import Attack, GaussNewton
from gradleak.attacks.attack import Monitor
from gradleak.core import Batch, Domain, Exposure, Knowledge, Objective, Reconstruction, Release, Update
from gradleak.protocols import FedSGD
from gradleak.results import InputError, Outcome, Score
from gradleak.risk import TargetInformation

SIDE = 12
DOMAIN = Domain.image(channels=1, height=SIDE, width=SIDE)
MOST = 2.0 * math.pi**2


class Stated(Attack):
    """Claims what it was told to, release by release, whatever the updates are."""

    name = "stated"
    needs = ("domain",)
    summary = "Claims stated images."

    def __init__(self, claims: list[torch.Tensor | None]) -> None:
        self.claims = list(claims)

    def estimate(self, knowledge: Knowledge) -> float:
        return 1.0

    def _recover(
        self, update: Update, knowledge: Knowledge, generator: torch.Generator, monitor: Monitor
    ) -> Reconstruction:
        claim = self.claims.pop(0)
        if claim is None:
            return Reconstruction(
                inputs=None, targets=None, loss=None, outcome=Outcome.NOT_FINITE, note="nothing found"
            )
        return Reconstruction(inputs=claim.clone(), targets=None, loss=0.0, outcome=Outcome.CONVERGED)


def images(count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand((count, 1, SIDE, SIDE), generator=generator, dtype=torch.float64)


def objective() -> Objective:
    torch_generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 8), nn.Sigmoid(), nn.Linear(8, 3)).double()
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.copy_(torch.randn(tensor.shape, generator=torch_generator, dtype=torch.float64) / 4)
    return Objective.from_module(model)


def exposures(pixels: torch.Tensor, size: int) -> list[Exposure]:
    known = objective()
    return [
        Exposure(known, Batch(part, torch.arange(len(part)) % 3, DOMAIN), Release(FedSGD()))
        for part in pixels.split(size)
    ]


def similarity(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(
        structural_similarity(
            one[0].numpy(),
            other[0].numpy(),
            data_range=1.0,
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
        )
    )


def test_claims_are_paired_and_the_exchanged_target_is_the_next_one() -> None:
    truth = images(9)
    # Right, but in another order; the target of each release is its second example.
    claims = [part.flip(0) for part in truth.split(3)]
    found = TargetInformation(attack=Stated(claims), place=1)(exposures(truth, 3))
    assert found.value == pytest.approx(MOST)
    assert found.n == 3
    assert found.details["per_target"] == pytest.approx([1.0, 1.0, 1.0])
    assert found.details["others"] == [2, 2, 2]
    # Every other claim is taken by its own example, so that the exchanged target gets the claim on the true one.
    swapped = np.array([similarity(truth[1 + 3 * ((place + 1) % 3)], truth[1 + 3 * place]) for place in range(3)])
    expected = MOST * (1.0 - (1.0 - swapped) ** 2)
    assert found.details["exchanged_ssim"] == pytest.approx(swapped.mean(), abs=1e-6)
    assert found.details["exchanged"] == pytest.approx(expected.mean(), abs=1e-4)
    low, high = found.details["above_exchanged_interval"]
    wanted = scipy.stats.t.interval(0.95, 2, MOST - expected.mean(), scipy.stats.sem(expected))
    assert (low, high) == pytest.approx(wanted, abs=1e-4)
    assert Score.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False))).value == found.value


def test_claims_that_know_nothing_are_no_better_than_for_an_exchanged_target() -> None:
    above, similar = [], []
    for seed in range(4):
        truth, claims = images(40, seed=10 + 2 * seed), images(40, seed=11 + 2 * seed)
        found = TargetInformation(attack=Stated(list(claims.split(5))))(exposures(truth, 5))
        above.append(found.details["above_exchanged_interval"][0] > 0.0)
        similar.append(found.details["ssim"])
    # Among five random images one is a little like anything: similar, and not about the target.
    assert min(similar) > 0.0
    assert sum(above) <= 1


def test_target_alone_is_found_and_its_gradient_shrinks_with_others() -> None:
    truth = images(4)
    alone = TargetInformation(attack=GaussNewton())(exposures(truth, 1))
    assert alone.details["ssim"] > 0.99
    assert alone.details["above_exchanged"] > 10.0
    # The derivative with respect to one of n + 1 inputs is 1/(n + 1) of that of this input alone, which is all that the
    # sensitivity says of aggregation.
    single, mixed = exposures(truth, 1)[0], exposures(truth, 4)[0]
    own = torch.autograd.functional.jacobian(single.mean, single.inputs)
    among = torch.autograd.functional.jacobian(mixed.mean, mixed.inputs)
    torch.testing.assert_close(among[:, : SIDE**2], own / 4)


def test_without_claims_or_with_some() -> None:
    truth = images(3)
    nothing = TargetInformation(attack=Stated([None, None, None]))(exposures(truth, 1))
    assert nothing.value is None
    assert nothing.outcome is Outcome.NOT_FINITE
    some = TargetInformation(attack=Stated([truth[:1], None, None]))(exposures(truth, 1))
    assert some.value == pytest.approx(MOST / 3)
    assert some.details["claimed"] == 1
    assert "2 of 3 targets" in some.note
    one = TargetInformation(attack=Stated([truth[:1]]))(exposures(truth[:1], 1))
    assert one.interval is None
    assert one.details["above_exchanged"] is None


def test_refusals_name_what_is_wrong() -> None:
    with pytest.raises(InputError, match="at least one Exposure"):
        TargetInformation(attack=GaussNewton())([])
    with pytest.raises(InputError, match="a target at place 2, got a batch of 2"):
        TargetInformation(attack=GaussNewton(), place=2)(exposures(images(2), 2))
    with pytest.raises(InputError, match=r"TargetInformation\.attack: expected an Attack, got 'gauss_newton'"):
        TargetInformation(attack="gauss_newton")  # type: ignore[arg-type]


def test_an_exchanged_target_is_none_of_the_examples_of_the_batch() -> None:
    """Releases that overlap, as of a window that moves on: the next target is the second example here, and claimed rightly."""
    pixels = images(8)
    known = objective()
    releases = [
        Exposure(known, Batch(pixels[start : start + 2], torch.tensor([0, 1]), DOMAIN), Release(FedSGD()))
        for start in range(4)
    ]
    found = TargetInformation(attack=Stated([pixels[start : start + 2] for start in range(4)]))(releases)
    assert found.details["ssim"] == pytest.approx(1.0)
    assert found.details["exchanged_ssim"] < 0.3
    twins = TargetInformation(attack=Stated([pixels[:2], pixels[:2].flip(0)]))(
        [
            Exposure(known, Batch(part, torch.tensor([0, 1]), DOMAIN), Release(FedSGD()))
            for part in (pixels[:2], pixels[:2].flip(0))
        ]
    )
    assert twins.details["exchanged"] is None

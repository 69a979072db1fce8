"""Rows in units of their own are scored, attacked and bounded as the same rows scaled to [0, 1] are."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import gradleak as gl
from gradleak.attacks import GaussNewton, InvertingGradients
from gradleak.core import Batch, Domain, DomainKind, Exposure, HonestButCurious, Objective, Reconstruction, Release
from gradleak.protocols import FedSGD
from gradleak.results import InputError, Outcome, Score
from gradleak.risk import GaussianPrior, InversionInfluence, LinearizedPosteriorError
from gradleak.scoring import blind_baseline, score_images

LOW = torch.tensor([16.0, 0.0, 0.0, 0.0, -40.0], dtype=torch.float64)
HIGH = torch.tensor([90.0, 1.0, 1.0, 99_999.0, 60.0], dtype=torch.float64)
OWN = Domain(shape=(5,), low=LOW.tolist(), high=HIGH.tolist(), kind=DomainKind.TABULAR)  # type: ignore[arg-type]
SCALED = Domain(shape=(5,), kind=DomainKind.TABULAR)
# What a user could say before: one pair that holds all columns.
ONE_PAIR = Domain(shape=(5,), low=-40.0, high=99_999.0, kind=DomainKind.TABULAR)
ROWS = torch.rand(4, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
ROWS[:, 1:3] = torch.eye(2, dtype=torch.float64)[torch.tensor([0, 1, 1, 0])]
LABELS = torch.tensor([0, 2, 1, 2])


def objectives() -> tuple[Objective, Objective]:
    """A model of rows scaled to [0, 1], and the same model of rows in units of their own."""
    generator = torch.Generator().manual_seed(0)
    scaled = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    with torch.no_grad():
        for parameter in scaled.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=generator, dtype=torch.float64) - 0.5)
    return Objective.from_module(scaled), Objective.from_module(nn.Sequential(Scale(), *scaled))


class Scale(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        return (rows - LOW.to(rows)) / (HIGH - LOW).to(rows)


def value(scores: list[Score], name: str = "pixel_rmse") -> float:
    found = next(score for score in scores if score.name == name)
    assert found.value is not None
    return found.value


def test_a_blind_guess_is_as_far_as_among_scaled_rows_and_no_longer_near() -> None:
    own = Batch(OWN.from_pixels(ROWS), LABELS, OWN)
    scaled = Batch(ROWS, LABELS, SCALED)
    for mine, other in zip(blind_baseline(own), blind_baseline(scaled), strict=True):
        assert mine.value == (other.value if other.value is None else pytest.approx(other.value, rel=1e-12))
    thresholds = gl.Thresholds()
    assert value(blind_baseline(own)) > 2 * thresholds.pixel_rmse
    # In units of one range the truth is almost constant, and guessing falls below the limit of a rebuilt example.
    claim = own.inputs.clone()
    claim[:, [0, 1, 2, 4]] = OWN.from_pixels(torch.full_like(ROWS, 0.5))[:, [0, 1, 2, 4]]  # one column of five is known
    known = Reconstruction(inputs=claim, targets=LABELS, loss=0.0, outcome=Outcome.CONVERGED, iterations=0)
    assert value(score_images(known, replace(own, domain=ONE_PAIR))) < 0.001 < thresholds.pixel_rmse
    assert value(score_images(known, own)) > thresholds.pixel_rmse


def test_a_value_outside_of_its_own_range_is_refused_and_placed() -> None:
    rows = OWN.from_pixels(ROWS)
    rows[2, 1] = 1.5
    with pytest.raises(InputError, match=r"ranges by feature, from -40 to 99999.* feature 1 first"):
        blind_baseline(Batch(rows, LABELS, OWN))


def test_attacks_end_at_the_same_rows_and_stay_in_the_ranges() -> None:
    scaled, own = objectives()
    claims = []
    for objective, domain in ((scaled, SCALED), (own, OWN)):
        batch = Batch(domain.from_pixels(ROWS), LABELS, domain).example(0)
        release = Release(FedSGD())
        update = release(objective, batch, torch.Generator().manual_seed(0))
        knowledge = HonestButCurious(targets=True).disclose(objective, release, batch)
        exact = GaussNewton(max_steps=20, starts=1)(update, knowledge, generator=torch.Generator().manual_seed(1))
        assert value(score_images(exact, batch)) < 1e-6
        rough = InvertingGradients(iterations=30, restarts=1)(
            update, knowledge, generator=torch.Generator().manual_seed(1)
        )
        assert rough.inputs is not None
        low, high = domain.bounds(rough.inputs)
        assert bool(((rough.inputs >= low) & (rough.inputs <= high)).all())
        claims.append(value(score_images(rough, batch)))
    assert claims[0] < 0.5


def test_closed_form_errors_in_pixels_are_those_of_scaled_rows() -> None:
    scaled, own = objectives()
    found = []
    for objective, domain in ((scaled, SCALED), (own, OWN)):
        batch = Batch(domain.from_pixels(ROWS), LABELS, domain).example(1)
        exposure = Exposure(objective, batch, Release(FedSGD(), [gl.GaussianNoise(std=1e-3)]))
        delta = torch.linspace(-1e-3, 1e-3, objective.size, dtype=torch.float64)
        prior = GaussianPrior.isotropic(domain, std=0.3)
        found.append(
            [
                InversionInfluence(unit="pixel_rmse")(exposure, delta=delta).value,
                LinearizedPosteriorError(noise_std=1e-3, prior=prior, unit="pixel_rmse")(exposure).value,
            ]
        )
    assert found[1] == pytest.approx(found[0], rel=1e-6)

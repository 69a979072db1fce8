from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from gradleak.core import Batch, Domain, DomainKind
from gradleak.results import Evidence, InputError, Outcome
from gradleak.scoring import blind_baseline

DOMAIN = Domain.image(channels=1, height=8, width=8)


def digits(count: int) -> torch.Tensor:
    return torch.tensor(load_digits().images[:count] / 16, dtype=torch.float64)[:, None]


def batch(pixels: torch.Tensor, domain: Domain = DOMAIN) -> Batch:
    return Batch(domain.from_pixels(pixels), torch.zeros(len(pixels), dtype=torch.long), domain)


def rmse_of(scores: list) -> object:
    return next(score for score in scores if score.name == "pixel_rmse")


def test_best_constant_is_the_standard_deviation_of_the_truth() -> None:
    pixels = digits(5)
    score = rmse_of(blind_baseline(batch(pixels)))
    expected = np.std(pixels.numpy().reshape(5, -1), axis=1)
    assert score.details["per_example"] == pytest.approx(expected.tolist(), rel=1e-12)
    assert score.value == pytest.approx(expected.min(), rel=1e-12)
    assert score.details["which_per_example"] == ["best_constant"] * 5
    assert score.evidence is Evidence.EXACT


def test_the_constant_is_chosen_for_each_channel() -> None:
    colors = torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64).reshape(1, 3, 1, 1).expand(1, 3, 8, 8)
    waves = 0.1 * torch.tensor([1.0, -1.0]).repeat(4).reshape(1, 1, 1, 8)
    score = rmse_of(blind_baseline(batch(colors + waves, Domain.image(channels=3, height=8, width=8))))
    assert score.value == pytest.approx(0.1)


def test_a_public_mean_that_is_nearer_wins() -> None:
    pixels = digits(200)
    zeros = torch.tensor(load_digits().target[:200] == 0)
    private, public = batch(pixels[zeros][:1]), batch(pixels[zeros][1:])
    score = rmse_of(blind_baseline(private, public=public))
    expected = float((public.inputs.mean(dim=0) - private.inputs[0]).pow(2).mean().sqrt())
    assert score.details["which"] == "mean_public"
    assert score.value == pytest.approx(expected, rel=1e-12)
    assert score.value < rmse_of(blind_baseline(private)).value
    assert rmse_of(blind_baseline(private, public=public.inputs)).value == score.value


def test_normalization_does_not_matter() -> None:
    pixels = digits(3)
    normalized = Domain.image(channels=1, height=8, width=8, mean=(0.3,), std=(0.37,))
    values = [
        rmse_of(blind_baseline(batch(pixels, domain), public=batch(digits(9)[3:], domain))).value
        for domain in (DOMAIN, normalized)
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-12)


def test_a_constant_image_is_hit_exactly() -> None:
    scores = {score.name: score for score in blind_baseline(batch(torch.full((1, 1, 8, 8), 0.25)))}
    assert scores["pixel_rmse"].value == 0.0
    assert scores["psnr"].value == math.inf
    assert scores["exact_hits"].value == 1.0


def test_a_single_entry_is_not_given_away() -> None:
    domain = Domain(shape=(1,), kind=DomainKind.TABULAR)
    score = rmse_of(blind_baseline(Batch(torch.tensor([[0.9]]), torch.tensor([0]), domain)))
    assert score.value == pytest.approx(0.4)
    assert score.details["considered"] == ["midpoint"]
    tiny = Domain.image(channels=3, height=1, width=1)
    score = rmse_of(blind_baseline(batch(torch.rand(1, 3, 1, 1, generator=torch.Generator().manual_seed(0)), tiny)))
    assert score.details["which"] == "midpoint"


def test_table_rows_get_one_constant_a_row() -> None:
    domain = Domain(shape=(4,), low=-2.0, high=2.0, kind=DomainKind.TABULAR)
    rows = torch.tensor([[-2.0, 0.0, 1.0, 2.0]], dtype=torch.float64)
    scores = {score.name: score for score in blind_baseline(Batch(rows, torch.tensor([0]), domain))}
    assert scores["pixel_rmse"].value == pytest.approx(np.std(rows.numpy() / 4))
    assert (scores["ssim"].value, scores["ssim"].outcome) == (None, Outcome.UNSUPPORTED)


def test_the_domain_may_be_passed() -> None:
    bare = Batch(digits(1), torch.tensor([0]))
    with pytest.raises(InputError, match="declared domain"):
        blind_baseline(bare)
    assert rmse_of(blind_baseline(bare, DOMAIN)).value > 0


def test_public_data_of_another_shape_is_refused() -> None:
    other = Domain.image(channels=1, height=9, width=9)
    with pytest.raises(InputError, match="public data: expected examples of shape"):
        blind_baseline(batch(digits(1)), public=batch(torch.zeros(2, 1, 9, 9), other))


def test_a_range_of_which_the_image_uses_little_is_said() -> None:
    wide = Batch(digits(2), torch.zeros(2, dtype=torch.long), replace(DOMAIN, high=255.0))
    for score in blind_baseline(wide):
        assert ("1/255 of the declared range" in score.note) == (score.name != "ssim")
    dark = batch(0.2 * digits(1))
    assert rmse_of(blind_baseline(dark)).note
    assert rmse_of(blind_baseline(dark, beside=[batch(digits(1))])).note == ""

"""Whole numbers behind covariances: by enumeration where that can be done, and what is left of a lattice."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from gradleak.attacks.inversion.peel.completion import Grid, OpenImage, on_grid
from gradleak.attacks.inversion.peel.lattice import hardness, is_sure, reduced, whole


def _factor(count: int, told: int, error: float, seed: int = 0, size: float = 3.0) -> np.ndarray:
    """Errors of `size` in all directions but `told` ones, where they are `error`."""
    stream = np.random.default_rng(seed)
    basis = np.linalg.qr(stream.standard_normal((count, count)))[0][:, told:]
    return np.concatenate([size * basis, error * np.eye(count)], axis=1)


def test_a_reduced_lattice_is_the_same_and_shorter() -> None:
    factor = _factor(24, 8, 1e-6)
    combined, upper = reduced(factor)
    assert np.array_equal(combined, np.rint(combined))
    assert abs(round(np.linalg.det(combined))) == 1
    before, after = (np.linalg.slogdet(part @ part.T)[1] for part in (factor, (factor.T @ combined).T))
    assert after == pytest.approx(before, abs=0.1)
    assert np.abs(np.diag(upper)).max() < 0.3 < 2.5 < np.sqrt(np.square(factor).sum(axis=1)).max()


@pytest.mark.parametrize("seed", range(4))
def test_whole_numbers_are_the_likeliest_of_all(seed: int) -> None:
    factor = _factor(4, 2, 1e-5, seed=seed, size=2.0)
    stream = np.random.default_rng(seed + 10)
    truth = stream.integers(-3, 4, 4).astype(float)
    values = truth + factor @ stream.standard_normal(factor.shape[1])
    precision = np.linalg.inv(factor @ factor.T)
    grid = [np.array(one, dtype=float) for one in itertools.product(range(-12, 13), repeat=4)]
    best = min(grid, key=lambda one: (one - values) @ precision @ (one - values))
    found = whole(values, factor)
    assert np.array_equal(found.values, best)
    assert np.array_equal(found.values, truth)
    assert found.sure


@pytest.mark.parametrize("told", [24, 18])
def test_many_whole_numbers_are_told_by_few_sharp_equations(told: int) -> None:
    # 8 bits each, of which the prior knows five: two dozen equations of 27 bits are 650, and what 60 numbers lack is less.
    factor = _factor(60, told, 1e-8)
    stream = np.random.default_rng(1)
    truth = stream.integers(0, 256, 60).astype(float)
    found = whole(truth + factor @ stream.standard_normal(factor.shape[1]), factor)
    assert is_sure(hardness(factor))
    assert found.sure
    assert np.array_equal(found.values, truth)


def test_what_is_not_told_is_not_sure() -> None:
    factor = _factor(30, 2, 1e-4)
    stream = np.random.default_rng(2)
    found = whole(100 * stream.random(30), factor)
    assert not is_sure(hardness(factor))
    assert not found.sure


def test_an_image_of_noise_is_told_by_units_that_look_at_parts_of_it() -> None:
    # Nothing is smooth here; three of four numbers are told by sharp local equations alone, a fourth by none.
    stream = torch.Generator().manual_seed(0)
    levels = torch.randint(256, (1, 12, 12), generator=stream).double() / 255
    layer = torch.nn.Conv2d(1, 3, 4, stride=2, padding=1).double()
    torch.nn.init.normal_(layer.weight, generator=stream)
    eye = torch.eye(144, dtype=torch.float64).reshape(144, 1, 12, 12)
    matrix = (layer(eye) - layer(0 * eye)).detach().reshape(144, -1).T
    told = matrix @ levels.reshape(-1)
    _, sizes, right = torch.linalg.svd(matrix)
    start = torch.linalg.lstsq(matrix, told[:, None], driver="gelsd").solution[:, 0]
    image = OpenImage(start=start, basis=right[len(sizes) :].T.contiguous(), shape=(1, 12, 12), inactive=None)
    code, precision = image.smooth(torch.zeros(image.dimensions, dtype=torch.float64))
    assert float((image.at(code) - levels.reshape(-1)).abs().max()) > 0.05

    def explains(guess: torch.Tensor) -> bool:
        return bool((matrix @ guess - told).abs().max() < 1e-9)

    grid = Grid(steps=255, error=1e-12, explains=explains)
    found = on_grid(image, code, precision, grid, lambda _: None)
    assert found is not None
    torch.testing.assert_close(found, levels.reshape(-1), rtol=0, atol=1e-12)
    # With an error of a level nothing is told, and nothing is claimed.
    assert on_grid(image, code, precision, Grid(steps=255, error=4e-3, explains=explains), lambda _: None) is None


@pytest.mark.timeout(60)
def test_a_window_that_nothing_open_moves_is_asked_once() -> None:
    # One open direction moves the last pixel by itself and all others by less than round-off.
    basis = torch.full((63, 1), 1e-8, dtype=torch.float64)
    basis[-1] = 1.0
    start = torch.full((63,), 0.5001, dtype=torch.float64)
    start[:-1] = torch.linspace(0, 1, 62, dtype=torch.float64).mul(255).round() / 255
    image = OpenImage(start=start, basis=basis / basis.norm(), shape=(1, 7, 9), inactive=None)
    zero, one = torch.zeros(1, dtype=torch.float64), torch.eye(1, dtype=torch.float64)
    told: list[int] = []
    grid = Grid(steps=255, error=1e-12, explains=lambda _: False)
    assert on_grid(image, zero, one, grid, told.append) is None
    assert 1 < len(told) < 63

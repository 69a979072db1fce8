"""Registration against shifts that are known."""

from __future__ import annotations

import pytest
import torch

from gradleak.attacks import NoRegistration, Translation
from gradleak.core import Domain, DomainKind


def _images(count: int, *shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 17, 12), (2, 5, 1)])
def test_every_shift_within_reach_is_undone_exactly(shape: tuple[int, ...]) -> None:
    domain = Domain.image(channels=shape[0], height=shape[1], width=shape[2])
    fixed = _images(4, *shape)
    reach = [min(3, (size - 1) // 2) for size in shape[1:]]
    shifts = [(0, 0), (reach[0], -reach[1]), (-reach[0], reach[1]), (reach[0], reach[1])]
    moving = torch.stack([image.roll(shift, dims=(-2, -1)) for image, shift in zip(fixed, shifts, strict=True)])
    assert torch.equal(Translation(largest=3)(moving, fixed, domain), fixed)


def test_noise_and_another_brightness_do_not_mislead_it() -> None:
    domain = Domain.image(channels=3, height=32, width=32)
    fixed = _images(1, 3, 32, 32)
    noise = torch.randn(fixed.shape, generator=torch.Generator().manual_seed(1))
    moving = (0.5 * fixed + 0.3 + 0.2 * noise).roll((2, -4), dims=(-2, -1))
    found = Translation()(moving, fixed, domain)
    assert torch.equal(found, moving.roll((-2, 4), dims=(-2, -1)))


def test_shifts_beyond_reach_are_not_looked_at() -> None:
    domain = Domain.image(channels=1, height=16, width=16)
    fixed = _images(1, 1, 16, 16)
    moving = fixed.roll((6, 0), dims=(-2, -1))
    found = Translation(largest=2)(moving, fixed, domain)
    allowed = [moving.roll((a, b), dims=(-2, -1)) for a in range(-2, 3) for b in range(-2, 3)]
    assert any(torch.equal(found, image) for image in allowed)


def test_what_is_no_image_stays() -> None:
    table = Domain(shape=(6,), kind=DomainKind.TABULAR)
    row = _images(2, 6)
    assert torch.equal(Translation()(row.roll(1, dims=1), row, table), row.roll(1, dims=1))
    image = Domain.image(channels=1, height=8, width=8)
    moving = _images(1, 1, 8, 8)
    assert torch.equal(NoRegistration()(moving, _images(1, 1, 8, 8, seed=5), image), moving)

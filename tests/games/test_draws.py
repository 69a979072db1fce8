"""Small helpers of draws."""

from __future__ import annotations

import pytest
import torch

from gradleak.games.reading import digits


@pytest.mark.parametrize(
    ("count", "entries", "width"), [(2, 1, 1), (3, 1, 1), (3, 2, 2), (61, 5, 4), (61, 9, 6), (9, 2, 2)]
)
def test_digits_tell_all_numbers_apart_in_the_room_there_is(count: int, entries: int, width: int) -> None:
    written = digits(torch.arange(count), count, entries)
    assert written.shape == (count, width)
    assert len(written.unique(dim=0)) == count
    assert float(written.min()) == 0.0
    assert float(written.max()) <= 1.0

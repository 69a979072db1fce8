"""Total variation against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from gradleak.attacks import TotalVariation
from gradleak.core import Domain, DomainKind
from gradleak.results import InputError


def test_an_image_by_hand() -> None:
    image = torch.tensor([[[[0.0, 1.0, 3.0], [2.0, 2.0, 2.0]]]])
    # Along rows: |1| |2| |0| |0|, mean 3/4; along columns: |2| |1| |1|, mean 4/3.
    domain = Domain.image(channels=1, height=2, width=3)
    assert float(TotalVariation(weight=1.0)(image, domain)) == pytest.approx(3 / 4 + 4 / 3)
    assert float(TotalVariation(weight=0.5)(image, domain)) == pytest.approx((3 / 4 + 4 / 3) / 2)


def test_channels_and_examples_are_averaged() -> None:
    ramp = torch.arange(4.0).reshape(1, 1, 1, 4).expand(2, 3, 5, 4).clone()
    ramp[1] *= 3
    domain = Domain.image(channels=3, height=5, width=4)
    assert float(TotalVariation(weight=1.0)(ramp, domain)) == pytest.approx((1 + 3) / 2)


def test_a_signal_has_one_axis_and_a_table_none() -> None:
    numbers = torch.tensor([[[0.0, 2.0, 3.0]]])
    signal = Domain(shape=(1, 3), kind=DomainKind.SIGNAL)
    assert float(TotalVariation(weight=1.0)(numbers, signal)) == pytest.approx(1.5)
    table = Domain(shape=(1, 3), kind=DomainKind.TABULAR)
    assert float(TotalVariation(weight=1.0)(numbers, table)) == 0.0


def test_an_image_of_one_pixel_has_none() -> None:
    domain = Domain.image(channels=1, height=1, width=1)
    assert float(TotalVariation(weight=1.0)(torch.ones(1, 1, 1, 1), domain)) == 0.0


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(InputError, match="at least 0"):
        TotalVariation(weight=-1.0)

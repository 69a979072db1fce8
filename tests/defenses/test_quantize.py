from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.defenses.setting import batch, generator, objective

from gradleak.core import Exposure, NotGaussian, Release
from gradleak.defenses import GaussianNoise, Quantize
from gradleak.protocols import FedSGD
from gradleak.results import InputError, Outcome
from gradleak.risk import InversionInfluence

VALUES = torch.randn(500, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def reach(values: torch.Tensor, defense: Quantize) -> float:
    if defense.limit is not None:
        return defense.limit
    return float(values.abs().max() if defense.range == "largest" else values.norm())


@pytest.mark.parametrize(
    "defense",
    [
        Quantize(bits=2),
        Quantize(bits=4, range="norm"),
        Quantize(bits=8),
        Quantize(bits=3, limit=0.7),
        Quantize(bits=4, stochastic=False),
        Quantize(bits=3, stochastic=False, limit=0.7),
    ],
    ids=repr,
)
def test_every_entry_is_on_the_grid_next_to_where_it_was(defense: Quantize) -> None:
    drawn = defense.draw({"w": VALUES}, generator())["w"].numpy()
    step = reach(VALUES, defense) / (2 ** (defense.bits - 1) - 1)
    levels = drawn / step
    assert np.allclose(levels, levels.round(), atol=1e-9)
    assert np.abs(levels).max() <= 2 ** (defense.bits - 1) - 1 + 1e-9
    given = VALUES.numpy().clip(-reach(VALUES, defense), reach(VALUES, defense))
    assert np.abs(drawn - given).max() <= step * (0.5 if not defense.stochastic else 1.0) + 1e-12


def test_rounding_to_nearest_is_numpys() -> None:
    found = Quantize(bits=8, stochastic=False).mean({"w": VALUES})["w"]
    step = float(VALUES.abs().max()) / 127
    assert np.allclose(found.numpy(), np.round(VALUES.numpy() / step) * step, rtol=0, atol=1e-12)


def test_stochastic_rounding_keeps_the_mean_and_the_largest_entry() -> None:
    defense, random = Quantize(bits=2), generator()
    draws = torch.stack([defense.draw({"w": VALUES}, random)["w"] for _ in range(4000)])
    error = (defense.variance({"w": VALUES})["w"] / 4000).sqrt()
    assert bool(((draws.mean(dim=0) - VALUES).abs() <= 5 * error + 1e-12).all())
    assert bool((draws[:, VALUES.abs().argmax()] == VALUES[VALUES.abs().argmax()]).all())


def test_a_zero_tensor_stays_zero() -> None:
    zero = {"w": torch.zeros(4)}
    for stochastic in (True, False):
        assert not bool(Quantize(bits=4, stochastic=stochastic).draw(zero, generator())["w"].any())


def test_what_closed_form_measures_say_of_it() -> None:
    known, data = objective(), batch(1)
    delta = torch.randn(known.size, generator=generator(), dtype=torch.float64)
    plain = InversionInfluence()(Exposure(known, data, Release(FedSGD())), delta=delta)
    random = InversionInfluence()(Exposure(known, data, Release(FedSGD(), [Quantize(bits=8)])), delta=delta)
    nearest = InversionInfluence()(
        Exposure(known, data, Release(FedSGD(), [Quantize(bits=8, stochastic=False)])), delta=delta
    )
    assert random.value == pytest.approx(plain.value)
    assert nearest.outcome is Outcome.NOT_INFORMATIVE
    law = Release(FedSGD(), [GaussianNoise(std=0.1), Quantize(bits=8)]).noise(known)
    assert isinstance(law, NotGaussian)
    assert "passes through Quantize" in law.reason
    assert Quantize(bits=8, stochastic=False).flat
    assert not Quantize(bits=8).flat


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bits": 1}, r"bits: expected a whole number from 2 to 16, got 1"),
        ({"bits": 2.5}, r"bits: expected a whole number"),
        ({"bits": 4, "range": "mean"}, r"range: expected one of largest, norm, got 'mean'"),
        ({"bits": 4, "limit": 0.0}, r"limit: expected a finite positive number, got 0.0"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Quantize(**arguments)

"""Attackers who learn from gradients without the defense that the gradients went through."""

from __future__ import annotations

import math

import pytest
import torch

from gradleak.attacks import LogisticRegression
from gradleak.results import InputError
from gradleak.risk import LatentInformation

MEASURE = LatentInformation(classifier=LogisticRegression(), folds=3, resamples=100)


def test_static_attacker_is_misled_where_an_adaptive_one_is_not() -> None:
    generator = torch.Generator().manual_seed(0)
    attribute = torch.arange(120) % 2
    plain = {"0": torch.randn(120, 4, generator=generator) / 4 + attribute[:, None] - 0.5}
    # A defense that turns every sign: whoever knows of it loses nothing.
    shown = {"0": -plain["0"]}
    adaptive = MEASURE(shown, attribute).scores["0"]
    static = MEASURE(shown, attribute, learned_from=plain).scores["0"]
    assert adaptive.value == pytest.approx(math.log(2.0), abs=0.1)
    assert static.value == 0.0
    assert static.details["accuracy"] < 0.2
    assert static.details["unclipped"] < 0.0


def test_learning_from_what_is_shown_is_the_default() -> None:
    generator = torch.Generator().manual_seed(1)
    attribute = torch.arange(60) % 2
    shown = {"0": torch.randn(60, 3, generator=generator) + attribute[:, None]}
    assert MEASURE(shown, attribute).scores == MEASURE(shown, attribute, learned_from=shown).scores


def test_another_layout_is_refused() -> None:
    attribute = torch.arange(60) % 2
    with pytest.raises(
        InputError, match=r"learned_from: expected the layout of the gradients, .*\(60, 3\).*, got .*\(60, 2\)"
    ):
        MEASURE({"0": torch.zeros(60, 3)}, attribute, learned_from={"0": torch.zeros(60, 2)})

"""The committed table of the documentation is what a sweep finds."""

from __future__ import annotations

import pytest
import torch

from tools.support_matrix import PAGE as FILE
from tools.support_matrix import TORCH, Case, as_markdown, as_row, cases, exposure_of, support_of, sweep

PAGE = FILE.read_text(encoding="utf-8")
REPRESENTATIVE = (
    "Conv2d", "BatchNorm2d, train", "GroupNorm", "Embedding (tokens as floats)", "GRU", "LSTM", "MultiheadAttention",
    "TransformerEncoderLayer, train (dropout)", "MaxPool2d", "ReLU", "x += skip, then ReLU in place",
    "Dropout, train (fixed mask)",
)  # fmt: skip

with_the_torch_of_the_page = pytest.mark.skipif(f"torch {TORCH} " not in PAGE, reason="the page is of another torch")


@with_the_torch_of_the_page
@pytest.mark.parametrize("case", [case for case in cases() if case.name in REPRESENTATIVE], ids=lambda case: case.name)
def test_rows_of_the_page(case: Case) -> None:
    assert as_row(support_of(case)) in PAGE.splitlines()


@pytest.mark.slow
@with_the_torch_of_the_page
def test_the_whole_page() -> None:
    assert as_markdown(list(sweep())) == PAGE


def test_every_layer_has_a_row_and_every_row_a_right_value() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "| equal | converged |" in line]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == [case.name for case in cases()]


@pytest.mark.usefixtures("global_rng_unchanged")
def test_cases_are_small_and_the_same_every_time() -> None:
    for case in cases():
        exposure = exposure_of(case)
        assert exposure.objective.size < 500
        assert torch.equal(exposure.released_mean(), exposure_of(case).released_mean())

"""How plots are drawn."""

from __future__ import annotations

import pytest

from gradleak.reporting.drawing import TickLabels


@pytest.mark.parametrize(
    ("ticks", "labels"),
    [
        ([0.0, 2.5, 5.0, 7.5, 10.0, 12.5], ["0", "2.5", "5", "7.5", "10", "12.5"]),
        ([-0.2, 1e-17, 0.2], ["−0.2", "0", "0.2"]),  # noqa: RUF001
        ([1e-6, 1e-3, 1.0, 1e3], ["10⁻⁶", "0.001", "1", "1,000"]),
        ([8, 16, 125], ["8", "16", "125"]),
    ],
)
def test_ticks_are_labeled_with_the_number_at_which_they_stand(ticks: list[float], labels: list[str]) -> None:
    assert TickLabels().format_ticks(ticks) == labels

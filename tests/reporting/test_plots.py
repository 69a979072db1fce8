from __future__ import annotations

import re

import pytest
from gradleak.reporting.plots import TradeOff, noise_plot, spectrum_plot, standalone, trade_off_plot
from gradleak.reporting.report import Report
from gradleak.reporting.risk_view import NoiseStudy, Spectrum
from tests.reporting.parsed import Page

from gradleak.reporting.drawing import TickLabels


def spectrum(label: str, eigenvalues: list[float]) -> Spectrum:
    return Spectrum(example=0, label=label, eigenvalues=eigenvalues, rank=None, size=len(eigenvalues), entries=None)


def test_plots_take_their_colors_from_the_page(report: Report) -> None:
    for text in (noise_plot(report.noise), spectrum_plot(report.spectra)):
        Page(text)
        bare = re.sub(r"var\(--[a-z0-9-]+, #[0-9a-f]+\)", "", text)
        assert re.findall(r"#[0-9a-f]{6}\b", bare) == []
        assert "currentColor" in text
        assert "<style" not in text
        assert "DejaVu" not in text


def test_plots_are_the_same_each_time_and_hold_no_date(report: Report) -> None:
    for plot, data in ((noise_plot, report.noise), (spectrum_plot, report.spectra)):
        assert plot(data) == plot(data)  # type: ignore[arg-type]
        assert "<metadata" not in plot(data)  # type: ignore[arg-type]
        assert re.search(r"20\d\d-\d\d", plot(data)) is None  # type: ignore[arg-type]


def test_every_series_is_named(report: Report) -> None:
    text = noise_plot(report.noise)
    for name in ("predicted by I²F", "perfect attacker", "real attack", "lower bound", "blind baseline"):
        assert name in text


def test_without_data_there_is_no_plot() -> None:
    assert noise_plot(NoiseStudy(levels=[], compared=0, difference=None)) == ""
    assert spectrum_plot([]) == ""
    assert spectrum_plot([spectrum("dead", [0.0, 0.0])]) == ""


def test_names_are_text_and_no_formula() -> None:
    text = spectrum_plot([spectrum("<b>$\\frac$&", [3.0, 2.0, 0.0])])
    Page(text)
    assert "&lt;b&gt;$\\frac$&amp;" in text


def test_many_spectra_do_without_legend() -> None:
    assert "example 1" not in spectrum_plot([spectrum(f"example {k}", [2.0, 1.0]) for k in range(13)])


def test_a_trade_off_has_a_panel_an_attacker_and_marks_what_earns_no_credit() -> None:
    points = [
        TradeOff(family="pruning", label="0.9", utility=0.9, interval=(0.8, 0.95), error=0.2, credit=True),
        TradeOff(family="pruning", label="0.99", utility=0.1, interval=None, error=0.0, credit=False),
        TradeOff(family="sign $x", label="sign", utility=0.8, interval=(0.7, 0.9), error=None, credit=True),
    ]
    text = trade_off_plot({"static attacker": points, "adaptive attacker": points[:1]}, utility="test AUROC", blind=0.3)
    Page(text)
    for name in ("static attacker", "adaptive attacker", "pruning", "test AUROC"):
        assert name in text
    assert "sign $x" not in text
    assert trade_off_plot({"static": points[2:]}) == ""
    alone = standalone(text)
    assert "var(" not in alone
    assert "currentColor" not in alone
    assert alone.startswith('<svg xmlns="http://www.w3.org/2000/svg"')


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
